"""Noise of runs in simulated studies: normal, with heavy tails, with unequal deviations, as committed cells have it."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.statistics import deviations, wide
from pe_lab.statistics.cells import by_setting

RUN = np.sqrt(0.5)  # deviation of a typical run, so that a typical difference of two has deviation 1

Shape = tuple[int, ...]  # [..., encodings, seeds]
Noise = Callable[[np.random.Generator, Shape], np.ndarray]


def spreads() -> dict[str, Noise]:
    """Return normal noise with several distributions of the deviations of encodings."""
    found: dict[str, Noise] = {
        "equal": lambda rng, shape: np.ones(shape),
        "inverse chi-squared, 8": lambda rng, shape: np.sqrt(8 / rng.chisquare(8, shape)),
        "inverse chi-squared, 4": lambda rng, shape: np.sqrt(4 / rng.chisquare(4, shape)),
        "log-normal, 1.5": lambda rng, shape: np.exp(0.75 * rng.standard_normal(shape)),
        "log-normal, 3": lambda rng, shape: np.exp(1.5 * rng.standard_normal(shape)),
        "one of 25 times": lambda rng, shape: np.where(np.arange(shape[-2])[:, None] == 0, 25.0, np.ones(shape)),
    }
    return {name: _scaled(spread, np.random.Generator.standard_normal) for name, spread in found.items()}


def of_cells(rows: pd.DataFrame) -> Noise:
    """Return noise with the deviations and the corrected residuals of cells.

    Residuals were divided by a deviation of 5 values, which makes their tails lighter; the correction undoes it.
    """
    residuals, spread = deviations(rows), _deviations_of_encodings(rows)
    corrected = _corrected(residuals)
    width = 1.06 * len(corrected) ** -0.2  # Silverman's

    def smoothed(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        drawn: np.ndarray = rng.choice(corrected, shape) + width * rng.standard_normal(shape)
        return drawn / np.sqrt(1 + width**2)

    return _scaled(lambda rng, shape: rng.choice(spread, shape) / np.median(spread), smoothed)


def _scaled(spread: Noise, noise: Noise) -> Noise:
    """Return noise times a deviation of each encoding."""
    return lambda rng, shape: RUN * spread(rng, (*shape[:-1], 1)) * noise(rng, shape)


def _corrected(residuals: np.ndarray, seeds: int = 5) -> np.ndarray:
    """Return residuals of samples of so many seeds as they would be if their samples' deviations had been known."""
    # of normal noise, this is a t statistic with seeds - 2 degrees of freedom (an externally studentised residual)
    outside = residuals * np.sqrt((seeds - 2) / np.maximum(seeds - 1 - residuals**2, 1e-9))
    return _standard(special.ndtri(special.stdtr(seeds - 2, outside)))


def _standard(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = (values - values.mean()) / values.std()
    return found


def _deviations_of_encodings(rows: pd.DataFrame) -> np.ndarray:
    """Return deviations of encodings within settings, without what seeds have in common."""
    found = []
    for _, part in by_setting(wide(rows)):
        values = part.dropna(axis=1).to_numpy()
        left = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
        found.append(left.std(0, ddof=1))
    return np.concatenate(found)
