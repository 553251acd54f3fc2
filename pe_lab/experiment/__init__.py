"""Train and measure the cells of a study, and write them to a ledger.

"From a command to a row" in CONTRIBUTING.md says what calls what. Inside of `executor.Executor.train_requested`:

    _start             makes the training at the newest stored state
    _finish_reached    finishes the checkpoints that are reached: evaluates, writes, measures
    _fit               runs Lightning's loop; its callback `Checkpoints` calls `_finish_reached` at each target

`train_requested` calls `_finish_reached` too, before the loop: the stored state may be at a checkpoint. A cell is
described by cell.py, its identity by identity.py; tuning.py and added_seeds.py are studies in rounds.
"""
