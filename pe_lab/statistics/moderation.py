"""Moderated variances: the variance of each difference is moved towards the other variances of its family.

With five seeds the variance of one pair has four degrees of freedom. All pairs of a task together say how large
variances are and how far they spread (Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1),
article 3: posterior variances in section 3, estimators of the prior in section 6.2; `squeezeVar` of limma).

Pairs share encodings, so they have less information than as many independent samples. Therefore half of the estimated
degrees of freedom are used, and at most half the number of encodings. There are two rules for small variances:

- In studies with tuned rates (docs/protocol.md) or that add seeds (docs/verdicts.md), the variance of a measurement
  error is added to every sample variance, so none is 0, and every variance is at least the median of the family.
  Otherwise five runs that are alike by chance, of an encoding whose runs are fast or slow, would look certain.
- In tables of cells (docs/statistics.md), pairs whose variance is too small to be due to chance keep their own
  variance: they compute nearly the same function, for example with other rounding. If all differences of a pair are
  equal, the variance of the measurement error is used.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

MIN_ENCODINGS = 5  # fewer say too little about the spread of variances
DOF_SHARE = 0.5  # of the estimated degrees of freedom
OUTLIER_CHANCE = 0.01  # that any of the variances is so small as to be left out
_ROUNDING = 1e-6  # of the median variance: what is smaller is left out of the first estimate
_MAX_DOF = 1e6  # degrees of freedom; as many as one cannot tell from infinitely many


@dataclass(frozen=True)
class VariancePrior:
    """A scaled inverse chi-squared distribution of variances, for each family of an array of them.

    Attributes:
        variance: the scale of the distribution [...].
        dof: the degrees of freedom of the distribution [...]; 0: no prior information.
        min_variance: the lower bound of moderated variances [...].
        chance: the probability below which a small sample variance is not moved [...]; 0: all are moved.
    """

    variance: np.ndarray
    dof: np.ndarray
    min_variance: np.ndarray
    chance: np.ndarray

    def moderate(self, variances: np.ndarray, dof: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return moderated variances and their degrees of freedom, from sample variances [..., pairs] and theirs."""
        kept = variances <= self.kept(dof)
        prior = np.where(kept, 0.0, self.dof[..., None])
        total = prior + dof
        posterior = (prior * self.variance[..., None] + dof * variances) / total
        return np.maximum(posterior, self.min_variance[..., None]), total

    def kept(self, dof: np.ndarray) -> np.ndarray:
        """Return the bounds [..., pairs] up to which sample variances are not moved."""
        ratio = np.zeros(np.broadcast_shapes(dof.shape, self.dof[..., None].shape))
        if (self.chance > 0).any():
            for each in np.unique(dof[dof > 0]):  # few numbers of seeds, and many comparisons
                quantile = special.fdtri(each, np.maximum(self.dof, 1e-3), self.chance)[..., None]
                ratio = np.where(dof == each, quantile, ratio)
        return np.where(ratio > 0, self.variance[..., None] * ratio, -1.0)


NO_PRIOR = VariancePrior(np.zeros(()), np.zeros(()), np.zeros(()), np.zeros(()))


def fit_prior(
    variances: np.ndarray, dof: np.ndarray, encodings: np.ndarray | int, keep_small: bool = False
) -> VariancePrior:
    """Estimate the distribution of variances by the moments of their logarithms.

    Args:
        variances: sample variances [..., pairs], above 0 unless `keep_small`; NaN: not used.
        dof: the degrees of freedom of each variance [..., pairs].
        encodings: the number of encodings that the pairs are of [...]. Below five, nothing is known beforehand.
        keep_small: whether variances that chance does not explain are left out and kept; otherwise none counts as less
            than the median.
    """
    if not variances.shape[-1]:
        return NO_PRIOR
    used = np.isfinite(variances) & (dof > 0)
    if not keep_small:
        prior, enough = _prior_by_moments(variances, dof, encodings, used)
        none = np.zeros(prior.chance.shape)
        return replace(prior, min_variance=np.where(enough, _median_where_used(variances, used), 0.0), chance=none)
    above = used & (variances > 0)
    above &= variances > _ROUNDING * _median_where_used(variances, above)[..., None]
    first, _ = _prior_by_moments(variances, dof, encodings, above)
    return _prior_by_moments(variances, dof, encodings, above & (variances > first.kept(dof)))[0]


def _prior_by_moments(
    variances: np.ndarray, dof: np.ndarray, encodings: np.ndarray | int, used: np.ndarray
) -> tuple[VariancePrior, np.ndarray]:
    """Return the distribution by Smyth's estimators from the variances that are used, and whether there are enough."""
    count = np.maximum(used.sum(-1), 2)
    half, where = np.unique(np.where(used, dof, 1.0) / 2, return_inverse=True)
    bias, noise = (values[where.reshape(used.shape)] for values in (_log_bias(half), special.polygamma(1, half)))
    logs = np.log(np.where(used, variances, 1.0)) - bias
    mean = np.where(used, logs, 0.0).sum(-1) / count
    spread = (np.where(used, logs - mean[..., None], 0.0) ** 2).sum(-1) / (count - 1)
    spread = spread - np.where(used, noise, 0.0).sum(-1) / count
    estimate = np.minimum(2 * _inverse_trigamma(np.maximum(spread, 1 / _MAX_DOF)), _MAX_DOF)
    scale = np.exp(mean + _log_bias(estimate / 2))
    enough = (np.asarray(encodings) >= MIN_ENCODINGS) & (used.sum(-1) > 1)
    parts = (scale, DOF_SHARE * np.minimum(estimate, encodings), np.zeros(()), OUTLIER_CHANCE / count)
    return VariancePrior(*(np.where(enough, part, 0.0) for part in parts)), enough


def _log_bias(half: np.ndarray) -> np.ndarray:
    """Return the expected logarithm of a sample variance over that of the variance, by half its degrees of freedom."""
    bias: np.ndarray = special.digamma(half) - np.log(half)
    return bias


def _median_where_used(variances: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the median of those that are used; infinite where there is none."""
    ordered = np.sort(np.where(used, variances, np.inf), axis=-1)
    count = used.sum(-1)[..., None]
    low, high = (
        np.take_along_axis(ordered, np.maximum(each, 0), -1)[..., 0] for each in ((count - 1) // 2, count // 2)
    )
    return np.where(count[..., 0] > 0, (low + high) / 2, np.inf)


def _inverse_trigamma(values: np.ndarray) -> np.ndarray:
    """Return x > 0 with trigamma(x) = value, by Newton's method on 1 / trigamma, a convex function."""
    x: np.ndarray = 0.5 + 1 / values
    for _ in range(60):
        trigamma = special.polygamma(1, x)
        step = trigamma * (1 - trigamma / values) / special.polygamma(2, x)
        x = x + step
        if np.all(-step < 1e-13 * x):
            break
    return x
