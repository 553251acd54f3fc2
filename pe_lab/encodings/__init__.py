"""Positional encodings: base.py is the contract, each other file a family."""
