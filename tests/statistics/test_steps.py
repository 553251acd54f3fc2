"""Steps to solve: two evaluations in a row, interpolated, censored; the last evaluation alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_runs import evaluation_steps
from pe_lab.statistics import steps_to_solve

GRID = (60, 120, 240, 480)


def by_hand(steps: tuple[int, ...], scores: list[float], level: float, cap: int) -> tuple[float, bool]:
    """Walk along the evaluations."""
    inside = [(step, score) for step, score in zip(steps, scores, strict=True) if step <= cap]
    for number in range(len(inside) - 1):
        if inside[number][1] >= level and inside[number + 1][1] >= level:
            if number == 0:
                return float(np.log2(inside[0][0])), True
            (t0, s0), (t1, s1) = inside[number - 1], inside[number]
            return float(np.interp(level, [s0, s1], [np.log2(t0), np.log2(t1)])), True
    return float(np.log2(cap)), inside[-1][1] >= level


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.sampled_from([240, 480]), st.floats(0.05, 0.95))
def test_equals_a_walk_along_the_evaluations(scores: list[float], cap: int, level: float) -> None:
    y, solved = steps_to_solve(GRID, np.array(scores), level, cap)
    expected = by_hand(GRID, scores, level, cap)
    assert bool(solved) == expected[1]
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=1e-9)
    assert y <= np.log2(cap)


def test_a_single_evaluation_above_the_level_is_no_pass() -> None:
    scores = np.array([[0.1, 0.99, 0.5, 0.94], [0.1, 0.2, 0.99, 0.96], [0.97, 0.97, 0.0, 0.0]])
    y, solved = steps_to_solve(GRID, scores, 0.95, 480)
    assert solved.tolist() == [False, True, True]
    np.testing.assert_allclose(y[[0, 2]], np.log2([480, 60]))
    assert np.log2(120) < y[1] < np.log2(240)


def test_a_pass_at_the_last_evaluation_alone_solves_the_task_at_the_cap() -> None:
    scores = np.array([[0.1, 0.2, 0.3, 0.96], [0.1, 0.2, 0.96, 0.3], [0.1, 0.2, 0.96, np.nan]])
    y, solved = steps_to_solve(GRID, scores, 0.95, 480)
    assert solved.tolist() == [True, False, False]
    np.testing.assert_allclose(y, np.log2(480))


def test_a_later_pass_of_the_same_scores_is_never_earlier_at_a_higher_level() -> None:
    scores = np.sort(np.random.default_rng(0).uniform(size=(200, 4)))
    low, high = (steps_to_solve(GRID, scores, level, 480)[0] for level in (0.5, 0.8))
    assert (low <= high).all()


def test_scores_that_were_not_measured_do_not_pass() -> None:
    y, solved = steps_to_solve(GRID, np.array([0.1, 0.99, np.nan, np.nan]), 0.95, 480)
    assert not solved
    assert y == np.log2(480)


@pytest.mark.parametrize(
    ("steps", "scores", "level", "cap", "word"),
    [
        (GRID, [0, 0, 0, 0], 1.0, 480, "level must be between 0 and 1"),
        (GRID, [0, 0, 0, 0], 0.0, 480, "level must be between 0 and 1"),
        (GRID, [0, 0, 0, 0], np.nan, 480, "level must be between 0 and 1"),
        (GRID, [0, 0, 0, 0], 0.9, 59, "cap must be at or beyond"),
        (GRID, [0, 0, 0, 0], 0.9, 60, "cap must be at or beyond"),
        ((60, 60, 120, 240), [0, 0, 0, 0], 0.9, 240, "evaluations must be increasing"),
        ((), [], 0.9, 240, "evaluations must be increasing"),
        (GRID, [0, 0, 0], 0.9, 480, "scores must have one value for each"),
        (GRID, [0, np.nan, 0, 0], 0.9, 480, "got NaN before it"),
        (GRID, [-np.inf, 1, 1, 1], 0.9, 480, "scores must be finite, got -inf"),
        (GRID, [0, np.inf, 1, 1], 0.9, 480, "scores must be finite, got inf"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    steps: tuple[int, ...], scores: list[float], level: float, cap: int, word: str
) -> None:
    with pytest.raises(ValueError, match=word) as error:
        steps_to_solve(steps, np.array(scores, float), level, cap)
    assert "\n" not in str(error.value)


@settings(deadline=None, max_examples=60)
@given(st.integers(300, 100_000), st.sampled_from([0.125, 0.25, 0.5]))
def test_evaluations_rise_by_about_half_an_octave_to_the_cap(cap: int, fraction: float) -> None:
    if round(fraction * cap) < 60:
        with pytest.raises(ValueError, match="at least the first evaluation"):
            evaluation_steps(cap, fraction)
        return
    steps = np.array(evaluation_steps(cap, fraction))
    assert steps[-1] == cap
    assert round(fraction * cap) in steps
    ratios = np.diff(np.log2(steps))
    assert (ratios > 0.05).all()
    assert (ratios < 0.65).all()
