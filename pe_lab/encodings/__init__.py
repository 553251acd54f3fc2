"""Positional encodings: base.py is the contract, layout.py says where tokens are, each other file is a family."""
