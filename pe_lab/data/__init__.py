"""Datasets. base.py is the contract; every other file has one dataset or one family of them."""
