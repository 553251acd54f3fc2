"""Decide between encodings with few seeds: sequential tests whose error rates hold although one looks again and again.

Nothing here knows the ledger, or torch: decisions are functions of numbers. `looks` imports nothing heavy.
"""
