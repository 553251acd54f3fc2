"""The sections of a report: which there are, in which order, and that they agree with the results."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import PES, learned, made_cells, made_curves, made_records, question, store
from pe_lab import statistics
from pe_lab.report import answer, recommendations
from pe_lab.report import sections as sections_module
from pe_lab.report.comparing import methods_section
from pe_lab.report.page import html
from pe_lab.report.paper import write
from pe_lab.report.parts import CaptionedFigure, Code, Collapsible, ReportTable
from pe_lab.report.recommendations import choices
from pe_lab.report.report_subject import cautions
from pe_lab.report.sections import figures, sections
from pe_lab.results import columns, frame, plots, sensitivity, specification, study_comparisons, swept_rates
from pe_lab.results import learned as learned_module
from pe_lab.results.learned import filter_learned_comparisons
from pe_lab.results.study import study_tables
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import GRID_TABLE


def test_the_methods_say_whether_variances_are_shared(cells) -> None:
    """From five encodings on."""
    few = methods_section(question(results_of(cells)))
    assert cells["pe"].nunique() < 5
    assert "moderated" not in "".join(part for part in few.parts if isinstance(part, str))
    rng, noises = np.random.default_rng(0), range(3)
    more = [cells[cells["pe"] == "rope"].assign(pe=f"e{number}") for number in noises]
    more = [part.assign(test_loss=part["test_loss"] + rng.normal(0, 0.05, len(part))) for part in more]
    many = methods_section(question(results_of(pd.concat([cells, *more], ignore_index=True))))
    assert "moderated t test" in "".join(part for part in many.parts if isinstance(part, str))
    assert len(many.parts) == len(few.parts) + 1


def test_one_setting_has_its_figure_once(cells):
    """On top; with several settings that is another one, of the means over them."""
    one = cells[(cells["depth"] == 4) & (cells["epochs"] == 4)]
    for rows, count in ((one, 0), (cells, 1)):
        found = [part for part in sections(question(results_of(rows))) if part.title == "Differences"]
        assert len(found) == count
        assert all(sum(isinstance(part, CaptionedFigure) for part in section.parts) == 1 for section in found)


def test_one_validation_of_each_model_is_no_curve(tmp_path, cells):
    curves = made_curves(cells)
    for epochs, drawn in ((curves["epoch"].unique(), True), (curves["epoch"].unique()[:1], False)):
        part = curves[curves["epoch"].isin(epochs)]
        study = store(tmp_path / str(drawn), cells, curves=part, records=made_records(cells))
        titles = [section.title for section in sections(question(frame.load(study)))]
        assert ("Learning curves" in titles) == drawn


def test_measurements_of_some_encodings_name_them(tmp_path, cells):
    records = made_records(cells)
    for names, count in ((list(PES), 0), (["rope", "alibi"], 1)):
        study = store(tmp_path / str(count), cells, records=records[records["pe"].isin(names)])
        for found in sections(question(frame.load(study))):
            if found.title in ("Other lengths", "Layers"):
                told = [part for part in found.parts if isinstance(part, str) and part.startswith("Measured for")]
                assert len(told) == count
                assert all("`rope` and `alibi`" in part for part in told)


def test_a_study_has_every_section(study, cells):
    learned(cells).to_csv(study / "rows.csv", index=False)
    found = {section.title: section for section in sections(question(frame.load(study)))}
    for title in (
        "Test loss",
        "Differences",
        "Effects of encoding, depth and epochs",
        "Learning curves",
    ):
        assert title in found
    folded = [part.title for part in found["Differences"].parts if isinstance(part, Collapsible)]
    assert folded == ["Every two encodings", "Ranks, with ties", "Seeds needed"]
    assert {"Layers", "Cost", "Methods", "Which encoding for which need"} <= set(found)
    assert "Failed and omitted cells" not in found


@pytest.mark.long
def test_every_line_that_a_figure_names_draws_it_again(study):
    results = frame.load(study)
    names = {
        "results": results,
        "plots": plots,
        "statistics": statistics,
        "swept_rates": swept_rates,
        "recommendations": recommendations,
        "study_comparisons": study_comparisons,
    }
    names |= {
        "learned": learned_module,
        "columns": columns,
        "answer": answer,
        "sensitivity": sensitivity,
        "specification": specification,
    }
    count, asked = 0, question(results)
    name, line = asked.compares.split(" = ")
    names[name] = eval(line, names)
    for section in sections(asked):
        folded = [inner for part in section.parts if isinstance(part, Collapsible) for inner in part.parts]
        for part in [*section.parts, *folded]:
            if isinstance(part, (str, Code, Collapsible)) or not part.code:
                continue
            again = eval(part.code, names)
            data, expected = (part.plot.data, again.data) if isinstance(part, CaptionedFigure) else (part.data, again)
            pd.testing.assert_frame_equal(data.reset_index(drop=True), expected.reset_index(drop=True)[list(data)])
            count += 1
    assert count >= 8


@pytest.mark.parametrize("baseline", [None, "rope"])
def test_the_tables_of_a_study_have_the_verdicts_of_its_page(study, baseline):
    (study / "declared.json").write_text(json.dumps({"baseline": baseline}))
    results = frame.load(study)
    texts, files = study_tables(results, results.records)
    compared = question(results).compared
    assert compared.declared == bool(baseline)
    keys, tests = ["pe", "depth", "epochs"], ["p_corrected", "p_equivalent_corrected", "verdict"]
    table = pd.read_csv(io.StringIO(files["table.csv"])).dropna(subset="verdict").set_index(keys).sort_index()
    expected = compared.compare().set_index(keys).sort_index()
    pd.testing.assert_frame_equal(table[tests], expected[tests], rtol=1e-12)
    assert f"verdicts: {compared}; not asked where no encoding has learned the task" in texts["table"]


@pytest.mark.usefixtures("unplaced")
def test_differences_are_those_of_the_families(study):
    results = frame.load(study)
    found = {section.title: section for section in sections(question(results))}
    (drawn,) = (part for part in found["Differences"].parts if isinstance(part, CaptionedFigure))
    compared = filter_learned_comparisons(statistics.compare_cells(results.cells, "rope"), results.cells)
    assert len(compared) == 3  # of one setting
    family = question(results).compared.compare()
    assert filter_learned_comparisons(family, results.cells).attrs == family.attrs != {}
    alibi = drawn.plot.data[drawn.plot.data["pe"] == "alibi"]
    assert sorted(alibi["difference"]) == sorted(compared[compared["pe"] == "alibi"]["difference"])
    assert set(alibi["verdict"]) == {"better"}
    assert set(drawn.plot.data[drawn.plot.data["pe"] == "none"]["verdict"]) == {"worse"}
    text = " ".join(part for part in found["Cells and comparisons"].parts if isinstance(part, str))
    # 6 pairs of 4 encodings: in the only setting that was learned, and at the longest length at two depths
    assert "18 comparisons of all pairs (each setting: 6; " in text


@pytest.mark.usefixtures("unplaced")
def test_tables_omit_constant_columns(cells):
    one = cells[cells["epochs"] == 4].assign(data="structured")
    one = one[["pe", "data", *(name for name in one if name not in ("pe", "data"))]]
    for rows in (one, one.drop(columns="data")):
        for section in sections(question(results_of(rows))):
            for part in section.parts:
                if isinstance(part, ReportTable):
                    assert not {"data", "epochs"} & set(part.data), section.title
        needs = choices(rows, pd.DataFrame())["need"]
        assert needs[0].startswith("test loss, depth 4")  # the models of depth 1 have not learned the task


def test_settings_are_ascending_in_tables_and_figures(cells):
    rows = cells.sort_values(["depth", "epochs"], ascending=False, kind="stable")
    for section in sections(question(results_of(rows))):
        if section.opening or section.title == "Does it hold elsewhere?":
            continue  # over all settings; sorted by difference
        for part in section.parts:
            if not isinstance(part, (CaptionedFigure, ReportTable)):
                continue
            data = part.plot.data if isinstance(part, CaptionedFigure) else part.data
            if "depth" in data:
                assert data["depth"].is_monotonic_increasing, section.title
            if "setting" in data:
                words = [f"depth {depth}, epochs {epochs}" for depth in (1, 4) for epochs in (1, 4)]
                drawn = ["depth 1", "depth 4"] if "epochs" in data else words  # epochs are the axis
                named = data[~data["pe"].isin(["bayes", "position-blind", "prior"])]
                if section.title == "Differences" or (section.title == "Test loss" and "epochs" not in data):
                    drawn = words[-1:]  # the only setting that was learned
                assert list(dict.fromkeys(named["setting"])) == drawn, section.title
    rows = rows.assign(test_loss=rows["test_loss"] + rows["floor_position_blind_loss"])  # learned in none
    assert list(choices(rows, pd.DataFrame())["need"][:4]) == [f"test loss, {setting}" for setting in words]


def test_cautions_name_the_problems_of_the_cells(cells):
    few = few_runs(cells["pe"].nunique(), cells["seed"].nunique())
    assert few
    assert cautions(results_of(cells), "rope") == [few]
    worse = cells.copy()
    worse.loc[0, "torch"] = "2.7.0"
    worse = worse[~((worse["pe"] == "alibi") & (worse["seed"] > 0))]
    worse = worse[~((worse["pe"] == "none") & (worse["depth"] == 4))]
    failed = results_of(worse, failed=pd.DataFrame({"reason": ["x"]}), refused=["entry"])
    text = " ".join(cautions(failed, "rope"))
    assert "1 cell failed" in text
    assert "1 entry was refused" in text
    assert "One seed only: alibi" in text
    assert "Seeds are not the same everywhere: 4 of 14" in text
    assert "2 of 16 combinations of setting and encoding were not trained" in text
    assert "several versions of PyTorch: 2.7.0, 2.13.0" in text


def test_settings_that_were_not_learned_are_not_compared(cells) -> None:
    levels = {"floor_bayes_loss": -9.0, "floor_position_blind_loss": np.where(cells["depth"] == 1, -8.0, 9.0)}
    studied = question(results_of(cells.assign(**levels)))
    (section,) = (part for part in sections(studied) if part.title == "Differences")
    pairs, *_ = (part for part in section.parts if isinstance(part, Collapsible))
    assert set(studied.compared.lines[GRID_TABLE]["depth"]) == {4}
    assert len(pairs.parts[0].data) == studied.compared.size() == 2 * 6  # after 1 and 4 epochs


def test_no_figure_of_the_first_screen_is_repeated(study):
    drawn = [figure.code for section in sections(question(frame.load(study))) for figure in figures(section.parts)]
    assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize("depths", [2, 8])
def test_learning_curves_of_many_settings_are_folded(cells, depths):
    rows = pd.concat([cells[cells["depth"] == 1].assign(depth=1 + depth) for depth in range(depths)], ignore_index=True)
    (part,) = sections_module._curves(question(results_of(rows, curves=made_curves(rows)))).parts
    assert isinstance(part, Collapsible) == (depths == 8)


@pytest.mark.parametrize("kind", ["shared", "apart", "one learned"])
def test_cells_of_several_models_in_one_ledger_have_a_report(kind: str, tmp_path: Path) -> None:
    """Their settings are null in some and numbers in others; perhaps no two encodings share a setting."""
    cells = learned(made_cells({"none": 0.5, "rope": 0.6, "alibi": 0.7}))
    cells = cells[(cells["depth"] == 1) & (cells["epochs"] == 1)]
    rows = {"none": ["null"], "rope": [1], "alibi": [2]}
    if kind == "shared":
        rows = {"none": ["null", 1], "rope": [1], "alibi": ["null"]}
    parts = [cells[cells["pe"] == pe].assign(**{"trainer.clip": clip}) for pe, clips in rows.items() for clip in clips]
    mixed = pd.concat(parts, ignore_index=True)
    mixed.insert(2, "trainer.clip", mixed.pop("trainer.clip"))
    if kind == "one learned":
        mixed.loc[mixed["pe"] != "none", ["floor_bayes_loss", "floor_position_blind_loss"]] = 0.0, 0.1
    subject = question(results_of(mixed), baseline="none")
    page = html("mixed", sections(subject))
    assert (kind == "shared") != ("No setting" in page)
    assert write(subject, tmp_path / "paper")
