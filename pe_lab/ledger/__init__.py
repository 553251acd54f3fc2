"""The ledger: training runs, checkpoints and records as files. `pe-lab ledger verify | prune`."""
