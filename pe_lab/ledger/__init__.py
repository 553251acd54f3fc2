"""The ledger: what is trained and measured, kept as files: python -m pe_lab.ledger verify | prune."""
