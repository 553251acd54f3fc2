"""Statistical power: the number of seeds that a difference needs, and the difference that the seeds can separate."""

import numpy as np
import pandas as pd
from scipy import optimize, stats

from pe_lab.results.statistics.intervals import CONFIDENCE

POWER = 0.8
MOST_SEEDS = 10_000  # larger numbers of seeds are reported as infinite
MOST_NONCENTRALITY = 1e9  # scipy's series of the noncentral t distribution does not converge beyond


def seeds_needed(compared: pd.DataFrame) -> pd.DataFrame:
    """Estimate how many seeds would separate each comparison, if difference and deviation were as observed.

    For a power of 80 % in a paired t test at the level of the first step of Holm's correction in this family. The
    observed difference is an estimate: read the number as an order of magnitude.

    Args:
        compared: from `compare`.

    Returns:
        The lines with seeds_needed (NaN where the deviation is 0; inf beyond 10,000; above 100 a few percent high) and
        separable: the smallest difference that the present number of seeds separates with that power.
    """
    count = compared.attrs.get("comparisons", int(compared["p"].notna().sum()))
    level = (1 - CONFIDENCE) / max(1, count)
    counts = np.unique(np.r_[2:100, np.geomspace(100, MOST_SEEDS, 60).astype(int)])
    needed, separable, least = [], [], {}
    for line in compared.itertuples():
        if line.seeds < 2 or not line.deviation > 0:
            needed.append(np.nan)
            separable.append(np.nan)
            continue
        effect = abs(line.difference) / line.deviation
        enough = counts[_power(effect, counts, level) >= POWER]
        needed.append(enough[0] if len(enough) else np.inf)
        if line.seeds not in least:
            least[line.seeds] = _smallest_effect(line.seeds, level)
        separable.append(least[line.seeds] * line.deviation)
    return compared.assign(seeds_needed=needed, separable=separable)


def _power(effect: float, seeds: np.ndarray | int, level: float) -> np.ndarray:
    """Return the power of a paired t test for a difference in units of its deviation; the far tail is neglected."""
    critical = stats.t.isf(level / 2, seeds - 1)
    power: np.ndarray = stats.nct.sf(critical, seeds - 1, np.minimum(effect * np.sqrt(seeds), MOST_NONCENTRALITY))
    return power


def _smallest_effect(seeds: int, level: float) -> float:
    """Return the smallest difference, in units of its deviation, that has the power."""
    high = 1.0
    while _power(high, seeds, level) < POWER:
        high *= 2
    return float(optimize.brentq(lambda effect: _power(effect, seeds, level) - POWER, 0, high))
