"""Corrections of p values over a family: the last axis of an array."""

import numpy as np


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values by Holm's method (1979), which bounds the chance of any wrong rejection in the family.

    Args:
        p: p values [..., family]; NaN stays NaN and is not counted.
    """
    ordered, order, count = _sort_p(p)
    factors = np.maximum(count - np.arange(p.shape[-1]), 1)
    return _restore_order(p, np.minimum(np.maximum.accumulate(ordered * factors, -1), 1.0), order)


def holm_levels(p: np.ndarray, level: float) -> np.ndarray:
    """Return the level at which Holm's method tests each p value of one family.

    An interval of 1 minus this level excludes the null value if and only if the corrected p value is below `level`.

    Args:
        p: p values [family], without NaN.
        level: the level of the family.
    """
    ranks = np.argsort(np.argsort(p, kind="stable"), kind="stable")
    rejected = int((holm(p) < level).sum())
    return level / (len(p) - np.minimum(ranks, rejected))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Correct p values for the false discovery rate: the expected share of wrong rejections (1995).

    Args:
        p: p values [..., family]; NaN stays NaN and is not counted.
    """
    ordered, order, count = _sort_p(p)
    scaled = np.minimum(ordered * np.maximum(count / np.arange(1, p.shape[-1] + 1), 1.0), 1.0)
    return _restore_order(p, np.minimum.accumulate(scaled[..., ::-1], -1)[..., ::-1], order)


def _sort_p(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ascending p values with 1 for NaN, their order, and the number of those that are not NaN [..., 1]."""
    finite = ~np.isnan(p)
    order = np.argsort(np.where(finite, p, 2.0), axis=-1, kind="stable")
    return np.take_along_axis(np.where(finite, p, 1.0), order, -1), order, finite.sum(-1, keepdims=True)


def _restore_order(p: np.ndarray, ordered: np.ndarray, order: np.ndarray) -> np.ndarray:
    corrected = np.empty(p.shape)
    np.put_along_axis(corrected, order, ordered, -1)
    return np.where(np.isnan(p), np.nan, corrected)
