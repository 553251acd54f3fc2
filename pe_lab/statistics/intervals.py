"""Confidence intervals of means over seeds."""

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.statistics.verdicts import LEVEL

MIN_SHOWN_SEEDS = 3  # of an interval that is shown: with two seeds, half of it is 6.4 times their distance


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the t interval of the mean; NaN for fewer than two values, and where one is not finite."""
    if len(values) < 2 or not np.isfinite(values.to_numpy(float)).all():
        return float("nan"), float("nan")
    error = float(values.to_numpy(float).std(ddof=1) / np.sqrt(len(values)))
    if error == 0 or values.nunique() == 1:
        return values.iloc[0], values.iloc[0]
    confidence = 1 - LEVEL
    ends = special.stdtrit(len(values) - 1, [(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = values.mean() + error * ends
    return float(low), float(high)
