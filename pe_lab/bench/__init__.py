"""Benchmarks of training, kernels and ledger, and fault injection: python -m pe_lab.bench."""
