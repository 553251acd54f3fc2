"""Curves over length and layers have the values of the records."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from helpers.configs import TINY
from pe_lab import config
from pe_lab.experiment.job import Job
from pe_lab.results.cell_rows import settings_of
from pe_lab.results.columns import RECORD_COLUMNS
from pe_lab.results.measurement_tables import CellMeasurements, gather_records, layers, length_table


def served(ledger, *overrides: str) -> list[Job]:
    cfgs = config.expand_overrides([*TINY, "logger=none", "epochs=1", f"ledger={ledger}", *overrides], multirun=True)
    cells = [Job.from_config(cfg) for cfg in cfgs]
    for job in cells:
        job.request()
        job.complete(wait=True)
        job.withdraw()
    return cells


def measured(jobs: list[Job]) -> list[CellMeasurements]:
    return [CellMeasurements(settings_of(job.cell.cfg), job.run, job.cell.target, job.cell.requests) for job in jobs]


def mean_and_half(values: list[float]) -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.3f} ± {half:.3f}"


def test_the_test_itself_is_the_first_point_of_the_curve(tmp_path):
    cells = served(tmp_path, "pe=rope,alibi", "seed=0,1", "evaluate.lengths=[1,2]")
    rows = gather_records(measured(cells))
    assert list(rows.columns) == ["pe", "data", "depth", "epochs", "seed", *RECORD_COLUMNS]
    assert rows["layer"].isna().all()
    for job in cells:
        mine = rows[(rows["pe"] == job.cell.cfg.pe.name) & (rows["seed"] == job.cell.cfg.seed)]
        first = mine[mine["length"] == 1].set_index("metric")
        for name, value in job.run.summary(1)["test"].items():
            assert first.loc[name, "value"] == value
        assert set(first["tokens"]) == {16}
        assert set(mine[mine["length"] == 2]["tokens"]) == {32}
        assert "position_blind/loss" in set(mine[mine["length"] == 2]["metric"])
    table = length_table(rows)
    assert list(table["pe"].unique()) == ["rope", "alibi"]
    line = table[(table["pe"] == "alibi") & (table["metric"] == "loss")].iloc[0]
    losses = [job.run.summary(1)["test"]["loss"] for job in cells if job.cell.cfg.pe.name == "alibi"]
    assert line["length 1"] == mean_and_half(losses)
    assert len(layers(rows)) == 0


def test_without_lengths_there_is_no_point_of_the_test(tmp_path):
    (job,) = served(tmp_path, "probe=[rank]")
    rows = gather_records(measured([job]))
    assert set(rows["kind"]) == {"probe"}
    assert len(length_table(rows)) == 0
    table = layers(rows).set_index("metric")
    assert list(table.columns) == ["pe", "data", "depth", "epochs", "probe", "length", "seeds", "layer 0", "layer 1"]
    value = rows[(rows["metric"] == "effective_rank") & (rows["layer"] == 1)]["value"].item()
    assert table.loc["effective_rank", "layer 1"] == f"{value:.3f}"


def test_measurements_that_were_not_requested_have_no_rows(tmp_path):
    assert gather_records(measured(served(tmp_path))).empty


@pytest.mark.parametrize("seeds", [1, 3])
def test_heads_are_averaged_within_a_seed_and_the_interval_is_over_seeds(seeds):
    rng = np.random.default_rng(0)
    rows = [
        {"pe": pe, "depth": 2, "epochs": 4, "seed": seed, "kind": "probe", "probe": "attention"}
        | {"length": 1, "layer": layer, "head": head, "metric": "entropy", "value": rng.normal()}
        for pe in ("rope", "none")
        for seed in range(seeds)
        for layer in (1, 2)
        for head in range(4)
    ]
    frame = pd.DataFrame(rows).reindex(columns=["pe", "depth", "epochs", "seed", *RECORD_COLUMNS])
    table = layers(frame).set_index("pe")
    for pe in ("rope", "none"):
        for layer in (1, 2):
            lines = frame[(frame["pe"] == pe) & (frame["layer"] == layer)]
            means = [lines[lines["seed"] == seed]["value"].mean() for seed in range(seeds)]
            expected = mean_and_half(means) if seeds > 1 else f"{means[0]:.3f}"
            assert table.loc[pe, f"layer {layer}"] == expected


def curve(values: dict[int, list[float]]) -> pd.DataFrame:
    rows = [
        {"pe": "rope", "depth": 2, "epochs": 4, "seed": seed, "kind": "length", "policy": "raw", "offset": 0}
        | {"length": length, "metric": "loss", "value": value}
        for length, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]
    return pd.DataFrame(rows).reindex(columns=["pe", "depth", "epochs", "seed", *RECORD_COLUMNS])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_are_named_and_not_averaged_away(bad):
    table = length_table(curve({1: [1.0, 1.2, 1.1], 16: [1.0, bad, 1.2]}))
    assert table.loc[0, "length 1"] == mean_and_half([1.0, 1.2, 1.1])
    assert table.loc[0, "length 16"] == "not finite in 1 of 3"
    assert table.loc[0, "seeds"] == 3


def test_a_head_that_is_not_finite_makes_its_layer_so():
    frame = curve({1: [1.0, np.nan]}).assign(kind="probe", probe="attention", layer=1, head=[0, 1], seed=0)
    assert layers(frame).loc[0, "layer 1"] == "not finite in 1 of 1"


def test_a_length_with_fewer_seeds_says_so():
    table = length_table(curve({1: [1.0, 1.2, 1.1], 2: [1.0, 1.4]}))
    assert table.loc[0, "length 2"] == f"{mean_and_half([1.0, 1.4])} (2 seeds)"


def test_exact_match_of_text_is_not_shown():
    """It would be that of whole windows."""
    metrics = {"clm": ("loss", "bits_per_byte", "exact_match"), "copy": ("loss", "exact_match")}
    made = [
        {"pe": "rope", "data": data, "depth": 1, "epochs": 1, "seed": 0, "kind": "length", "length": 2.0}
        | {"policy": "raw", "offset": 0, "metric": metric, "value": 0.5}
        for data, names in metrics.items()
        for metric in names
    ]
    rows = pd.DataFrame(made).reindex(columns=["pe", "data", "depth", "epochs", "seed", *RECORD_COLUMNS])
    shown = length_table(rows).groupby("data")["metric"].agg(set)
    assert shown.to_dict() == {"clm": {"loss"}, "copy": {"loss", "exact_match"}}
