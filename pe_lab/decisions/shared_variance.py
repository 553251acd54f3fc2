"""The variance of differences, estimated from all pairs of encodings together.

With three seeds, the variance of one pair has two degrees of freedom, and a comparison among seventy encodings needs
t = 300 to be certain. All pairs together say how large variances are on this task and how far they spread, and the
variance of each pair is moved towards theirs. This is the moderated t test of Smyth (2004), Statistical Applications in
Genetics and Molecular Biology 3(1), article 3: posterior variances and their degrees of freedom in section 3,
estimators of the prior in section 6.2.

Pairs share encodings, so that they say less about the prior than as many independent samples. Smyth's estimate of its
degrees of freedom is therefore too large, and half of it is used, at most half the number of encodings: `pe-lab bench
variance` simulates the error rates of this and of the whole estimate.

Pairs with a variance so small that chance does not explain it are left out and keep their own: they compute nearly
the same function, such as one with other rounding.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy import special

FEWEST = 5  # encodings; fewer say too little about the spread of variances
SHARE = 0.5  # of the estimated degrees of freedom
CHANCE = 0.01  # that any of the variances is so small as to be left out
_ROUNDING = 1e-6  # of the median variance: what is smaller is left out of the first estimate
_MOST = 1e6  # degrees of freedom; as many as one cannot tell from infinitely many


@dataclass(frozen=True)
class Prior:
    """A scaled inverse chi-squared distribution of variances, or an array of them.

    Attributes:
        variance: its scale [...].
        freedom: its degrees of freedom [...]; 0: nothing is known beforehand.
        chance: that a sample variance is so small as not to be moved [...].
    """

    variance: np.ndarray
    freedom: np.ndarray
    chance: np.ndarray

    def moderate(self, variances: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return posterior variances and their degrees of freedom, of sample variances with theirs."""
        known = np.where(variances > self.least(freedom), self.freedom, 0.0)
        total = known + freedom
        return (known * self.variance + freedom * variances) / total, total

    def least(self, freedom: np.ndarray) -> np.ndarray:
        """Return the sample variances, of so many degrees of freedom, up to which they are not moved."""
        ratio = np.zeros(np.broadcast_shapes(freedom.shape, np.shape(self.freedom)))
        for each in np.unique(freedom):  # few numbers of seeds, and many comparisons
            quantile = special.fdtri(each, np.maximum(self.freedom, 1e-3), self.chance)
            ratio = np.where(freedom == each, quantile, ratio)
        return self.variance * ratio


NOTHING_KNOWN = Prior(np.zeros(()), np.zeros(()), np.zeros(()))


def prior_of(values: np.ndarray) -> Prior:
    """Estimate the distribution of variances from the results of encodings in one setting, or in each of many.

    Args:
        values: [..., seeds, encodings]; NaN where there is none.

    Returns:
        A distribution for each setting [...]: of freedom 0 where fewer than five encodings share two seeds or more.
    """
    first, second = np.triu_indices(values.shape[-1], 1)
    differences = values[..., first] - values[..., second]
    known = np.isfinite(differences)
    counts = known.sum(-2)
    means = np.where(known, differences, 0.0).sum(-2) / np.maximum(counts, 1)
    squares = np.where(known, differences - means[..., None, :], 0.0) ** 2
    variances = squares.sum(-2) / np.maximum(counts - 1, 1)
    touched = np.zeros((len(first), values.shape[-1]))
    touched[np.arange(len(first)), first] = touched[np.arange(len(first)), second] = 1
    encodings = ((counts > 1) @ touched > 0).sum(-1)
    return estimate(np.where(counts > 1, variances, 0.0), np.maximum(counts - 1, 1), encodings)


def estimate(variances: np.ndarray, freedom: np.ndarray, encodings: np.ndarray | int) -> Prior:
    """Estimate the distribution from sample variances of pairs.

    Args:
        variances: of differences [..., pairs].
        freedom: degrees of freedom of each [..., pairs], at least 1.
        encodings: the number of encodings that the pairs are of [...].
    """
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # no variance above 0: not enough, below
        least = _ROUNDING * np.nanmedian(np.where(variances > 0, variances, np.nan), -1, keepdims=True)
    first = _moments(variances, freedom, encodings, variances > least)
    each = Prior(*(part[..., None] for part in (first.variance, first.freedom, first.chance)))
    return _moments(variances, freedom, encodings, variances > np.maximum(each.least(freedom), least))


def _moments(variances: np.ndarray, freedom: np.ndarray, encodings: np.ndarray | int, used: np.ndarray) -> Prior:
    """Return the distribution by Smyth's estimators, from the variances that are used."""
    number = np.maximum(used.sum(-1), 2)
    half, where = np.unique(freedom / 2, return_inverse=True)
    where = where.reshape(freedom.shape)
    logs = np.log(np.where(used, variances, 1.0)) - (special.digamma(half) - np.log(half))[where]
    mean = np.where(used, logs, 0.0).sum(-1) / number
    spread = (np.where(used, logs - mean[..., None], 0.0) ** 2).sum(-1) / (number - 1)
    spread = spread - np.where(used, special.polygamma(1, half)[where], 0.0).sum(-1) / number
    found = np.minimum(2 * _inverse_trigamma(np.maximum(spread, 1 / _MOST)), _MOST)
    scale = np.exp(mean + special.digamma(found / 2) - np.log(found / 2))
    enough = (np.asarray(encodings) >= FEWEST) & (used.sum(-1) > 1)
    parts = (scale, SHARE * np.minimum(found, encodings), CHANCE / number)
    return Prior(*(np.where(enough, part, 0.0) for part in parts))


def _inverse_trigamma(values: np.ndarray) -> np.ndarray:
    """Return x > 0 with trigamma(x) = value, by Newton's method on 1 / trigamma, a convex function."""
    found: np.ndarray = 0.5 + 1 / values
    for _ in range(60):
        trigamma = special.polygamma(1, found)
        step = trigamma * (1 - trigamma / values) / special.polygamma(2, found)
        found = found + step
        if np.all(-step < 1e-13 * found):
            break
    return found
