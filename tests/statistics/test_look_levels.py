"""Looks: a valid level at every look, seeds only where they decide, and the same answer after an interruption."""

import numpy as np
import pytest

from benchmarks.simulated_looks import sequential
from pe_lab.statistics import Endpoint, Verdict, decide_pairs, holm, paired_tests, with_baseline

STEPS = Endpoint("steps", 1.0)


def runs(studies: int, seed: int = 0, shift: tuple[float, ...] = (0.0,) * 8) -> np.ndarray:
    return 10 + np.array(shift) + 0.4 * np.random.default_rng(seed).standard_normal((studies, 12, 8))


def test_studies_without_a_difference_find_one_in_at_most_5_percent() -> None:
    y = runs(2000)
    found = sequential(y, 0, Endpoint("steps", 0.05), np.ones(y.shape, bool))  # no equivalence ends them
    wrong = np.isin(found.verdict, ["better", "worse", "slightly better", "slightly worse"]).any(-1).mean()
    assert 0.002 < wrong < 0.05


def test_a_difference_at_the_margin_is_called_equivalent_in_at_most_5_percent() -> None:
    y = runs(1000, shift=(0.0, 1, 1, 1, 1, 1, 1, 1))
    found = sequential(y, 0, STEPS, np.ones(y.shape, bool))
    assert (found.verdict == Verdict.EQUIVALENT).any(-1).mean() < 0.05


def test_looks_that_are_equal_to_one_fixed_number_are_the_fixed_test() -> None:
    y = runs(50)[:, :5]
    solved = np.ones(y.shape, bool)
    found = sequential(y, 2, STEPS, solved, looks=(5,), spent=(1.0,))
    tests = paired_tests(y, with_baseline(8, 2), STEPS, solved)
    decisions = decide_pairs(tests, STEPS, baseline=True)
    np.testing.assert_array_equal(found.verdict, decisions.verdict)
    np.testing.assert_allclose(found.p, decisions.p_corrected)
    np.testing.assert_array_equal(found.low, tests.low)


def test_a_look_spends_its_part_of_the_level() -> None:
    y = runs(1, shift=(0.0, 0, 0.2, 0.3, 0.6, 0.8, 1, 2))[0, :5]
    solved = np.ones(y.shape, bool)
    found = sequential(y, 0, STEPS, solved, looks=(5, 8), spent=(0.25, 0.75))
    tests = paired_tests(y, with_baseline(8, 0), STEPS, solved)
    np.testing.assert_allclose(found.p, holm(np.minimum(tests.p / 0.25, 1)))
    np.testing.assert_allclose(found.p_equivalent, holm(np.minimum(tests.p_equivalent / 0.25, 1)))


def test_what_is_decided_keeps_its_seeds_and_the_rest_goes_on() -> None:
    y = runs(1, shift=(0.0, 0, 0, 0, 0.6, 0.6, 5, 5))[0]
    solved = np.ones(y.shape, bool)
    found = sequential(y, 0, STEPS, solved)
    assert (found.seeds[-2:] == 5).all()
    assert (found.verdict[-2:] == Verdict.WORSE).all()
    assert (found.needed == 0).all()
    changed = y.copy()
    changed[5:, 6:] = 0.0  # of seeds that a decided comparison does not use
    again = sequential(changed, 0, STEPS, solved)
    np.testing.assert_array_equal(again.verdict, found.verdict)
    np.testing.assert_array_equal(again.p, found.p)


def test_a_study_that_is_interrupted_asks_for_the_seeds_it_needs_and_ends_as_if_it_had_not_been() -> None:
    y = runs(1, 3, shift=(0.0, 0, 0.3, 0.5, 0.6, 1.0, 5, 5))[0]
    solved = np.ones(y.shape, bool)
    expected = sequential(y, 0, STEPS, solved)
    known = np.full(y.shape, np.nan)
    for _ in range(5):
        found = sequential(known, 0, STEPS, solved)
        if not found.needed.any():
            break
        for number, needed in zip(range(1, 8), found.needed, strict=True):
            known[:needed, number] = y[:needed, number]
        known[: found.needed.max(), 0] = y[: found.needed.max(), 0]
    np.testing.assert_array_equal(found.verdict, expected.verdict)
    np.testing.assert_allclose(found.p, expected.p)
    assert np.isnan(known).any()  # some seeds were saved


def test_a_look_waits_for_all_that_is_open() -> None:
    y = runs(1)[0]
    y[2, 5] = np.nan
    found = sequential(y, 0, STEPS, np.ones(y.shape, bool))
    assert (found.seeds == 0).all()
    assert (found.needed == 5).all()
    assert (found.verdict == Verdict.UNDECIDED).all()


def test_unsolved_runs_on_both_sides_are_not_tested() -> None:
    y = np.full((12, 8), 12.0)
    y[:, 1:4] = 8 + 0.1 * np.random.default_rng(0).standard_normal((12, 3))
    found = sequential(y, 0, STEPS, y < 12)
    assert (found.verdict[:3] == Verdict.BETTER).all()
    assert (found.verdict[3:] == Verdict.BOTH_UNSOLVED).all()


@pytest.mark.parametrize(
    ("looks", "spent", "word"),
    [
        ((1, 3), (0.5, 0.5), "ascending numbers of seeds from 2"),
        ((5, 3), (0.5, 0.5), "ascending numbers of seeds from 2"),
        ((3, 5), (1.0,), "a part above 0 for each of 2 looks"),
        ((3, 5), (0.6, 0.6), "in all at most 1"),
        ((3, 5), (0.0, 1.0), "a part above 0"),
    ],
)
def test_designs_that_do_not_fit_are_refused(looks: tuple[int, ...], spent: tuple[float, ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        sequential(runs(1)[0], 0, STEPS, looks=looks, spent=spent)
