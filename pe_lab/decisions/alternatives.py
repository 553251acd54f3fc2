"""Other sequential tests, for comparison: Bonferroni's correction over looks, and t tests that are always valid.

They are not used by studies: docs/decisions.md has the numbers. Their p value is the smallest of all looks so far,
whatever a look says. The rule of studies (`pe_lab.decisions.sequential.says`) would make them larger, or the same.
"""

import numpy as np

from pe_lab.decisions.sequential import NominalP, SequentialP


def bonferroni(nominal: NominalP) -> SequentialP:
    """Return sequential p values: the smallest nominal p value so far times the number of looks."""
    looks = len(nominal.difference)
    ends = np.maximum(nominal.above, nominal.below)
    return SequentialP(*(np.minimum.accumulate(np.minimum(p * looks, 1), 0) for p in (nominal.difference, ends)))


def log_e_value(differences: np.ndarray, mean: np.ndarray | float, prior: float) -> np.ndarray:
    """Return the logarithm of a t test's e value: its expectation is 1 at any look if this is the mean.

    The likelihood ratio of the scale-invariant statistics, mixed over mean / deviation by a normal distribution of
    variance 1 / prior (Lai 1976; Wang & Ramdas 2023, arXiv:2310.03722): with n differences, their sum S and sum of
    squares V, sqrt(prior / (n + prior)) (1 - S^2 / ((n + prior) V))^(-n / 2).

    Args:
        differences: [..., seeds].
        mean: under the hypothesis, [...].
        prior: above 0; the smaller, the larger the effects that it expects.
    """
    shifted = differences - np.asarray(mean)[..., None]
    n, total, squares = shifted.shape[-1], shifted.sum(-1), (shifted**2).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(squares > 0, total**2 / ((n + prior) * squares), 0.0)
    found: np.ndarray = 0.5 * np.log(prior / (n + prior)) - n / 2 * np.log1p(-share)
    return found


def always_valid(
    differences: np.ndarray, looks: tuple[int, ...], margin: np.ndarray, prior: float = 0.1
) -> SequentialP:
    """Return sequential p values that hold at any number of looks: the smallest 1 / e so far.

    Args:
        differences: [..., seeds].
        margin: [...].
    """
    p: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for look in looks:
        part = differences[..., :look]
        inside = np.abs(part.mean(-1)) < margin
        ends = [np.exp(-log_e_value(part, end, prior)) for end in (margin, -margin)]
        p[0].append(np.minimum(np.exp(-log_e_value(part, 0.0, prior)), 1))
        p[1].append(np.where(inside, np.minimum(np.maximum(*ends), 1), 1.0))
    return SequentialP(*(np.minimum.accumulate(np.array(one), 0) for one in p))
