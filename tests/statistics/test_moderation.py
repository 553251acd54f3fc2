"""Variances of differences that are estimated from all pairs together: against their formulas, and simulated errors."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from pe_lab.statistics import (
    GRID_TABLE,
    NO_PRIOR,
    Families,
    Margin,
    VariancePrior,
    compare_cells,
    fit_prior,
    holm,
    paired_differences,
    seeds_needed,
)
from pe_lab.statistics import estimate_prior as fitted

NATS = Margin(0.5, "nats")


def rows_of(values: np.ndarray) -> pd.DataFrame:
    """Return cells of values [seeds, encodings]; NaN: there is none."""
    lines = [
        {"pe": f"e{pe}", "data": "copy", "depth": 1, "epochs": 1, "seed": seed, "test_loss": values[seed, pe]}
        for pe in range(values.shape[1])
        for seed in range(values.shape[0])
        if np.isfinite(values[seed, pe])
    ]
    return pd.DataFrame(lines)


def prior_of(values: np.ndarray) -> VariancePrior:
    return fitted(values, 0.0, keep_small=True)


def drawn(number: int, seeds: int = 3, encodings: int = 9) -> np.ndarray:
    rng = np.random.default_rng(number)
    return rng.normal(0, 0.1 * np.exp(rng.normal(0, 0.5, encodings)), (seeds, encodings)) + np.arange(encodings) / 4


@pytest.mark.parametrize("freedom", [2.0, 5.0, 20.0])
def test_the_prior_of_independent_variances_is_found(freedom):
    """Variances of 20,000 samples of 4, whose true variances come from a known distribution."""
    rng = np.random.default_rng(0)
    true = 0.3 * freedom / rng.chisquare(freedom, 20_000)
    own = true * rng.chisquare(3, 20_000) / 3
    found = fit_prior(own, np.full(20_000, 3.0), encodings=10**9, keep_small=True)
    assert 2 * found.dof == pytest.approx(freedom, rel=0.1)  # half of the estimate is used
    assert found.variance == pytest.approx(0.3, rel=0.05)


def test_samples_of_different_sizes_have_one_prior():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9, 20_000).astype(float)
    own = 0.3 * 6 / rng.chisquare(6, 20_000) * rng.chisquare(sizes) / sizes
    found = fit_prior(own, sizes, encodings=10**9, keep_small=True)
    assert 2 * found.dof == pytest.approx(6, rel=0.1)
    assert found.variance == pytest.approx(0.3, rel=0.05)


def test_the_estimate_solves_the_equations_of_its_source():
    """Smyth (2004), section 6.2, written with loops."""
    values = drawn(3)
    logs = []
    for first, second in combinations(range(values.shape[1]), 2):
        variance = np.var(values[:, first] - values[:, second], ddof=1)
        logs.append(math.log(variance) - special.digamma(1) + math.log(1))
    mean = sum(logs) / len(logs)
    spread = sum((value - mean) ** 2 for value in logs) / (len(logs) - 1) - math.pi**2 / 6  # trigamma(1)
    found = prior_of(values)
    whole = 2 * found.dof
    assert whole < 9  # below the limit, the number of encodings
    assert special.polygamma(1, whole / 2) == pytest.approx(spread, rel=1e-9)
    expected = math.exp(mean + special.digamma(whole / 2) - math.log(whole / 2))
    assert found.variance == pytest.approx(expected, rel=1e-9)


def test_equal_variances_count_as_many_degrees_of_freedom_as_half_the_encodings():
    rng = np.random.default_rng(0)
    variances = rng.chisquare(2, 500) / 2
    found = fit_prior(
        np.sort(variances)[100:400], np.full(300, 2.0), encodings=14, keep_small=True
    )  # less spread than by chance
    assert found.dof == 7


@pytest.mark.parametrize("encodings", [2, 4])
def test_few_encodings_share_nothing(encodings):
    values = drawn(1, encodings=encodings)
    assert prior_of(values) == NO_PRIOR
    line = paired_differences(rows_of(values), [("e1", "e0")]).iloc[0]
    expected = stats.ttest_rel(values[:, 1], values[:, 0])
    assert (line["p"], line["freedom"]) == pytest.approx((expected.pvalue, expected.df))
    assert (line["low"], line["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_a_line_is_the_moderated_t_test():
    values = drawn(5)
    prior = prior_of(values)
    pairs = [("e4", "e1"), ("e0", "e8")]
    lines = paired_differences(rows_of(values), pairs)
    for line, (first, second) in zip(lines.itertuples(), [(4, 1), (0, 8)], strict=True):
        own = values[:, first] - values[:, second]
        mean, freedom = sum(own) / 3, prior.dof + 2
        squares = sum((value - mean) ** 2 for value in own)
        deviation = math.sqrt((prior.dof * prior.variance + squares) / freedom)
        t = mean / (deviation / math.sqrt(3))
        assert line.difference == pytest.approx(mean)
        assert line.deviation == pytest.approx(deviation, rel=1e-12)
        assert line.freedom == pytest.approx(freedom)
        assert line.p == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9)
        half = stats.t.ppf(0.975, freedom) * deviation / math.sqrt(3)
        assert (line.low, line.high) == pytest.approx((mean - half, mean + half))


def test_equivalence_uses_the_shared_variance():
    values = drawn(6)
    lines = Families.of({GRID_TABLE: (rows_of(values), "loss")}, margin=NATS).lines[GRID_TABLE]
    for line in lines.itertuples():
        t = (0.5 - abs(line.difference)) / (line.deviation / math.sqrt(3))
        assert line.p_equivalent == pytest.approx(stats.t.sf(t, line.freedom), rel=1e-9)
    assert (lines["freedom"] > 2).all()
    own = [stats.ttest_rel(values[:, a], values[:, b]).pvalue for a, b in combinations(range(values.shape[1]), 2)]
    assert (lines["verdict"] != "undecided").sum() > (holm(np.array(own)) < 0.05).sum()


def test_every_comparison_shares_variances():
    rows = rows_of(drawn(6))
    families = Families.of({GRID_TABLE: (rows, "loss")}, "e0", NATS)
    for lines in (compare_cells(rows, "e0", margin=NATS), families.compare()):
        one = lines.set_index("pe").loc["e4"]
        assert one["freedom"] > 2
        assert one["deviation"] == paired_differences(rows, [("e4", "e0")])["deviation"].item()
    pairs = paired_differences(rows, list(combinations(rows["pe"].unique(), 2)), margin=NATS)
    assert pairs["deviation"].equals(families.lines[GRID_TABLE]["deviation"])
    words = "paired over shared seeds, with variances from all encodings of a setting; Holm"
    assert words in compare_cells(rows, margin=NATS).attrs["family"]
    assert words in str(families)
    two = rows[rows["pe"].isin(["e0", "e4"])]
    assert "paired over shared seeds; Holm" in compare_cells(two, margin=NATS).attrs["family"]
    assert "paired over shared seeds; Holm" in str(Families.of({GRID_TABLE: (two, "loss")}, margin=NATS))


def test_each_setting_has_a_prior_of_its_own():
    quiet, loud = drawn(7), 10 * drawn(8)
    rows = pd.concat([rows_of(quiet), rows_of(loud).assign(depth=4)], ignore_index=True)
    lines = paired_differences(rows, [("e1", "e0")])
    for values, (_, line) in zip((quiet, loud), lines.iterrows(), strict=True):
        alone = paired_differences(rows_of(values), [("e1", "e0")]).iloc[0]
        assert line["deviation"] == alone["deviation"]


def test_equal_encodings_stay_equal_and_missing_seeds_are_left_out():
    values = drawn(9, seeds=4)
    values[:, 1] = values[:, 0]
    values[1:, 2] = np.nan  # one seed
    values[3, 3] = np.nan
    shared = Families.of({GRID_TABLE: (rows_of(values), "loss")}, "e8", NATS).lines[GRID_TABLE]
    by_pair = {frozenset((line.pe, line.baseline)): line for line in shared.itertuples()}
    assert by_pair[frozenset(("e0", "e1"))].verdict == "equal"
    assert by_pair[frozenset(("e0", "e2"))].verdict == "one seed"
    assert by_pair[frozenset(("e0", "e3"))].freedom == pytest.approx(by_pair[frozenset(("e0", "e4"))].freedom - 1)


def test_one_function_with_other_rounding_keeps_its_own_variance_and_does_not_spread_that_of_others():
    values = drawn(10)
    again = np.c_[values, values[:, 0] + np.array([1e-7, -1e-7, 2e-7])]
    copied = np.c_[values, values[:, 0]]
    for with_copy in (again, copied):
        assert prior_of(with_copy).dof > 0.6 * prior_of(values).dof  # a tenth, if its variance counted
    line = paired_differences(rows_of(again), [("e9", "e0")]).iloc[0]
    assert line["freedom"] == 2
    assert 0 < line["deviation"] < 1e-6


def test_nearly_the_same_function_keeps_its_own_variance_where_chance_does_not_explain_it():
    values = drawn(13, seeds=5)
    near = values[:, 0] + 0.003 * np.array([1, -1, 0.5, -0.5, 0.2])  # a thousandth of the typical variance
    line = paired_differences(rows_of(np.c_[values, near]), [("e9", "e0")]).iloc[0]
    assert line["freedom"] == 4
    assert line["deviation"] == pytest.approx(np.std(near - values[:, 0], ddof=1))
    several = np.c_[values, near, near + 1e-3, near - 1e-3]  # pairs of the four say nothing about the others
    several[:, 10:] += 0.002 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0.5, 0.5]])
    assert prior_of(several).dof > 0.6 * prior_of(values).dof
    few = paired_differences(rows_of(np.c_[values, near][:3]), [("e9", "e0")]).iloc[0]
    assert few["freedom"] > 2  # of three seeds, chance explains it


def test_five_encodings_share():
    assert prior_of(drawn(1, encodings=5)).dof > 0
    missing = drawn(1, encodings=5)
    missing[1:, 4] = np.nan
    assert prior_of(missing) == NO_PRIOR


def test_many_settings_at_once_are_those_of_each():
    values = np.stack([drawn(number, seeds=5) for number in range(4)])
    values[1, 3:, 2] = np.nan
    values[2, :, 1:] = np.nan  # one encoding
    values[3, :, 1] = values[3, :, 0]
    together = prior_of(values)
    for number, one in enumerate(values):
        alone = prior_of(one)
        for name in ("variance", "dof", "chance"):
            assert getattr(alone, name) == pytest.approx(getattr(together, name)[number], rel=1e-12)
    assert together.dof[2] == 0
    assert (together.dof[[0, 1, 3]] > 0).all()


def test_the_seeds_that_a_difference_needs_are_fewer_with_a_shared_variance():
    line = {"pe": ["a"], "difference": [0.9], "deviation": [1.0], "seeds": [3], "p": [0.2], "margin": [2.0]}
    alone, shared = (seeds_needed(pd.DataFrame(line | {"freedom": [freedom]})).iloc[0] for freedom in (2.0, 12.0))
    for column in ("seeds_needed", "seeds_equivalent", "separable"):
        assert shared[column] < alone[column], column
    needed = int(shared["seeds_needed"])
    critical = stats.t.isf(0.025, needed - 1 + 10)
    assert stats.nct.sf(critical, needed - 1 + 10, 0.9 * math.sqrt(needed)) >= 0.8


@pytest.mark.parametrize("spread", [0.0, 0.75])
def test_few_studies_without_a_difference_say_that_there_is_one(spread):
    """300 studies of 30 encodings; sweeps/results/shared_variance.md has 1,000 of each kind."""
    rng, wrong = np.random.default_rng(2), 0
    first, second = np.triu_indices(30, 1)
    for _ in range(300):
        values = rng.standard_normal((3, 30)) * np.exp(spread * rng.standard_normal(30))
        own = values[:, first] - values[:, second]
        variance, freedom = prior_of(values).moderate(own.var(0, ddof=1), np.full(len(first), 2.0))
        p = 2 * stats.t.sf(np.abs(own.mean(0)) / np.sqrt(variance / 3), freedom)
        wrong += (holm(p) < 0.05).any()
    assert wrong / 300 < 0.05
