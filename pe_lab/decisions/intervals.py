"""Intervals of differences after a sequential study stopped."""

import numpy as np
from scipy import special

# 1 - confidence of a t interval, such that after stopping it covers the difference in 95 % of studies: chosen by
# simulation, see docs/decisions.md. A comparison that is decided early was often decided by chance in one direction.
FIRST, MIDDLE, LAST = 0.045, 0.030, 0.045
USUAL = 0.05


def tail(look: np.ndarray, looks: int, decided: np.ndarray | bool = True) -> np.ndarray:
    """Return 1 - confidence of the t interval of comparisons that stopped at a look.

    Args:
        look: index of the look at which they stopped.
        looks: number of looks of the design.
        decided: whether they stopped because they were decided. Those that were not stand as at the last look.
    """
    if looks == 1:
        return np.full(np.shape(look), USUAL)
    ended = (look == looks - 1) | ~np.asarray(decided)
    return np.where(ended, LAST, np.where(look == 0, FIRST, MIDDLE))


def half_width(deviation: np.ndarray, freedom: np.ndarray, seeds: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Return half the width of t intervals.

    Args:
        deviation: standard deviations of the differences.
        freedom: their degrees of freedom.
        seeds: numbers of differences, from 2.
        tails: 1 - confidence.
    """
    quantile: np.ndarray = special.stdtrit(freedom, 1 - tails / 2)
    return quantile * deviation / np.sqrt(seeds)
