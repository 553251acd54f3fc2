"""Positional encodings: base.py defines the interface, layout.py the positions of tokens, each other file a family."""
