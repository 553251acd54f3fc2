"""What came out: the ledger of cells, and the tables made of it."""
