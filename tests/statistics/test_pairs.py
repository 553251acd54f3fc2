"""Paired tests and verdicts, against scipy and a construction by loops."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from pe_lab.statistics import (
    COMPARISON_COLUMNS,
    NO_PRIOR,
    Endpoint,
    Verdict,
    all_pairs,
    compare,
    decide_pairs,
    estimate_prior,
    paired_tests,
    rank_ranges,
    with_baseline,
)
from pe_lab.statistics.comparisons import exchange_pairs
from pe_lab.statistics.moderation import fit_prior

STEPS = Endpoint("steps", 1.0)


def draw(seed: int, seeds: int = 5, encodings: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    deviations = np.exp(0.5 * rng.standard_normal(encodings))
    return 10 + rng.choice([0.0, 0.5, 1.5], encodings) + 0.4 * deviations * rng.standard_normal((seeds, encodings))


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_without_moderation_and_measurement_error_it_is_the_paired_t_test(seeds: int) -> None:
    y, pairs = draw(0, seeds), all_pairs(8)
    tests = paired_tests(y, pairs, STEPS, prior=NO_PRIOR, noise_std=0.0)
    for number, (first, second) in enumerate(combinations(range(8), 2)):
        expected = stats.ttest_rel(y[:, first], y[:, second])
        interval = expected.confidence_interval(0.95)
        found = [getattr(tests, name)[number] for name in ("p", "low", "high", "freedom")]
        np.testing.assert_allclose(found, [expected.pvalue, *interval, expected.df], rtol=1e-9)
        d = y[:, first] - y[:, second]
        sides = [
            stats.ttest_1samp(d, bound, alternative=way).pvalue for bound, way in ((-1.0, "greater"), (1.0, "less"))
        ]
        np.testing.assert_allclose(tests.p_equivalent[number], max(sides), rtol=1e-9)


def test_moderated_variances_are_those_of_limma_by_loops() -> None:
    y, noise_std = draw(1), 0.03
    variances = [np.var(y[:, a] - y[:, b], ddof=1) + 2 * noise_std**2 for a, b in combinations(range(8), 2)]
    logs = [np.log(v) - special.digamma(2.0) + np.log(2.0) for v in variances]
    spread = np.var(logs, ddof=1) - special.polygamma(1, 2.0)
    assert spread > 0
    freedom = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - spread, 1e-3, 1e6)
    scale = np.exp(np.mean(logs) + special.digamma(freedom / 2) - np.log(freedom / 2))
    used = 0.5 * min(freedom, 8)
    expected = [max((used * scale + 4 * v) / (used + 4), np.median(variances)) for v in variances]
    tests = paired_tests(y, all_pairs(8), STEPS)
    np.testing.assert_allclose(tests.deviation**2, expected, rtol=1e-9)
    np.testing.assert_allclose(tests.freedom, used + 4, rtol=1e-9)
    error = np.sqrt(np.array(expected) / 5)
    np.testing.assert_allclose(tests.p, 2 * stats.t.sf(np.abs(tests.difference) / error, used + 4), rtol=1e-9)
    half = stats.t.ppf(0.975, used + 4) * error
    np.testing.assert_allclose(tests.high, tests.difference + half, rtol=1e-9)


def test_the_prior_is_recovered_from_many_independent_variances() -> None:
    rng = np.random.default_rng(0)
    truth = 0.3 * 8 / rng.chisquare(8, 200_000)
    prior = fit_prior(truth * rng.chisquare(4, 200_000) / 4, np.full(200_000, 4.0), 1000)
    np.testing.assert_allclose(prior.variance, 0.3, rtol=0.02)
    np.testing.assert_allclose(prior.dof, 0.5 * 8, rtol=0.05)


@pytest.mark.parametrize("encodings", [2, 4, 8])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_differences_never_have_p_0(encodings: int, seeds: int) -> None:
    y = np.tile(np.arange(encodings) * 0.5, (seeds, 1)) + np.arange(seeds)[:, None]
    tests = paired_tests(y, all_pairs(encodings), STEPS)
    assert (tests.p > 0).all()
    assert (tests.deviation >= np.sqrt(2) * 0.03 * (1 - 1e-12)).all()
    same = paired_tests(np.zeros((seeds, encodings)), all_pairs(encodings), STEPS)
    np.testing.assert_array_equal(same.p, 1.0)


def test_no_variance_is_below_the_median_of_the_family() -> None:
    y = draw(2)
    y[:, 0] = y[:, 1] + 1.2  # a certain difference, were it judged alone
    tests = paired_tests(y, all_pairs(8), STEPS)
    prior = estimate_prior(y, 0.03)
    assert tests.deviation[0] == pytest.approx(np.sqrt(prior.min_variance))
    assert (tests.deviation >= tests.deviation[0] * (1 - 1e-12)).all()


def test_fewer_than_five_encodings_share_nothing() -> None:
    y = draw(3)[:, :4]
    moderated, alone = (paired_tests(y, all_pairs(4), STEPS, prior=prior) for prior in (None, NO_PRIOR))
    np.testing.assert_array_equal(moderated.p, alone.p)


def test_one_seed_has_a_difference_and_no_verdict() -> None:
    tests = paired_tests(draw(0)[:1], all_pairs(8), STEPS)
    assert np.isfinite(tests.difference).all()
    assert np.isnan(tests.p).all()
    assert (decide_pairs(tests, STEPS).verdict == Verdict.UNDECIDED).all()


def test_missing_runs_leave_the_shared_seeds() -> None:
    y = draw(4)
    y[3:, 2] = np.nan
    solved = np.ones(y.shape, bool)
    solved[4, 0] = False  # not a shared seed of 0 and 2
    tests = paired_tests(y, with_baseline(8, 2), STEPS, solved, NO_PRIOR, noise_std=0.0)
    np.testing.assert_array_equal(tests.seeds, 3)
    np.testing.assert_allclose(tests.p[0], stats.ttest_rel(y[:3, 0], y[:3, 2]).pvalue)
    assert tests.solved is not None
    assert tests.solved[0] == 3


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([3, 5, 8]))
def test_relabelling_changes_nothing(seed: int, seeds: int) -> None:
    rng = np.random.default_rng(seed)
    y = draw(seed, seeds)
    solved = rng.random(y.shape) < rng.choice([0.2, 0.9, 1.0], 8)
    y = np.where(solved, y, 12.0)
    frame = long(y, solved)
    lines = compare(frame, STEPS).set_index(["pe", "baseline"])
    shuffled = compare(long(y[rng.permutation(seeds)], solved[rng.permutation(seeds)], names=list("abcdefgh")), STEPS)
    assert len(shuffled) == len(lines)
    assert set(COMPARISON_COLUMNS) <= set(shuffled)
    pd.testing.assert_frame_equal(exchange_pairs(exchange_pairs(shuffled)), shuffled)
    order, rows = rng.permutation(8), rng.permutation(seeds)
    turned = compare(long(y[rows][:, order], solved[rows][:, order], [list("abcdefgh")[k] for k in order]), STEPS)
    both = pd.concat([turned, exchange_pairs(turned)]).set_index(["pe", "baseline"]).loc[lines.index]
    pd.testing.assert_frame_equal(both, lines, rtol=1e-7, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(-3, 3))
def test_verdicts_do_not_depend_on_the_origin_and_scores_turn_round(seed: int, shift: float) -> None:
    y = draw(seed)
    first = decide_pairs(paired_tests(y, all_pairs(8), STEPS), STEPS).verdict
    moved = decide_pairs(paired_tests(y + shift, all_pairs(8), STEPS), STEPS).verdict
    np.testing.assert_array_equal(first, moved)
    score = Endpoint("score", 0.1)
    as_score = decide_pairs(paired_tests(-y / 10, all_pairs(8), score), score).verdict
    np.testing.assert_array_equal(first, as_score)


def verdict_of(y: np.ndarray, solved: np.ndarray, first: int = 0, second: int = 1, baseline: bool = False) -> str:
    pairs = with_baseline(y.shape[1], second) if baseline else all_pairs(y.shape[1])
    found = decide_pairs(paired_tests(y, pairs, STEPS, solved), STEPS, baseline).verdict
    return str(found[[(a, b) for a, b in zip(*pairs, strict=True)].index((first, second))])


def test_each_verdict_occurs_where_it_should() -> None:
    y = 10 + 0.1 * np.random.default_rng(0).standard_normal((5, 6))
    y[:, 0] -= 2.0
    y[:, 2] += 0.5
    y[:, 4:] = 12.0
    solved = y < 12.0
    assert verdict_of(y, solved, 0, 1) == Verdict.BETTER
    assert verdict_of(y, solved, 1, 2) == Verdict.SLIGHTLY_BETTER
    assert verdict_of(y, solved, 1, 3) == Verdict.EQUIVALENT
    assert verdict_of(y, solved, 2, 3) == Verdict.SLIGHTLY_WORSE
    assert verdict_of(y, solved, 4, 5) == Verdict.BOTH_UNSOLVED
    assert verdict_of(y, solved, 3, 4) == Verdict.BETTER
    assert verdict_of(y, solved, 0, 1, baseline=True) == Verdict.BETTER


def test_equivalence_needs_five_seeds_and_all_runs_solved() -> None:
    y = 10 + 0.05 * np.random.default_rng(0).standard_normal((5, 6))
    solved = np.ones(y.shape, bool)
    assert verdict_of(y, solved) == Verdict.EQUIVALENT
    assert verdict_of(y[:4], solved[:4]) == Verdict.UNDECIDED
    solved[2, 1] = False
    assert verdict_of(y, solved) == Verdict.UNDECIDED


def test_the_winner_solved_at_least_as_many_runs() -> None:
    y = 10 + 0.05 * np.random.default_rng(0).standard_normal((5, 6))
    y[:, 0] -= 2
    solved = np.ones(y.shape, bool)
    assert verdict_of(y, solved) == Verdict.BETTER
    solved[0, 0] = False
    assert verdict_of(y, solved) == Verdict.UNDECIDED
    solved[1, 1] = False
    assert verdict_of(y, solved) == Verdict.BETTER


def test_a_larger_difference_is_never_less_certain() -> None:
    y, previous = draw(5), 1.1
    solved = np.ones(y.shape, bool)
    for shift in (2.0, 3.0, 4.0, 6.0):
        moved = y.copy()
        moved[:, 0] -= shift
        p = decide_pairs(paired_tests(moved, all_pairs(8), STEPS, solved), STEPS).p_corrected[0]
        assert p < previous
        previous = p


def test_baseline_families_are_corrected_by_holm_and_all_pairs_by_the_false_discovery_rate() -> None:
    y = draw(6)
    against = compare(long(y), STEPS, baseline="b")
    np.testing.assert_allclose(against["p_corrected"], holm_by_loops(against["p"].tolist()))
    assert (against["baseline"] == "b").all()
    every = compare(long(y), STEPS)
    np.testing.assert_allclose(every["p_corrected"], stats.false_discovery_control(every["p"]))
    for lines in (against, every):
        expected = holm_by_loops(lines["p_equivalent"].tolist())
        np.testing.assert_allclose(lines["p_equivalent_corrected"], expected)


def holm_by_loops(p: list[float]) -> list[float]:
    order = sorted(range(len(p)), key=lambda i: p[i])
    found, largest = [0.0] * len(p), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, (len(p) - rank) * p[number])
        found[number] = min(largest, 1.0)
    return found


def test_ranks_follow_from_better_and_worse_alone() -> None:
    words = {(0, 1): "better", (0, 2): "better", (1, 2): "slightly better", (0, 3): "undecided", (2, 3): "worse"}
    verdict = np.array([words.get(pair, "equivalent") for pair in combinations(range(4), 2)])
    best, worst = rank_ranges(verdict, 4)
    assert best.tolist() == [1, 2, 3, 1]
    assert worst.tolist() == [2, 4, 4, 3]


def test_each_task_is_a_family() -> None:
    parts = [long(draw(seed)).assign(task=f"task {seed}") for seed in (0, 1)]
    together = compare(pd.concat(parts), STEPS)
    for part in parts:
        name = part["task"].iloc[0]
        alone = compare(part.drop(columns="task"), STEPS)
        np.testing.assert_array_equal(together[together["task"] == name]["p_corrected"], alone["p_corrected"])


def set_to(name: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change a column in one run."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        column = frame.assign(task="copy", solved=True)[name].astype(object)
        column[3] = value
        return frame.assign(**{name: column})

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda frame: frame.drop(columns="y"), "columns pe, seed and y"),
        (lambda frame: frame.assign(y=frame["y"].where(frame.index != 3)), "y must be finite"),
        (lambda frame: frame.assign(y=frame["y"].where(frame.index != 3, np.inf)), "y must be finite"),
        (lambda frame: frame.assign(y="fast"), "y must be finite, got fast"),
        (lambda frame: pd.concat([frame, frame[:1]]), "a run must occur once"),
        (lambda frame: frame[frame["pe"] == "a"], "must be of two encodings or more, got a"),
        (lambda frame: frame[:0], "must be of two encodings or more, got none"),
        (lambda frame: frame[:0].assign(task="copy"), "must be of two encodings or more, got none"),
        (lambda frame: frame.assign(task=["copy"] * 5 + ["sort"] * 35), "of copy must be of two encodings or more"),
        *[(set_to(name, np.nan), f"{name} must be given, got nan") for name in ("pe", "seed", "task")],
        *[(set_to("solved", value), "solved must be true or false") for value in (np.nan, None, 2, "yes")],
    ],
)
def test_runs_that_do_not_fit_are_refused(change, word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        compare(change(long(draw(0))), STEPS)
    assert "\n" not in str(error.value)


def test_encodings_without_a_shared_seed_are_undecided() -> None:
    y = draw(0, seeds=4)
    y[:2, 0] = y[2:, 1:] = np.nan
    tests = paired_tests(y, all_pairs(8), STEPS, np.ones(y.shape, bool))
    np.testing.assert_array_equal(tests.seeds[:7], 0)
    assert (decide_pairs(tests, STEPS).verdict[:7] == Verdict.UNDECIDED).all()


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline must be one of a, b"):
        compare(long(draw(0)), STEPS, baseline="rope")


@pytest.mark.parametrize(
    ("kind", "margin", "word"),
    [
        ("steps", "1 nat", "number of octaves"),
        ("score", "1 octave", "number of scores"),
        ("loss", "0.02", "number of nats"),
        ("steps", "one octave", "number of octaves"),
        ("steps", "0 octaves", "above 0"),
        ("steps", "7 octaves", "below 6"),
        ("score", "1 score", "below 1"),
        ("loss", "nan nat", "number of nats"),
        ("speed", "1 octave", "endpoint must be one of"),
    ],
)
def test_margins_that_do_not_fit_an_endpoint_are_refused(kind: str, margin: str, word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        Endpoint.parse(kind, margin, range=6.0)
    assert "\n" not in str(error.value)


def test_margins_are_read_with_their_unit() -> None:
    assert Endpoint.parse("steps", "1 octave") == Endpoint("steps", 1.0)
    assert Endpoint.parse("loss", "0.02 nats").margin == 0.02


def long(y: np.ndarray, solved: np.ndarray | None = None, names: list[str] | None = None) -> pd.DataFrame:
    names = names or list("abcdefgh")
    frame = pd.DataFrame(
        [(name, seed, y[seed, k]) for k, name in enumerate(names) for seed in range(len(y))],
        columns=["pe", "seed", "y"],
    )
    return frame if solved is None else frame.assign(solved=solved.T.ravel())
