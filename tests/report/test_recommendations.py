"""Which encoding a report chooses for which need, and how sure it is."""

import re

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import learned, made_cells, made_records, question
from pe_lab import statistics
from pe_lab.report.recommendations import BLIND, GUESS, NOBODY, choices
from pe_lab.report.sections import sections
from pe_lab.results import pooling
from pe_lab.results.study_comparisons import POOLED, families
from pe_lab.statistics import GRID_TABLE, Margin


@pytest.mark.usefixtures("unplaced")
@pytest.mark.parametrize("depths", [1, 2])
def test_needs_are_named_by_steps_where_trainings_are_counted_in_steps(cells, depths):
    rows = cells[(cells["epochs"] == 4) & (cells["depth"] <= 4 ** (depths - 1))]
    rows = rows.assign(epochs=0.5)
    rows.insert(3, "steps", 60 * rows["depth"])
    needs = choices(rows, pd.DataFrame())["need"]
    assert needs[0] == ("test loss, depth 1, steps 60" if depths == 1 else "test loss, depth 4, steps 240")
    assert not needs.str.contains("epochs").any()


def test_the_choice_names_the_best_and_those_that_may_be_as_good(cells):
    found = choices(cells, pd.DataFrame()).set_index("need")
    line = found.loc["test loss, depth 4, epochs 4"]
    assert line["encoding"] == "alibi"
    assert line["how sure"] == "better than each of the other 3"
    tied = learned(made_cells({"rope": 0.5, "learnable": 0.5, "none": 0.9}))
    line = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings"]
    assert {line["encoding"], *re.findall("equivalent to (.*)$", line["how sure"])} == {"rope", "learnable"}
    tied.loc[tied["pe"] == "rope", "test_loss"] += np.random.default_rng(2).normal(0, 0.1, 20)
    line = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings"]
    assert {line["encoding"], *re.findall("not separable from (.*)$", line["how sure"])} == {"rope", "learnable"}


def test_the_choice_says_which_encodings_were_not_compared():
    cells = learned(made_cells({"rope": 0.5, "learnable": 0.55, "none": 0.9}))
    compared = families(cells, pd.DataFrame(), "none", declared=True)
    sure = choices(cells, pd.DataFrame(), compared=compared).set_index("need")["how sure"]
    assert set(sure[sure.index.str.match("test loss, depth")]) == {
        "better than 1 of the other 2; not compared with learnable"
    }


def test_the_choice_tells_equivalents_from_those_that_are_undecided():
    cells = learned(made_cells({"rope": 0.5, "learnable": 0.501, "none": 0.9, "noisy": 0.55}))
    noisy = cells["pe"] == "noisy"
    cells.loc[noisy, "test_loss"] += np.random.default_rng(1).normal(0, 0.4, noisy.sum())
    found = choices(cells, pd.DataFrame(), compared=families(cells, pd.DataFrame(), margin=Margin(0.1, "nats")))
    for need, line in found.set_index("need").iterrows():
        if need.startswith("test loss, depth 1, epochs"):
            assert {line["encoding"], *re.findall("; equivalent to ([^;,]*);", line["how sure"])} == {
                "rope",
                "learnable",
            }
            assert line["how sure"].startswith("better than 1 of the other 3; equivalent to ")
            assert line["how sure"].endswith("; not separable from noisy")


def test_a_declared_margin_is_that_of_every_table_of_its_metric(cells):
    records = made_records(cells)
    declared = {"loss": Margin(0.25, "gap"), "accuracy": Margin(0.3, "share")}
    compared = families(cells, records, "rope", margin=declared)
    assert set(compared.margins.values()) == {"0.25 gap"}
    for lines in compared.lines.values():  # also pooled, and at the longest length, with the gap at the training length
        assert lines["margin"].tolist() == [pytest.approx(0.25 * 0.43)] * len(lines)
    accuracy = families(learned(cells), records, "rope", "accuracy", declared)
    assert set(accuracy.lines[GRID_TABLE]["margin"]) == set(accuracy.lines[POOLED]["margin"]) == {0.3}
    bare = cells.drop(columns=[name for name in cells if name.startswith("floor_")])
    assert {lines["margin"].max() for lines in families(bare, records, "rope").lines.values()} == {0.02}


def test_a_gap_at_the_longest_length_is_that_of_the_seeds_that_were_measured(cells):
    cells["floor_position_blind_loss"] = 1.0 + cells["seed"] + 10 * (cells["depth"] == 4)
    records = made_records(cells)
    records = records[records["seed"] >= 2]
    compared = families(cells, records, "rope", margin=Margin(0.1, "gap"))
    found = {name: lines["margin"].unique().tolist() for name, lines in compared.lines.items() if "depth" in name}
    assert found == {
        "loss at 4 × the training length, depth 1": [pytest.approx(0.4)],
        "loss at 4 × the training length, depth 4": [pytest.approx(1.4)],
    }


def test_the_cheapest_is_one_of_those_that_are_as_good_by_a_margin_that_is_named():
    """An encoding that is undecided is not equally good: its losses may vary between seeds."""
    cells = learned(made_cells({"learnable": 0.5, "rope": 0.505, "none": 0.6}))
    noisy = cells["pe"] == "none"
    cells.loc[noisy, "test_loss"] += np.random.default_rng(1).normal(0, 0.4, noisy.sum())
    found = choices(cells, pd.DataFrame()).set_index("need")
    assert "none" in found.loc["test loss, all settings", "how sure"]
    cheapest = found.loc["test loss, all settings, cheapest"]
    assert cheapest["encoding"] == "rope"  # equal FLOPs, no parameters
    assert cheapest["how sure"] == (
        "fewest FLOPs, then parameters, of the 2 within the margin of 0.02 nats of the best mean; "
        "equivalent to learnable"
    )
    alone = choices(learned(made_cells({"learnable": 0.5, "rope": 0.6})), pd.DataFrame()).set_index("need")
    cheapest = alone.loc["test loss, all settings, cheapest"]
    assert cheapest["encoding"] == "learnable"
    assert cheapest["how sure"].startswith("no other is within the margin of 0.02 nats of the best mean")
    bare = cells.drop(columns=[name for name in cells if name.startswith("floor_")])
    bare["test_loss"] /= 10
    cheapest = choices(bare, pd.DataFrame()).set_index("need").loc["test loss, all settings, cheapest"]
    assert cheapest["how sure"] == (
        "fewest FLOPs, then parameters, of the 3 within the margin of 0.02 nats of the best mean; "
        "equivalent to learnable"
    )


@pytest.mark.usefixtures("unplaced")
def test_over_tasks_the_scale_of_a_tasks_losses_does_not_decide(cells):
    """In nats, the task with the largest losses would decide alone."""
    cells = learned(cells[(cells["epochs"] == 4) & (cells["depth"] == 1)])
    copy, sort = cells.assign(data="copy"), cells.assign(data="sort")
    floors = [name for name in cells if name.startswith("floor_")]
    sort["test_loss"] = sort["test_loss"] - sort["pe"].map({"alibi": 0.0, "none": 0.9}).fillna(0.0)
    copy["test_loss"] = 100 * (copy["test_loss"] - copy["pe"].map({"none": 0.5}).fillna(0.0))
    copy[floors] *= 100
    rows = pd.concat([copy, sort], ignore_index=True)
    rows = rows[["pe", "data", *(name for name in rows if name not in ("pe", "data"))]]
    found = choices(rows, pd.DataFrame()).set_index("need")
    assert found.loc["test loss, data copy", "encoding"] == "alibi"
    line = found.loc["test loss, all settings (share of the gap that remains)"]
    assert line["encoding"] == "none"  # a little worse on copy, much better on sort
    in_nats = rows.groupby(["pe", "depth", "epochs", "seed"])["test_loss"].mean().reset_index()
    assert statistics.Families.of({GRID_TABLE: (in_nats, "loss")}).ranks()["pe"].iloc[0] == "alibi"
    text = [part for section in sections(question(results_of(rows))) for part in section.parts if isinstance(part, str)]
    assert any("copy from position-blind to bayes; sort from position-blind to bayes" in part for part in text)
    bare = rows.drop(columns=floors)
    assert not choices(bare, pd.DataFrame())["need"].str.contains("all settings").any()
    note = "Not pooled over tasks: for test loss, no level is known for copy, sort."
    assert pooling.pool(bare).note == note


def test_the_choice_for_longer_sequences_is_that_of_the_longest(cells):
    records = made_records(cells)
    far = records["length"] == 4
    records.loc[far & (records["pe"] == "none"), "value"] = 0.0 + records["seed"] * 1e-3
    found = choices(cells, records).set_index("need")
    assert found.loc["loss at 4 × the training length, depth 4", "encoding"] == "none"


def test_one_that_is_slightly_worse_than_the_best_is_named_as_such():
    shape = np.array([-1.0, -0.5, 0.0, 0.5, 1.0]) / np.std([-1.0, -0.5, 0.0, 0.5, 1.0], ddof=1)
    values = {"a": -0.13 + 0.001 * shape, "b": 0 * shape, "c": -0.12 + 0.04 * shape[[2, 0, 4, 1, 3]]}
    cells = made_cells(dict.fromkeys(values, 0.0))
    cells = cells[(cells["depth"] == 1) & (cells["epochs"] == 1)]
    cells["test_loss"] = [values[pe][seed] for pe, seed in zip(cells["pe"], cells["seed"], strict=True)]
    compared = families(cells, pd.DataFrame(), "a", margin=Margin(0.15, "nats"))
    assert compared.lines[GRID_TABLE]["verdict"].tolist() == ["slightly worse", "equivalent", "slightly worse"]
    assert compared.verdicts("a") == {"b": "slightly better", "c": "equivalent"}
    (line,) = choices(cells, pd.DataFrame(), compared=compared).to_dict("records")
    expected = "slightly better than b; equivalent to c"
    assert (line["encoding"], line["how sure"]) == ("a", expected)


def test_of_text_the_loss_chooses_at_longer_lengths_not_the_exact_match_of_windows(cells):
    records = made_records(cells)
    lengths = records[records["kind"] == "length"]
    text = [lengths.assign(metric=metric, value=0.0) for metric in ("exact_match", "accuracy")]
    words = lengths.assign(metric="bits_per_byte")
    needs = {
        name: choices(cells, pd.concat([records, *text, *more]))["need"].str.partition(" at 4")[0].tolist()
        for name, more in {"text": [words], "answers": []}.items()
    }
    assert "loss" in needs["text"]
    assert not {"exact match", "accuracy"} & set(needs["text"])
    assert "exact match" in needs["answers"]


def test_lengths_at_which_nothing_is_finite_choose_nothing(cells):
    records = made_records(cells)
    records.loc[(records["length"] == 4) & (records["depth"] == 4), "value"] = np.inf
    needs = choices(cells, records)["need"].tolist()
    assert "loss at 4 × the training length, depth 1" in needs
    assert "loss at 4 × the training length, depth 4" not in needs


def test_a_setting_with_a_dot_in_its_name_has_its_own_equivalents(cells):
    one = learned(cells[(cells["depth"] == 1) & (cells["epochs"] == 1)])
    parts = [one.assign(**{"model.norm": norm}) for norm in ("pre", "post", None)]
    rows = pd.concat(parts)
    settings = ["pe", "depth", "epochs", "model.norm", "seed"]
    rows = rows[[*settings, *(name for name in rows if name not in settings)]]
    alike = (rows["model.norm"] == "post") & (rows["pe"] == "rope")
    rows.loc[alike, "test_loss"] = rows.loc[
        (rows["model.norm"] == "post") & (rows["pe"] == "alibi"), "test_loss"
    ].values
    found = choices(rows, pd.DataFrame()).set_index("need")["how sure"]
    assert found["test loss, norm post"] == "better than 2 of the other 3; equivalent to alibi"
    assert found["test loss, norm pre"] == "better than each of the other 3"


@pytest.mark.parametrize(
    ("floors", "compared"),
    [
        ({"bayes": 0.0, "position_blind": 0.1, "prior": 9.0}, {BLIND}),  # better than a guess
        ({"bayes": 0.0, "position_blind": 0.0, "prior": 0.1}, {GUESS}),  # position wins nothing
    ],
)
def test_what_was_not_learned_names_what_losses_were_compared_with(floors, compared):
    rows = made_cells({"rope": 0.5, "none": 0.6})
    rows = rows.assign(**{f"floor_{name}_loss": value for name, value in floors.items()})
    for why in choices(rows, pd.DataFrame())["how sure"]:
        assert {level for level in (BLIND, GUESS) if level in why} == compared


def test_settings_below_the_best_without_position_are_left_out_beside_those_that_need_none():
    rows = made_cells({"rope": 0.5, "none": 0.6})
    rows = rows.assign(floor_bayes_loss=0.0, floor_prior_loss=0.1)
    rows["floor_position_blind_loss"] = np.where(rows["depth"] == 1, 0.1, 0.0)
    found = choices(rows, pd.DataFrame()).set_index("need")["how sure"]
    assert not found.index.str.contains("depth 1").any()
    assert all(GUESS in why for why in found)


def test_no_encoding_is_chosen_where_none_is_better_than_the_best_without_position(cells):
    records = made_records(cells)
    records.loc[(records["kind"] == "length") & (records["depth"] == 1), ["metric", "value"]] = ["exact_match", 0.0]
    level = cells["floor_position_blind_loss"].iloc[0]
    found = choices(cells, records).set_index("need")["encoding"]
    for (depth, epochs), here in cells.groupby(["depth", "epochs"]):
        learned = here.groupby("pe")["test_loss"].mean().min() < level
        assert (f"test loss, depth {depth}, epochs {epochs}" in found) == learned
    assert not found.index.str.contains("all settings").any()
    assert found["exact match at 4 × the training length, depth 1"] == NOBODY
    assert found["loss at 4 × the training length, depth 4"] != NOBODY
    bad = cells.assign(test_loss=cells["test_loss"] + level)
    chosen = choices(bad, pd.DataFrame())
    assert len(chosen)
    assert set(chosen["encoding"]) == {NOBODY}


@pytest.mark.parametrize("right", [0.0, 0.049, 0.051])
def test_nothing_is_recommended_for_few_right_answers(cells, right):
    records = made_records(cells)
    of_lengths = records["kind"] == "length"
    best = records["pe"].eq("alibi") * right
    records.loc[of_lengths, "metric"], records.loc[of_lengths, "value"] = "exact_match", best[of_lengths]
    found = choices(cells, records).set_index("need")["encoding"]
    at_lengths = found[found.index.str.startswith("exact match")]
    assert len(at_lengths) == 2
    assert set(at_lengths) == {"alibi" if right > 0.05 else NOBODY}


def test_one_seed_chooses_nothing(cells):
    one = learned(cells[cells["seed"] == 0])
    assert set(choices(one, pd.DataFrame())["how sure"]) == {"not at all: one seed"}
