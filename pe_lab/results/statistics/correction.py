"""Correction of p values for multiple comparisons, and the verdicts that follow from it."""

import numpy as np
import pandas as pd

from pe_lab.results.columns import lower_is_better
from pe_lab.results.statistics.intervals import CONFIDENCE


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values by Holm's method (1979): the smallest times their number, the next times one less, and so on.

    NaN stays NaN and is not counted.
    """
    order = np.argsort(p)[: np.isfinite(p).sum()]
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def add_verdicts(lines: pd.DataFrame, corrected: np.ndarray, metric: str) -> pd.DataFrame:
    """Add the columns p_holm and verdict to lines of differences.

    Args:
        lines: from `paired.differences`.
        corrected: p values after correction, one per line.
        metric: decides whether lower is better.
    """
    down = lines["difference"] < 0
    direction = np.where(down == lower_is_better(metric), "better", "worse")
    verdict = np.where(corrected < 1 - CONFIDENCE, direction, "not separable")
    found = lines.assign(p_holm=corrected, verdict=verdict)
    found.loc[found["seeds"] == 1, "verdict"] = "one seed"
    found.loc[found["seeds"] == 0, "verdict"] = "no shared seed"
    found.loc[(found["seeds"] > 1) & found["p"].isna(), "verdict"] = "equal"
    return found
