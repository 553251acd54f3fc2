"""The ledger: training runs, checkpoints and records as files. `python -m pe_lab.ledger verify | prune`."""
