"""Statements on differences between encodings are supported by the seeds."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.power import TTestPower

from pe_lab import statistics
from pe_lab.results.pooling import pool, with_remaining
from pe_lab.statistics import (
    COMPARISON_COLUMNS,
    GRID_TABLE,
    REMAINING_METRIC,
    Families,
    Margin,
    add_verdicts,
    compare_cells,
    effects,
    paired_differences,
    seeds_needed,
    wide_table,
)

Values = dict[str, dict[int, float] | list[float]]


def rows_of(values: Values, metric: str = "loss", **place: object) -> pd.DataFrame:
    """Return a row per encoding and seed; `place` gives the columns of the setting."""
    setting = {"depth": 1, "epochs": 1} | place
    lines = [
        {"pe": pe, **setting, "seed": seed, f"test_{metric}": value, "run": f"{pe} {seed} {setting}"}
        for pe, numbers in values.items()
        for seed, value in (numbers.items() if isinstance(numbers, dict) else enumerate(numbers))
    ]
    return pd.DataFrame(lines)


def noisy(means: dict[str, float], seeds: int, noise: float = 0.1, number: int = 0) -> Values:
    """Return values in which encodings share a large effect of the seed."""
    rng = np.random.default_rng(number)
    shared = rng.normal(0, 3, seeds)
    return {pe: list(mean + shared + noise * rng.normal(size=seeds)) for pe, mean in means.items()}


def all_pairs(rows: pd.DataFrame, metric: str = "loss", margin: Margin | None = None) -> pd.DataFrame:
    pairs = list(combinations(rows["pe"].unique(), 2))
    return add_verdicts(paired_differences(rows, pairs, metric, margin), metric)


def ranks(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    return Families.of({GRID_TABLE: (rows, metric)}).ranks()


def compare_pooled(rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss") -> pd.DataFrame:
    pooled = pool(rows, metric)
    return compare_cells(pooled.rows, baseline, pooled.metric)


def line(table: pd.DataFrame, **where: object) -> pd.Series:
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def settings(count: int, encodings: int = 4, seeds: int = 5) -> pd.DataFrame:
    names = {f"pe{number}": 0.05 * number for number in range(encodings)}
    return pd.concat(
        [rows_of(noisy(names, seeds, number=number), depth=number) for number in range(count)], ignore_index=True
    )


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values by Holm's method, step by step."""
    adjusted, reached = np.empty(len(p)), 0.0
    for step, number in enumerate(np.argsort(p)):
        reached = max(reached, min(1.0, p[number] * (len(p) - step)))
        adjusted[number] = reached
    return adjusted


def test_the_wide_table_has_every_value_at_its_place_whatever_the_order():
    parts = [
        rows_of({"c": [1.0, 2.0], "a": {1: 3.0}}, depth=4, rate=np.nan),
        rows_of({"c": [5.0, 6.0], "a": [7.0, 8.0]}, depth=4, rate=0.1),
        rows_of({"a": {2: 9.0}}, depth=1, rate=0.1),
    ]
    rows = pd.concat(parts)[["pe", "depth", "epochs", "seed", "rate", "test_loss"]]
    for number in range(5):
        table = wide_table(rows.sample(frac=1, random_state=number))
        assert set(table.columns) == {"a", "c"}
        found = [
            (*(None if pd.isna(part) else part for part in key), pe, value)
            for key, line in table.iterrows()
            for pe, value in line.dropna().items()
        ]
        expected = [
            (one.depth, one.epochs, None if pd.isna(one.rate) else one.rate, one.seed, one.pe, one.test_loss)
            for one in rows.itertuples()
        ]
        order = {name: number for number, name in enumerate(table.index.names)}
        where = [order[name] for name in ("depth", "epochs", "rate", "seed")]
        assert sorted(map(str, ((*(one[at] for at in where), *one[4:]) for one in found))) == sorted(map(str, expected))


def test_every_loss_stays_with_its_encoding_and_seed_in_a_complete_table():
    rows = rows_of({"rope": [0.0, 1.0], "alibi": [10.0, 11.0]})  # pandas 2 transposes such a table when it is unstacked
    table = wide_table(rows)
    assert {pe: table[pe].tolist() for pe in table} == {"rope": [0.0, 1.0], "alibi": [10.0, 11.0]}
    compared = compare_cells(rows, "rope", margin=statistics.Margin(20, "nats"))
    assert compared[["difference", "verdict"]].to_numpy().tolist() == [[10.0, "slightly worse"]]


def test_a_setting_that_some_cells_lack_is_a_setting_of_its_own():
    parts = [rows_of({"a": [1.0, 2.0], "b": [2.0, 3.5]}, rate=rate) for rate in (np.nan, 0.1)]
    rows = pd.concat(parts)[["pe", "depth", "epochs", "seed", "rate", "test_loss"]]
    compared = compare_cells(rows)
    assert list(compared["rate"].isna()) == [True, False]
    assert list(compared["seeds"]) == [2, 2]
    ranked = ranks(rows)
    assert len(ranked) == 4
    assert list(ranked["rate"].isna()) == [True, True, False, False]


def test_differences_and_intervals_are_those_of_a_paired_t_test():
    rows = settings(3)
    compared = compare_cells(rows, baseline="pe1")
    assert len(compared) == 9
    for found in compared.itertuples():
        here = rows[rows["depth"] == found.depth].set_index(["pe", "seed"])["test_loss"]
        a, b = here[found.pe].to_numpy(), here["pe1"].to_numpy()
        expected = stats.ttest_rel(a, b)
        within = expected.confidence_interval(0.95)
        assert (found.baseline, found.seeds) == ("pe1", 5)
        assert found.difference == pytest.approx(np.mean(a - b), rel=1e-12)
        assert found.deviation == pytest.approx(np.std(a - b, ddof=1), rel=1e-12)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
        assert (found.low, found.high) == pytest.approx((within.low, within.high), rel=1e-12)


def test_p_values_are_corrected_by_holm_over_the_whole_family():
    rows = settings(3)
    compared = compare_cells(rows)
    np.testing.assert_allclose(compared["p_corrected"], holm(compared["p"].to_numpy()), rtol=1e-12)
    assert (compared["p_corrected"] > compared["p"]).any()
    assert compared.attrs["family"].startswith("9 comparisons: 3 encodings with pe0, in 3 settings,")
    assert (
        compare_cells(rows[rows["depth"] == 0])
        .attrs["family"]
        .startswith("3 comparisons: 3 encodings with pe0, in 1 set")
    )
    pairs = all_pairs(rows)
    assert len(pairs) == 18
    np.testing.assert_allclose(pairs["p_corrected"], holm(pairs["p"].to_numpy()), rtol=1e-12)


def test_a_difference_that_is_separable_alone_is_not_so_in_a_large_family():
    values = noisy({"a": 0.0, **{f"c{number}": 0.0 for number in range(8)}}, 5)
    values["b"] = [value + extra for value, extra in zip(values["a"], (0.1, 0.2, 0.3, 0.1, 0.05), strict=True)]
    alone = compare_cells(rows_of({pe: values[pe] for pe in ("a", "b")})).iloc[0]
    among = line(compare_cells(rows_of(values)), pe="b")
    assert alone["p"] < 0.05
    assert among["p"] < 0.05 < among["p_corrected"]
    assert (alone["verdict"], among["verdict"]) == ("worse", "undecided")


def test_encodings_that_are_equal_to_the_bit_are_outside_of_the_family():
    values = noisy({"a": 0.0, "b": 0.02, "c": 0.3}, 5)
    compared = compare_cells(rows_of(values | {"same": values["a"]}))
    same = line(compared, pe="same")
    assert same["verdict"] == "equal"
    assert (same["difference"], same["low"], same["high"]) == (0, 0, 0)
    assert np.isnan(same["p"])
    assert np.isnan(same["p_corrected"])
    assert compared.attrs["family"].startswith("2 comparisons: 3 encodings")
    np.testing.assert_allclose(compared["p_corrected"].dropna(), holm(compared["p"].dropna().to_numpy()), rtol=1e-12)
    assert compare_cells(rows_of({"a": [1.0, 2.0], "b": [1.0, 2.0]}))["verdict"].tolist() == ["equal"]


def test_the_first_encoding_is_the_baseline():
    rows = rows_of({"b": [1.0, 2.0], "a": [2.0, 1.0], "c": [2.0, 4.0]})
    assert list(compare_cells(rows)["baseline"]) == ["b", "b"]
    assert list(compare_cells(rows)["pe"]) == ["a", "c"]


def test_only_shared_seeds_are_compared():
    rows = rows_of({"a": [1.0, 2.0, 4.0], "b": {1: 3.0, 2: 4.5, 3: 90.0}, "c": {2: 5.0}, "d": {7: 1.0}})
    compared = compare_cells(rows).set_index("pe")
    assert compared["seeds"].to_dict() == {"b": 2, "c": 1, "d": 0}
    assert compared.loc["b", "difference"] == pytest.approx(0.75)
    assert compared.loc["c", "difference"] == 1
    assert compared["verdict"].to_dict() == {"b": "undecided", "c": "one seed", "d": "no shared seed"}
    assert compared.loc[["c", "d"], ["low", "high", "p", "p_corrected", "deviation"]].isna().all(axis=None)
    assert np.isnan(compared.loc["d", "difference"])
    assert compared.attrs["family"].startswith("1 comparison: ")


def test_pairs_and_ranks_too_are_of_shared_seeds_only():
    pairs = all_pairs(rows_of({"a": [1.0, 2.0, 3.0], "b": {1: 3.0, 2: 4.1, 3: 90.0}, "c": {9: 0.0}}))
    assert list(pairs["seeds"]) == [2, 0, 0]
    assert pairs["difference"].iloc[0] == pytest.approx(-1.05)
    assert list(pairs["verdict"]) == ["better", "no shared seed", "no shared seed"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_value_is_treated_as_a_missing_seed(bad):
    rows = rows_of({"a": [1.0, 2.0, 4.0, 3.0], "b": [2.0, 3.1, bad, 4.3]})
    without = compare_cells(rows[rows["seed"] != 2])
    pd.testing.assert_frame_equal(compare_cells(rows), without)
    assert line(without, pe="b")["seeds"] == 3
    both = compare_cells(rows_of({"a": [bad, 2.0], "b": [bad, 2.5]}))
    assert list(both["verdict"]) == ["one seed"]


@pytest.mark.parametrize(("metric", "falls"), [("loss", True), ("bits_per_byte", True), ("perplexity", True)])
@pytest.mark.parametrize("pooled", [False, True])
def test_losses_are_better_when_they_fall(metric, falls, pooled):
    rows = rows_of({"a": [1.0, 2.0, 4.0], "b": [2.0, 3.01, 5.02]}, metric)
    compare = compare_pooled if pooled else compare_cells
    assert list(compare(rows, metric=metric)["verdict"]) == ["worse"]
    assert list(compare(rows, "b", metric)["verdict"]) == ["better"]
    assert list(ranks(rows, metric)["pe"]) == ["a", "b"]


@pytest.mark.parametrize("metric", ["accuracy", "accuracy_all", "exact_match"])
def test_accuracies_are_better_when_they_rise(metric):
    rows = rows_of({"a": [0.1, 0.2, 0.4], "b": [0.2, 0.31, 0.52]}, metric)
    assert list(compare_cells(rows, metric=metric)["verdict"]) == ["better"]
    ranked = ranks(rows, metric)
    assert list(ranked["pe"]) == ["b", "a"]
    assert ranked["mean"].tolist() == pytest.approx([0.3433333333, 0.2333333333])
    assert list(ranked["best"]) == [1, 2]


def test_pooled_differences_are_means_over_settings_within_a_seed():
    rows = settings(3, encodings=4)
    # pe1 lacks a setting in one seed, pe2 has nothing at depth 2
    rows = rows[~((rows["pe"] == "pe1") & (rows["depth"] == 2) & (rows["seed"] == 1))]
    rows = rows[~((rows["pe"] == "pe2") & (rows["depth"] == 2))]
    compared = compare_pooled(rows).set_index("pe")
    assert list(compared.index) == ["pe1", "pe3"]
    table = rows.set_index(["depth", "seed", "pe"])["test_loss"]
    for pe, seeds in (("pe1", [0, 2, 3, 4]), ("pe3", range(5))):
        samples = [np.mean([table[d, s, pe] - table[d, s, "pe0"] for d in range(3)]) for s in seeds]
        found, expected = compared.loc[pe], stats.ttest_1samp(samples, 0)
        assert (found["seeds"], found["settings"]) == (len(samples), 3)
        assert found["difference"] == pytest.approx(np.mean(samples), rel=1e-9)
        assert found["p"] == pytest.approx(expected.pvalue, rel=1e-7)
        assert found["low"] == pytest.approx(expected.confidence_interval().low, rel=1e-7)
    np.testing.assert_allclose(compared["p_corrected"], holm(compared["p"].to_numpy()))
    assert pool(rows).note.endswith(
        "the mean test loss, in nats. Not included: pe2, for which no seed has all settings."
    )


def test_a_seed_that_lacks_the_encoding_does_not_spoil_the_pool():
    rows = pd.concat([rows_of({"a": [1.0, 2.0, 3.0], "b": [1.5, 2.7]}, depth=depth) for depth in (1, 2)])
    found = compare_pooled(rows).iloc[0]
    assert (found["seeds"], found["settings"]) == (2, 2)
    assert found["difference"] == pytest.approx(0.6)


def test_a_value_that_is_not_finite_takes_its_seed_out_of_the_pool():
    rows = pd.concat([rows_of({"a": [1.0, 2.0, 3.0], "b": [1.5, 2.7, 9.0]}, depth=depth) for depth in (1, 2)])
    rows.loc[(rows["depth"] == 2) & (rows["seed"] == 2) & (rows["pe"] == "b"), "test_loss"] = np.nan
    assert compare_pooled(rows)["seeds"].tolist() == [2]


def tasks(metric: str = "loss", **levels: tuple[float, float]) -> pd.DataFrame:
    """Return rows of two tasks, one with values a hundred times as large; `levels` gives a floor for each."""
    parts = []
    for number, (data, scale) in enumerate((("large", 100.0), ("small", 1.0))):
        values = {"a": [1.0, 1.1, 1.3], "b": [1.2, 1.5, 1.4], "c": [2.0, 2.1, 2.05]}
        if data == "small":
            values["a"], values["c"] = values["c"], values["a"]
        rows = rows_of({pe: [scale * value for value in numbers] for pe, numbers in values.items()}, metric, data=data)
        floors = {f"floor_{name}_{metric}": value[number] for name, value in levels.items()}
        parts.append(rows.assign(**floors))
    rows = pd.concat(parts, ignore_index=True)
    return rows[["pe", "data", "depth", "epochs", "seed", *(name for name in rows if "_" in name)]]


def test_tasks_are_pooled_by_the_way_that_remains_and_not_in_nats():
    rows = tasks(bayes=(50.0, 0.5), position_blind=(150.0, 1.5), prior=(900.0, 9.0))
    pooled = pool(rows)
    assert pooled.metric == REMAINING_METRIC
    assert pooled.note == (
        "Pooled over 2 settings: for each seed, the mean share of the gap to the best possible that remains, "
        "(test loss − best) / (level − best); large from position-blind to bayes; small from position-blind to bayes."
    )
    values = pooled.rows.set_index(["pe", "seed"])["test_remaining"]
    # large: 100 to 130 of 50 to 150; small: 2.0 to 2.1 of 0.5 to 1.5
    assert values["a"].tolist() == pytest.approx([(0.5 + 1.5) / 2, (0.6 + 1.6) / 2, (0.8 + 1.55) / 2])
    assert values["a"].tolist() == pytest.approx(values["c"].tolist())
    compared = compare_pooled(rows, "c").set_index("pe")
    assert compared.loc["a", "difference"] == pytest.approx(0, abs=1e-12)  # in nats, a would be better by 37
    assert compared.loc["b", "difference"] == pytest.approx(-0.225)


def test_each_setting_is_scaled_by_its_own_levels():
    one = tasks(bayes=(0.0, 0.0), position_blind=(100.0, 1.0))
    two = tasks(bayes=(0.0, 0.0), position_blind=(200.0, 4.0)).assign(depth=2)
    values = pool(pd.concat([one, two], ignore_index=True)).rows.set_index(["pe", "seed"])["test_remaining"]
    assert values["b", 0] == pytest.approx((1.2 + 1.2 + 0.6 + 0.3) / 4)


def test_the_level_of_the_pool_is_that_of_the_table_of_tasks():
    """Where a position-blind model reaches the best possible value, the level is the prior."""
    rows = tasks(bayes=(50.0, 0.5), position_blind=(50.0, 1.5), prior=(150.0, 9.0))
    assert pool(rows).metric == REMAINING_METRIC  # by_task, too, looks no further than position_blind and prior
    assert "large from prior to bayes; small from position-blind to bayes" in pool(rows).note


def test_tasks_without_a_best_possible_value_are_pooled_in_nats():
    rows = tasks(unigram=(400.0, 4.0), xz=(200.0, 2.0))
    pooled = pool(rows)
    assert pooled.metric == "loss"
    means = pooled.rows.set_index(["pe", "seed"])["test_loss"]
    assert means.to_dict() == pytest.approx(rows.groupby(["pe", "seed"])["test_loss"].mean().to_dict())
    assert with_remaining(rows) is None
    one_known = tasks(unigram=(400.0, 4.0), bayes=(50.0, float("nan")))
    assert pool(one_known).metric == REMAINING_METRIC
    assert "small from unigram to no loss" in pool(one_known).note


def test_accuracies_are_pooled_by_the_way_that_remains_too():
    rows = tasks("accuracy", bayes=(400.0, 4.0), position_blind=(0.0, 0.0))
    values = pool(rows, "accuracy").rows.set_index(["pe", "seed"])["test_remaining"]
    assert values["b", 0] == pytest.approx((2.8 / 4 + 2.8 / 4) / 2)
    assert statistics.lower_is_better(pool(rows, "accuracy").metric)
    ranked = ranks(pool(rows, "accuracy").rows, REMAINING_METRIC)
    assert list(ranked["pe"])[-1] == "b"  # the lowest accuracies, the longest way


@pytest.mark.parametrize(
    ("rows", "metric", "names"),
    [
        (tasks(), "loss", "large, small"),
        (tasks(position_blind=(3.0, np.nan)), "loss", "small"),
        (tasks(bayes=(1.0, 1.0), position_blind=(1.0, 2.0)), "loss", "large"),
        (tasks("accuracy", unigram=(0.1, 0.1)), "accuracy", "large, small"),  # nobody knows what the best is
    ],
)
def test_tasks_without_levels_are_not_pooled(rows, metric, names):
    pooled = pool(rows, metric)
    assert pooled.rows.empty
    assert pooled.note == f"Not pooled over tasks: for test {metric}, no level is known for {names}."


def test_a_column_of_one_task_changes_nothing_in_the_pool():
    rows = settings(3)
    named = rows.assign(data="structured")[["pe", "data", *(name for name in rows if name != "pe")]]
    pd.testing.assert_frame_equal(pool(rows).rows, pool(named).rows)
    assert pool(rows).note == pool(named).note == "Pooled over 3 settings: for each seed, the mean test loss, in nats."


def test_settings_are_ascending_in_any_order_of_the_rows():
    rows = pd.concat([rows_of({"b": [1.0, 2.0], "a": [2.0, 2.5]}, depth=depth) for depth in (16, 1, 4)])
    for found in (compare_cells(rows), all_pairs(rows), ranks(rows)):
        assert list(found["depth"].unique()) == [1, 4, 16]
    assert list(compare_cells(rows)["baseline"].unique()) == ["b"]  # still the first of the rows


def families(
    number: int, encodings: int = 4, declared: bool = False
) -> tuple[Families, dict[str, tuple[pd.DataFrame, str]]]:
    means = {f"pe{k}": 0.08 * k for k in range(encodings)}
    grid = pd.concat([rows_of(noisy(means, 5, number=10 * number + d), depth=d) for d in range(3)], ignore_index=True)
    longer = rows_of(noisy(means, 4, number=10 * number + 5), "exact_match")
    tables = {GRID_TABLE: (grid, "loss"), "pooled": (pool(grid).rows, "loss"), "longer": (longer, "exact_match")}
    return Families.of(tables, "pe2", declared=declared), tables


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_a_report_has_one_family_and_no_verdict_outside_it(number, declared):
    compared, _ = families(number, declared=declared)
    lines = pd.concat(compared.lines.values())
    with_baseline = lines["baseline"] == "pe2"
    assert not (lines["pe"] == "pe2").any()
    family = with_baseline if declared else pd.Series(True, lines.index)
    asked = lines["verdict"] != "not asked"
    assert (asked.to_numpy() == family.to_numpy()).all()
    assert (compared.size(), compared.size("longer")) == ((15, 3) if declared else (30, 6))
    np.testing.assert_allclose(lines.loc[asked, "p_corrected"], holm(lines.loc[asked, "p"].to_numpy()), rtol=1e-12)
    assert lines.loc[~asked, ["p_corrected", "p_equivalent_corrected"]].isna().all(axis=None)
    assert lines["low"].notna().all()
    assert len(compared.asked()) == (9 if declared else 18)
    alone = compare_cells(compared.tables[GRID_TABLE][0], "pe2")
    pd.testing.assert_frame_equal(compared.compare()[list(alone)[:8]], alone[list(alone)[:8]])
    assert (compared.compare()["p_corrected"] >= alone["p_corrected"]).all()  # there are more of them in the family
    assert compared.compare().attrs["comparisons"] == compared.size()


@pytest.mark.parametrize("number", range(3))
def test_ranks_are_those_of_the_families(number):
    compared, tables = families(number)
    for name, (_, metric) in tables.items():
        lines, ranked = compared.lines[name], compared.ranks(name)
        place = [column for column in ("depth",) if name == GRID_TABLE]
        for line in ranked.itertuples():
            here = lines[(lines["depth"] == line.depth)] if place else lines
            wins = ((here["pe"] == line.pe) & (here["verdict"] == "better")).sum()
            wins += ((here["baseline"] == line.pe) & (here["verdict"] == "worse")).sum()
            losses = ((here["pe"] == line.pe) & (here["verdict"] == "worse")).sum()
            losses += ((here["baseline"] == line.pe) & (here["verdict"] == "better")).sum()
            assert (line.best, line.worst, line.tied) == (1 + losses, 4 - wins, 3 - wins - losses)
        few = compared.ranks(name, {"pe0", "pe3"})
        assert set(few["pe"]) == {"pe0", "pe3"}
        pair = lines[(lines["pe"] == "pe0") & (lines["baseline"] == "pe3")]
        apart = (few[few["pe"] == few["pe"].iloc[0]]["worst"] == 1).to_list()
        assert len(few) == 2 * len(pair)
        if not place:
            assert apart == pair["verdict"].isin(["better", "worse"]).to_list()
        assert (few["mean"].head(2).is_monotonic_increasing) == statistics.lower_is_better(metric)


def test_the_seeds_needed_are_for_the_level_of_the_whole_family():
    compared, _ = families(0)
    found = seeds_needed(compared.compare())
    line = found.iloc[0]
    level = 0.05 / 30
    critical = stats.t.isf(level / 2, line["seeds"] - 1)
    power = stats.nct.sf(critical, line["seeds"] - 1, line["separable"] / line["deviation"] * line["seeds"] ** 0.5)
    assert power == pytest.approx(0.8, rel=1e-6)


def test_one_encoding_has_nothing_to_be_compared_with():
    rows = rows_of({"a": [1.0, 2.0]})
    for found in (compare_cells(rows), compare_pooled(rows), all_pairs(rows), seeds_needed(compare_cells(rows))):
        assert found.empty
        assert set(COMPARISON_COLUMNS) <= set(found)
    assert compare_cells(rows).attrs["family"].startswith("0 comparisons")
    ranked = ranks(rows)
    assert ranked[["pe", "mean", "best", "worst", "tied"]].to_numpy().tolist() == [["a", 1.5, 1, 1, 0]]
    assert effects(rows).empty


@pytest.mark.parametrize("ask", [wide_table, all_pairs, ranks, effects, compare_cells])
def test_an_unknown_metric_is_named_with_the_known_ones(ask):
    rows = rows_of({"a": [1.0, 2.0], "b": [1.0, 2.0]}).assign(test_accuracy=1.0)
    with pytest.raises(ValueError, match=r"^metric='los': did you mean loss\? metric must be one of loss, accuracy$"):
        ask(rows, metric="los")


def test_an_unknown_baseline_is_named_with_the_known_encodings():
    with pytest.raises(ValueError, match=r"^baseline must be one of a, b, got 'c'$"):
        compare_cells(rows_of({"a": [1.0, 2.0], "b": [1.0, 2.0]}), "c")


def test_a_cell_that_occurs_twice_is_refused():
    rows = rows_of({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    with pytest.raises(
        ValueError,
        match=r"^cells must differ in .*, got 1 that occur more than once, as pe=b, depth=1, epochs=1, seed=1$",
    ):
        wide_table(pd.concat([rows, rows.tail(1)]))


def test_all_pairs_are_all_pairs_of_each_setting():
    pairs = all_pairs(settings(2))
    names = [f"pe{number}" for number in range(4)]
    for depth in (0, 1):
        here = pairs[pairs["depth"] == depth]
        assert list(zip(here["pe"], here["baseline"], strict=True)) == list(combinations(names, 2))
    alone = compare_cells(settings(1), "pe1").set_index("pe")
    pair = line(pairs, depth=0, pe="pe1", baseline="pe3")
    assert pair["difference"] == pytest.approx(-alone.loc["pe3", "difference"], rel=1e-12)
    assert pair["p"] == pytest.approx(alone.loc["pe3", "p"], rel=1e-9)


def test_ranks_have_ties_where_seeds_do_not_separate():
    means = {"d": 2.0, "b": 1.0, "a": 0.0, "c": 1.001}
    ranked = ranks(rows_of(noisy(means, 8))).set_index("pe")
    assert ranked.index[0] == "a"
    assert ranked.index[-1] == "d"
    found = {pe: tuple(ranks) for pe, ranks in ranked[["best", "worst", "tied"]].iterrows()}
    assert found == {"a": (1, 1, 0), "b": (2, 3, 1), "c": (2, 3, 1), "d": (4, 4, 0)}


def test_ranks_are_within_a_setting_and_among_its_encodings():
    there = noisy({"a": 0.0, "b": 1.0, "c": 2.0}, 6)
    rows = pd.concat([rows_of(there), rows_of({"b": there["a"], "a": there["b"]}, depth=2)])
    ranked = ranks(rows)
    assert ranked[ranked["depth"] == 1][["pe", "best", "worst"]].to_numpy().tolist() == [
        ["a", 1, 1],
        ["b", 2, 2],
        ["c", 3, 3],
    ]
    assert ranked[ranked["depth"] == 2][["pe", "best", "worst"]].to_numpy().tolist() == [["b", 1, 1], ["a", 2, 2]]


@pytest.mark.long
def test_the_true_rank_lies_within_the_ranks_in_95_of_100_studies():
    """A study counts only if all of its ranks are right."""
    means = {f"pe{number}": value for number, value in enumerate((0.0, 0.05, 0.1, 0.2, 0.6))}
    found = [ranks(rows_of(noisy(means, 5, number=number), depth=number)) for number in range(200)]
    ranked = pd.concat(found, ignore_index=True)
    true = ranked["pe"].map({pe: number + 1 for number, pe in enumerate(means)})
    right = ((ranked["best"] <= true) & (true <= ranked["worst"])).groupby(ranked["depth"]).all()
    assert len(right) == 200
    assert right.mean() >= 0.95
    assert ranked["tied"].mean() < 3.5  # ranges of ranks exclude something


def grid(value, pes: int = 3, depths: int = 2, epochs: int = 2, seeds: int = 2) -> pd.DataFrame:
    lines = [
        {"pe": f"pe{pe}", "depth": 2**depth, "epochs": 4**epoch, "seed": seed}
        | {"test_loss": value(pe, depth, epoch, seed)}
        for seed in range(seeds)
        for pe in range(pes)
        for depth in range(depths)
        for epoch in range(epochs)
    ]
    return pd.DataFrame(lines)


def test_shares_are_those_of_known_sums_of_squares():
    # centred effects; sums of squares over 3 * 2 * 2 values: pe 2 a^2 * 4, depth b^2 * 12, epochs c^2 * 12
    a, b, c, together = 0.3, 0.2, 0.5, 0.1

    def value(pe, depth, epoch, seed):
        sign = (2 * depth - 1) * (2 * epoch - 1)
        return 7 + seed + a * (pe - 1) + b * (2 * depth - 1) + c * (2 * epoch - 1) + together * sign

    found = effects(grid(value)).set_index("effect")
    squares = {"pe": 8 * a**2, "depth": 12 * b**2, "epochs": 12 * c**2, "depth × epochs": 12 * together**2}
    for effect, expected in squares.items():
        assert found.loc[effect, "share"] == pytest.approx(expected / sum(squares.values()), rel=1e-9)
    for effect in ("pe × depth", "pe × epochs", "pe × depth × epochs and noise"):
        assert found.loc[effect, "share"] == pytest.approx(0, abs=1e-12)
    assert found["share"].sum() == pytest.approx(1, rel=1e-12)
    assert list(found["seeds"]) == [2] * 7


def test_shares_are_those_of_an_analysis_of_variance_of_every_seed():
    rng = np.random.default_rng(0)
    rows = grid(lambda *_: rng.normal(), 4, 3, 2, 3)
    found = effects(rows.sample(frac=1, random_state=0)).set_index("effect")
    shares = []
    for _, group in rows.groupby("seed"):
        terms = ["C(pe)", "C(depth)", "C(epochs)", "C(pe):C(depth)", "C(pe):C(epochs)", "C(depth):C(epochs)"]
        squares = anova_lm(ols(f"test_loss ~ {' + '.join(terms)}", group).fit(), typ=2)["sum_sq"]
        shares.append((squares / squares.sum()).to_numpy())
    whole = np.array(shares)
    np.testing.assert_allclose(found["share"], whole.mean(0), rtol=1e-9)
    half = stats.t.ppf(0.975, 2) * stats.sem(whole)
    np.testing.assert_allclose(found["low"], whole.mean(0) - half, rtol=1e-9)
    np.testing.assert_allclose(found["high"], whole.mean(0) + half, rtol=1e-9)
    assert list(found.index)[-1] == "pe × depth × epochs and noise"


def test_seeds_with_an_incomplete_grid_are_left_out_of_the_shares():
    rng = np.random.default_rng(0)
    rows = grid(lambda *_: rng.normal(), seeds=4)
    gap = (rows["seed"] == 1) & (rows["pe"] == "pe1") & (rows["depth"] == 2) & (rows["epochs"] == 4)
    bad = (rows["seed"] == 2) & (rows["pe"] == "pe1") & (rows["depth"] == 2) & (rows["epochs"] == 4)
    found = effects(rows[~gap].assign(test_loss=rows["test_loss"].where(~bad)))
    assert list(found["seeds"].unique()) == [2]
    expected = effects(rows[rows["seed"].isin([0, 3])])
    pd.testing.assert_frame_equal(found, expected)
    twice = pd.concat([rows[~gap & rows["seed"].isin([0, 1])], rows[rows["seed"] == 1].head(1)])
    assert list(effects(twice)["seeds"].unique()) == [1]
    assert effects(rows.assign(test_loss=0.1)).empty
    assert effects(pd.concat([rows.assign(rate=1), rows.assign(rate=2)])).empty
    nested = rows[["pe", "depth", "epochs", "seed"]].assign(data=rows["depth"].map({1: "copy", 2: "sort"}))
    assert effects(nested.assign(test_loss=rows["test_loss"])).empty  # depth and task cannot be separated
    assert effects(rows[(rows["depth"] == 1) & (rows["epochs"] == 1)]).empty
    two = effects(rows[rows["depth"] == 1])
    assert list(two["effect"]) == ["pe", "epochs", "pe × epochs and noise"]


def compared_with(differences: list[float], deviations: list[float], seeds: int, p: float = 0.5) -> pd.DataFrame:
    lines = {"pe": [f"pe{number}" for number in range(len(differences))], "difference": differences}
    return pd.DataFrame(lines | {"deviation": deviations, "freedom": seeds - 1, "seeds": seeds, "p": p})


def of_family(difference: float, deviation: float, seeds: int, size: int) -> pd.DataFrame:
    """Return a line with these numbers as the last of a family, and one line that is not part of it."""
    others = compared_with([np.nan] * size, [np.nan] * size, seeds)
    others.loc[0, "p"] = np.nan
    return pd.concat([others, compared_with([difference], [deviation], seeds)], ignore_index=True)


@pytest.mark.parametrize("family", [1, 5, 40])
def test_the_seeds_needed_are_those_of_the_power_of_a_paired_t_test(family):
    sizes = [0.35, 0.5, -0.8, 1.2, 3.0]
    converged = 0
    for size in sizes:
        needed = seeds_needed(of_family(size, 1.0, 6, family))["seeds_needed"].iloc[-1]
        exact = float(np.squeeze(TTestPower().solve_power(abs(size), power=0.8, alpha=0.05 / family)))
        if TTestPower().power(abs(size), exact, 0.05 / family) != pytest.approx(0.8):
            continue
        converged += 1
        if exact <= 99:
            assert needed == np.ceil(exact)
        else:
            assert exact <= needed <= 1.09 * exact
    assert converged >= 3


@pytest.mark.parametrize(("seeds", "family"), [(2, 1), (3, 50), (8, 10), (8, 4000), (30, 1)])
def test_the_separable_difference_has_the_power(seeds, family):
    separable = seeds_needed(of_family(0.1, 2.0, seeds, family))["separable"].iloc[-1]
    level = 0.05 / family
    critical = stats.t.isf(level / 2, seeds - 1)
    assert stats.nct.sf(critical, seeds - 1, separable / 2.0 * seeds**0.5) == pytest.approx(0.8, rel=1e-6)


def test_the_number_of_seeds_has_the_promised_power_in_simulation():
    found = seeds_needed(compared_with([0.7], [1.0], 5)).iloc[0]
    rng = np.random.default_rng(0)
    for size, seeds in ((0.7, int(found["seeds_needed"])), (found["separable"], 5)):
        samples = rng.normal(size, 1.0, (20_000, seeds))
        power = (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean()
        assert 0.79 <= power <= 0.83
    fewer = rng.normal(0.7, 1.0, (20_000, int(found["seeds_needed"]) - 2))
    assert (stats.ttest_1samp(fewer, 0, axis=1).pvalue < 0.05).mean() < 0.8


def test_without_deviation_there_is_no_number_of_seeds():
    compared = compare_cells(rows_of({"a": [1.0, 2.0], "same": [1.0, 2.0], "one": {0: 1.0}, "none": {9: 1.0}}))
    found = seeds_needed(compared)
    assert found[["seeds_needed", "separable"]].isna().all(axis=None)
    far = seeds_needed(compared_with([1e-9, 1e6], [1.0, 1e-12], 4))
    assert list(far["seeds_needed"]) == [np.inf, 2]
