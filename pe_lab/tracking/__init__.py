"""Loggers of Lightning for W&B and CSV, and the figures that runs log."""
