"""Analysis of variance: how much of the variation is due to encoding, depth and epochs."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.statistics.cells import metric_column, setting_columns
from pe_lab.statistics.intervals import interval

FACTORS = ("pe", "depth", "epochs")


def effects(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Return the share of the variation that is due to encoding, depth and epochs, alone and together.

    For each seed, an analysis of variance of its grid splits the sum of squares into effects. The shares are averaged
    over seeds, with their t interval, so cells of one seed do not count as independent. The highest interaction
    contains the noise.

    Returns:
        A line per effect: effect, share (0 to 1), low, high, seeds. Empty where fewer than two factors vary, something
        else varies, or no seed has a complete grid.

    Raises:
        ValueError: there is no such metric.
    """
    measured = metric_column(rows, metric)
    factors = [name for name in FACTORS if rows[name].nunique() > 1]
    if any(rows[name].nunique(dropna=False) > 1 for name in setting_columns(rows) if name not in FACTORS):
        factors = []  # a task or a learning rate that varies with depth would count as an effect of depth
    shares = _shares_per_seed(rows, measured, factors) if len(factors) > 1 else []
    lines = []
    for chosen, share in zip(_subsets(factors), np.transpose(shares) if shares else [], strict=False):
        low, high = interval(pd.Series(share))
        effect = " × ".join(chosen) + (" and noise" if len(chosen) == len(factors) else "")
        lines.append({"effect": effect, "share": share.mean(), "low": low, "high": high, "seeds": len(share)})
    return pd.DataFrame(lines, columns=["effect", "share", "low", "high", "seeds"])


def _shares_per_seed(rows: pd.DataFrame, measured: str, factors: list[str]) -> list[np.ndarray]:
    """Return the shares of all effects for each seed whose grid is complete and not constant."""
    sizes = [rows[name].nunique() for name in factors]
    shares = []
    for _, cells in rows.groupby("seed"):
        values = cells.sort_values(factors)[measured].to_numpy()
        complete = len(cells) == np.prod(sizes) and not cells.duplicated(factors).any() and np.isfinite(values).all()
        if complete and np.ptp(values) > 0:
            squares = _sums_of_squares(values.reshape(sizes))
            shares.append(squares / squares.sum())
    return shares


def _sums_of_squares(values: np.ndarray) -> np.ndarray:
    """Return the sums of squares of a complete grid's effects, which are orthogonal, in the order of `_subsets`."""
    rest, squares = values - values.mean(), []
    for chosen in _subsets(range(values.ndim)):
        effect = rest.mean(axis=tuple(axis for axis in range(values.ndim) if axis not in chosen), keepdims=True)
        rest = rest - effect
        squares.append(np.square(effect).sum() * values.size / effect.size)
    return np.array(squares)


def _subsets(factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return all non-empty subsets, smaller ones first."""
    return [chosen for size in range(1, len(factors) + 1) for chosen in combinations(factors, size)]
