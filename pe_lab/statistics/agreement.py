"""Whether our seeds agree with a published mean, within a tolerance that was declared before they were trained.

The difference of the two means is compared with the tolerance by one-sided t tests with the variance of each side
(Welch): the value is reproduced if the difference is shown to be smaller, not reproduced if it is shown to be larger,
and undecided otherwise. There are two looks, one at the seeds that were declared and one at the seeds that an undecided
value is found to need; each spends half of the level, so that both together err in at most 5 % of cases.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from pe_lab.statistics.verdicts import LEVEL

NUM_LOOKS = 2
POWER = 0.9  # with which `needed` seeds decide, if means and deviations are as observed
MAX_SEEDS = 200  # seeds; more are not asked for
MIN_SD_SHARE = (
    0.25  # of the tolerance: no deviation between seeds is taken to be smaller, since a few can be alike by chance
)


class Agreement(StrEnum):
    """What our seeds say about a published value."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Published:
    """A published mean over seeds.

    Args:
        mean: the published mean, in the unit of our values.
        sd: the standard deviation between seeds; None: not stated, ours is used.
        seeds: the number of seeds; None: not stated, 1 is assumed.
    """

    mean: float
    sd: float | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Comparison:
    """Our seeds beside a published value; arrays [...] where values are [..., seeds].

    Attributes:
        agreement: the verdict: reproduced, not reproduced or undecided.
        difference: the mean of our seeds minus the published one.
        low, high: the interval of the difference that the verdict is read from: inside of the tolerance, or outside.
        needed: the number of seeds with which an undecided value would be decided; NaN: more than 200, or the published
            seeds are too few.
    """

    agreement: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    needed: np.ndarray


def compare_with_published(values: np.ndarray, published: Published, tolerance: float, tests: int = 1) -> Comparison:
    """Compare seeds with a published value.

    Args:
        values: our values [..., seeds], of at least two seeds.
        published: the published value that the seeds are compared with.
        tolerance: the difference, above 0, below which means count as the same.
        tests: number of values of the same entry, any of which may contradict it.

    Raises:
        ValueError: fewer than two seeds, a tolerance that is not above 0, or a published number that makes no sense.
    """
    values = np.asarray(values, float)
    seeds = values.shape[-1]
    if seeds < 2:
        raise ValueError(f"values must be of at least two seeds, got {seeds}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be above 0, got {tolerance:g}")
    if published.seeds is not None and published.seeds < 1:
        raise ValueError(f"seeds of a published value must be at least 1, got {published.seeds}")
    if published.sd is not None and not published.sd >= 0:
        raise ValueError(f"sd of a published value must be at least 0, got {published.sd:g}")
    min_variance = (MIN_SD_SHARE * tolerance) ** 2
    variance = np.maximum(values.var(-1, ddof=1), min_variance)
    difference = values.mean(-1) - published.mean
    error, inside, outside = _scaled_quantiles(variance, seeds, published, min_variance, tests)
    size = np.abs(difference)
    within, beyond = size + inside * error < tolerance, size - outside * error > tolerance
    agreement = np.where(within, Agreement.REPRODUCED, np.where(beyond, Agreement.NOT_REPRODUCED, Agreement.UNDECIDED))
    half = np.where(size > tolerance, outside, inside) * error
    needed = np.where(
        within | beyond, seeds, _needed_seeds(size, variance, seeds, published, min_variance, tolerance, tests)
    )
    return Comparison(agreement.astype(object), difference, difference - half, difference + half, needed)


def _scaled_quantiles(
    variance: np.ndarray, seeds: np.ndarray | int, published: Published, min_variance: float, tests: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the standard error of the difference, and the quantiles of t for being inside and for being outside."""
    ours, count = variance / seeds, published.seeds or 1
    if published.sd is None or count < 2:  # theirs varies as ours does
        error, dof = np.sqrt(ours + variance / count), np.broadcast_to(np.subtract(seeds, 1.0), ours.shape)
    else:
        theirs = max(published.sd**2, min_variance) / count
        error = np.sqrt(ours + theirs)
        dof = (ours + theirs) ** 2 / (ours**2 / (seeds - 1) + theirs**2 / (count - 1))
    level = LEVEL / NUM_LOOKS
    return error, special.stdtrit(dof, 1 - level), special.stdtrit(dof, 1 - level / tests)


def _needed_seeds(
    size: np.ndarray,
    variance: np.ndarray,
    seeds: int,
    published: Published,
    min_variance: float,
    tolerance: float,
    tests: int,
) -> np.ndarray:
    """Return the fewest seeds with which the interval would end on one side of the tolerance."""
    counts = np.r_[seeds + 1 : MAX_SEEDS + 1]
    if not len(counts):
        return np.full(size.shape, np.nan)
    size = size[..., None]
    error, inside, outside = _scaled_quantiles(variance[..., None], counts, published, min_variance, tests)
    quantile = np.where(size < tolerance, inside, outside) - special.ndtri(1 - POWER)
    enough = quantile * error < np.abs(tolerance - size)
    return np.where(enough.any(-1), counts[enough.argmax(-1)], np.nan)
