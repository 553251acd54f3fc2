"""Planted right values are reproduced and planted wrong ones are not, at the stated error rates."""

import math
import re

import numpy as np
import pytest

from pe_lab.statistics import Agreement, Published, compare_with_published

DRAWS = 1000
MAX_WRONG = 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)  # of a rate of 5 %, three standard deviations

# runs of one published cell, which have a tail: accuracies at three times the trained length
SKEWED = np.array(
    [0.987, 0.8935, 0.843, 0.9425, 0.7745, 0.994, 0.784, 0.9085, 0.9205, 0.7245, 0.9835, 0.9445, 0.781, 0.9875]
)


def drawn(
    true: float, sd: float, seeds: int | None, ours: int, *, skewed: bool = False, tolerance: float = 1.0
) -> dict[str, float]:
    """Return the share of each verdict, at the second look where the first decides nothing.

    Args:
        true: our mean - the published one, in tolerances.
        sd: between seeds, in tolerances.
        seeds: that were published; None: one, of which neither number nor spread is stated.
    """
    rng = np.random.default_rng(1)
    law = (SKEWED - SKEWED.mean()) / SKEWED.std()

    def sample(size: int) -> np.ndarray:
        return sd * tolerance * (rng.choice(law, size) if skewed else rng.standard_normal(size))

    found = []
    for _ in range(DRAWS):
        theirs = 3 + sample(seeds or 1)
        spread = float(theirs.std(ddof=1)) if seeds and seeds > 1 else None
        published = Published(float(theirs.mean()), spread, seeds)
        values = 3 + true * tolerance + sample(ours)
        first = compare_with_published(values, published, tolerance)
        if first.agreement == Agreement.UNDECIDED and np.isfinite(first.needed):
            values = np.append(values, 3 + true * tolerance + sample(int(first.needed) - ours))
            first = compare_with_published(values, published, tolerance)
        found.append(str(first.agreement))
    return {str(kind): found.count(str(kind)) / DRAWS for kind in Agreement}


@pytest.mark.parametrize(("seeds", "sd", "ours"), [(5, 0.3, 5), (3, 0.2, 5), (16, 0.4, 8)])
def test_planted_values_end_in_their_verdict(seeds: int, sd: float, ours: int) -> None:
    """Right: the same law. Wrong: off by two tolerances. Both errors, undecided included, are at most 5 %."""
    assert drawn(0, sd, seeds, ours)[Agreement.REPRODUCED] >= 0.95
    for wrong in (-2, 2):
        assert drawn(wrong, sd, seeds, ours)[Agreement.NOT_REPRODUCED] >= 0.95


@pytest.mark.covering
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("seeds", "sd", "ours"), [(5, 0.3, 3), (16, 1.0, 5), (5, 1.0, 5), (None, 0.3, 5), (1, 0.3, 3)])
def test_no_verdict_is_wrong_more_often_than_stated(seeds: int | None, sd: float, ours: int, skewed: bool) -> None:
    """Whatever the spread, over both looks: at the edge of the tolerance, where either verdict is wrong, too."""
    right, edge, wrong = (drawn(true, sd, seeds, ours, skewed=skewed) for true in (0, 1, 2))
    assert right[Agreement.NOT_REPRODUCED] <= MAX_WRONG
    assert wrong[Agreement.REPRODUCED] <= MAX_WRONG
    assert edge[Agreement.REPRODUCED] <= MAX_WRONG
    assert edge[Agreement.NOT_REPRODUCED] <= MAX_WRONG


def test_the_interval_says_what_the_verdict_says() -> None:
    published = Published(0.5, 0.05, 5)
    inside = compare_with_published(np.array([0.5, 0.52, 0.49]), published, 0.2)
    outside = compare_with_published(np.array([0.9, 0.92, 0.89]), published, 0.2)
    assert inside.agreement == Agreement.REPRODUCED
    assert -0.2 < inside.low < inside.difference < inside.high < 0.2
    assert outside.agreement == Agreement.NOT_REPRODUCED
    assert 0.2 < outside.low < outside.difference < outside.high


def test_seeds_that_are_alike_are_not_taken_to_be_certain() -> None:
    """A deviation of a quarter of the tolerance is assumed, of theirs as of ours."""
    alike = compare_with_published(np.full(3, 0.5), Published(0.5, 0.0, 5), 0.1)
    assert alike.agreement == Agreement.REPRODUCED
    assert alike.high - alike.low > 0.05
    assert compare_with_published(np.full(2, 0.5), Published(0.5, 0.0, 2), 0.1).agreement == Agreement.UNDECIDED


def test_more_values_of_an_entry_contradict_it_less_easily() -> None:
    values, published = np.array([0.70, 0.72, 0.68, 0.71, 0.73]), Published(0.5, 0.05, 5)
    alone = compare_with_published(values, published, 0.1)
    among = compare_with_published(values, published, 0.1, tests=200)
    assert alone.agreement == Agreement.NOT_REPRODUCED
    assert among.agreement == Agreement.UNDECIDED
    assert among.low < alone.low


def test_a_spread_that_is_not_stated_is_ours_and_seeds_that_are_not_are_one() -> None:
    values = np.array([0.50, 0.56, 0.44])
    stated, one, unknown = (
        compare_with_published(values, published, 0.2)
        for published in (Published(0.5, 0.06, 5), Published(0.5, None, 1), Published(0.5))
    )
    width = [float(found.high - found.low) for found in (stated, one, unknown)]
    assert width[0] < width[1] == width[2]
    assert compare_with_published(values, Published(0.5, None, 5), 0.2).high < one.high


def test_the_seeds_that_would_decide_are_said() -> None:
    values = np.array([0.50, 0.60, 0.40, 0.55, 0.45])
    some = compare_with_published(values, Published(0.5, 0.08, 50), 0.08)
    assert some.agreement == Agreement.UNDECIDED
    assert 5 < some.needed < 60
    assert math.isnan(compare_with_published(values, Published(0.5, 0.08, 2), 0.08).needed)
    assert compare_with_published(values, Published(0.5, 0.08, 50), 0.5).needed == 5


def test_many_samples_are_compared_at_once() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.05, (7, 5))
    published = Published(0.5, 0.04, 5)
    together = compare_with_published(values, published, 0.1)
    for number, row in enumerate(values):
        alone = compare_with_published(row, published, 0.1)
        for name in ("agreement", "difference", "low", "high", "needed"):
            assert np.array_equal(getattr(together, name)[number], getattr(alone, name), equal_nan=name == "needed"), (
                name
            )


@pytest.mark.parametrize(
    ("values", "published", "tolerance", "message"),
    [
        ([0.5], Published(0.5), 0.1, "values must be of at least two seeds, got 1"),
        ([0.5, 0.6], Published(0.5), 0.0, "tolerance must be above 0, got 0"),
        ([0.5, 0.6], Published(0.5), math.nan, "tolerance must be above 0, got nan"),
        ([0.5, 0.6], Published(0.5, 0.1, 0), 0.1, "seeds of a published value must be at least 1, got 0"),
        ([0.5, 0.6], Published(0.5, -0.1, 3), 0.1, "sd of a published value must be at least 0, got -0.1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    values: list[float], published: Published, tolerance: float, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        compare_with_published(np.array(values), published, tolerance)
