"""What a report says of layers: where position is read, and whether states collapse."""

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import made_cells, made_records, question
from pe_lab.report import answer
from pe_lab.report.answer import asked_question
from pe_lab.report.layers import layer_parts
from pe_lab.report.page import html
from pe_lab.report.parts import Collapsible, Section
from pe_lab.report.sections import sections
from pe_lab.results import frame
from pe_lab.results.learned import not_learned_note
from pe_lab.statistics import interval

ENCODINGS = dict(zip(("none", "sinusoidal", "learnable", "continuous", "rope"), (0.9, 0.5, 0.5, 0.5, 0.3), strict=True))


def test_a_study_that_measures_layers_has_the_question_of_its_configuration():
    cells = made_cells(ENCODINGS).assign(data="structured_heldout")
    records = made_records(cells)
    asked = question(results_of(cells, study="layers", records=records))
    assert answer.title(asked) == asked_question(asked.results) != ""
    assert asked_question(asked.results).endswith("?")
    mine = question(results_of(cells, study="mine", records=records))
    assert answer.title(mine) != answer.title(asked)
    bare = question(results_of(cells, study="layers"))
    assert answer.title(bare) != answer.title(asked)
    failed = cells[cells["pe"] == "continuous"]
    assert asked_question(results_of(cells[cells["pe"] != "continuous"], study="layers", failed=failed))


@pytest.mark.parametrize(
    ("name", "tasks", "encodings", "has"),
    [
        ("text", ["clm", "mlm"], ["none", "sinusoidal", "learnable", "t5", "alibi", "rope"], True),
        ("text", ["clm"], ["none", "sinusoidal", "learnable", "t5", "alibi", "rope"], False),
        ("text", ["clm", "mlm"], ["none", "rope"], False),
        ("layers", ["induction"], list(ENCODINGS), False),
        ("pe_bench_2", ["induction"], ["none", "rope"], False),
    ],
)
def test_a_study_that_only_has_the_name_of_one_of_the_configuration_does_not_have_its_question(
    name, tasks, encodings, has
):
    cells = made_cells(dict.fromkeys(encodings, 0.5))
    cells = pd.concat([cells.assign(data=task) for task in tasks], ignore_index=True)
    assert bool(asked_question(results_of(cells, study=name))) == has


def test_figures_of_layers_are_folded(study):
    (section,) = (section for section in sections(question(frame.load(study))) if section.title == "Layers")
    (folded,) = section.parts
    (probe,) = folded.parts
    assert [part.caption.partition(",")[0] for part in probe.parts] == ["Probe position: R² of position by layer"]
    page = html("layers", [Section("Layers", [folded])])
    assert page.index("<details>") < page.index("<svg")


def test_of_layers_of_models_that_have_not_learned_the_task_losses_are_not_compared():
    cells = made_cells(ENCODINGS)
    records = made_records(cells)
    for kind, compares in (("probe", False), ("length", True)):
        of_kind = records[records["kind"] == kind]
        studied = question(results_of(cells.assign(test_loss=9.0), study="layers", records=of_kind))
        assert not_learned_note(studied.results.cells)
        assert answer.compares_losses(studied) == compares
        titles = {section.title for section in sections(studied)}
        assert ("Differences" in titles) == compares
        assert any(answer.sentences(studied)[0] in str(part) for part in answer.answer(studied).parts) == compares
        (methods,) = (section for section in sections(studied) if section.title == "Methods")
        assert any("margin" in str(part) for part in methods.parts) == compares


def test_ranks_of_states_are_told_for_each_of_a_few_settings():
    rows = pd.DataFrame({"model.norm": ["pre", "pre", "post", "post"], "layer": [0, 1, 0, 1], "value": [9, 2, 9, 4.0]})
    rows = rows.assign(pe="none", data="copy", depth=1, epochs=1, seed=0, kind="probe", probe="rank")
    rows = rows.assign(metric="stable_rank", length=1.0)
    settings = ["pe", "data", "depth", "epochs", "seed", "model.norm"]
    rows = rows[[*settings, "kind", "length", "probe", "layer", "metric", "value"]]
    said, drawn, folded, *_ = layer_parts(rows)
    (table,) = folded.parts
    both = layer_parts(pd.concat([rows, rows.assign(metric="token_cosine", value=0.2)]))
    assert set(both[1].plot.data["mean"]) == {0.2}  # on which it rests that models do not collapse
    assert isinstance(both[2], Collapsible)
    assert both[2].parts[0].plot.data.equals(drawn.plot.data)
    assert sorted(drawn.plot.data["mean"]) == pytest.approx([1 / 9, 1 / 9, 1 / 4, 1 / 2])  # shares of the variance
    assert "at most 50 % with norm pre and 25 % with norm post of the variance" in said
    assert "at the embedding, 11 %." in said
    shares = dict(zip(table.data["setting"], table.data.iloc[:, -1], strict=True))
    assert shares == {"norm pre": "50", "norm post": "25"}
    deep, _ = layer_parts(pd.concat([rows, rows.assign(depth=2, value=rows["value"].replace({2: 1.25}))]))[:2]
    assert "has at most 80 % with norm pre and 25 % with norm post of the variance" in deep
    assert deep.endswith("depth 2 adds at most 30 points to depth 1.")
    same, *_ = layer_parts(pd.concat([rows, rows.assign(depth=2)]))
    assert "points to depth 1" not in same
    assert "depth 2 adds nothing to depth 1" in same
    _, _, folded, *_ = layer_parts(rows.assign(metric="effective_rank"))
    (table,) = folded.parts
    assert dict(zip(table.data["setting"], table.data.iloc[:, -1], strict=True)) == {"norm pre": "2", "norm post": "4"}


def test_what_probes_find_at_other_lengths_is_no_part_of_a_mean(cells):
    records = made_records(cells)
    probes = records[records["kind"] == "probe"]
    longer = probes.assign(length=4.0, value=-3.0)
    for more in (longer, longer.assign(metric="r2_from_token")):
        first, *_ = layer_parts(records)
        both, *_ = layer_parts(pd.concat([records, more]))
        assert both.plot.data.equals(first.plot.data) if hasattr(both, "plot") else both == first


@pytest.mark.parametrize(
    ("cosines", "collapse"), [((0.1, 0.2), "do not collapse"), ((0.1, 0.95), "in part"), ((0.95, 0.99), "collapse (")]
)
def test_models_collapse_where_the_tokens_of_all_encodings_become_alike(cosines, collapse) -> None:
    rows = pd.DataFrame({"pe": ["none", "rope"], "data": "copy", "depth": 1, "epochs": 1, "seed": 0, "kind": "probe"})
    rows = rows.assign(length=1.0, probe="rank", layer=1, metric="token_cosine", value=cosines)
    said, *_ = layer_parts(rows)
    assert collapse in said.partition(":")[0]


def test_where_an_interval_reaches_the_level_of_the_token_it_is_not_said_that_position_is_read() -> None:
    rows = pd.DataFrame({"seed": [0, 1, 2], "value": [0.5, 0.6, 0.7]})
    rows = rows.assign(pe="rope", data="copy", depth=1, epochs=1, kind="probe", length=1.0, probe="position", layer=0)
    columns = ["pe", "data", "depth", "epochs", "seed", "kind", "length", "probe", "layer", "metric", "value"]
    rows = rows.assign(metric="r2")[columns]
    token = rows.head(1).assign(layer=np.nan, metric="r2_from_token", value=0.3)
    said, *_ = layer_parts(pd.concat([rows, token]))
    assert "With `rope` a linear probe reads position at the embedding (R² 0.60; from the token alone 0.30)" in said
    said, *_ = layer_parts(pd.concat([rows, token.assign(value=0.4)]))
    assert "with `rope` is undecided (R² 0.60, with an interval from 0.35)" in said
    wide = rows.assign(value=rows["value"] + [-0.1, 0, 0.1])
    both = pd.concat([rows.assign(norm="pre"), wide.assign(norm="post")])
    both = both[[*columns[:5], "norm", *columns[5:]]]
    said, *_ = layer_parts(pd.concat([both, token.assign(norm="pre")]))
    assert "With `rope` (norm pre) a linear probe reads position at the embedding (R² 0.60; from" in said
    assert "with `rope` (norm post) is undecided" in said


def test_probes_are_summed_up_from_the_first_to_the_last_layer_of_the_deepest_models():
    rows = pd.DataFrame({"depth": [1, 1, 4, 4, 4], "layer": [0, 1, 0, 2, 4], "value": [0.9, 0.8, 0.2, 0.7, -0.001]})
    rows = rows.assign(
        pe="none", data="copy", epochs=1, seed=0, kind="probe", probe="position", metric="r2", length=1.0
    )
    rows = rows[["pe", "data", "depth", "epochs", "seed", "kind", "length", "probe", "layer", "metric", "value"]]
    seeds = [rows.assign(seed=seed, value=rows["value"] + 0.1 * seed) for seed in (0, 1, 2)]
    said, figure, numbers, folded = layer_parts(pd.concat(seeds))
    (summary,), (table, *_) = numbers.parts, folded.parts
    assert table.data.to_dict("records") == [{"pe": "none", "R² of position": "0.30 → 0.10"}]
    half, first = (np.ptp(interval(pd.Series(values))) / 2 for values in ([0.7, 0.8, 0.9], [0.2, 0.3, 0.4]))
    assert list(summary.data.iloc[0]) == ["none", f"0.30 ± {first:.2f}", "never", f"0.80 ± {half:.2f}"]
    assert said == (
        "Means over 3 seeds of models of depth 4:\n- With `none` a linear probe reads position at the embedding "
        "(R² 0.30).\n- Towards the last layer R² falls again, by up to 0.70."
    )
    assert figure.plot.data["layer"].tolist() == [0, 2, 4]  # of the deepest models alone
    token = rows.head(1).assign(depth=4, layer=np.nan, metric="r2_from_token", value=0.28)
    said, _, numbers, *_ = layer_parts(pd.concat([rows.assign(value=[0.2, 0.9, 0.3, 0.95, 0.8]), token]))
    (summary,) = numbers.parts
    assert (
        "not read at the embedding (R² 0.30; from the token alone 0.28): layers build it up, to 0.9 by layer 2" in said
    )
    assert summary.data["layer with 0.9"].to_list() == ["2"]
    lower = rows.assign(pe="rope", value=[0.2, 0.9, 0.3, 0.5, 0.8])
    said, *_ = layer_parts(pd.concat([rows.assign(value=[0.2, 0.9, 0.3, 0.95, 0.8]), lower, token]))
    assert "to 0.9 by layer 2 of 4, not with `rope`." in said
    assert "With every encoding" not in said
    also = pd.concat([rows.assign(value=[0.2, 0.9, 0.3, 0.95, 0.8]), lower.assign(value=[0.2, 0.9, 0.3, 0.5, 0.95])])
    said, *_ = layer_parts(pd.concat([also, token]))
    assert said.startswith("With every encoding, position can be read off the states by layer 4 of 4 (R² of 0.9 or")
    _, other = layer_parts(rows.assign(probe="mine", metric="height"))
    assert other.parts[0].data.to_dict("records") == [{"pe": "none", "height": "0.20 → 0.00"}]
