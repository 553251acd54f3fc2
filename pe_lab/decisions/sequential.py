"""Sequential tests of many comparisons at once: for a difference, and for equivalence within a margin.

A comparison has a p value at each look that is valid at whatever look it stops: the smallest overall level at which a
look so far rejects (a sequential p value: Liu & Anderson 2008), of those looks that say the same as the last (`says`).
Holm's method over these is valid under any stopping rule and any dependence between comparisons, so that the
family-wise error holds although comparisons stop at different looks. What is decided gets no more seeds, and its p
value stays. Variances of differences are estimated from all encodings of a setting together, see `shared_variance`.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from pe_lab.decisions.design import Design
from pe_lab.decisions.shared_variance import NOTHING_KNOWN, Prior


@dataclass(frozen=True)
class NominalP:
    """p values of each look alone, from the differences so far. Arrays [looks, ...].

    Attributes:
        difference: two-sided t test that the mean is 0.
        above, below: one-sided t tests that the mean is at most -margin, at least +margin.
        says: see `says`: [looks, 3, ...].
    """

    difference: np.ndarray
    above: np.ndarray
    below: np.ndarray
    says: np.ndarray


@dataclass(frozen=True)
class SequentialP:
    """Sequential p values for a difference and for equivalence: [looks, ...].

    That of a look is the smallest of all looks so far that say the same as it does, see `says`.
    """

    difference: np.ndarray
    equivalence: np.ndarray


@dataclass(frozen=True)
class Stopped:
    """Where comparisons stopped.

    Attributes:
        look: its index: the first at which the comparison is decided, or the last.
        p_difference, p_equivalence: corrected for the family, as of the last look of the study.
        different, equivalent: whether that was decided.
    """

    look: np.ndarray
    p_difference: np.ndarray
    p_equivalence: np.ndarray
    different: np.ndarray
    equivalent: np.ndarray


def nominal_p(
    differences: np.ndarray, looks: tuple[int, ...], margin: np.ndarray | float, prior: Prior = NOTHING_KNOWN
) -> NominalP:
    """Return p values of each look.

    Args:
        differences: paired by seed, [..., seeds], as many seeds as the last of the looks.
        looks: numbers of seeds.
        margin: [...], above 0.
        prior: of the variances of these differences [...].
    """
    found, sides = [], []
    for look in looks:
        part = differences[..., :look]
        deviation, freedom = deviations(part, prior)
        mean, error = part.mean(-1), deviation / np.sqrt(look)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.stack([-np.abs(mean), -(mean + margin), mean - margin]) / error
        difference, above, below = special.stdtr(freedom, np.where(np.isnan(t), 0.0, t))  # NaN: 0 / 0
        found.append((2 * difference, above, below))
        sides.append(says(mean, margin))
    return NominalP(*np.moveaxis(np.array(found), 1, 0), np.array(sides))


def says(mean: np.ndarray, margin: np.ndarray | float) -> np.ndarray:
    """Return whether a mean lies above 0, below 0, and within the margin: [3, ...].

    A comparison may end later than at the look that made it certain, when others have left its family. By then more
    seeds can have moved its mean. A small p value of a difference is evidence for the direction that the mean had, and
    one of equivalence for nothing once the mean lies beyond the margin. So a look counts only where it says what the
    last one says. This makes p values larger, never smaller.
    """
    return np.stack([mean > 0, mean < 0, np.abs(mean) < margin])


def after_look(
    least: np.ndarray, said: np.ndarray, difference: np.ndarray, equivalence: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add a look; return the smallest p values so far, and the sequential ones of a difference and of equivalence.

    Args:
        least: the smallest p values of the looks before that say each of three things [3, ...]; 1 before the first.
        said: what this look says [3, ...].
        difference, equivalence: p values of this look [...].

    Returns:
        Smallest p values [3, ...]; sequential p values [2, ...].
    """
    least = np.minimum(least, np.where(said, np.stack([difference, difference, equivalence]), 1.0))
    above, below, within = np.where(said, least, 1.0)
    return least, np.stack([np.minimum(above, below), within])


def deviations(differences: np.ndarray, prior: Prior = NOTHING_KNOWN) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard deviation of the differences of each comparison, and its degrees of freedom.

    Args:
        differences: [..., seeds], at least two seeds.
        prior: of their variances [...].
    """
    own = np.where(equal_differences(differences), 0.0, differences.var(-1, ddof=1))
    variance, freedom = prior.moderate(own, np.full(own.shape, differences.shape[-1] - 1.0))
    return np.sqrt(variance), freedom


def equal_differences(differences: np.ndarray) -> np.ndarray:
    """Return whether all differences of a comparison are equal: their deviation is then 0, and not what rounding made.

    Args:
        differences: [..., seeds].
    """
    found: np.ndarray = (differences == differences[..., :1]).all(-1)
    return found


def sequential_p(nominal: NominalP, design: Design) -> SequentialP:
    """Return sequential p values. Of equivalence: a look rejects where both of its one-sided tests do."""
    found, least = [], np.ones(nominal.says.shape[1:])
    for look, said in enumerate(nominal.says):
        difference = design.two_sided.at(look, nominal.difference[look])
        equivalence = design.one_sided.at(look, np.maximum(nominal.above[look], nominal.below[look]))
        least, p = after_look(least, said, difference, equivalence)
        found.append(p)
    return SequentialP(*np.moveaxis(np.array(found), 1, 0))


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values over the last axis by Holm's method."""
    order = np.argsort(p, axis=-1, kind="stable")
    factors = np.arange(p.shape[-1], 0, -1)
    ascending = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, axis=-1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(ascending, 1), -1)
    return corrected


def stop(p: SequentialP, level: float) -> Stopped:
    """Go through the looks, and stop every comparison that is decided.

    Args:
        p: [looks, ..., comparisons]; each study is a family over the last axis.
        level: family-wise, of each of the two questions.
    """
    shape = p.difference.shape[1:]
    look, open_ = np.zeros(shape, int), np.ones(shape, bool)
    now = [np.ones(shape), np.ones(shape)]
    for number in range(len(p.difference)):
        look[open_] = number
        latest = (p.difference[number], p.equivalence[number])
        now = [np.where(open_, own, before) for own, before in zip(latest, now, strict=True)]
        corrected = [holm(one) for one in now]
        open_ &= (corrected[0] >= level) & (corrected[1] >= level)
    return Stopped(look, *corrected, corrected[0] < level, corrected[1] < level)
