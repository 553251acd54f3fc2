"""The sensitivity of a difference: signs, verdicts and shares are those of a construction whose answer is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from pe_lab import statistics
from pe_lab.results.columns import REMAINING_METRIC
from pe_lab.results.sensitivity import sensitivity, shares

SEEDS = 4
LEVELS = {"depth": (1, 4, 16), "epochs": (1, 4), "optimizer.lr": (1e-3, 1e-2)}


def cells(difference, noise: float = 0.001, seeds: int = SEEDS, levels=LEVELS, pes=("rope", "alibi")) -> pd.DataFrame:
    """Return cells of two encodings whose difference, second minus first, is a function of the setting."""
    rng, rows = np.random.default_rng(0), []
    for values in product(*levels.values()):
        setting = dict(zip(levels, values, strict=True))
        for seed in range(seeds):
            shared = rng.normal(2, 0.5)
            rows.append({"pe": pes[0], **setting, "seed": seed, "test_loss": shared})
            value = shared + difference(setting, seed) + rng.normal(0, noise)
            rows.append({"pe": pes[1], **setting, "seed": seed, "test_loss": value})
    return pd.DataFrame(rows).assign(test_accuracy=lambda rows: -rows["test_loss"])


def by_depth(setting, seed) -> float:
    return -0.5 if setting["depth"] == 1 else 0.3


def test_slightly_better_counts_as_better_and_not_as_equivalent() -> None:
    found = sensitivity(cells(lambda setting, seed: -0.01, 1e-4), "alibi", "rope")
    assert set(found.lines["verdict"]) == {"slightly better"}
    counts = found.counts()
    assert counts["significantly better"] == counts["better"] == 12
    assert counts["equivalent"] == 0


def test_a_line_per_setting_has_the_paired_difference_and_its_interval() -> None:
    rows = cells(by_depth, 0.1)
    rows = rows.drop(rows.index[(rows["pe"] == "alibi") & (rows["depth"] == 16) & (rows["seed"] == 3)])
    found = sensitivity(rows, "alibi", "rope")
    compared = statistics.compare_cells(rows, "rope")
    assert len(found.lines) == 12
    assert found.lines["difference"].is_monotonic_increasing
    both = found.lines.merge(compared, on=list(LEVELS), suffixes=("", "_compared"), validate="one_to_one")
    for name in ("seeds", "difference", "low", "high", "margin", "verdict"):
        assert both[name].tolist() == both[f"{name}_compared"].tolist()
    assert set(found.lines.loc[found.lines["depth"] == 16, "seeds"]) == {3}
    assert list(found.lines)[:3] == list(LEVELS)


def test_signs_and_verdicts_are_counted_and_the_setting_that_turns_the_sign_is_named() -> None:
    found = sensitivity(cells(by_depth), "alibi", "rope")
    assert found.counts().to_dict() == {
        "settings": 12, "better": 4, "worse": 8, "equal": 0, "unknown": 0, "significantly better": 4,
        "significantly worse": 8, "equivalent": 0,
    }  # fmt: skip
    assert found.words() == (
        "The mean of `alibi` is better than that of `rope` in 4 of 12 settings (significantly in 4) and worse in 8 "
        "(significantly in 8). Which one is better depends on the setting: both directions are significant somewhere. "
        "It depends on `depth`: `alibi` is better at 1; worse at 4, 16."
    )


def test_a_sign_that_follows_two_settings_together_follows_none_alone() -> None:
    crossed = cells(lambda setting, seed: 0.3 if (setting["depth"] == 1) == (setting["epochs"] == 1) else -0.3)
    text = sensitivity(crossed, "alibi", "rope").words()
    assert text.endswith("Which one is better depends on the setting: both directions are significant somewhere.")

    def at_one_depth(setting, seed) -> float:
        return -0.3 if setting["depth"] == 1 and (setting["epochs"] == 1) == (setting["optimizer.lr"] == 1e-3) else 0.3

    corner = cells(at_one_depth)
    text = sensitivity(corner, "alibi", "rope").words()
    assert text.endswith("Which one is better depends on the setting: both directions are significant somewhere.")


def test_a_higher_accuracy_is_better() -> None:
    found = sensitivity(cells(by_depth), "alibi", "rope", "accuracy")
    assert found.counts()[["better", "worse", "significantly better"]].tolist() == [4, 8, 4]
    assert (found.lines.loc[found.lines["depth"] == 1, "difference"] > 0).all()


def test_the_other_encoding_as_baseline_turns_every_sign() -> None:
    rows = cells(by_depth)
    one, other = sensitivity(rows, "alibi", "rope"), sensitivity(rows, "rope", "alibi")
    assert one.lines["difference"].tolist() == [-value for value in other.lines["difference"][::-1]]
    assert other.counts()["better"] == 8


def test_signs_that_noise_may_have_turned_are_not_called_certain() -> None:
    mixed = cells(lambda setting, seed: -0.4 if setting["depth"] == 1 else 0.02 * (seed - 1.4), 0.01)
    text = sensitivity(mixed, "alibi", "rope").words()
    assert text.endswith("The direction is not the same everywhere, but it is never significantly reversed.")
    noise = cells(lambda setting, seed: 0.0, 1.0)
    assert sensitivity(noise, "alibi", "rope").words().endswith("everywhere, and no difference is significant.")


def test_a_sign_that_holds_is_said_to_hold_with_how_often_it_is_certain() -> None:
    text = sensitivity(cells(lambda setting, seed: -0.3), "alibi", "rope").words()
    assert text.endswith("The direction is the same in all of these settings, and significant in 12.")
    one_seed = sensitivity(cells(lambda setting, seed: -0.3, seeds=1), "alibi", "rope")
    assert one_seed.words().endswith("The direction is the same in all of these settings, and significant in none.")
    assert one_seed.lines["low"].isna().all()


def test_equal_and_unknown_differences_are_neither_better_nor_worse() -> None:
    rows = cells(lambda setting, seed: 0.0 if setting["depth"] == 1 else -0.2, 0.0)
    rows = rows[~((rows["pe"] == "alibi") & (rows["depth"] == 16) & (rows["epochs"] == 4))]
    found = sensitivity(rows, "alibi", "rope")
    assert found.counts()[["settings", "better", "worse", "equal", "unknown"]].tolist() == [12, 6, 0, 4, 2]
    assert "better than that of `rope` in 6 of 10 settings" in found.words()
    assert "equal in 4" in found.words()
    assert "in 2 more, no seed is shared" in found.words()
    assert found.words().endswith("The direction is the same wherever the two differ, and significant in 6.")
    assert found.lines["difference"].isna().tolist() == [False] * 10 + [True] * 2
    same = sensitivity(cells(lambda setting, seed: 0.0, 0.0), "alibi", "rope")
    assert same.words().endswith("The results are equal bit for bit.")


def test_the_counts_by_value_add_up_to_all_settings() -> None:
    levels = sensitivity(cells(by_depth), "alibi", "rope").levels()
    for name, values in LEVELS.items():
        here = levels[levels["name"] == name]
        assert here["value"].tolist() == list(values)
        assert here["settings"].sum() == 12
        assert here["better"].sum() == 4
    depth = levels[levels["name"] == "depth"].set_index("value")
    assert depth["mean difference"].tolist() == pytest.approx([-0.5, 0.3, 0.3], abs=0.01)
    assert depth["significantly better"].tolist() == [4, 0, 0]


def test_verdicts_can_be_those_of_a_larger_family() -> None:
    rows = cells(by_depth, 0.25)
    alone = sensitivity(rows, "alibi", "rope")
    others = [cells(lambda s, _: 0.0, 0.3).query("pe == 'alibi'").assign(pe=f"pe{number}") for number in range(20)]
    everything = pd.concat([rows, *others], ignore_index=True)
    compared = statistics.Families.of({statistics.GRID_TABLE: (everything, "loss")}, "rope").compare()
    found = sensitivity(everything, "alibi", "rope", compared=compared)
    expected = compared[compared["pe"] == "alibi"].set_index(list(LEVELS))["verdict"]
    assert found.lines.set_index(list(LEVELS))["verdict"].to_dict() == expected.to_dict()
    assert found.lines["difference"].tolist() == alone.lines["difference"].tolist()
    assert (found.lines["verdict"] == "better").sum() < (alone.lines["verdict"] == "better").sum()


def among_others(noise: float = 0.1) -> pd.DataFrame:
    """Return cells of `rope` and `alibi` as in `cells`, with six other encodings, which have one more setting."""
    noises = [noise, *np.linspace(0.5, 2, 6) * noise]
    parts = [cells(by_depth, each, pes=("rope", f"e{number}")) for number, each in enumerate(noises)]
    rows = pd.concat([parts[0], *(part[part["pe"] != "rope"] for part in parts[1:])], ignore_index=True)
    rows["pe"] = rows["pe"].replace("e0", "alibi")
    alone = rows[~rows["pe"].isin(["rope", "alibi"]) & (rows["depth"] == 16)].assign(depth=32)
    return pd.concat([rows, alone], ignore_index=True)


@pytest.mark.parametrize("given", [True, False])
def test_among_many_encodings_intervals_are_those_of_the_comparisons_whose_verdicts_are_shown(given: bool) -> None:
    """Variances are shared over all encodings of a setting, whichever two are followed."""
    rows = among_others(0.15)  # with which the variances of the two alone decide fewer settings
    compared = statistics.compare_cells(rows, "rope")
    found = sensitivity(rows, "alibi", "rope", compared=compared if given else None)
    assert len(found.lines) == 12
    assert set(found.lines["depth"]) == {1, 4, 16}
    both = found.lines.merge(compared[compared["pe"] == "alibi"], on=list(LEVELS), suffixes=("", "_compared"))
    assert (both["freedom"] > SEEDS - 1).all()
    for name in ("seeds", "difference", "low", "high", "margin"):
        assert both[name].tolist() == both[f"{name}_compared"].tolist()
    if given:
        assert both["verdict"].tolist() == both["verdict_compared"].tolist()
    else:  # a family of its own
        alone = statistics.compare_cells(rows, "rope").query("pe == 'alibi' and depth != 32")
        expected = statistics.holm(alone["p"].to_numpy()) < 0.05
        decided = found.lines.set_index(list(LEVELS))["verdict"].str.startswith(("better", "worse"))
        assert decided.loc[list(alone[list(LEVELS)].itertuples(index=False, name=None))].tolist() == expected.tolist()


def test_among_many_encodings_shares_of_the_gap_have_the_same_intervals_but_for_their_unit() -> None:
    rows = among_others().query("depth != 32")
    rows = pd.concat([rows.assign(data="copy"), rows.assign(data="sort")], ignore_index=True)
    rows = rows[["pe", "data", *LEVELS, "seed", "test_loss"]]
    rows["floor_bayes_loss"], rows["floor_position_blind_loss"] = 0.0, rows["data"].map({"copy": 2.0, "sort": 4.0})
    compared = statistics.compare_cells(rows, "rope")
    found = sensitivity(rows, "alibi", "rope", compared=compared)
    assert found.metric == REMAINING_METRIC
    both = found.lines.merge(
        compared[compared["pe"] == "alibi"], on=["data", *LEVELS], suffixes=("", "_compared"), validate="one_to_one"
    )
    gap = both["data"].map({"copy": 2.0, "sort": 4.0})
    for name in ("difference", "low", "high"):
        assert both[name].tolist() == pytest.approx((both[f"{name}_compared"] / gap).tolist())


def test_bad_input_is_named() -> None:
    rows = cells(by_depth)
    with pytest.raises(ValueError, match="two encodings, got rope twice"):
        sensitivity(rows, "rope", "rope")
    with pytest.raises(ValueError, match="ropes.*one of rope, alibi"):
        sensitivity(rows, "ropes", "alibi")
    with pytest.raises(ValueError, match="metric must be one of loss, accuracy, got 'f1'"):
        sensitivity(rows, "alibi", "rope", "f1")
    with pytest.raises(ValueError, match="compared must have these two encodings in each of 12 settings, got 4"):
        sensitivity(rows, "alibi", "rope", compared=statistics.compare_cells(rows[rows["depth"] == 1], "rope"))


def test_tasks_are_compared_by_the_share_of_their_gap() -> None:
    levels = {"data": ("copy", "sort"), "depth": (1, 4)}
    rows = cells(lambda setting, seed: -0.1 if setting["data"] == "copy" else -10.0, levels=levels)
    rows["floor_bayes_loss"] = 0.0
    assert sensitivity(rows, "alibi", "rope").metric == "loss"  # no level is known
    rows["floor_position_blind_loss"] = rows["data"].map({"copy": 1.0, "sort": 100.0})
    one = rows.assign(floor_position_blind_loss=rows["floor_position_blind_loss"].where(rows["data"] == "copy"))
    assert sensitivity(one.drop(columns="floor_bayes_loss"), "alibi", "rope").metric == "loss"  # sort has no level
    found = sensitivity(rows, "alibi", "rope")
    assert found.metric == REMAINING_METRIC
    assert found.lines["margin"].isna().all()  # it is in nats
    assert found.lines["difference"].tolist() == pytest.approx([-0.1] * 4, abs=0.01)
    assert set(found.lines["verdict"]) == {"better"}
    assert shares(found.sample, found.names).set_index("effect").loc["data", "share"] < 0.2


def classical(sample: pd.DataFrame, names: list[str]) -> dict[str, float]:
    """Return the shares of main effects of a full grid: variances of the means by level, over the total variance."""
    values = sample["difference"]
    total = values.var(ddof=0)
    return {name: values.groupby(sample[name]).transform("mean").var(ddof=0) / total for name in names}


def test_shares_of_a_full_grid_are_those_of_the_analysis_of_variance() -> None:
    found = sensitivity(cells(lambda s, seed: 0.1 * s["depth"] * s["epochs"] + 0.2 * seed, 0.3), "alibi", "rope")
    table = shares(found.sample, found.names).set_index("effect")["share"]
    assert table.sum() == pytest.approx(1)
    expected = classical(found.sample, [*found.names, "seed"])
    assert {name: table[name] for name in expected} == pytest.approx(expected)
    cell_means = found.sample.groupby(found.names)["difference"].transform("mean")
    between = cell_means.var(ddof=0) / found.sample["difference"].var(ddof=0)
    assert table["interactions of settings"] == pytest.approx(between - sum(expected[name] for name in found.names))


def test_settings_that_always_vary_together_divide_what_they_explain() -> None:
    rows = cells(by_depth, 0.0)
    rows = rows.assign(**{"model.width": rows["depth"] * 8})[
        ["pe", "depth", "epochs", "model.width", "seed", "test_loss"]
    ]
    rows = rows[cells(by_depth)["optimizer.lr"] == 1e-3]
    found = sensitivity(rows, "alibi", "rope")
    table = shares(found.sample, found.names).set_index("effect")["share"]
    assert table["depth"] == pytest.approx(0.5)
    assert table["model.width"] == pytest.approx(0.5)
    assert table.sum() == pytest.approx(1)


def by_orders(sample: pd.DataFrame, factors: list[str]) -> dict[str, float]:
    """Return shares by definition: what a factor adds to a model, averaged over all orders, by least squares."""
    from itertools import permutations

    values = sample["difference"].to_numpy() - sample["difference"].mean()

    def explained(names: tuple[str, ...]) -> float:
        design = pd.concat([pd.get_dummies(sample[name].astype(str)) for name in names], axis=1) if names else None
        if design is None:
            return 0.0
        design = np.column_stack([np.ones(len(values)), design.to_numpy(float)])
        fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
        return float(np.square(fitted).sum() / np.square(values).sum())

    orders = list(permutations(factors))
    found = dict.fromkeys(factors, 0.0)
    for order in orders:
        for number, name in enumerate(order):
            found[name] += (explained(order[: number + 1]) - explained(order[:number])) / len(orders)
    return found


def test_shares_of_a_grid_with_gaps_are_averages_over_all_orders() -> None:
    rows = cells(lambda s, seed: 0.1 * s["depth"] + 0.5 * s["epochs"] + 0.1 * seed, 0.2)
    kept = np.random.default_rng(1).random(len(rows)) < 0.7
    found = sensitivity(rows[kept], "alibi", "rope")
    table = shares(found.sample, found.names).set_index("effect")["share"]
    expected = by_orders(found.sample, [*found.names, "seed"])
    assert {name: table[name] for name in expected} == pytest.approx(expected)
    assert table.sum() == pytest.approx(1)


@pytest.mark.long
def test_the_share_by_chance_is_that_of_noise() -> None:
    rows = cells(by_depth)
    rows = rows[np.random.default_rng(2).random(len(rows)) < 0.85]
    sample, names = sensitivity(rows, "alibi", "rope").sample, list(LEVELS)
    rng, found = np.random.default_rng(3), []
    for _ in range(400):
        table = shares(sample.assign(difference=rng.normal(size=len(sample))), names)
        found.append(table["share"].to_numpy())
    assert np.mean(found, axis=0) == pytest.approx(table["by chance"].to_numpy(), abs=0.02)
    assert table["by chance"].sum() == pytest.approx(1)


def test_one_seed_has_no_noise_of_its_own() -> None:
    found = sensitivity(cells(by_depth, 0.1, seeds=1), "alibi", "rope")
    table = shares(found.sample, found.names)
    assert list(table["effect"]) == [*LEVELS, "interactions of settings, and noise"]
    assert table["share"].sum() == pytest.approx(1)


def test_there_are_no_shares_of_nothing() -> None:
    constant = sensitivity(cells(lambda s, seed: 0.0, 0.0), "alibi", "rope")
    assert shares(constant.sample, constant.names).empty
    one = sensitivity(cells(by_depth, levels={"depth": (1,), "epochs": (4,)}), "alibi", "rope")
    assert shares(one.sample, one.names).empty
    many = pd.DataFrame(np.random.default_rng(0).integers(2, size=(30, 13))).add_prefix("s")
    assert shares(many.assign(seed=0, difference=many["s0"] * 1.0), list(many)).empty


def test_a_missing_value_of_a_setting_is_a_value() -> None:
    rows = cells(by_depth)
    rows["optimizer.lr"] = rows["optimizer.lr"].where(rows["optimizer.lr"] > 1e-3)
    found = sensitivity(rows, "alibi", "rope")
    assert len(found.lines) == 12
    rate = found.levels().query("name == 'optimizer.lr'")
    assert rate["settings"].tolist() == [6, 6]
    assert shares(found.sample, found.names).set_index("effect").loc["optimizer.lr", "levels"] == 2


def test_a_setting_that_these_two_encodings_lack_is_no_obstacle() -> None:
    rows = cells(by_depth)
    others = cells(by_depth, pes=("none", "t5"), levels={**LEVELS, "depth": (2,)})
    rows = pd.concat([rows.assign(schedule=None), others.assign(schedule="cosine")], ignore_index=True)
    rows = rows[["pe", *LEVELS, "schedule", "seed", "test_loss", "test_accuracy"]]
    compared = statistics.Families.of({statistics.GRID_TABLE: (rows, "loss")}, "rope").compare()
    found = sensitivity(rows, "alibi", "rope", compared=compared)
    assert len(found.lines) == 12
    assert found.lines["verdict"].notna().all()
