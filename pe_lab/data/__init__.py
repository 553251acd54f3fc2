"""Datasets: base.py is what they share, each other file one of them."""
