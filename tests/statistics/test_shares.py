"""Exact intervals and tests of shares, against enumeration."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pe_lab.statistics import compare_shares, share_interval
from pe_lab.statistics.shares import share_p

CHANCES = np.linspace(0.01, 0.99, 99)


@pytest.mark.parametrize("runs", [1, 3, 5, 12])
def test_intervals_contain_every_share_often_enough(runs: int) -> None:
    low, high = share_interval(np.arange(runs + 1), runs)
    for chance in CHANCES:
        weight = stats.binom.pmf(np.arange(runs + 1), runs, chance)
        assert weight[(low <= chance) & (chance <= high)].sum() >= 0.95 - 1e-12
    expected = stats.binomtest(runs, runs).proportion_ci(0.95)
    np.testing.assert_allclose([low[-1], high[-1]], expected)


@pytest.mark.parametrize(("runs", "others"), [(3, 3), (5, 5), (5, 8), (12, 12)])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_equal_shares_are_found_to_differ_no_more_often_than_the_level(runs: int, others: int, level: float) -> None:
    rejected = np.array(
        [[share_p(a, runs, b, others) < level for b in range(others + 1)] for a in range(runs + 1)], float
    )
    for chance in CHANCES:
        first, second = (stats.binom.pmf(np.arange(n + 1), n, chance) for n in (runs, others))
        assert first @ rejected @ second <= level


def test_the_test_is_that_of_boschloo_by_enumeration() -> None:
    runs = 5

    def fisher(a: int, b: int) -> float:
        return float(stats.hypergeom.sf(a - 1, 2 * runs, a + b, runs))

    for a, b in ((5, 0), (5, 2), (4, 1), (3, 2)):
        extreme = np.array([[fisher(x, y) <= fisher(a, b) * (1 + 1e-9) for y in range(6)] for x in range(6)], float)
        sizes = [(w := stats.binom.pmf(np.arange(6), 5, chance)) @ extreme @ w for chance in np.linspace(0, 1, 2001)]
        np.testing.assert_allclose(share_p(a, 5, b, 5), min(1, 2 * max(sizes)), rtol=1e-3)


def test_the_two_encodings_and_solved_and_unsolved_may_be_swapped() -> None:
    for a in range(6):
        for b in range(6):
            p = share_p(a, 5, b, 5)
            assert p == share_p(b, 5, a, 5) == share_p(5 - a, 5, 5 - b, 5)
    assert share_p(0, 5, 0, 5) == share_p(5, 5, 5, 5) == share_p(2, 4, 1, 2) == 1


def test_a_frame_is_compared_task_by_task() -> None:
    solved = {"a": 12, "b": 12, "c": 0, "d": 6}
    rows = [
        {"task": task, "pe": name, "seed": seed, "solved": seed < count}
        for task in ("copy", "place")
        for name, count in solved.items()
        for seed in range(12)
    ]
    found = compare_shares(pd.DataFrame(rows)).set_index(["task", "pe", "baseline"])
    assert found.loc[("copy", "a", "c"), "verdict"] == "more"
    assert found.loc[("place", "c", "d"), "verdict"] == "fewer"
    assert found.loc[("place", "a", "b"), "verdict"] == "undecided"
    line = found.loc[("copy", "a", "d")]
    assert (line["share"], line["baseline_share"], line["baseline_runs"]) == (1.0, 0.5, 12)
    np.testing.assert_allclose([line["low"], line["baseline_high"]], [0.7354, 0.7891], atol=1e-4)
    p = found.loc["copy"]["p"]
    np.testing.assert_allclose(found.loc["copy"]["p_corrected"], stats.false_discovery_control(p))


@pytest.mark.parametrize(("solved", "runs"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(solved: int, runs: int) -> None:
    with pytest.raises(ValueError, match="between 0 and the number of runs"):
        share_interval(solved, runs)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda frame: frame.drop(columns="solved"), "columns pe and solved, got none named solved"),
        (lambda frame: frame.assign(pe="a"), "must be of two encodings or more, got a"),
        (lambda frame: frame[:0], "must be of two encodings or more, got none"),
        (lambda frame: frame.assign(task=np.nan), "task must be given, got nan"),
        (lambda frame: frame.assign(solved=[1, np.nan]), "solved must be true or false, got nan"),
        (lambda frame: frame.assign(solved=[1, 2]), "solved must be true or false, got 2"),
    ],
)
def test_runs_that_do_not_fit_are_refused(change: Callable[[pd.DataFrame], pd.DataFrame], word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        compare_shares(change(pd.DataFrame({"pe": ["a", "b"], "solved": [True, False]})))
    assert "\n" not in str(error.value)
