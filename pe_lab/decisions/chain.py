"""The joint distribution of t statistics at successive sample sizes, without a difference.

For normal differences of mean 0 and unknown variance, let r be their sum divided by the root of their sum of squares.
The direction of the sample and its length are independent. Given r of n differences, r of n + 1 is
(r + y) / sqrt(1 + y^2), where y sqrt(n) has a t distribution with n degrees of freedom, independent of all earlier r.
So r is a Markov chain, and the probabilities of a group-sequential t test are integrals in one dimension, as those of
the z test (Armitage, McPherson & Rowe 1969). No simulation is needed, however small the level.

Each t is represented by the normal quantile z of its distribution function: at each sample size alone, z is standard
normal, and a two-sided test of nominal level a rejects where |z| > z(a / 2).
"""

from collections.abc import Iterator

import numpy as np
from scipy import special

MOST = 9.0  # the grid of z ends there: a nominal level of 2e-19
STEP = 0.04
POINTS = 400  # of the integral over the next difference

GRID = np.linspace(-MOST, MOST, 2 * round(MOST / STEP) + 1)


def normal_quantile(t: np.ndarray, degrees: int) -> np.ndarray:
    """Return z with the same probability below as t has in a t distribution."""
    lower: np.ndarray = special.ndtri(special.stdtr(degrees, -np.abs(t)))  # in the lower tail, where it is precise
    return -np.sign(t) * np.maximum(lower, -MOST)


def t_quantile(z: np.ndarray, degrees: int) -> np.ndarray:
    """Return t with the same probability below as z has in a normal distribution."""
    lower: np.ndarray = special.stdtrit(degrees, special.ndtr(-np.abs(z)))
    return -np.sign(z) * lower


def start() -> np.ndarray:
    """Return the probabilities of the grid's points for a standard normal z: those of the first look."""
    mass = np.exp(-(GRID**2) / 2)
    return mass / mass.sum()


def transition(n: int) -> np.ndarray:
    """Return the probabilities of the next z for each z, from n to n + 1 differences: [now, next].

    Where the next z falls between points of the grid, it is shared among the four nearest, so that its first three
    moments are kept (cubic interpolation, transposed). A large t stays large only if the next difference is close to
    the mean, within about 1 / t: the integral over y = r / n + s sinh(v) / sqrt(n) is fine there and reaches far.
    """
    now = t_quantile(GRID, n - 1)[:, None]
    r = np.sqrt(n) * now / np.sqrt(n - 1 + now**2)
    s = np.sqrt((n + 1) * (n - 1) / (n - 1 + now**2))  # s^2 = (n - r^2) (1 + 1 / n), without cancellation
    far = -t_quantile(np.array(-8.0), n)
    low, high = np.arcsinh((-far - r / np.sqrt(n)) / s), np.arcsinh((far - r / np.sqrt(n)) / s)
    v = low + (high - low) * np.linspace(0, 1, POINTS)
    y = (r / np.sqrt(n) + s * np.sinh(v)) / np.sqrt(n)
    weight = np.cosh(v) * (1 + y**2) ** (-(n + 1) / 2)  # the density of t, sqrt(n) y
    weight /= weight.sum(1, keepdims=True)
    t = np.sqrt(n) * (r + y) / (s * np.cosh(v))
    place = (normal_quantile(t, n) + MOST) / STEP
    first = np.clip(np.floor(place).astype(int) - 1, 0, len(GRID) - 4)
    x = place - first
    shares = (
        -(x - 1) * (x - 2) * (x - 3) / 6,
        x * (x - 2) * (x - 3) / 2,
        -x * (x - 1) * (x - 3) / 2,
        x * (x - 1) * (x - 2) / 6,
    )
    rows = np.arange(len(GRID))[:, None] * len(GRID)
    matrix = np.zeros(len(GRID) ** 2)
    for offset, share in enumerate(shares):
        matrix += np.bincount((rows + first + offset).ravel(), (share * weight).ravel(), len(matrix))
    return matrix.reshape(len(GRID), len(GRID))


def at_looks(looks: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    """Yield for each look the transitions that lead to it from the look before; none for the first."""
    for before, look in zip((looks[0], *looks), looks, strict=False):
        yield [transition(n) for n in range(before, look)]


def tails(mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points z and the probability above each: mass [..., grid] to z [grid], above [..., grid]."""
    above = np.cumsum(np.maximum(mass, 0)[..., ::-1], axis=-1)[..., ::-1]
    return GRID - STEP / 2, above


def kept_below(bound: np.ndarray) -> np.ndarray:
    """Return the share of each grid point's cell that lies below a bound: [...] to [..., grid]."""
    return np.clip((bound[..., None] - GRID) / STEP + 0.5, 0, 1)
