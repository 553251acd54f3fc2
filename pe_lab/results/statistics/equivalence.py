"""Two one-sided tests: is a difference certainly smaller than the margin?"""

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.results.columns import setting_columns
from pe_lab.results.statistics.margin import Margin, keys_of, margins


def add_equivalence(
    lines: pd.DataFrame, rows: pd.DataFrame, metric: str = "loss", margin: Margin | None = None
) -> pd.DataFrame:
    """Add the columns margin (in the unit of the metric) and p_equivalent to lines of differences.

    Args:
        lines: from `paired.differences`.
        rows: the cells that these were made of.
        metric: their metric.
        margin: None: the default of each task.

    Returns:
        The lines; their attribute "margin" is the margin in words. p_equivalent is NaN where there is no p, or no
        margin.

    Raises:
        ValueError: the margin has another unit than the metric, or a setting has no gap.
    """
    names = setting_columns(rows)
    found = margins(rows, metric, margin)
    known = dict(zip(keys_of(found, names), found["margin"], strict=True))
    lines = lines.assign(margin=[known[key] for key in keys_of(lines, names)])
    columns = ("difference", "deviation", "freedom", "seeds", "margin")
    p = p_equivalent(*(lines[name].to_numpy(float) for name in columns))
    lines = lines.assign(p_equivalent=np.where(lines["p"].notna(), p, np.nan))
    lines.attrs["margin"] = found.attrs["margin"]
    return lines


def p_equivalent(
    difference: np.ndarray, deviation: np.ndarray, freedom: np.ndarray, seeds: np.ndarray, margin: np.ndarray
) -> np.ndarray:
    """Return the p value of two one-sided paired t tests that a true difference lies within ± the margin.

    Schuirmann (1987): the larger of the p values of the test that it is above -margin and of the test that it is below
    +margin. Both must reject, so that no correction for their number is needed.

    Args:
        difference: means over seeds.
        deviation: standard deviations of the differences.
        freedom: degrees of freedom of each; n - 1 where it was estimated from these differences alone.
        seeds: numbers of differences.
        margin: above 0, in the same unit.

    Returns:
        p values; NaN for fewer than two seeds, and where an argument is NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        # from the nearer end of the range: its p value is the larger one
        t = (margin - np.abs(difference)) / (deviation / np.sqrt(seeds))
        t = np.where((deviation == 0) & (np.abs(difference) == margin), 0.0, t)  # 0 / 0: at the end itself
        p: np.ndarray = stats.t.sf(t, freedom)
    return np.where(seeds > 1, p, np.nan)
