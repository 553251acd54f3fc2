"""Statistical power: the seeds that a decision needs, and the difference that these seeds can separate."""

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.statistics.verdicts import LEVEL

POWER = 0.8
MAX_SEEDS = 10_000  # larger numbers of seeds are reported as infinite
MAX_NONCENTRALITY = 1e9  # scipy's series of the noncentral t distribution does not converge beyond


def seeds_needed(compared: pd.DataFrame) -> pd.DataFrame:
    """Estimate how many seeds would decide each comparison if difference and deviation are as observed.

    For a power of 80 % in a paired t test, and in two one-sided tests against the margin, at the level of the first
    step of Holm's correction in this family. The observed difference is an estimate: read the numbers as orders of
    magnitude.

    Args:
        compared: the table of `compare_cells` or of `Families.compare`.

    Returns:
        The lines with seeds_needed, to show that there is a difference; seeds_equivalent, to show that it is smaller
        than the margin; and separable: the smallest difference that the present number of seeds separates with that
        power. Numbers of seeds are NaN where the deviation is 0 or there is no margin, inf beyond 10,000, and above 100
        a few percent high.
    """
    count = compared.attrs.get("comparisons", int(compared["p"].notna().sum()))
    level = LEVEL / max(1, count)
    counts = np.unique(np.r_[2:100, np.geomspace(100, MAX_SEEDS, 60).astype(int)])
    columns: dict[str, list[float]] = {"seeds_needed": [], "seeds_equivalent": [], "separable": []}
    smallest_effects: dict[tuple[int, float], float] = {}
    margins = compared["margin"] if "margin" in compared else np.full(len(compared), np.nan)
    for line, margin in zip(compared.itertuples(), margins, strict=True):
        if line.seeds < 2 or not line.deviation > 0:
            for values in columns.values():
                values.append(np.nan)
            continue
        effect, within = abs(line.difference) / line.deviation, margin / line.deviation
        prior = line.freedom - (line.seeds - 1)  # degrees of freedom that do not come from these seeds
        columns["seeds_needed"].append(_fewest_seeds(counts, _power_of_t_test(effect, counts, level, prior)))
        equivalent = _fewest_seeds(counts, _power_of_equivalence(effect, within, counts, level, prior))
        columns["seeds_equivalent"].append(np.nan if np.isnan(margin) else equivalent)
        if (line.seeds, prior) not in smallest_effects:
            smallest_effects[line.seeds, prior] = _smallest_effect(line.seeds, level, prior)
        columns["separable"].append(smallest_effects[line.seeds, prior] * line.deviation)
    return compared.assign(**columns)


def _fewest_seeds(counts: np.ndarray, power: np.ndarray) -> float:
    """Return the first number of seeds that has the power; inf if none has."""
    enough = counts[power >= POWER]
    return int(enough[0]) if len(enough) else np.inf


def _power_of_t_test(effect: float, seeds: np.ndarray | int, level: float, prior: float) -> np.ndarray:
    """Return the power of a paired t test for a difference in units of its deviation; the far tail is neglected.

    Args:
        prior: degrees of freedom of the deviation beside those of the seeds.
    """
    from scipy import stats

    dof = seeds - 1 + prior
    critical = -special.stdtrit(dof, level / 2)
    power: np.ndarray = stats.nct.sf(critical, dof, np.minimum(effect * np.sqrt(seeds), MAX_NONCENTRALITY))
    return power


def _power_of_equivalence(
    effect: float, margin: float, seeds: np.ndarray | int, level: float, prior: float
) -> np.ndarray:
    """Return the power of two one-sided tests, approximately: t statistics of both ends have one deviation.

    The approximation by noncentral t distributions is a little low where the power is low.

    Args:
        effect: the difference, in units of its deviation.
        margin: the margin, in the same unit.
        prior: see `_power_of_t_test`.
    """
    from scipy import stats

    dof = seeds - 1 + prior
    critical = -special.stdtrit(dof, level)
    near, far = (
        np.clip(end * np.sqrt(seeds), -MAX_NONCENTRALITY, MAX_NONCENTRALITY)
        for end in (margin - effect, margin + effect)
    )
    power: np.ndarray = stats.nct.sf(critical, dof, near) - stats.nct.cdf(critical, dof, far)
    return power


def _smallest_effect(seeds: int, level: float, prior: float) -> float:
    """Return the smallest difference, in units of its deviation, that has the power."""
    from scipy import optimize

    high = 1.0
    while _power_of_t_test(high, seeds, level, prior) < POWER:
        high *= 2
    return float(optimize.brentq(lambda effect: _power_of_t_test(effect, seeds, level, prior) - POWER, 0, high))
