"""pe_lab: what a positional encoding does to a transformer."""

__version__ = "0.1.0"
