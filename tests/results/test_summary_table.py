"""The table of a sweep has the means, intervals and paired differences of its cells."""

from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import DictConfig, OmegaConf
from scipy import stats

from helpers.configs import compose_config
from pe_lab.results.cell_rows import rows_of, settings_of
from pe_lab.results.summary_table import TEST_COLUMNS, render_table, score_table, summarise, with_verdicts
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import GRID_TABLE, Families, Margin, compare_cells, interval

SEEDS = range(4)
LOSSES = {
    "rope": (0.40, 0.43, 0.35, 0.47),
    "alibi": (0.52, 0.51, 0.49, 0.60),
    "none": (0.33, 0.71, 0.42, 0.40),
}


def cell(loss: float, *overrides: str, seed: int = 0) -> tuple[DictConfig, dict[str, Any]]:
    """Return the summary of a cell with these settings."""
    cfg = compose_config(*overrides)
    if seed:
        cfg = deepcopy(cfg)
        OmegaConf.set_readonly(cfg, False)
        cfg.seed = seed
    summary = {
        "test": {"loss": loss, "loss_all": 1 + loss, "accuracy": 0.5},
        "floors": {"bayes": {"loss": 0.0, "loss_all": 0.7}, "position_blind": {"loss": 0.3, "loss_all": 1.0}},
        "parameters": 1000,
        "positional_parameters": 10,
        "flops_per_token": 2e6,
        "seconds": 1.5,
        "attention": "sdpa",
        "device": "cpu",
        # epochs are checkpoints on one run
        "run": "/".join(sorted([*(one for one in overrides if not one.startswith("epochs=")), f"seed={seed}"])),
    }
    return cfg, summary


def sweep(losses: dict[str, tuple[float, ...]], *overrides: str) -> list[tuple[DictConfig, dict[str, Any]]]:
    return [cell(loss, f"pe={pe}", *overrides, seed=seed) for pe in losses for seed, loss in enumerate(losses[pe])]


def tabulate(cells: list[tuple[DictConfig, dict[str, Any]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of cells and their table."""
    rows = rows_of([settings_of(cfg) for cfg, _ in cells], [summary for _, summary in cells])
    return rows, summarise(rows)


def t_interval(values: list[float]) -> tuple[float, float]:
    mean, n = np.mean(values), len(values)
    half = stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return mean - half, mean + half


def line(table: pd.DataFrame, **where: object) -> pd.Series:
    """Return the one line of the table with these values."""
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_a_row_is_a_cell_with_its_metrics_and_floors() -> None:
    rows, _ = tabulate(sweep(LOSSES))
    assert list(rows["pe"]) == ["rope"] * 4 + ["alibi"] * 4 + ["none"] * 4
    assert list(rows["seed"]) == [0, 1, 2, 3] * 3
    assert list(rows["test_loss"]) == [loss for losses in LOSSES.values() for loss in losses]
    one = rows.iloc[0].to_dict()
    assert (one["depth"], one["epochs"], one["test_accuracy"], one["floor_position_blind_loss_all"]) == (
        4,
        16,
        0.5,
        1.0,
    )
    assert (one["parameters"], one["positional_parameters"], one["seconds"]) == (1000, 10, 1.5)


def test_a_cell_that_is_listed_twice_counts_once() -> None:
    cells = sweep(LOSSES)
    assert tabulate(cells + cells[:5])[0].equals(tabulate(cells)[0])
    assert list(tabulate(cells + cells[:5])[1]["seeds"]) == [4, 4, 4]


def test_two_checkpoints_of_one_run_are_two_lines() -> None:
    cells = [cell(0.5 / epochs, "pe=rope", f"epochs={epochs}") for epochs in (1, 4, 16)]
    _, table = tabulate(cells)
    assert list(table["epochs"]) == [1, 4, 16]
    assert list(table["loss"]) == [0.5, 0.125, 0.03125]


def test_the_interval_is_that_of_students_t() -> None:
    _, table = tabulate(sweep(LOSSES))
    for pe, losses in LOSSES.items():
        one = line(table, pe=pe)
        assert one["seeds"] == 4
        assert one["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
        assert (one["low"], one["high"]) == pytest.approx(t_interval(losses), rel=1e-12)


def test_no_interval_of_losses_is_printed_below_zero() -> None:
    _, table = tabulate(sweep({"rope": [0.1, 0.0, 0.0, 0.0]}))
    assert table["low"].item() < 0
    assert "[0.0000, 0.1" in render_table(table)


def test_floors_are_shown_beside_the_loss() -> None:
    _, table = tabulate(sweep(LOSSES))
    assert list(table["bayes"]) == [0.0] * 3
    assert list(table["position_blind"]) == [pytest.approx(0.3)] * 3


def test_a_task_without_floors_has_a_table_too() -> None:
    """Text tasks have reference levels and no floors."""
    cells = sweep(LOSSES)
    for _, summary in cells:
        summary["floors"] = {}
    text = render_table(tabulate(cells)[1])
    assert "0.4125" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_floors_are_means_over_the_seeds_of_the_line() -> None:
    cells = sweep(LOSSES)
    for number, (_, summary) in enumerate(cells):
        summary["floors"]["position_blind"]["loss"] = float(number)
    _, table = tabulate(cells)
    assert list(table["position_blind"]) == [1.5, 5.5, 9.5]


def test_the_difference_is_paired_by_seed() -> None:
    _, table = tabulate(sweep(LOSSES))
    for pe in ("alibi", "none"):
        differences = [a - b for a, b in zip(LOSSES[pe], LOSSES["rope"], strict=True)]
        one = line(table, pe=pe)
        assert one["difference"] == pytest.approx(np.mean(differences), rel=1e-12)
        found = one["difference_low"], one["difference_high"]
        assert found == pytest.approx(t_interval(differences), rel=1e-12)


def test_the_difference_uses_shared_seeds_only() -> None:
    cells = [
        made
        for made in sweep(LOSSES)
        if (made[0].pe.name, made[0].seed) not in {("rope", 1), ("alibi", 3), ("none", 0), ("none", 2), ("none", 3)}
    ]
    _, table = tabulate(cells)
    assert list(table["seeds"]) == [3, 3, 1]
    differences = [LOSSES["alibi"][seed] - LOSSES["rope"][seed] for seed in (0, 2)]
    one = line(table, pe="alibi")
    assert one["loss"] == pytest.approx(np.mean(LOSSES["alibi"][:3]))
    assert one["difference"] == pytest.approx(np.mean(differences))
    assert (one["difference_low"], one["difference_high"]) == pytest.approx(t_interval(differences), rel=1e-12)
    # no seed is shared
    assert line(table, pe="none")[["difference", "difference_low", "difference_high"]].isna().all()


def test_the_order_of_the_cells_does_not_pair_seeds_wrongly() -> None:
    cells = sweep(LOSSES)
    shuffled = cells[:1] + [cells[index] for index in np.random.default_rng(0).permutation(range(1, len(cells)))]
    expected, table = tabulate(cells)[1].set_index("pe"), tabulate(shuffled)[1].set_index("pe")
    pd.testing.assert_frame_equal(table.loc[expected.index], expected, rtol=1e-12)


def test_the_baseline_is_the_first_encoding() -> None:
    for first in LOSSES:
        losses = {first: LOSSES[first]} | LOSSES
        _, table = tabulate(sweep(losses))
        assert list(table["pe"]) == list(losses)
        assert table.attrs["baseline"] == first
        assert table["difference"].isna().tolist() == [True, False, False]
        assert f"minus {first}" in render_table(table)


def test_equal_losses_have_an_interval_without_width() -> None:
    same = {"rope": (0.4, 0.4, 0.4), "alibi": (0.4, 0.4, 0.4)}
    _, table = tabulate(sweep(same))
    for pe in same:
        assert tuple(line(table, pe=pe)[["low", "high"]]) == (0.4, 0.4)
    assert tuple(line(table, pe="alibi")[["difference", "difference_low", "difference_high"]]) == (0.0, 0.0, 0.0)
    assert "[0.4000, 0.4000]" in render_table(table)


def test_differences_that_are_equal_up_to_rounding_have_an_interval_of_the_measurement_error() -> None:
    _, table = tabulate(sweep({"rope": (0.4, 0.5, 0.7), "alibi": (0.5, 0.6, 0.8)}))
    one = line(table, pe="alibi")
    assert 0.09 < one["difference_low"] < 0.1 - 1e-4 < 0.1 + 1e-4 < one["difference_high"] < 0.11


def test_one_seed_has_no_interval_and_no_difference() -> None:
    _, table = tabulate([cell(0.4, "pe=rope"), cell(0.5, "pe=alibi")])
    assert table[["low", "high"]].isna().all(axis=None)
    text = render_table(table)
    for absent in ("seeds", "interval", "minus", "paired", "nan", "["):
        assert absent not in text.lower()
    assert "0.4000" in text
    assert "0.5000" in text


@pytest.mark.parametrize("values", [[], [0.5], [0.5, np.inf, 0.7], [0.5, np.nan], [np.inf, np.inf]])
def test_fewer_than_two_values_and_diverged_ones_have_no_interval(values: list[float]) -> None:
    assert interval(pd.Series(values, dtype=float)) == pytest.approx((np.nan, np.nan), nan_ok=True)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("optimizer.lr", ("0.001", "0.003")),
        ("optimizer.betas", ("[0.9,0.999]", "[0.9,0.95]")),
        ("trainer.clip", ("null", "1.0")),
        ("model.norm", ("pre", "post")),
        ("model.scale_tokens", ("false", "true")),
        ("data.length", ("16", "20")),
    ],
)
def test_a_setting_that_varies_has_lines_of_its_own(setting: str, values: tuple[str, str]) -> None:
    low, high = {"rope": (0.4, 0.5), "alibi": (0.6, 0.8)}, {"rope": (0.1, 0.3), "alibi": (0.2, 0.5)}
    rows, table = tabulate(sweep(low, f"{setting}={values[0]}") + sweep(high, f"{setting}={values[1]}"))
    assert len(rows) == 8
    assert setting in rows
    assert setting in table
    assert sorted(table["loss"]) == pytest.approx([0.2, 0.35, 0.45, 0.7])
    assert list(table["seeds"]) == [2] * 4
    assert table["pe"].tolist() == ["rope", "alibi"] * 2
    # differences are taken within one value of the setting
    differences = table[table["pe"] == "alibi"].set_index("loss")["difference"].round(12)
    assert differences.to_dict() == {0.7: 0.25, 0.35: 0.15}
    assert setting in render_table(table)


def test_a_setting_that_the_first_cell_does_not_have_has_lines_of_its_own() -> None:
    """For example an option of one of several datasets."""
    cells = sweep({"rope": (0.4, 0.5)})
    for difficulty, losses in ((1, (0.1, 0.3)), (2, (0.6, 0.9))):
        for cfg, summary in sweep({"rope": losses}):
            other = OmegaConf.create(OmegaConf.to_container(cfg))
            other.data.name = "other"
            other.data.difficulty = difficulty
            cells.append((other, summary | {"run": f"{summary['run']}/{difficulty}"}))
    _, table = tabulate(cells)
    assert sorted(table["loss"]) == pytest.approx([0.2, 0.45, 0.75])
    assert list(table["seeds"]) == [2] * 3


def test_an_option_of_an_encoding_that_varies_is_part_of_its_name() -> None:
    cells = [
        made
        for theta, losses in (("10000.0", (0.4, 0.5)), ("500.0", (0.1, 0.3)))
        for made in sweep({"rope": losses}, f"pe.theta={theta}")
    ]
    rows, table = tabulate(cells + sweep({"alibi": (0.7, 0.9)}))
    assert list(table["pe"]) == ["rope theta=10000", "rope theta=500", "alibi"]
    assert table.attrs["baseline"] == "rope theta=10000"
    assert list(table["loss"]) == pytest.approx([0.45, 0.2, 0.8])
    assert table["difference"].dropna().tolist() == pytest.approx([-0.25, 0.35])
    assert not [name for name in (*rows, *table) if str(name).startswith("pe.")]


def test_options_that_only_some_encodings_have_are_not_settings() -> None:
    cells = sweep({"rope": (0.4, 0.5), "lrope": (0.1, 0.3), "learnable": (0.2, 0.4), "none": (0.7, 0.9)})
    rows, table = tabulate(cells)
    assert list(table["pe"]) == ["rope", "lrope", "learnable", "none"]
    assert not [name for name in (*rows, *table) if "." in str(name)]


def test_lines_are_ordered_by_depth_then_epochs_then_as_the_encodings_came() -> None:
    cells = [
        cell(0.1 * depth + 0.01 * epochs, f"pe={pe}", f"model.depth={depth}", f"epochs={epochs}")
        for depth in (16, 1, 4)
        for pe in ("rope", "alibi")
        for epochs in (4, 1)
    ]
    _, table = tabulate(cells)
    assert list(table[["depth", "epochs", "pe"]].itertuples(index=False, name=None)) == [
        (depth, epochs, pe) for depth in (1, 4, 16) for epochs in (1, 4) for pe in ("rope", "alibi")
    ]


def test_differences_are_taken_within_depth_and_epochs() -> None:
    cells = [
        cell(base + depth + epochs * (2 if pe == "alibi" else 1), f"pe={pe}", *place, seed=seed)
        for depth in (1, 4)
        for epochs in (1, 16)
        for place in [(f"model.depth={depth}", f"epochs={epochs}")]
        for pe in ("rope", "alibi")
        for seed, base in enumerate((0.25, 0.5))
    ]
    _, table = tabulate(cells)
    for depth in (1, 4):
        for epochs in (1, 16):
            assert line(table, pe="alibi", depth=depth, epochs=epochs)["difference"] == epochs


def test_the_text_has_a_line_per_setting_with_everything_that_the_table_says() -> None:
    text = render_table(tabulate(sweep(LOSSES))[1])
    not_learned, settings, header, *lines = text.splitlines()
    assert "position" in not_learned
    assert settings == "data structured, depth 4, epochs 16"
    for name in ("pe", "seeds", "loss", "95 % interval", "floor: bayes", "floor: position-blind"):
        assert name in header
    assert "minus rope" in header
    assert "95 % paired" in header
    assert len(lines) == 3
    low, high = t_interval(LOSSES["alibi"])
    differences = [a - b for a, b in zip(LOSSES["alibi"], LOSSES["rope"], strict=True)]
    paired = t_interval(differences)
    for part in (
        "0.5300",
        f"[{low:.4f}, {high:.4f}]",
        "0.3000",
        f"{np.mean(differences):+.4f}",
        f"[{paired[0]:.4f}, {paired[1]:.4f}]",
    ):
        assert part in lines[1]
    assert "nan" not in text.lower()


def test_verdicts_are_those_of_the_comparisons_with_the_baseline() -> None:
    rows, table = tabulate([*sweep(LOSSES), *sweep(LOSSES | {"none": (0.41, 0.44, 0.36, 0.48)}, "model.depth=1")])
    margin = Margin(0.02, "nats")
    compared = Families.of({GRID_TABLE: (rows, "loss")}, "rope", margin)
    found = with_verdicts(table, compared)
    assert list(found["verdict"].isna()) == [pe == "rope" for pe in found["pe"]]
    for one in compared.compare().to_dict("records"):
        here = line(found, pe=one["pe"], depth=one["depth"])
        assert [here[name] for name in TEST_COLUMNS] == [one[name] for name in TEST_COLUMNS]
    assert line(found, pe="none", depth=1)["verdict"] == "slightly worse"
    text = render_table(found)
    assert "slightly worse" in text
    few = few_runs(len(LOSSES), len(LOSSES["rope"]))
    assert few
    assert text.splitlines()[-2:] == [f"verdicts: {compared}", few]
    assert "nan" not in text.lower()
    pd.testing.assert_frame_equal(found[list(table)], table)


def test_among_many_encodings_intervals_are_those_of_the_comparisons() -> None:
    """From five encodings on, their variances are shared, in the interval and in the verdict beside it."""
    rng = np.random.default_rng(0)
    names = ("rope", "alibi", "none", "learnable", "sinusoidal", "t5")
    losses = {pe: tuple(0.4 + rng.normal(0, 0.1, 4)) for pe in names}
    cells = [*sweep(losses), *sweep(losses, "model.depth=1")]
    cells = [made for made in cells if (made[0].pe.name, made[0].model.depth, made[0].seed) != ("t5", 1, 3)]
    rows, table = tabulate(cells)
    compared = compare_cells(rows, "rope")
    assert (compared["freedom"] > compared["seeds"] - 1).all()
    for one in compared.to_dict("records"):
        here = line(table, pe=one["pe"], depth=one["depth"])
        assert here["difference"] == one["difference"]
        assert (here["difference_low"], here["difference_high"]) == (one["low"], one["high"])
    assert f"[{compared['low'].iloc[0]:.4f}, {compared['high'].iloc[0]:.4f}]" in render_table(
        with_verdicts(table, Families.of({GRID_TABLE: (rows, "loss")}, "rope"))
    )


def test_a_diverged_seed_is_in_no_difference() -> None:
    losses = LOSSES | {"alibi": (0.52, float("inf"), 0.49, float("nan"))}
    _, table = tabulate(sweep(losses))
    differences = [losses["alibi"][seed] - losses["rope"][seed] for seed in (0, 2)]
    one = line(table, pe="alibi")
    assert one["difference"] == pytest.approx(np.mean(differences))
    assert (one["difference_low"], one["difference_high"]) == pytest.approx(t_interval(differences), rel=1e-12)


def test_a_setting_without_a_value_has_differences_too() -> None:
    rows, _ = tabulate(sweep(LOSSES))
    rows.insert(list(rows).index("seed"), "model.norm", [None] * len(rows))
    other = rows.assign(**{"model.norm": "pre", "test_loss": rows["test_loss"] ** 2})
    table = summarise(pd.concat([rows, other], ignore_index=True))
    expected = line(summarise(rows), pe="alibi")["difference"]
    assert table[table["model.norm"].isna() & (table["pe"] == "alibi")]["difference"].item() == expected
    assert table["difference"].notna().sum() == 4


def test_one_shared_seed_has_a_difference_without_an_interval() -> None:
    _, table = tabulate(sweep(LOSSES | {"alibi": LOSSES["alibi"][:1]}))
    one = line(table, pe="alibi")
    assert one["difference"] == pytest.approx(LOSSES["alibi"][0] - LOSSES["rope"][0])
    assert one[["difference_low", "difference_high"]].isna().all()


def test_cells_that_occur_twice_have_means_and_no_differences() -> None:
    rows, _ = tabulate(sweep(LOSSES))
    table = summarise(pd.concat([rows, rows.head(1)], ignore_index=True))
    assert list(table["pe"]) == list(LOSSES)
    assert "difference" not in table


def test_one_seed_has_no_verdicts() -> None:
    rows, table = tabulate(sweep({pe: losses[:1] for pe, losses in LOSSES.items()}))
    assert "verdict" not in with_verdicts(table, Families.of({GRID_TABLE: (rows, "loss")}))


def of_task(data: str, losses: dict[str, tuple[float, ...]], floors: dict) -> list[tuple[DictConfig, dict[str, Any]]]:
    cells = []
    for cfg, summary in sweep(losses):
        cfg = OmegaConf.merge(cfg, {"data": {"name": data, "_target_": data, "length": 16 + len(data)}})
        cells.append((cfg, summary | {"floors": floors, "run": f"{summary['run']}/{data}"}))
    return cells


def test_several_tasks_have_a_column_each_relative_to_their_floors() -> None:
    losses = {"rope": (0.2, 0.4), "none": (1.0, 1.4)}
    blind = {"position_blind": {"loss": 1.1}, "position_blind_split_known": {"loss": 0.4}}
    cells = of_task("one", losses, {"bayes": {"loss": 0.1}, **blind, "prior": {"loss": 9.0}})
    cells += of_task(
        "control", losses, {"bayes": {"loss": 0.0}, "position_blind": {"loss": 0.0}, "prior": {"loss": 2.0}}
    )
    cells += of_task("text", losses, {"ngram": {"loss": 0.5}, "xz": {"loss": 0.7}})
    rows, table = tabulate(cells)
    assert list(table["data"].unique()) == ["control", "one", "text"]
    assert "data.length" not in rows
    wide = score_table(table).set_index("pe")
    columns = ["control (0: bayes, 1: prior)", "one (0: bayes, 1: position-blind)", "text (0: no loss, 1: ngram)"]
    assert [column for column in wide.columns if "1: " in column] == columns
    for pe, values in losses.items():
        mean = sum(values) / 2
        half = (t_interval(list(values))[1] - t_interval(list(values))[0]) / 2
        for column, low, high in zip(columns, (0, 0.1, 0), (2, 1.1, 0.5), strict=True):
            expected = f"{(mean - low) / (high - low):.3f} ± {half / (high - low):.3f}"
            assert wide.loc[pe, column] == expected
    assert "level: ngram" in render_table(table)
    assert "floor: position-blind-split-known" in render_table(table)


def test_a_task_without_any_level_is_its_loss() -> None:
    losses = {"rope": (0.2, 0.4), "none": (1.0, 1.4)}
    cells = of_task("one", losses, {}) + of_task("two", losses, {"prior": {"loss": 0.0}})
    wide = score_table(tabulate(cells)[1]).set_index("pe")
    assert wide.loc["rope", "one (loss)"].startswith("0.300 ± ")
    assert wide.loc["none", "two (loss)"].startswith("1.200 ± ")


def test_encodings_keep_their_order_where_cells_are_missing() -> None:
    losses = {"rope": (0.2, 0.4), "none": (1.0, 1.4), "alibi": (0.7, 0.9)}
    cells = of_task("one", losses, {"prior": {"loss": 2.0}})
    cells += of_task("two", {"rope": (0.2, 0.4)}, {"prior": {"loss": 2.0}})
    wide = score_table(tabulate(cells)[1])
    assert list(wide["pe"]) == ["rope", "none", "alibi"]
    assert list(wide["two (0: no loss, 1: prior)"])[1:] == ["", ""]
