"""What of the benchmark is measured: scores, and pairs of encoding and task with their number of seeds."""

from pathlib import Path

import pandas as pd

from pe_lab.benchmark.score import scores
from pe_lab.benchmark.tasks import NAME, tasks
from pe_lab.results import shipped

ENOUGH = 3  # seeds of a pair that counts as measured


def measured(folder: Path | None = None) -> pd.DataFrame:
    """Return the scores of all shipped cells, with their task; see `scores`.

    Args:
        folder: of the shipped results; None: that of the package.

    Raises:
        LedgerError: they were changed.
    """
    present = set(shipped.studies(folder))
    parts = [
        scores(shipped.read(task.study, folder)).assign(task=task.name) for task in tasks() if task.study in present
    ]
    return pd.concat(parts, ignore_index=True) if parts else scores([]).assign(task="")


def coverage(folder: Path | None = None) -> str:
    """Return a table: a line per encoding, its mean score on each task at the training length, best mean first."""
    found = measured(folder)
    found = found[found["length"] == 1]
    if found.empty:
        return f"{NAME}: no cell is shipped yet"
    table = found.pivot_table(index="pe", columns="task", values="score", aggfunc="mean", sort=False)
    table = table[[task.name for task in tasks() if task.name in table]]
    order = table.rank().mean(axis=1).sort_values(ascending=False, kind="stable").index
    seeds = found.groupby(["task", "pe"])["seed"].nunique()
    line = (
        f"{NAME}: {len(found)} cells, {(seeds >= ENOUGH).sum()} pairs of encoding and task with {ENOUGH} seeds or more"
    )
    return f"{table.loc[order].round(3).fillna('').to_string()}\n\n{line}"
