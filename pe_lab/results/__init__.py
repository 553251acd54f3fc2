"""What came out: the ledger as tidy frames, and the statistics, figures and tables made of them."""
