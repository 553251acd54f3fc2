"""A margin is read, checked against metric and floors, and given in the unit of the metric."""

from math import log, nan

import numpy as np
import pandas as pd
import pytest

from pe_lab.results.columns import REMAINING_METRIC
from pe_lab.results.pooling import pool
from pe_lab.statistics import Margin, compare_cells, default_margin, margins
from pe_lab.statistics.margins import margins_by_metric


def rows_of(
    floors: dict[str, tuple[float, ...]], metric: str = "loss", seeds: int = 2, **place: object
) -> pd.DataFrame:
    """Return rows of two encodings, with a value of each floor per seed."""
    lines = [
        {"pe": pe, "data": "copy", "depth": 1, "seed": seed}
        | place
        | {f"test_{metric}": 1.0 + 0.1 * seed * (pe == "b")}
        | {f"floor_{name}_{metric}": values[seed] for name, values in floors.items()}
        for pe in ("a", "b")
        for seed in range(seeds)
    ]
    rows = pd.DataFrame(lines)
    floors_last = [name for name in rows if name.startswith(("test_", "floor_"))]
    return rows[[*(name for name in rows if name not in floors_last), *floors_last]]


KNOWN = {"bayes": (0.5, 0.5), "position_blind": (1.5, 2.5)}  # a gap of 1 and of 2


@pytest.mark.parametrize("text", ["0.05 gap", "0.02 nats", "0.01 share", "1.5 nats", "1e-05 gap", "0.123456789 gap"])
def test_a_margin_is_read_and_written_without_loss(text):
    assert str(Margin.parse(text)) == text
    assert Margin.parse(str(Margin.parse(f"  {text} "))) == Margin.parse(text)


@pytest.mark.parametrize(
    "text", ["0.05", "gap", "0.05gap", "5 %", "0.05 gaps", "x gap", "nan gap", "0.05 gap nats", ""]
)
def test_text_that_is_no_margin_is_named(text):
    with pytest.raises(ValueError, match=r"margin must be a number and one of gap, nats, share, .* got '") as error:
        Margin.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("value", "unit", "line"),
    [
        (0.0, "gap", "a margin in gap must be above 0 and below 1, got 0"),
        (1.0, "share", "a margin in share must be above 0 and below 1, got 1"),
        (-0.1, "nats", "a margin in nats must be above 0, got -0.1"),
        (float("inf"), "nats", "a margin in nats must be above 0, got inf"),
        (0.1, "bits", "the unit of a margin must be one of gap, nats, share, got 'bits'"),
    ],
)
def test_a_margin_out_of_range_is_refused(value, unit, line):
    with pytest.raises(ValueError, match="margin") as error:
        Margin(value, unit)
    assert str(error.value) == line
    assert Margin(20.0, "nats").value == 20


@pytest.mark.parametrize(
    ("unit", "metric", "units"),
    [
        ("share", "loss", "gap or nats"),
        ("nats", "accuracy", "gap or share"),
        ("share", "bits_per_byte", "gap or nats"),
        ("nats", "exact_match", "gap or share"),
        ("nats", "perplexity", "gap"),
        ("nats", REMAINING_METRIC, "gap"),
    ],
)
def test_a_margin_in_the_unit_of_another_metric_is_refused(unit, metric, units):
    with pytest.raises(ValueError, match=f"^the margin of {metric} must be in {units}, got '0.02 {unit}'$"):
        Margin(0.02, unit).in_units(rows_of({}, metric), metric)


def test_a_gap_is_the_mean_distance_of_the_floors_over_seeds():
    rows = rows_of(KNOWN)
    assert Margin(0.1, "gap").in_units(rows)["margin"].tolist() == [pytest.approx(0.15)]
    # a seed counts once, however many encodings have it
    fewer = rows[~((rows["pe"] == "b") & (rows["seed"] == 1))]
    assert Margin(0.1, "gap").in_units(fewer)["margin"].tolist() == [pytest.approx(0.15)]


def test_accuracies_have_a_gap_too():
    rows = rows_of({"bayes": (1.0, 1.0), "position_blind": (0.5, 0.5)}, "accuracy")
    assert Margin(0.1, "gap").in_units(rows, "accuracy")["margin"].tolist() == [pytest.approx(0.05)]


def test_nats_are_nats_and_fewer_bits():
    assert Margin(0.02, "nats").in_units(rows_of({}))["margin"].tolist() == [0.02]
    bits = Margin(0.02, "nats").in_units(rows_of({}, "bits_per_byte"), "bits_per_byte")["margin"]
    assert bits.tolist() == [pytest.approx(0.02 / log(2))]


def test_every_setting_has_its_own_gap():
    rows = pd.concat([rows_of(KNOWN), rows_of({"bayes": (0.0, 0.0), "position_blind": (3.0, 3.0)}, depth=4)])
    found = Margin(0.1, "gap").in_units(rows).set_index("depth")["margin"]
    assert found.to_dict() == pytest.approx({1: 0.15, 4: 0.3})


def test_a_missing_value_makes_a_setting_with_a_margin():
    parts = [rows_of({"bayes": (0, 0), "position_blind": (gap, gap)}, clip=clip) for gap, clip in ((1, nan), (2, 1.0))]
    rows = pd.concat([part[["pe", "data", "depth", "clip", "seed", *part.columns[5:]]] for part in parts])
    compared = compare_cells(rows, margin=Margin(0.1, "gap"))
    assert compared["margin"].tolist() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    "floors",
    [
        {},
        {"bayes": (0.0, 0.0)},
        {"bayes": (0.5, 0.5), "position_blind": (0.5, 0.5)},
        {"bayes": (0.5, 0.5), "position_blind": (1.0, np.nan)},
    ],
)
def test_a_gap_that_is_zero_or_unknown_is_refused_or_replaced_by_the_default_in_nats(floors):
    with pytest.raises(
        ValueError, match=r"^a margin in gap needs floors .* loss .* data copy, depth 1: use nats, or no m"
    ):
        Margin(0.05, "gap").in_units(rows_of(floors))
    assert default_margin(rows_of(floors)) == Margin(0.02, "nats")
    assert margins(rows_of(floors))["margin"].tolist() == [0.02]


def test_defaults_follow_metric_and_floors():
    assert default_margin(rows_of(KNOWN)) == Margin(0.05, "gap")
    assert default_margin(rows_of({}, "accuracy"), "accuracy") == Margin(0.02, "share")
    assert default_margin(rows_of({}, "exact_match"), "exact_match") == Margin(0.02, "share")
    assert default_margin(rows_of({}, "bits_per_byte"), "bits_per_byte") == Margin(0.02, "nats")
    assert default_margin(rows_of({}, "perplexity"), "perplexity") is None
    assert margins(rows_of({}, "perplexity"), "perplexity")["margin"].isna().all()
    with pytest.raises(ValueError, match=r"^metric='los': did you mean loss\? metric must be one of loss$"):
        default_margin(rows_of(KNOWN), "los")


def test_a_gap_in_some_settings_of_a_task_only_is_no_default():
    rows = pd.concat([rows_of(KNOWN), rows_of(KNOWN | {"position_blind": (0.5, 0.5)}, depth=2)], ignore_index=True)
    assert default_margin(rows) == Margin(0.02, "nats")
    assert margins(rows)["margin"].tolist() == [0.02, 0.02]


def test_each_task_has_its_own_default():
    bag = rows_of({"bayes": (0.0, 0.0), "position_blind": (0.0, 0.0)}, data="bag")
    rows = pd.concat([rows_of(KNOWN), bag], ignore_index=True)
    found = margins(rows)
    assert found.set_index("data")["margin"].to_dict() == pytest.approx({"copy": 0.075, "bag": 0.02})
    assert found.attrs["margin"] == "0.05 gap for copy, 0.02 nats for bag"
    assert margins(rows_of(KNOWN)).attrs["margin"] == "0.05 gap"
    assert margins(rows_of(KNOWN), margin=Margin(0.3, "nats")).attrs["margin"] == "0.3 nats"


def compare_pooled(rows: pd.DataFrame, margin: Margin | None = None) -> pd.DataFrame:
    pooled = pool(rows)
    return compare_cells(pooled.rows, metric=pooled.metric, margin=margin)


def test_what_remains_has_a_gap_of_one():
    rows = pd.concat([rows_of(KNOWN), rows_of(KNOWN, data="sort")], ignore_index=True)
    pooled = pool(rows)
    assert pooled.metric == REMAINING_METRIC
    assert compare_pooled(rows)["margin"].tolist() == [0.05]
    assert compare_pooled(rows, Margin(0.2, "gap"))["margin"].tolist() == [0.2]
    with pytest.raises(ValueError, match="^the margin of remaining must be in gap, got '0.02 nats'$"):
        compare_pooled(rows, Margin(0.02, "nats"))


def test_the_gap_of_a_pool_of_one_task_is_the_mean_over_its_settings():
    deeper = rows_of({"bayes": (0.0, 0.0), "position_blind": (3.0, 3.0)}, depth=4)
    rows = pd.concat([rows_of(KNOWN), deeper], ignore_index=True)
    assert compare_pooled(rows)["margin"].tolist() == [pytest.approx(0.05 * (1.5 + 3) / 2)]
    unknown = pd.concat([rows_of(KNOWN), rows_of({"bayes": (0.0, 0.0)}, depth=4)], ignore_index=True)
    assert compare_pooled(unknown)["margin"].tolist() == [0.02]  # nothing is averaged over half of the settings


def test_a_gap_of_the_metric_in_question_holds_for_the_pool_over_tasks_and_nats_do_not():
    gap, nats = Margin(0.1, "gap"), Margin(0.1, "nats")
    assert margins_by_metric(gap, "loss") == {"loss": gap, REMAINING_METRIC: gap}
    assert margins_by_metric(nats, "loss") == {"loss": nats}
    given = {"loss": gap, "accuracy": Margin(0.1, "share"), REMAINING_METRIC: Margin(0.2, "gap")}
    assert margins_by_metric(given, "loss") == given
    assert margins_by_metric({"accuracy": gap}, "loss") == {"accuracy": gap}
    assert margins_by_metric(None, "loss") == {}
