"""Datasets. `base` is the contract; other files have one dataset or a family of them, except those named here.

Bases of several datasets: `problem` (problems of many sizes), `hashed` (a hash assigns sequences to splits), `labelled`
(sequences with a class), which `labelled_csv` reads and `linear_models` gives floors to.
Metrics and scores: `metric`, `score`. Random draws: `seeding`. Files of a dataset: `export`.
Text is a package of its own, `text`.
"""
