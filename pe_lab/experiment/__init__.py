"""Cells of a study are trained, measured and written to a ledger.

What calls what when `pe-lab run` trains a cell:

    run.HydraTask             composes the cells of the command line
    sweep.run                 leaves out pairs that do not fit, and makes the stages of the study
    rounds.drive              resumes a stage with the outcomes of its last round
    sweep._Rounds.serve       requests the checkpoints of a round's cells, starts workers, collects outcomes
    job.Job.serve             waits for the lease of the cell's run, or takes it
    executor.Executor         trains the run to its requested checkpoints, in order: `train_requested`
      ._start                 makes the training at the newest stored state
      ._proceed               finishes the checkpoints that are reached: evaluates, writes, measures
      ._fit                   runs Lightning's loop; its callback `Checkpoints` calls `_proceed` at each target

`Executor.train_requested` calls `_proceed` too, before the loop: the stored state may be at a checkpoint. A cell is
described by cell.py, its identity by identity.py; tuning.py and deciding.py are studies in rounds.
"""
