"""Correction of p values for multiple comparisons, and the verdicts that follow from it."""

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.results.columns import lower_is_better
from pe_lab.results.statistics.intervals import CONFIDENCE

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
WITHIN = ", within the margin"
EQUAL, ONE_SEED, NO_SEED = "equal", "one seed", "no shared seed"
ALIKE = (EQUIVALENT, BETTER + WITHIN, WORSE + WITHIN, EQUAL)  # the difference is certainly too small to matter


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values by Holm's method (1979): the smallest times their number, the next times one less, and so on.

    NaN stays NaN and is not counted.
    """
    order = np.argsort(p)[: np.isfinite(p).sum()]
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Correct p values for the false discovery rate, by the method of Benjamini and Hochberg (1995).

    Among all with a corrected value below 0.05, at most one in twenty is expected to be wrong; Holm's method keeps the
    chance of a single wrong one below 0.05. Between all pairs of many encodings, p values are dependent: error rates
    are simulated in sweeps/results/shared_variance.md. NaN stays NaN and is not counted.
    """
    known = np.isfinite(p)
    adjusted = np.full(len(p), np.nan)
    if known.any():
        adjusted[known] = stats.false_discovery_control(p[known])
    return adjusted


def add_verdicts(
    lines: pd.DataFrame, metric: str, different: np.ndarray | None = None, equivalent: np.ndarray | None = None
) -> pd.DataFrame:
    """Add the columns p_holm, p_equivalent_holm and verdict to lines of differences.

    Args:
        lines: from `equivalence.add_equivalence`.
        metric: decides whether lower is better.
        different: p values of the differences after correction, one per line; None: these lines are the family.
        equivalent: likewise, p values of equivalence.

    Returns:
        The lines, with one of these verdicts: better, worse (the difference is certain); equivalent (certainly smaller
        than the margin); "better, within the margin", "worse, within the margin" (both are certain); undecided
        (neither is); equal (the same bits in every seed), one seed, no shared seed.
    """
    different = holm(lines["p"].to_numpy()) if different is None else different
    equivalent = holm(lines["p_equivalent"].to_numpy()) if equivalent is None else equivalent
    certain, small = different < 1 - CONFIDENCE, equivalent < 1 - CONFIDENCE
    direction = np.where((lines["difference"] < 0) == lower_is_better(metric), BETTER, WORSE).astype(object)
    verdict = np.select(
        [certain & small, certain, small], [direction + WITHIN, direction, EQUIVALENT], default=UNDECIDED
    )
    found = lines.assign(p_holm=different, p_equivalent_holm=equivalent, verdict=verdict)
    found.loc[found["seeds"] == 1, "verdict"] = ONE_SEED
    found.loc[found["seeds"] == 0, "verdict"] = NO_SEED
    found.loc[(found["seeds"] > 1) & found["p"].isna(), "verdict"] = EQUAL
    return found


def direction(verdict: str) -> str:
    """Return better or worse for a difference that is certain, whatever its size; otherwise an empty text."""
    word = verdict.removesuffix(WITHIN)
    return word if word in (BETTER, WORSE) else ""


def reverse(verdict: str) -> str:
    """Return the verdict on the same two encodings in the other order."""
    word = direction(verdict)
    return verdict.replace(word, WORSE if word == BETTER else BETTER) if word else verdict
