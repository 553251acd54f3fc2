"""Verdicts follow from two kinds of tests: of differences, and of equivalence within the margin."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from pe_lab.results.columns import REMAINING_METRIC
from pe_lab.statistics import (
    GRID_TABLE,
    Families,
    Margin,
    add_verdicts,
    compare_cells,
    holm,
    paired_differences,
    seeds_needed,
)

NATS = Margin(0.5, "nats")


def rows_of(values: dict[str, list[float]], metric: str = "loss", depth: int = 1) -> pd.DataFrame:
    return pd.DataFrame(
        {"pe": pe, "depth": depth, "epochs": 1, "seed": seed, f"test_{metric}": value}
        for pe, numbers in values.items()
        for seed, value in enumerate(numbers)
    )


def all_pairs(rows: pd.DataFrame, margin: Margin) -> pd.DataFrame:
    pairs = list(combinations(rows["pe"].unique(), 2))
    return add_verdicts(paired_differences(rows, pairs, margin=margin), "loss")


def ranks(rows: pd.DataFrame, margin: Margin) -> pd.DataFrame:
    return Families.of({GRID_TABLE: (rows, "loss")}, margin=margin).ranks()


def p_equivalent(difference, deviation, freedom, seeds, margin):
    return stats.t.sf((margin - np.abs(difference)) / (deviation / np.sqrt(seeds)), freedom)


def apart(difference: float, deviation: float, seeds: int = 6) -> list[float]:
    """Return values with exactly this mean and standard deviation."""
    shape = np.random.default_rng(0).normal(size=seeds)
    return list(difference + deviation * (shape - shape.mean()) / shape.std(ddof=1))


def judged(difference: float, deviation: float, metric: str = "loss", margin: Margin = NATS) -> str:
    rows = rows_of({"base": [0.0] * 6, "pe": apart(difference, deviation)}, metric)
    return compare_cells(rows, metric=metric, margin=margin)["verdict"].item()


@pytest.mark.parametrize("number", range(20))
def test_the_p_value_is_that_of_statsmodels(number):
    rng = np.random.default_rng(number)
    seeds, margin = int(rng.integers(2, 12)), float(rng.uniform(0.05, 2))
    first, second = rng.normal(rng.normal(), 1, seeds), rng.normal(size=seeds)
    rows = rows_of({"b": list(second), "a": list(first)})
    found = compare_cells(rows, margin=Margin(margin, "nats"))
    expected, above, below = ttost_paired(first, second, -margin, margin)
    assert expected == max(above[1], below[1])
    assert found["p_equivalent"].item() == pytest.approx(expected, rel=1e-9)
    assert found["margin"].item() == margin


@pytest.mark.parametrize("shift", [0.25, 0.1])  # 0.1: equal up to rounding
@pytest.mark.parametrize("encodings", [2, 9])
def test_equal_differences_have_the_deviation_of_the_measurement_error(shift, encodings):
    """Three differences that happen to be equal, as steps on a grid are, prove less than p = 0."""
    values = np.random.default_rng(0).normal(size=(encodings, 3)) + np.arange(encodings)[:, None]
    values[1] = values[0] + shift
    found = paired_differences(
        rows_of({f"pe{k}": list(v) for k, v in enumerate(values)}), [("pe1", "pe0")], margin=NATS
    )
    line = found.iloc[0]
    error = 0.03 * 0.5 * np.sqrt(2)
    if encodings == 2:
        assert line["deviation"] == pytest.approx(error, rel=1e-9)
        assert line["p"] == pytest.approx(2 * stats.t.sf(shift / error * np.sqrt(3), 2), rel=1e-9)
    assert line["deviation"] >= error
    assert line["p"] > 1e-4
    assert line["p_equivalent"] > 1e-4
    assert line["low"] < shift < line["high"]


def test_equal_differences_without_a_margin_prove_nothing():
    rows = rows_of({"a": [1.0, 2.0, 3.0], "b": [1.25, 2.25, 3.25]}, "perplexity")
    found = compare_cells(rows, metric="perplexity").iloc[0]
    assert np.isnan(found["p"])
    assert found["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("difference", "deviation", "expected"),
    [
        (1.0, 0.1, "worse"),
        (-1.0, 0.1, "better"),
        (0.3, 0.1, "slightly worse"),
        (-0.3, 0.1, "slightly better"),
        (0.01, 0.1, "equivalent"),
        (0.3, 0.5, "undecided"),
        (0.3, 0.25, "slightly worse"),  # not shown to be within the margin
        (0.501, 0.1, "worse"),
    ],
)
def test_a_significant_difference_is_slight_if_its_mean_is_below_the_margin(difference, deviation, expected):
    assert judged(difference, deviation) == expected
    assert judged(difference, 0.0 * deviation + 1e3) == "undecided"


def test_accuracies_are_better_when_they_rise():
    share = Margin(0.5, "share")
    assert judged(0.3, 0.1, "accuracy", share) == "slightly better"
    assert judged(-0.9, 0.1, "accuracy", share) == "worse"
    assert judged(0.01, 0.1, "accuracy", share) == "equivalent"


def test_what_cannot_be_tested_has_no_p_of_equivalence():
    rows = rows_of({"a": [1.0, 2.0, 4.0], "same": [1.0, 2.0, 4.0], "one": [1.01], "near": [1.0, 2.01, 4.0]})
    rows = pd.concat([rows, rows_of({"none": [1.0]}).assign(seed=9)])
    found = compare_cells(rows, margin=NATS).set_index("pe")
    assert found["verdict"].to_dict() == {
        "same": "equal",
        "one": "one seed",
        "near": "equivalent",
        "none": "no shared seed",
    }
    assert found["p_equivalent"].notna().to_dict() == {"same": False, "one": False, "near": True, "none": False}
    assert found.loc["near", "p_equivalent_corrected"] == found.loc["near", "p_equivalent"]  # alone in its family
    assert (found["margin"] == 0.5).all()


def test_without_a_margin_nothing_is_equivalent():
    values = {"a": apart(1, 0.1), "b": apart(1, 0.1)[::-1], "c": apart(3, 0.2)}
    found = compare_cells(rows_of(values, "perplexity"), metric="perplexity")
    assert found["verdict"].tolist() == ["undecided", "worse"]
    assert found[["margin", "p_equivalent", "p_equivalent_corrected"]].isna().all(axis=None)
    assert "equivalence within none" in found.attrs["family"]


def grid(number: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    parts = []
    for depth in (1, 2, 3):
        shared = rng.normal(size=5)
        values = {f"pe{k}": list(0.15 * k + shared + rng.normal(0, 0.08, 5)) for k in range(4)}
        parts.append(rows_of(values, depth=depth))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("ask", [compare_cells, all_pairs])
def test_each_of_the_two_kinds_of_tests_is_corrected_over_the_whole_family(ask):
    found = ask(grid(), margin=Margin(0.3, "nats"))
    for name in ("p", "p_equivalent"):
        np.testing.assert_array_equal(found[f"{name}_corrected"], holm(found[name].to_numpy()))
    assert (found["p_equivalent_corrected"] > found["p_equivalent"]).any()
    raw = found.assign(small=found["p_equivalent"] < 0.05)
    assert (raw["small"] & (raw["verdict"] == "undecided")).any()  # the correction decides some
    assert found["verdict"].nunique() >= 2
    assert found.attrs["margin"] == "0.3 nats"


def test_families_correct_equivalence_as_they_correct_differences():
    rows = grid(1)
    longer = rows_of({f"pe{k}": apart(0.5 + 0.01 * k, 0.02 * (1 + k)) for k in range(4)}, "exact_match")
    given = {"loss": Margin(0.3, "nats"), "exact_match": Margin(0.1, "share")}
    compared = Families.of({GRID_TABLE: (rows, "loss"), "longer": (longer, "exact_match")}, "pe1", given)
    lines = pd.concat(compared.lines.values())
    for name in ("p", "p_equivalent"):
        np.testing.assert_array_equal(lines[f"{name}_corrected"], holm(lines[name].to_numpy()))
    assert set(compared.lines[GRID_TABLE]["margin"]) == {0.3}
    assert set(compared.lines["longer"]["margin"]) == {0.1}
    assert compared.margins == {GRID_TABLE: "0.3 nats", "longer": "0.1 share"}
    assert str(compared).endswith("for equivalence within 0.3 nats (loss) and 0.1 share (exact_match)")
    one = Families.of({GRID_TABLE: (rows, "loss"), "longer": (longer, "exact_match")}, "pe1", given["loss"])
    assert one.margins == {GRID_TABLE: "0.3 nats", "longer": "0.02 share"}  # the other metric has its default
    remaining = longer.rename(columns={"test_exact_match": f"test_{REMAINING_METRIC}"})
    with_floors = rows.assign(floor_bayes_loss=0.0, floor_position_blind_loss=2.0)
    both = Families.of(
        {GRID_TABLE: (with_floors, "loss"), "pooled": (remaining, REMAINING_METRIC)}, "pe1", Margin(0.1, "gap")
    )
    assert {name: set(lines["margin"]) for name, lines in both.lines.items()} == {GRID_TABLE: {0.2}, "pooled": {0.1}}
    assert str(both).endswith("for equivalence within 0.1 gap")


def test_verdicts_on_an_encoding_are_those_of_the_setting():
    values = {"a": [0.0] * 6, "b": apart(0.0, 0.1), "c": apart(0.3, 0.1), "d": apart(2.0, 0.1), "e": [0.0] * 6}
    rows = pd.concat([rows_of(values), rows_of({pe: apart(0.0, 5.0)[:: 1 - 2 * (pe == "a")] for pe in "ab"}, depth=2)])
    compared = Families.of({GRID_TABLE: (rows, "loss")}, "b", NATS)
    found = {pe: compared.verdicts(pe, depth=1) for pe in "abcd"}
    assert found["a"] == {"b": "equivalent", "c": "slightly better", "d": "better", "e": "equal"}
    assert found["b"] == {"a": "equivalent", "c": "slightly better", "d": "better", "e": "equivalent"}
    assert found["c"] == {"a": "slightly worse", "b": "slightly worse", "d": "better", "e": "slightly worse"}
    assert found["d"] == dict.fromkeys("abce", "worse")
    assert compared.verdicts("a", depth=2)["b"] == "undecided"


def test_an_encoding_does_not_rank_behind_one_that_is_better_within_the_margin():
    values = {"a": [0.0] * 6, "b": apart(0.3, 0.05), "c": apart(2.0, 0.1), "e": apart(2.1, 3.0)}
    rows = rows_of(values)
    assert all_pairs(rows, margin=NATS)["verdict"].iloc[0] == "slightly better"
    found = ranks(rows, margin=NATS).set_index("pe")[["best", "worst", "tied", "equivalent"]]
    assert found.loc["a"].tolist() == [1, 3, 2, 0]
    assert found.loc["b"].tolist() == [1, 3, 2, 0]
    assert found.loc["c"].tolist() == [3, 4, 1, 0]
    assert found.loc["e"].tolist() == [1, 4, 3, 0]
    narrow = ranks(rows, margin=Margin(0.01, "nats")).set_index("pe")[["best", "worst", "tied", "equivalent"]]
    assert narrow.loc["a"].tolist() == [1, 2, 1, 0]
    assert narrow.loc["b"].tolist() == [2, 3, 1, 0]


def test_the_seeds_that_show_equivalence_have_the_power_in_simulation():
    difference, deviation, margin = 0.2, 1.0, 1.0
    line = {"pe": ["a"], "difference": [difference], "deviation": [deviation], "freedom": [4], "seeds": [5], "p": [0.5]}
    seeds = int(seeds_needed(pd.DataFrame(line | {"margin": [margin]}))["seeds_equivalent"].item())
    rng = np.random.default_rng(0)

    def power(count: int) -> float:
        samples = rng.normal(difference, deviation, (20_000, count))
        shape = np.full(len(samples), 1.0)
        p = p_equivalent(samples.mean(1), samples.std(1, ddof=1), (count - 1) * shape, count * shape, margin * shape)
        return float((p < 0.05).mean())

    assert 0.79 <= power(seeds) <= 0.84
    assert power(seeds - 1) < 0.8


def test_a_difference_beyond_the_margin_is_never_shown_to_be_equivalent():
    line = {"pe": list("abc"), "difference": [1.0, 2.0, 0.1], "deviation": [1.0, 1.0, 1.0], "freedom": [4] * 3}
    lines = pd.DataFrame(line | {"seeds": [5] * 3, "p": [0.5] * 3, "margin": [1.0, 1.0, np.nan]})
    found = seeds_needed(lines)["seeds_equivalent"]
    assert found[:2].tolist() == [np.inf, np.inf]
    assert np.isnan(found[2])
    larger = pd.concat([lines.assign(difference=0.0, margin=1.0)] * 10, ignore_index=True)
    alone = seeds_needed(larger.head(1))["seeds_equivalent"].item()
    assert seeds_needed(larger)["seeds_equivalent"].iloc[0] > alone  # a larger family needs more


def studies(difference: float, number: int, count: int = 4000, pes: int = 8, seeds: int = 5) -> pd.DataFrame:
    """Simulate studies of `pes` comparisons with one baseline; return a line per comparison, with its verdict.

    Margin 1.5, noise 0.5 per encoding. Every study is a family of its own.
    """
    values = np.random.default_rng(number).normal(0, 0.5, (count, pes + 1, seeds))
    samples = (values[:, 1:] - values[:, :1] + difference).reshape(-1, seeds)
    lines = pd.DataFrame({"difference": samples.mean(1), "deviation": samples.std(1, ddof=1), "seeds": seeds})
    lines["p"] = stats.ttest_1samp(samples, 0, axis=1).pvalue
    lines["freedom"], lines["margin"] = seeds - 1, 1.5
    lines["p_equivalent"] = p_equivalent(*lines[["difference", "deviation", "freedom", "seeds"]].to_numpy().T, 1.5)
    families = lines[["p", "p_equivalent"]].to_numpy().reshape(count, pes, 2)
    different, equivalent = (np.concatenate([holm(family[:, column]) for family in families]) for column in (0, 1))
    return add_verdicts(lines, "loss", different, equivalent).assign(study=np.repeat(np.arange(count), pes))


def share_of_studies(lines: pd.DataFrame, words: str) -> float:
    """Return the share of studies with a verdict that contains one of the words."""
    return float(lines["verdict"].str.contains(words).groupby(lines["study"]).any().mean())


SLACK = 3 * np.sqrt(0.05 * 0.95 / 4000)


def test_without_differences_at_most_5_of_100_studies_name_a_better_or_worse_encoding():
    lines = studies(0.0, 0)
    wrong = share_of_studies(lines, "better|worse")
    assert 0.02 <= wrong <= 0.05 + SLACK
    assert (lines["verdict"] == "equivalent").mean() > 0.5  # and equivalence is found
    assert share_of_studies(lines.assign(verdict=np.where(lines["p"] < 0.05, "better", "")), "better") > 0.15


@pytest.mark.parametrize("sign", [1, -1])
def test_at_exactly_the_margin_at_most_5_of_100_studies_name_an_equivalent_encoding(sign):
    lines = studies(1.5 * sign, 1)
    lines["verdict"] = np.where(lines["p_equivalent_corrected"] < 0.05, "equivalent", lines["verdict"])
    wrong = share_of_studies(lines, "equivalent")
    assert 0.02 <= wrong <= 0.05 + SLACK
    assert (lines["verdict"] == ("worse" if sign > 0 else "better")).mean() > 0.4
    raw = lines.assign(verdict=np.where(lines["p_equivalent"] < 0.05, "equivalent", ""))
    assert share_of_studies(raw, "equivalent") > 0.15  # without correction


def test_a_difference_between_0_and_the_margin_is_called_slight():
    lines = studies(0.75, 2, count=500, seeds=30)
    assert (lines["verdict"] == "slightly worse").mean() > 0.9
