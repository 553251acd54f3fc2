"""Which encodings an encoding is like: in its scores over the tasks, and in its properties without training."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

COLUMNS = ["pe", "correlation", "tasks", "properties", "measures"]
LEAST = 5  # tasks and lengths, or measures, that two encodings must share


def resemblance(pe: str, scores: pd.DataFrame, properties: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return how much every other encoding is like one, the likest first.

    Args:
        pe: an encoding.
        scores: with the columns task, length, pe and score.
        properties: measures of the audit by encoding; may lack some encodings.

    Returns:
        A line per other encoding: pe; correlation (Pearson's, of mean scores over tasks and lengths, each standardized
        over all encodings), tasks (their number); properties (1 minus the mean distance of ranks in the measures of the
        audit, as a share of all encodings: 1 is the same in each), measures (their number). NaN below 5.
    """
    means = scores.pivot_table(index=["task", "length"], columns="pe", values="score", aggfunc="mean", sort=False)
    means = means.reindex(columns=scores["pe"].unique())  # those without a score too
    deviation = means.std(axis=1).replace(0, np.nan)
    standard = means.sub(means.mean(axis=1), axis=0).div(deviation, axis=0)
    ranks = pd.DataFrame(properties).rank(axis=1, pct=True)
    found = []
    for other in (name for name in means if name != pe):
        both = standard[[pe, other]].dropna()
        line = {"pe": other, "correlation": _correlation(both), "tasks": len(both)}
        shared = ranks[[pe, other]].dropna() if {pe, other} <= set(ranks) else ranks.iloc[:0, :0]
        near = 1 - (shared[pe] - shared[other]).abs().mean() if len(shared) >= LEAST else float("nan")
        found.append(line | {"properties": near, "measures": len(shared)})
    lines = pd.DataFrame(found, columns=COLUMNS)
    return lines.sort_values("correlation", ascending=False, kind="stable", ignore_index=True)


def _correlation(both: pd.DataFrame) -> float:
    """Return Pearson's correlation of two columns; NaN for few lines, or where one column has one value."""
    if len(both) < LEAST or (both.std() == 0).any():
        return float("nan")
    return float(np.corrcoef(both.to_numpy().T)[0, 1])
