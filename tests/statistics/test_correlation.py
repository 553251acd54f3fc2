"""The rank correlation is scipy's, its interval covers, and its seeds are drawn again on both sides."""

import numpy as np
import pytest
from scipy import stats

from pe_lab.statistics import correlation
from pe_lab.statistics.correlation import rank_correlation


@pytest.fixture(autouse=True)
def _few_resamplings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "RESAMPLINGS", 200)


@pytest.mark.parametrize("seed", range(5))
def test_the_value_is_that_of_scipy_for_the_means(seed: int) -> None:
    source = np.random.default_rng(seed)
    first, second = source.normal(size=(8, 5)), source.normal(size=(8, 3))
    second[3] = second[2]  # a tie
    found = rank_correlation(first, second)
    assert found.value == pytest.approx(stats.spearmanr(first.mean(1), second.mean(1)).statistic, abs=1e-12)
    assert -1 < found.low < found.value < found.high < 1


def test_the_interval_of_eight_encodings_is_that_of_bonett_and_wright() -> None:
    """r = 0.9286, three exchanges of neighbours: z = 1.6479, standard error sqrt(1.4311 / 5) = 0.5350."""
    first = np.arange(8.0)[:, None]
    second = np.array([1.0, 0.0, 3.0, 2.0, 5.0, 4.0, 6.0, 7.0])[:, None]
    found = rank_correlation(first, second)
    assert found.value == pytest.approx(1 - 6 * 6 / (8 * 63), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((0.5358, 0.9910), abs=1e-3)


@pytest.mark.parametrize("rho", [0.0, 0.8, 0.97])
def test_the_interval_covers(rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "RESAMPLINGS", 2)
    source = np.random.default_rng(1)
    population = 6 / np.pi * np.arcsin(rho / 2)
    covered = 0
    for _ in range(1000):
        first = source.normal(size=(8, 1))
        found = rank_correlation(first, rho * first + np.sqrt(1 - rho**2) * source.normal(size=(8, 1)))
        covered += found.low <= population <= found.high
    assert 920 <= covered <= 985  # 94 to 97 %, three standard errors


def test_seeds_of_both_sides_are_drawn_again() -> None:
    means = np.arange(8.0)[:, None]
    alike = np.tile(means, 3)
    differing = means + np.array([-6.0, 0.0, 6.0]) * np.where(np.arange(8) % 2, 1.0, -1.0)[:, None]
    assert rank_correlation(alike, alike).seeds_low == 1
    for pair in ((alike, differing), (differing, alike)):
        found = rank_correlation(*pair)
        assert found.value == 1
        assert found.seeds_low < 0.8


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.ones((3, 2)), np.ones((3, 2)), "at least 4 encodings, got 3"),
        (np.ones((5, 2)), np.ones((4, 2)), "with the same n"),
        (np.ones((5, 0)), np.ones((5, 1)), "with the same n"),
        (np.ones(5), np.ones(5), "with the same n"),
        (np.full((5, 2), np.nan), np.ones((5, 2)), "all values must be finite"),
        (np.ones((5, 2)), np.arange(10.0).reshape(5, 2), "must differ between encodings"),
    ],
)
def test_bad_values_are_refused(first: np.ndarray, second: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rank_correlation(first, second)
