"""The sentence about the best encoding says no more than the verdicts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from pe_lab.report.best_candidates import (
    BestCandidates,
    SettingCounts,
    amount,
    in_each_setting,
    join_words,
    names_in_words,
    one_by_one,
    overall,
    undecided_by_setting,
    verdict_counts,
    verdict_over_settings,
)
from pe_lab.statistics import GRID_TABLE, REMAINING_METRIC, Families, Margin


def candidates(
    means: dict[str, float], metric: str = "loss", what: str = "test loss", **verdicts: str
) -> BestCandidates:
    """Return BestCandidates, best mean first; verdicts are of the first minus the second, as a_b."""
    ranked = pd.DataFrame({"pe": list(means), "mean": list(means.values())})
    lines = []
    for one, other in combinations(means, 2):
        difference = means[one] - means[other]
        verdict = verdicts.get(f"{one}_{other}", "undecided")
        lines.append([one, other, difference, difference - 0.1, difference + 0.1, verdict])
    columns = ["pe", "baseline", "difference", "low", "high", "verdict"]
    return BestCandidates.of(ranked, pd.DataFrame(lines, columns=columns), metric, what)


def test_the_best_is_named_only_if_it_is_better_than_each_other() -> None:
    means = {"a": 1.0, "b": 1.5, "c": 2.0}
    best = candidates(means, a_b="better", a_c="better")
    assert (best.case, best.open, best.behind, best.notes) == ("best", ["a"], ["b", "c"], [])
    assert all(text in best.words() for text in ("`a`", "1 nats", "`b`", "0.5 nats", "0.4 to 0.6"))
    both = candidates(means, a_c="better", b_c="better")
    assert (both.case, both.open, both.behind, both.notes) == ("open", ["a", "b"], ["c"], ["behind"])
    assert candidates(means, a_b="better").case == "open"


def test_nothing_decided_leaves_all_open() -> None:
    neither = candidates({"a": 1.0, "b": 1.5})
    assert (neither.case, neither.open, neither.notes) == ("open", ["a", "b"], [])


def test_of_two_one_may_significantly_be_better() -> None:
    assert candidates({"a": 1.0, "b": 1.5}, a_b="better").case == "better"


def test_a_comparison_may_have_the_best_as_its_baseline() -> None:
    """The report's baseline is the second of its pairs."""
    ranked = pd.DataFrame({"pe": ["base", "other"], "mean": [0.9, 0.7]})
    lines = [["other", "base", -0.2, -0.3, -0.1, "worse"]]
    lines = pd.DataFrame(lines, columns=["pe", "baseline", "difference", "low", "high", "verdict"])
    better = BestCandidates.of(ranked, lines, "accuracy", "test accuracy")
    assert (better.case, better.open) == ("better", ["base"])
    assert all(text in better.words() for text in ("`base`", "0.9", "`other`", "by 0.2", "0.1 to 0.3"))


def test_every_case_and_every_note_can_be_said() -> None:
    """A template names only what BestCandidates knows, and says which encodings it is about."""
    found = candidates(
        {"a": 1.0, "b": 1.01, "c": 1.02, "d": 2.0},
        a_b="equivalent", b_c="slightly better", a_d="better", b_d="better", c_d="better",
    )  # fmt: skip
    assert (found.case, found.notes) == ("open", ["alike", "near", "behind"])
    assert re.findall("`([a-d])`", found.words()) == ["a", "a", "b", "c", "a", "b", "c", "b", "d", "a"]


def test_one_that_is_behind_by_less_than_the_margin_may_be_the_best() -> None:
    found = candidates({"a": 1.0, "b": 1.01, "c": 2.0}, a_b="slightly better", a_c="better", b_c="better")
    assert (found.open, found.near, found.behind) == (["a", "b"], ["b"], ["c"])
    assert (found.case, found.notes) == ("open", ["near", "behind"])  # not alike: the difference is significant


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_leaves_open_what_the_ranks_leave_open(seed: int) -> None:
    rng = np.random.default_rng(seed)
    means = dict(zip("abcdef", 1 + 0.03 * rng.normal(size=6), strict=True))
    rows = [
        {"pe": pe, "data": "copy", "depth": 1, "seed": number, "test_loss": mean + rng.normal(0, 0.005)}
        for pe, mean in means.items()
        for number in range(6)
    ]
    compared = Families.of({GRID_TABLE: (pd.DataFrame(rows), "loss")}, "a", Margin(0.03, "nats"))
    ranks, found = compared.ranks().set_index("pe"), overall(compared)
    assert found is not None
    assert set(found.open) == set(ranks.index[ranks["best"] == 1])
    assert set(found.behind) == set(ranks.index[ranks["best"] > 1])


def test_one_that_is_behind_one_by_more_than_the_margin_is_behind() -> None:
    found = candidates({"a": 1.0, "b": 1.01, "c": 1.1}, a_b="undecided", a_c="better", b_c="slightly better")
    assert (found.open, found.near, found.behind) == (["a", "b"], [], ["c"])


def test_a_comparison_is_turned_with_its_interval() -> None:
    found = candidates({"a": 1.0, "b": 1.5}, a_b="better")
    assert found.line("b", "a").items() >= {"difference": 0.5, "low": 0.4, "high": 0.6, "verdict": "worse"}.items()
    assert found.line("a", "b")["low"] == pytest.approx(-0.6)


def test_slightly_worse_turns_to_the_other_one() -> None:
    found = candidates({"a": 1.0, "b": 1.01}, a_b="slightly worse")
    assert (found.open, found.near) == (["a", "b"], ["a"])
    assert found.line("b", "a")["verdict"] == "slightly better"


def test_equivalence_is_said_only_if_every_two_are_equivalent() -> None:
    means = {"a": 1.0, "b": 1.01, "c": 1.02}
    all_three = dict.fromkeys(("a_b", "a_c", "b_c"), "equivalent")
    assert candidates(means, **all_three).notes == ["all alike"]
    some = candidates(means, a_b="equivalent", a_c="equivalent")
    assert (some.notes, some.alike, some.all_alike) == (["alike"], ["b", "c"], False)
    assert candidates(means, b_c="equivalent").notes == []
    assert candidates(means, **all_three | {"b_c": "equal"}).notes == ["all alike"]


def test_ties_to_the_bit_are_said() -> None:
    same = candidates({"a": 1.0, "b": 1.0, "c": 1.0}, a_b="equal", a_c="equal", b_c="equal")
    assert same.case == "equal"
    two = candidates({"a": 1.0, "b": 1.0, "c": 2.0}, a_b="equal", a_c="better", b_c="better")
    assert (two.case, two.open, two.notes) == ("open", ["a", "b"], ["bitwise", "behind"])


def test_one_seed_decides_nothing() -> None:
    pairs = {"a_b": "one seed", "a_c": "no shared seed", "b_c": "one seed"}
    assert candidates({"a": 1.0, "b": 1.5, "c": 2.0}, **pairs).case == "untested"


def test_contradictions_of_unequal_seeds_name_no_best() -> None:
    circle = candidates({"a": 1.0, "b": 1.1, "c": 1.2}, a_b="better", b_c="better", a_c="worse")
    assert (circle.case, circle.open) == ("contradictory", [])
    turned = candidates({"a": 1.0, "b": 1.1}, a_b="worse")
    assert (turned.case, turned.open, turned.behind) == ("only", ["b"], ["a"])


def test_the_highest_accuracy_and_the_smallest_rest_are_the_best() -> None:
    text = candidates({"a": 0.9, "b": 0.8}, "accuracy", "test accuracy", a_b="undecided").words()
    assert "highest" in text
    assert "lowest" not in text
    rest = candidates({"a": 0.01, "b": 0.2}, REMAINING_METRIC, "share of the gap", a_b="better").words()
    assert "lower" in rest
    assert all(value in rest for value in ("0.01 of the gap", "0.19 of the gap"))


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (0.7236, "loss", "0.724 nats"),
        (2.0, "loss_first", "2 nats"),
        (1.5, "bits_per_byte", "1.5 bits"),
        (0.9, "exact_match", "0.9"),
        (0.03, REMAINING_METRIC, "0.03 of the gap"),
    ],
)
def test_values_have_the_unit_of_their_metric(value, metric, text) -> None:
    assert amount(value, metric) == text


def test_many_names_are_counted() -> None:
    names = [f"pe{number}" for number in range(9)]
    assert names_in_words(names[:6], 9) == "`pe0`, `pe1`, `pe2`, `pe3`, `pe4` and `pe5`"
    assert names_in_words(names[:7], 9) == "`pe0`, `pe1`, `pe2` and 4 more"
    assert names_in_words(names, 9) == "the 9"
    assert join_words([]) == ""
    assert join_words(["a"]) == "a"


def cells(tasks=("copy", "sort"), turned: bool = False) -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), []
    for number, task in enumerate(tasks):
        sign = -1 if turned and number else 1
        for seed in range(5):
            for pe, loss in (("a", 1 - 0.3 * sign), ("b", 1.0), ("c", 1 + 0.3 * sign)):
                rows.append({"pe": pe, "data": task, "depth": 1, "seed": seed, "test_loss": loss + rng.normal(0, 0.01)})
    return pd.DataFrame(rows)


def families(rows: pd.DataFrame) -> Families:
    from pe_lab.results.study_comparisons import families

    return families(rows, pd.DataFrame(), "b")


def test_settings_that_cannot_be_averaged_are_counted_one_by_one() -> None:
    compared = families(cells())
    assert overall(compared) is None
    counts = SettingCounts.of(undecided_by_setting(compared))
    assert counts == SettingCounts(2, {"a": 2}, ["a"], ["b", "c"])
    turned = SettingCounts.of(undecided_by_setting(families(cells(turned=True))))
    assert turned == SettingCounts(2, {"a": 1, "c": 1}, [], ["b"])
    rows = cells()
    rows.loc[rows["data"] == "sort", "test_loss"] = np.random.default_rng(1).normal(1, 0.3, 15)
    assert SettingCounts.of(undecided_by_setting(families(rows))) == SettingCounts(2, {"a": 1}, ["a"], [])
    rows["test_loss"] = np.random.default_rng(2).normal(1, 0.3, len(rows))
    assert SettingCounts.of(undecided_by_setting(families(rows))) == SettingCounts(2, {}, ["a", "c", "b"], [])


def undecided(names: Sequence[str]) -> pd.DataFrame:
    """Return comparisons of every two encodings, all undecided."""
    lines = pd.DataFrame(list(combinations(names, 2)), columns=["pe", "baseline"])
    return lines.assign(verdict="undecided", difference=0.0, low=0.0, high=0.0)


def left_open(*names: str) -> BestCandidates:
    """Return what is open in a setting where these encodings can be the best."""
    lines = undecided(names)
    return BestCandidates("loss", "test loss", "", dict.fromkeys(names, 1.0), lines, list(names), [], [])


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (["a", "a", "a"], SettingCounts(3, {"a": 3}, ["a"], []), ["3", "W", "`a`"]),
        (
            ["a", "a", "c", "ab", "ab", ""],
            SettingCounts(6, {"a": 2, "c": 1}, [], []),
            ["6", "W", "3", "`a`", "2", "`c`", "1"],
        ),
        (["ab", "ca", "bca"], SettingCounts(3, {}, ["a"], []), ["3", "W", "`a`"]),
        (["ab", "cd"], SettingCounts(2, {}, [], []), ["2", "W"]),
        (["abcdefgh"] * 3, SettingCounts(3, {}, list("abcdefgh"), []), ["3", "W", "`a`", "`b`", "`c`", "5"]),
    ],
)
def test_settings_are_summed_up_by_counts(found: list[str], expected: SettingCounts, said: list[str]) -> None:
    per_setting = [left_open(*names) for names in found]
    assert SettingCounts.of(per_setting) == expected
    assert re.findall("`[a-z]`|[0-9]|W", in_each_setting(per_setting, "W")) == said


def test_of_settings_with_one_encoding_each_nothing_is_said() -> None:
    rows = cells()
    of_one = rows["data"] == "sort"
    alone = in_each_setting(undecided_by_setting(families(rows[~of_one | (rows["pe"] == "a")])))
    assert alone.startswith("In the only setting")
    assert in_each_setting([])


def test_one_setting_is_not_averaged_and_several_are() -> None:
    one = overall(families(cells(("copy",))))
    assert one is not None
    assert (one.what, one.where) == ("test loss", "")
    both = cells().assign(floor_bayes_loss=0.0, floor_position_blind_loss=2.0)
    found = overall(families(both))
    assert found is not None
    assert (found.metric, found.open) == (REMAINING_METRIC, ["a"])
    assert "2 tasks" in found.where
    assert found.words().startswith(found.where)
    lacking = both[~((both["pe"] == "c") & (both["data"] == "sort"))]
    found = overall(families(lacking))
    assert found is not None
    assert "without 1 encoding" in found.where
    assert set(found.means) == {"a", "b"}


def test_a_setting_with_one_encoding_says_nothing() -> None:
    rows = cells()
    rows = rows[(rows["data"] == "copy") | (rows["pe"] == "b")]
    assert len(undecided_by_setting(families(rows))) == 1
    assert set(families(rows).tables) == {GRID_TABLE}


def test_encodings_that_are_behind_in_all_settings_are_named() -> None:
    per_setting = [replace(left_open("a", "b"), behind=behind) for behind in (["c", "d"], ["d"])]
    assert SettingCounts.of(per_setting).never == ["d"]
    assert SettingCounts.of(per_setting).words("").endswith("`d` is significantly worse than another encoding.")


def test_few_settings_are_told_one_by_one_with_what_is_decided() -> None:
    def at(setting: str, opened: str, behind: str) -> BestCandidates:
        means = dict.fromkeys(opened + behind, 1.0)
        return replace(
            left_open(*opened), means=means, lines=undecided(opened + behind), behind=list(behind), setting=setting
        )

    some = [at("at depth 1", "ab", "c"), at("at depth 4", "abc", "")]
    said = one_by_one(some, lambda candidates: "Mind." * (candidates.setting == "at depth 4")).split("\n")
    assert [line.partition("**: ")[0] for line in said] == ["", "- **At depth 1", "- **At depth 4"]
    assert ["Mind." in line for line in said] == [False, False, True]
    assert "`c`" in said[1]
    lost = pd.DataFrame({"pe": ["b", "c", "d"], "baseline": "a", "verdict": "worse", "difference": 0.5})
    lost = pd.concat([lost.assign(low=0.4, high=0.6), undecided("bcd")])
    three = replace(at("at x", "a", "bcd"), lines=lost)
    assert three.decided == [("b", "a")]  # the next alone
    assert replace(three, open=["a", "e"]).decided == []  # three are too many
    two = replace(three, open=["a", "b"], behind=["c", "d"])
    assert two.decided == [("c", "a"), ("d", "a")]
    assert "`d` is worse than `a` by 0.5 nats (95 % interval 0.4 to 0.6)" in two.words()
    torn = at("at y", "", "abc")
    assert torn.case == "contradictory"
    assert "contradict each other" in one_by_one([at("at x", "abc", ""), torn], lambda _: "")


def test_one_of_several_settings_names_the_best_mean_and_what_is_worse() -> None:
    means = {"a": 1.0, "b": 1.01, "c": 1.02, "d": 2.0}
    verdicts = {"a_b": "equivalent", "a_c": "undecided", "a_d": "better"}
    said = candidates(means, **verdicts).brief()
    assert re.findall("`([a-d])`", said) == ["a", "b", "d"]  # b is equivalent, d is worse
    other = candidates(means, **verdicts | {"a_d": "undecided", "b_d": "better"}).brief()
    assert re.findall("`([a-d])`", other) == ["a", "b", "d", "b"]  # d is worse than b
    none = candidates({"a": 1.0, "b": 1.5, "c": 2.0}).brief()
    assert re.findall("`([a-c])`", none) == ["a"]
    best = candidates({"a": 1.0, "b": 1.5}, a_b="better")
    assert best.brief() == best.words()


def test_the_encodings_that_may_be_the_best_in_all_settings_are_named() -> None:
    means = {"a": 1.0, "b": 1.5, "c": 2.0}
    first = candidates(means, a_c="better")
    assert re.findall("`([a-c])`", verdict_over_settings([first, first])) == ["a", "b", "c"]  # may be, may be, not
    assert re.findall("`([a-c])`", verdict_over_settings([first, candidates(means, a_b="better")])) == ["a"]
    assert re.findall("`([a-c])`", verdict_over_settings([first, candidates(means, a_c="worse", b_c="worse")])) == []


def test_of_all_pairs_the_order_of_names_changes_no_count() -> None:
    lines = pd.DataFrame({"pe": ["a", "a"], "baseline": ["b", "c"], "verdict": ["better", "worse"]})
    assert verdict_counts(lines) == {"different": 2}
    assert verdict_counts(lines.assign(baseline="b")) == {"better": 1, "worse": 1}
