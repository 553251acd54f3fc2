"""Confidence intervals of means over seeds, and how often they contain the true mean."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.statistics.cells import by_setting, wide
from pe_lab.statistics.verdicts import LEVEL


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the t interval of the mean; NaN for fewer than two values, and where one is not finite."""
    if len(values) < 2 or not np.isfinite(values.to_numpy(float)).all():
        return float("nan"), float("nan")
    error = float(stats.sem(values))
    if error == 0 or values.nunique() == 1:
        return values.iloc[0], values.iloc[0]
    low, high = stats.t.interval(1 - LEVEL, len(values) - 1, loc=values.mean(), scale=error)
    return float(low), float(high)


def t_intervals(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the t intervals of many samples at once: samples [n, seeds] to low, high [n]."""
    half = stats.t.ppf(1 - LEVEL / 2, samples.shape[1] - 1) * stats.sem(samples, axis=1)
    return samples.mean(1) - half, samples.mean(1) + half


def percentile_bootstraps(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return percentile bootstrap intervals of many samples, from 1,000 resamples; no verdict uses them."""
    chosen = np.random.default_rng(1).integers(samples.shape[1], size=(1000, samples.shape[1]))
    weights = (chosen[:, :, None] == np.arange(samples.shape[1])).mean(1)  # of each value in each resample
    means = samples @ weights.T
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2], axis=1)
    return low, high


def coverage(
    seeds: int,
    residuals: np.ndarray,
    method: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    draws: int = 20_000,
) -> float:
    """Simulate how often an interval contains the mean.

    Args:
        seeds: size of a sample.
        residuals: values that samples are drawn from, with replacement.
        method: computes intervals: samples [draws, seeds] to low, high [draws].
        draws: number of samples.
    """
    samples = np.random.default_rng(0).choice(residuals, (draws, seeds))
    low, high = method(samples)
    # rounding: without this slack, an interval of equal values would miss its own mean
    slack = 1e-12 * np.abs(residuals).max()
    return float(np.mean((low - slack <= residuals.mean()) & (residuals.mean() <= high + slack)))


def deviations(rows: pd.DataFrame, metric: str = "loss") -> np.ndarray:
    """Return the differences from the first encoding, centred and scaled to deviation 1 within each setting."""
    parts = []
    for _, table in by_setting(wide(rows, metric)):
        for name in table.columns[1:]:
            difference = (table[name] - table[table.columns[0]]).dropna()
            if len(difference) > 2 and difference.std() > 0:
                scale = difference.std() * np.sqrt((len(difference) - 1) / len(difference))
                parts.append((difference - difference.mean()) / scale)
    return np.concatenate(parts) if parts else np.array([])
