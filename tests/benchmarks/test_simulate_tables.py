"""The simulated comparisons of every two encodings: what is counted as wrong, and the noise of runs that fail."""

import numpy as np
import pytest

from benchmarks import simulate_tables
from pe_lab.statistics import NO_PRIOR
from pe_lab.statistics.pairs import t_tests

SEEDS = np.array([-1.0, 0.0, 1.0])
# differences of eight pairs in three seeds, with a margin of 4.4: mean, what the seeds add, and the true difference
PAIRS = [
    (10.0, 0.001, 10.0),  # rightly found to differ
    (-10.0, 0.001, 10.0),  # in the wrong direction
    (9.0, 0.001, 0.0),  # there is no difference
    (0.0001, 0.01, 0.0),  # rightly found equivalent
    (0.0001, 0.01, 4.4),  # wrongly
    (1.0, 0.0001, 4.4),  # both are found, the difference with the right sign: counted as different
    (0.5, 5.0, 0.0),  # nothing is found
    (0.5, 5.0, 4.4),  # nothing is found
]


def judge(mean: np.ndarray, spread: np.ndarray, true: np.ndarray) -> tuple[float, ...]:
    """Return what is counted of pairs whose second encoding is at 0."""
    pairs = np.arange(len(mean)), np.full(len(mean), len(mean))
    values = np.column_stack([mean + SEEDS[:, None] * spread, np.zeros(3)])
    return simulate_tables._judge(t_tests(values, pairs, simulate_tables.MARGIN, prior=NO_PRIOR, keep_small=True), true)


def test_wrong_and_right_pairs_are_counted_by_hand() -> None:
    mean, spread, true = map(np.array, zip(*PAIRS, strict=True))
    found = judge(mean, spread, true)
    any_different, any_equivalent, right, covered, false, false_equivalent, share = found
    assert (any_different, any_equivalent) == (1.0, 1.0)
    assert right == pytest.approx(2 / 8)  # Holm: the sixth has a wrong equivalence too
    assert covered == pytest.approx(4 / 8)  # of the first, the fourth and the last two
    assert false == pytest.approx(2 / 4)  # of the four found to differ
    assert false_equivalent == pytest.approx(1 / 2)  # the sixth is not among them
    assert share == pytest.approx(3 / 8)


def test_wrong_ranges_of_ranks_are_counted_by_hand() -> None:
    """Four encodings, the first two truly equal and best. The comparisons of each are a family of three."""
    #               0-1    0-2   0-3    1-2   1-3   2-3
    true = np.array([0.0, -1.0, -2.0, -1.0, -2.0, -1.0])
    mean = np.array([0.3, -1.0, -2.0, 0.5, -2.0, -1.0])
    nothing = np.full(6, 0.9)
    assert simulate_tables._ranks(4, mean, nothing, true) == (0.0, 0.0, 1.0)
    right = np.array([0.9, 0.001, 0.001, 0.9, 0.001, 0.001])
    assert simulate_tables._ranks(4, mean, right, true) == (0.0, 0.0, 1 - 8 / 16)
    apart = np.array([0.001, 0.9, 0.9, 0.9, 0.9, 0.9])  # 0 is said to be behind 1, though they are equal
    assert simulate_tables._ranks(4, mean, apart, true) == (2 / 4, 1 / 2, 1 - 2 / 16)
    turned = np.array([0.9, 0.9, 0.9, 0.001, 0.9, 0.9])  # 1 is said to be behind 2, which is worse
    assert simulate_tables._ranks(4, mean, turned, true) == (2 / 4, 1 / 2, 1 - 2 / 16)
    weak = np.array([0.9, 0.9, 0.9, 0.9, 0.9, 0.02])
    assert simulate_tables._ranks(4, mean, weak, true)[2] == 1.0  # times 3


def test_nothing_is_wrong_where_all_is_right() -> None:
    mean, spread, true = map(np.array, zip(*[PAIRS[0], PAIRS[3]], strict=True))
    found = judge(mean, spread, true)
    assert found == (0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def test_runs_fail_with_one_probability_for_all_encodings_of_a_study() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        runs = simulate_tables.solved_or_not(rng, (4, 500))
        failed = runs > runs.min() + 2  # by 4.2 deviations
        each = failed.mean(1)
        assert np.ptp(each) < 0.15
        assert abs(runs.mean()) < 0.25
        shares.append(each.mean())
    assert np.mean(shares) == pytest.approx(0.3, abs=0.04)
    assert max(shares) < 0.65
    assert min(shares) < 0.05


@pytest.mark.parametrize("noise", ["equal", "solved or not"])
def test_a_line_of_the_table_has_small_errors(noise: str) -> None:
    noises = simulate_tables.noise_of_spreads() | {"solved or not": simulate_tables.solved_or_not}
    found = simulate_tables.line(noise, noises[noise], 5, 5, 60)
    shared = float(str(found["no difference"]).split(" / ")[1])
    assert shared <= 12
    assert float(str(found["coverage"]).split(" / ")[1]) > 90
