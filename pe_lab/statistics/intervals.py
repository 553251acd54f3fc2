"""Confidence intervals of means over seeds."""

import numpy as np
import pandas as pd
from scipy import stats

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
