"""The report of a study whose seeds tune for themselves says what its own verdicts say."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from helpers.latex_tables import parsed
from pe_lab.report import paper
from pe_lab.report.__main__ import main
from pe_lab.report.answer import sentences, title
from pe_lab.report.best_candidates import undecided_by_setting
from pe_lab.report.cautions import runs_apart
from pe_lab.report.parts import CaptionedFigure, Code, Collapsible, ReportTable
from pe_lab.report.sections import figures, sections
from pe_lab.report.tuned import AT_EDGE, TunedSubject
from pe_lab.results import frame, plots
from pe_lab.results.learned import not_learned_note
from pe_lab.results.tuned_outcomes import (
    compare_all_pairs,
    compare_with_baseline,
    edge_note,
    endpoint,
    tried_rates,
    unsolved_note,
)
from pe_lab.results.verdict_marks import few_runs

LOSS = {"rope": 0.5, "lrope": 0.5, "alibi": 0.3, "learnable": 0.9, "t5": 0.52}
STEPS = {"rope": 7.0, "lrope": 7.1, "alibi": 4.0, "none": 11.0, "t5": 9.0}
CAP = 2048
RATES = (1e-3, 3e-3, 1e-2)


def written(folder: Path, solvable: bool, seeds: int = 5, baseline: str | None = "rope") -> Path:
    """Write the tables of a study of five encodings, two depths, and, without a level, of 1 and 4 epochs."""
    rng, rows, outcomes = np.random.default_rng(0), [], []
    for depth in (1, 4):
        for epochs in (4,) if solvable else (1, 4):
            for pe, middle in (STEPS if solvable else LOSS).items():
                for seed in range(seeds):
                    y = middle - 0.1 * epochs - 0.02 * depth + rng.normal(0, 0.005)
                    solved = middle < 11 if solvable else None
                    y = np.log2(CAP) if solved is False else y
                    settings = {"pe": pe, "data": "copy", "depth": depth}
                    steps = 100 * epochs
                    common = {"epochs": epochs, "seed": seed, "steps": steps, "optimizer.lr": 3e-3}
                    floors = {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 0.6}
                    cost = {"parameters": 10, "positional_parameters": 0, "flops_per_token": 1.0, "seconds": 1.0}
                    cost |= {"attention": "sdpa", "device": "cpu"}
                    rows.append(settings | common | {"test_loss": y} | floors | cost | {"run": f"{len(rows):016x}"})
                    chosen = {"y": y, "solved": solved, "optimizer.lr": 3e-3 if pe == "rope" else 1e-2}
                    chosen |= {"start_scale": None, "edge": pe != "rope", "trained_steps": steps, "core_seconds": 9.0}
                    outcomes.append(settings | {"seed": seed, "steps": steps} | chosen)
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    pd.DataFrame(outcomes).to_csv(folder / "outcomes.csv", index=False)
    margin = "1 octave" if solvable else "0.05 nats"
    tune = {"rates": RATES, "margin": margin, "baseline": baseline}
    (folder / "declared.json").write_text(json.dumps({"tune": tune}))
    return folder


def parts(folder: Path) -> tuple[TunedSubject, dict[str, list[object]]]:
    study = TunedSubject.of(frame.load(folder))
    return study, {section.title: section.parts for section in sections(study)}


def report(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["pe-lab report", *words])
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


def test_losses_are_compared_in_one_family_over_all_settings(tmp_path: Path) -> None:
    study, found = parts(written(tmp_path / "study", solvable=False))
    lines = compare_with_baseline(study.outcomes, endpoint("0.05 nats", None), "rope")
    assert len(lines) == len(study.compared.compare()) == 4 * 4
    both = study.compared.compare().merge(lines, on=["depth", "steps", "pe"])
    pd.testing.assert_series_equal(both["p_corrected_x"], both["p_corrected_y"], check_names=False)
    best, figure = figures(next(iter(found.values())))
    table = best.plot.data  # differences from rope, which is declared
    outside = study.compared.lines["each setting"].query("baseline != 'rope'")
    assert set(outside["verdict"]) == {"not asked"}
    assert outside["p_corrected"].isna().all()
    assert len(table) == len(lines)
    assert set(table.loc[table["pe"] == "alibi", "verdict"]) == {"better"}
    assert set(table.loc[table["pe"] == "lrope", "verdict"]) == {"equivalent"}
    assert len(figure.plot.data) == 5 * 4  # encodings, at two depths after two lengths of training
    assert "Learning curves" not in found  # without curves


def test_verdicts_beside_the_values_are_those_of_the_family() -> None:
    """In this study no encoding has learned the task after 71 and 284 steps; the declared family has them all."""
    study = TunedSubject.of(frame.load(Path(__file__).parents[2] / "sweeps/results/fair_depth_epochs_pe_tuned"))
    assert (study.compared.size(), study.compared.family_size) == (12, 36)
    assert "36" in study.unlearned
    assert "other 24" in study.unlearned
    assert study.unlearned in sentences(study)[0]
    assert set(study.compared.lines["each setting"]["steps"]) == {1136}
    verdicts = study.compared.compare().set_index(["depth", "pe"])["verdict"]
    shown = study.summary.query("steps == 1136").set_index(["depth", "pe"])["than rope"]
    assert shown.drop("rope", level="pe").sort_index().to_dict() == verdicts.sort_index().to_dict()
    assert set(shown.xs("rope", level="pe")) == {""}
    committed = pd.read_csv(study.results.folder / "verdicts.csv").query("steps == 1136")
    p = study.compared.compare().set_index(["depth", "pe"])["p_corrected"]
    expected = committed.set_index(["depth", "pe"])["p_corrected"]
    assert p.sort_index().to_numpy() == pytest.approx(expected.sort_index().to_numpy())


def test_steps_to_solve_are_compared_with_the_shares_that_solved(tmp_path: Path) -> None:
    study, found = parts(written(tmp_path / "study", solvable=True, baseline=None))
    assert "Learning curves" not in found  # losses of runs that stop early are no comparison
    ranked = study.summary.set_index(["depth", "pe"])
    assert ranked.loc[(1, "none"), "solved"].startswith("0 [")
    assert ranked.loc[(1, "none"), "95 % interval"] == ""
    assert ranked.loc[(1, "alibi"), "ranks"] == "1"
    assert ranked.loc[(4, "none"), "ranks"] == "5"
    (figure,) = [part for part in found["Values"] if isinstance(part, CaptionedFigure)]
    drawn = figure.plot.data
    assert len(drawn) == len(study.outcomes)
    assert not drawn.loc[drawn["pe"] == "none", "reached"].any()
    assert np.allclose(drawn.loc[drawn["pe"] == "none", "value"], CAP)


def with_unsolved(folder: Path, unsolved: dict[str, int], baseline: str | None = None, seeds: int = 5) -> TunedSubject:
    """Write a study of one depth in which so many of the first seeds of encodings did not solve the task."""
    written(folder, solvable=True, baseline=baseline, seeds=seeds)
    for name in ("rows.csv", "outcomes.csv"):
        table = pd.read_csv(folder / name)
        table[table["depth"] == 4].to_csv(folder / name, index=False)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    failed = outcomes["seed"] < outcomes["pe"].map(unsolved).fillna(0)
    outcomes.loc[failed, ["y", "solved"]] = np.log2(CAP), False
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    return TunedSubject.of(frame.load(folder))


def test_a_difference_from_unsolved_runs_is_a_lower_bound(tmp_path: Path) -> None:
    """`none` never solves the task; of `t5` with a failed run and `alibi` with one, neither bounds the difference."""
    subject = with_unsolved(tmp_path / "study", {})
    (candidates,) = undecided_by_setting(subject.compared)
    assert candidates.gap("none", "alibi").startswith("at least a factor of ")
    assert "of this bound" in candidates.gap("none", "alibi")
    assert candidates.gap("alibi", "none") == candidates.gap("none", "alibi")
    assert candidates.gap("t5", "alibi").startswith("a factor of ")
    assert candidates.mean("none") == "at least 2048 steps"
    assert not candidates.mean("alibi").startswith("at least")
    (candidates,) = undecided_by_setting(with_unsolved(tmp_path / "both", {"alibi": 1, "t5": 1}).compared)
    assert candidates.gap("t5", "alibi").startswith("a factor of ")
    assert candidates.mean("alibi").startswith("at least")
    with_unsolved(tmp_path / "declared", {}, "alibi")
    for name in ("rows.csv", "outcomes.csv"):
        table = pd.read_csv(tmp_path / "declared" / name)
        table[table["pe"].isin(["alibi", "none"])].to_csv(tmp_path / "declared" / name, index=False)
    assert ", by at least " in sentences(TunedSubject.of(frame.load(tmp_path / "declared")))[0]


def test_every_encoding_is_in_the_table_of_chosen_rates(tmp_path: Path) -> None:
    subject = with_unsolved(tmp_path / "study", {"t5": 2})
    (table,) = subject.first_tables
    chosen = table.data.set_index("pe").iloc[:, 0]
    assert set(chosen.index) == set(STEPS)
    assert chosen["none"] == "no run solved the task"
    assert chosen["t5"] == "0.01*"


def test_one_encoding_says_how_many_of_its_runs_solved_the_task(tmp_path: Path) -> None:
    subject = with_unsolved(tmp_path / "study", {"t5": 2})
    for pe, said in (("none", "None of its 5 runs"), ("t5", "3 of its 5 runs"), ("rope", "steps to solve is")):
        alone = TunedSubject.of(frame.load(tmp_path / "study"))
        alone = replace(
            alone,
            results=replace(alone.results, cells=subject.results.cells.loc[lambda cells, pe=pe: cells["pe"] == pe]),
        )
        assert said in sentences(alone)[0]


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    subject = with_unsolved(tmp_path / "study", {}, seeds=1)
    assert sentences(subject)[0].startswith("Nothing can be decided without two shared seeds.")
    assert set(subject.compared.compare()["verdict"]) == {"one seed"}
    declared = with_unsolved(tmp_path / "declared", {}, "rope", seeds=1)
    assert set(declared.summary["than rope"]) == {"", "one seed"}


def test_settings_that_no_run_solved_are_told_apart(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=True)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes.loc[outcomes["depth"] == 1, ["y", "solved"]] = np.log2(CAP), False
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    subject = TunedSubject.of(frame.load(folder))
    first, how = sentences(subject)
    assert "1 better" in first
    assert "4 both unsolved" in first
    assert "4 both unsolved" in how
    assert subject.compared.rule in how
    answer, *_ = sections(subject)
    (figure,) = [part for part in answer.parts if isinstance(part, CaptionedFigure)]
    assert figure.plot.data["setting"].str.startswith("depth 4").all()


def test_the_question_has_the_numbers_of_rates_that_were_tried(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes.loc[outcomes["pe"] == "learnable", "start_scale"] = 1.0
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    declared = json.loads((folder / "declared.json").read_text())
    declared["tune"]["scaled"] = [[1e-3, 1.0], [3e-3, 0.14], [3e-3, 1.0]]
    (folder / "declared.json").write_text(json.dumps(declared))
    _, found = parts(folder)
    study, _ = parts(folder)
    assert title(study).endswith("at the best of 2 or 3 learning rates?")
    (tried,) = (part for part in next(iter(found.values())) if isinstance(part, ReportTable))
    told = tried.data.set_index("pe")
    assert told["tried"]["learnable"] == "0.001 (scale 1), 0.003 (scale 0.14), 0.003 (scale 1)"
    assert told.loc["alibi", "depth 4, steps 400"] == "0.01*"
    assert told.loc["rope", "depth 4, steps 400"] == "0.003"
    declared["tune"]["baseline"] = None
    (folder / "declared.json").write_text(json.dumps(declared))
    study, _ = parts(folder)
    best = next(
        candidates
        for candidates in undecided_by_setting(study.compared)
        if candidates.setting == "at depth 1, steps 400"
    )
    best = replace(best, means={name: best.means[name] for name in ("alibi", "learnable")}, behind=["learnable"])
    assert best.decided == [("learnable", "alibi")]  # alibi chose 0.01
    assert "5 of 5 seeds of `alibi` chose 0.01, not tried with `learnable`." in study.doubts(best)
    assert study.doubts(replace(best, open=["alibi", "learnable"])) == ""
    other = written(tmp_path / "other", solvable=False)  # which tried 0.01 with all
    assert "; see `other`, which tried it." in study.doubts(best)
    outcomes = pd.read_csv(other / "outcomes.csv").query("depth == 4")
    outcomes.to_csv(other / "outcomes.csv", index=False)
    assert "other" not in study.doubts(best)  # which is of depth 1
    declared["tune"]["scaled"] = [[rate, 1.0] for rate in RATES]
    (folder / "declared.json").write_text(json.dumps(declared))
    assert title(parts(folder)[0]).endswith("at the best of 3 learning rates?")


def test_cells_that_are_named_by_their_scale_are_of_one_encoding(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    rows = pd.read_csv(folder / "rows.csv")
    chosen = (rows["pe"] == "learnable") & (rows["seed"] > 2)
    rows.loc[rows["pe"] == "learnable", "pe"] = "learnable std=1"
    rows.loc[chosen, "pe"] = "learnable std=0.14"
    rows.to_csv(folder / "rows.csv", index=False)
    _, found = parts(folder)
    _, figure = figures(next(iter(found.values())))
    assert set(figure.plot.data["pe"]) == set(LOSS)
    assert set(figure.plot.data["seeds"]) == {5}


def test_choices_of_seeds_are_counted_and_edges_are_said(tmp_path: Path) -> None:
    _, found = parts(written(tmp_path / "study", solvable=False))
    (table,) = [part for part in found["Learning rates"] if isinstance(part, ReportTable)]
    counts = table.data.set_index("pe")
    assert counts.loc["rope", ["0.003", "0.01", AT_EDGE]].tolist() == [10, 0, "0 of 10"]  # after the last steps
    assert counts.loc["alibi", ["0.003", "0.01", AT_EDGE]].tolist() == [0, 10, "10 of 10"]
    (edges,) = [part for part in next(iter(found.values())) if isinstance(part, ReportTable)]
    of_edges = edges.data.set_index("pe")
    assert set(of_edges.loc["alibi"]) == {"0.01*"}
    assert set(of_edges.loc["rope"]) == {"0.003"}
    assert counts["0.001"].tolist() == [0] * len(LOSS)  # tried, and never the best


def one_setting(folder: Path, baseline: str | None = "rope", rates: tuple[float, ...] = (3e-3, 1e-2)) -> Path:
    """Write a study of one depth and one length of training."""
    written(folder, solvable=False, baseline=baseline)
    for name in ("rows.csv", "outcomes.csv"):
        table = pd.read_csv(folder / name)
        table[(table["depth"] == 4) & (table["steps"] == 400)].to_csv(folder / name, index=False)
    declared = json.loads((folder / "declared.json").read_text())
    declared["tune"]["rates"] = list(rates)
    (folder / "declared.json").write_text(json.dumps(declared))
    return folder


def test_of_two_rates_each_is_an_edge_and_the_answer_says_so(tmp_path: Path) -> None:
    folder = one_setting(tmp_path / "study")
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes.assign(edge=True).to_csv(folder / "outcomes.csv", index=False)
    _, found = parts(folder)
    (edges,) = [part for part in next(iter(found.values())) if isinstance(part, ReportTable)]
    assert set(edges.data.set_index("pe").loc["rope"]) == {"0.003*"}
    (table,) = [part for part in found["Learning rates"] if isinstance(part, ReportTable)]
    assert set(table.data[AT_EDGE]) == {"5 of 5 (only two rates were tried)"}


@pytest.mark.parametrize("baseline", ["rope", None])
def test_one_setting_has_each_figure_once(tmp_path: Path, baseline: str | None) -> None:
    study, found = parts(one_setting(tmp_path / "study", baseline))
    drawn = [part for section in found.values() for part in section if isinstance(part, CaptionedFigure)]
    assert len({part.plot.data.to_csv() for part in drawn}) == len(drawn)
    assert [part.code.partition("(")[0] for part in drawn] == ["overview_figures.forest", "plots.runs"]
    assert "Differences" not in found  # the first figure has all
    assert study.compared.size() == (10 if baseline is None else 4)


def test_losses_stand_beside_their_floors(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    rows = pd.read_csv(folder / "rows.csv")
    rows["floor_position_blind_loss"] = 0.1 * rows["depth"] + 0.01 * rows["seed"]
    rows.to_csv(folder / "rows.csv", index=False)
    study, found = parts(folder)
    ranked = study.summary.set_index("depth")
    assert ranked["floor: position-blind"].groupby("depth").unique().explode().tolist() == pytest.approx([0.12, 0.42])
    assert set(ranked["floor: bayes"]) == {0}
    (folded,) = [part for part in found["Values"] if isinstance(part, Collapsible)]
    texts = " ".join(map(str, folded.parts))
    assert "`bayes` is" in texts
    assert "`position-blind` is" in texts
    (figure,) = [part for part in found["Values"] if isinstance(part, CaptionedFigure)]
    (panel,) = [axes for axes in figure.plot.figure.axes if axes.get_title() == "depth 4, steps 400"]
    upright = [line.get_xdata()[0] for line in panel.lines if tuple(line.get_ydata()) == (0, 1)]
    assert sorted(upright) == pytest.approx([0, 0.42])


def test_what_was_not_learned_comes_first(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    rows = pd.read_csv(folder / "rows.csv")
    rows.assign(floor_position_blind_loss=-1, floor_bayes_loss=-2).to_csv(folder / "rows.csv", index=False)
    _, found = parts(folder)
    assert "has learned the task" in str(next(iter(found.values()))[0])


def test_the_code_of_each_figure_draws_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    curves = pd.read_csv(folder / "rows.csv").query("steps == 400")[["pe", "data", "depth", "epochs", "seed", "steps"]]
    validated = [curves.assign(epoch=epoch, metric="loss", value=1 / epoch) for epoch in (1, 2, 4)]
    pd.concat(validated).to_csv(folder / "curves.csv", index=False)
    study = TunedSubject.of(frame.load(folder), load=f"results = frame.load({str(folder)!r})")
    found = sections(study)
    (code,) = [part.lines for section in found for part in section.parts if isinstance(part, Code)]
    names: dict[str, object] = {}
    exec(code, names)
    drawn = [figure for section in found for figure in figures(section.parts)]
    assert len(drawn) == 4
    for part in drawn:
        assert isinstance(eval(part.code, names), plots.Plot)
    (training,) = [part for part in drawn if "learning_curves" in part.code]
    levels = [line for line in training.plot.figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    assert {line.get_ydata()[0] for line in levels} == {0.0, 0.6}  # floors of the longest trainings


def test_lengths_of_training_are_steps_where_they_are_counted_in_steps(tmp_path: Path) -> None:
    _, found = parts(written(tmp_path / "study", solvable=False))
    _, figure = figures(next(iter(found.values())))
    (axes, *_) = figure.plot.figure.axes
    assert axes.get_xlabel() == "steps of training"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "400"]
    assert set(figure.plot.data["steps"]) == {100, 400}


def test_the_tries_of_encodings_with_a_starting_scale_are_said(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    declared = json.loads((folder / "declared.json").read_text())
    declared["tune"]["scaled"] = [[1e-3, 1.0], [3e-3, 0.14], [3e-3, 1.0]]
    (folder / "declared.json").write_text(json.dumps(declared))
    pd.DataFrame({"pe": ["t5"], "reason": ["it fails"]}).to_csv(folder / "failed.csv", index=False)
    _, found = parts(folder)
    assert "0.003 (scale 0.14)" in str(found["Methods"][0])
    assert any("1 cell failed" in str(part) for part in next(iter(found.values())))


def test_few_seeds_are_said_and_a_diverged_one_is_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False, seeds=3)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes.loc[(outcomes["pe"] == "t5") & (outcomes["seed"] == 0), ["y", "optimizer.lr"]] = np.nan
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    study, found = parts(folder)
    assert any("2 seeds" in part for part in next(iter(found.values())) if isinstance(part, str))
    lines = study.compared.compare()
    assert set(lines.loc[lines["pe"] == "t5", "seeds"]) == {2}
    assert "equivalent" not in set(lines["verdict"])


def test_of_three_seeds_of_few_encodings_a_run_that_did_not_learn_is_named_and_more_seeds_are_asked_for(
    tmp_path: Path,
) -> None:
    folder = one_setting(tmp_path / "study", baseline=None)
    outcomes = pd.read_csv(folder / "outcomes.csv").query("seed < 3 and pe in ['rope', 'alibi', 'lrope']")
    outcomes.loc[(outcomes["pe"] == "alibi") & (outcomes["seed"] == 1), "y"] = 0.7
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    study = TunedSubject.of(frame.load(folder))
    (note,) = runs_apart(study)
    assert "`alibi`, 0.7 nats (seed 1" in note
    assert "did not learn" in note
    assert any(few_runs(3, 3) in note for note in study.notes)


@pytest.mark.parametrize("solvable", [False, True])
@pytest.mark.parametrize("diverged", ["pe == pe", "depth == 4", "pe == 'rope'", "pe != 'rope'"])
def test_a_study_of_which_much_diverged_is_reported(tmp_path: Path, solvable: bool, diverged: str) -> None:
    folder = written(tmp_path / "study", solvable)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    lost = outcomes.query(diverged)
    outcomes.loc[lost.index, ["y", "optimizer.lr"]] = np.nan
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    study, found = parts(folder)
    assert len(study.results.cells) == len(outcomes) - len(lost)
    notes = [str(part) for part in next(iter(found.values())) if "Note" in str(part)]
    assert any(f"{len(lost)} cells diverged" in note for note in notes)
    if len(lost) < len(outcomes):
        paper.write(study, tmp_path / "paper")


def test_the_page_is_written_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "study", solvable=False)
    assert report(monkeypatch, str(folder)) == 0
    page = (folder / "report.html").read_text()
    assert page.count("<figure") == 3
    assert not re.search(r'(src|[^:]href)="http', page)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--margin", "0.1 nats"], "--margin must not be given"),
        (["--baseline", "alibi"], "--baseline must not be given"),
        (["--metric", "accuracy"], "--metric must be loss"),
    ],
)
def test_what_the_study_declares_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written(tmp_path / "study", solvable=False)
    assert report(monkeypatch, str(folder), *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (folder / "report.html").exists()


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_a_paper_has_the_losses_and_the_comparisons_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = written(tmp_path / "study", solvable=False), tmp_path / "paper"
    assert report(monkeypatch, str(source), "--paper", str(folder)) == 0
    study = TunedSubject.of(frame.load(source))
    head, *rows = parsed((folder / "outcomes.tex").read_text())
    assert head == ["depth", "steps", "encoding", "runs", "loss", "interval"]
    ranked = study.summary.set_index(["depth", "steps", "pe"])
    assert len(rows) == len(ranked) == 4 * 5
    for depth, steps, pe, runs, loss, interval in rows:
        line = ranked.loc[(int(depth), int(steps), pe)]
        assert int(runs) == line["runs"]
        assert numbers(loss) == pytest.approx([line["loss"]], abs=5.1e-5)
        assert numbers(interval) == numbers(line["95 % interval"])
    head, *rows = parsed((folder / "differences.tex").read_text())
    assert head == ["depth", "steps", "encoding", "seeds", "difference", "interval", "p", "verdict"]
    compared = study.compared.compare().set_index(["depth", "steps", "pe"])
    assert len(rows) == len(compared) == 4 * 4
    for depth, steps, pe, seeds, difference, interval, _, verdict in rows:
        line = compared.loc[(int(depth), int(steps), pe)]
        assert (int(seeds), verdict) == (line["seeds"], line["verdict"])
        assert numbers(difference) == pytest.approx([line["difference"]], abs=5.1e-4)
        assert numbers(interval) == pytest.approx([line["low"], line["high"]], abs=5.1e-4)
    document = (folder / "paper.tex").read_text()
    named = re.findall(r"\\(?:input|includegraphics(?:\[[^]]*\])?)\{(\w+)\}", document)
    assert named == ["methods", "outcomes", "differences", "curves", "runs", "forest"]
    for name in named[3:]:
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in (folder / f"{name}.svg").read_text()
    texts = [(folder / f"{name}.tex").read_text() for name in ("outcomes", "differences", "paper")]
    captions = [caption for text in texts for caption in re.findall(r"\\caption\{(.*)\}", text)]
    assert len(captions) == 5
    for caption in captions:
        assert all(fact in caption for fact in ("nats", "copy", "depth 1 and 4", "100 and 400 steps"))


def test_a_paper_has_the_steps_to_solve_and_the_exact_intervals_of_shares(tmp_path: Path) -> None:
    study = TunedSubject.of(frame.load(written(tmp_path / "study", solvable=True)))
    outcomes = study.outcomes.set_index(["depth", "pe", "seed"]).sort_index()
    outcomes.loc[(1, "t5", 0), ["y", "solved"]] = np.log2(CAP), False
    outcomes.reset_index()[list(study.outcomes)].to_csv(tmp_path / "study/outcomes.csv", index=False)
    study = TunedSubject.of(frame.load(tmp_path / "study"))
    written_files = paper.write(study, tmp_path / "paper")
    assert not any(name.startswith("curves") for name in written_files)  # losses of runs that stop early
    head, *rows = parsed((tmp_path / "paper/outcomes.tex").read_text())
    assert head == ["depth", "encoding", "runs", "solved", "steps", "interval"]
    for depth, pe, runs, solved, steps, *_ in rows:
        part = outcomes.loc[(int(depth), pe)]
        count = int(part["solved"].sum())
        low, high = binomtest(count, 5).proportion_ci(method="exact")
        assert int(runs) == 5
        assert numbers(solved) == pytest.approx([count, low, high], abs=5.1e-3)
        assert numbers(steps) == [round(2 ** part["y"].mean())]
    methods = " ".join((tmp_path / "paper/methods.tex").read_text().split())
    assert "1 octave" in methods
    assert "<<" not in methods


def test_the_methods_of_a_paper_have_the_protocol_and_no_advice(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    rows = pd.read_csv(folder / "rows.csv").assign(floor_position_blind_loss=-1.0, floor_bayes_loss=-2.0)
    rows[rows["pe"] != "t5"].to_csv(folder / "rows.csv", index=False)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes = outcomes[outcomes["pe"] != "t5"]
    outcomes.loc[outcomes.index[0], ["y", "optimizer.lr"]] = np.nan
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    declared = json.loads((folder / "declared.json").read_text())
    declared["tune"] |= {"scaled": [[1e-3, 1.0], [3e-3, 0.14]], "fraction": 0.25}
    (folder / "declared.json").write_text(json.dumps(declared))
    study = TunedSubject.of(frame.load(folder))
    text = " ".join(paper.methods_paragraph(study).split())
    facts = ["0.001, 0.003, 0.01", "0.003 and 0.14", r"25\,\% of the steps", "0.05 nats", "12 comparisons with rope"]
    facts += ["4 to 5 seeds (0 to 4)", "copy", "1, 4", "Holm", "In 1 of the cells"]
    for fact in facts:
        assert fact in text
    assert "moderated" not in text  # of four encodings
    edges = edge_note(study.outcomes, RATES, advice=False).replace("%", r"\%")
    assert edges
    assert edges in text
    assert not_learned_note(study.results.cells, advice=False) in text
    for advice in (not_learned_note(study.results.cells), edge_note(study.outcomes, RATES), few_runs(4, 5)):
        assert advice.replace("%", r"\%") not in text


def test_the_methods_of_a_paper_say_that_encodings_are_few(tmp_path: Path) -> None:
    folder = one_setting(tmp_path / "study")
    for name in ("rows.csv", "outcomes.csv"):
        table = pd.read_csv(folder / name)
        table[table["pe"] != "t5"].to_csv(folder / name, index=False)
    text = paper.methods_paragraph(TunedSubject.of(frame.load(folder)))
    assert few_runs(4, 5, advice=False) in text
    assert few_runs(4, 5) not in text


def test_where_nothing_is_solved_a_report_and_a_paper_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = written(tmp_path / "study", solvable=True), tmp_path / "paper"
    outcomes = pd.read_csv(source / "outcomes.csv")
    outcomes.assign(solved=False, y=np.log2(CAP)).to_csv(source / "outcomes.csv", index=False)
    assert report(monkeypatch, str(source), "--paper", str(folder)) == 0
    assert not (folder / "forest.pdf").exists()
    head, *rows = parsed((folder / "differences.tex").read_text())
    for row in rows:
        assert row[head.index("difference")] == row[head.index("interval")] == row[head.index("p")] == ""
    assert "comparisons with rope" not in (folder / "methods.tex").read_text()


def test_without_a_baseline_the_first_encoding_is_one_and_all_pairs_are_a_family(tmp_path: Path) -> None:
    study = TunedSubject.of(frame.load(one_setting(tmp_path / "study", baseline=None)))
    files = paper.write(study, tmp_path / "paper")
    assert {"outcomes.tex", "differences.tex", "runs.pdf", "forest.pdf", "paper.tex"} == {
        name for name in files if name != "methods.tex" and not name.endswith(".svg")
    }
    lines = compare_all_pairs(study.outcomes, study.compared.endpoint)
    with_first = lines[lines["pe"] == "rope"].set_index("baseline")["p_corrected"]
    assert study.compared.compare().set_index("pe")["p_corrected"].to_dict() == with_first.to_dict()
    assert "comparisons with rope" not in (tmp_path / "paper/methods.tex").read_text()


@pytest.mark.parametrize("damage", ["missing", "column"])
def test_outcomes_that_are_missing_or_of_another_kind_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    folder = written(tmp_path / "study", solvable=False)
    if damage == "missing":
        (folder / "outcomes.csv").unlink()
    else:
        pd.read_csv(folder / "outcomes.csv").drop(columns="edge").to_csv(folder / "outcomes.csv", index=False)
    assert report(monkeypatch, str(folder)) == 1
    assert "outcomes.csv" in capsys.readouterr().err


def test_runs_are_drawn_best_first_in_the_order_of_settings() -> None:
    rows = [("b", 4, 0, 1.0), ("a", 4, 0, 2.0), ("b", 1, 0, 3.0), ("a", 1, 0, 9.0)]
    drawn = plots.runs(pd.DataFrame(rows, columns=["pe", "depth", "seed", "y"]).assign(solved=None), "loss")
    assert [axes.get_title() for axes in drawn.figure.axes] == ["depth 1", "depth 4"]
    assert [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()] == ["b", "a"]


@pytest.mark.parametrize("octaves", [0.2, 5.0])
def test_steps_have_ticks_over_any_range(octaves: float) -> None:
    rows = [("a", 1, 0, 5.1), ("a", 1, 1, 5.1 + octaves)]
    drawn = plots.runs(pd.DataFrame(rows, columns=["pe", "depth", "seed", "y"]).assign(solved=True), "steps")
    (axes,) = drawn.figure.axes
    low, high = axes.get_xlim()
    assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2


def test_settings_without_a_learned_encoding_are_told_apart(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", solvable=False)
    rows = pd.read_csv(folder / "rows.csv")
    best = rows.groupby(["depth", "steps"])["test_loss"].transform("mean")
    level = best.where(rows["steps"] == 400, -1.0)
    rows.assign(floor_bayes_loss=-2.0, floor_position_blind_loss=level).to_csv(folder / "rows.csv", index=False)
    first, how = sentences(TunedSubject.of(frame.load(folder)))
    assert first.startswith("Of 8 comparisons with `rope`: 2 better, ")
    assert "after 400 steps, " in title(TunedSubject.of(frame.load(folder)))
    assert "8 comparisons with `rope`" in how
    rows.assign(floor_bayes_loss=-3.0, floor_position_blind_loss=-2.0).to_csv(folder / "rows.csv", index=False)
    assert "16 comparisons with `rope`" in sentences(TunedSubject.of(frame.load(folder)))[1]


def test_the_edge_is_that_of_the_rates_that_an_encoding_was_tried_at() -> None:
    """With a starting scale 0.003 is the highest rate, and without one it is in the middle."""
    chosen = {"pe": ["rope", "learnable"], "seed": 0, "y": 1.0, "solved": None, "optimizer.lr": [0.01, 0.003]}
    found = pd.DataFrame(chosen | {"start_scale": [np.nan, 1.0], "edge": True})
    rates, scaled = (0.001, 0.003, 0.01), (0.001, 0.003)
    assert tried_rates(found, rates, scaled) == {"rope": rates, "learnable": scaled}
    note = edge_note(found, rates, scaled)
    assert note == edge_note(found.assign(**{"optimizer.lr": [0.01, 0.01]}), rates)  # both at the highest
    lower = found.assign(**{"optimizer.lr": [0.01, 0.001]})
    assert len({note, edge_note(lower, rates, scaled), edge_note(lower[1:], rates, scaled)}) == 3


def test_of_rates_at_the_edge_unsolved_seeds_are_said_to_be_left_out() -> None:
    """They chose the highest rate; those that solved the task, of one encoding, the lowest."""
    chosen = {"pe": ["rope", "alibi"], "seed": 0, "y": [8.0, 10.0], "solved": [True, False], "edge": True}
    found = pd.DataFrame(chosen | {"optimizer.lr": [0.003, 0.01]})
    note = edge_note(found, (0.003, 0.01))
    assert "solved" in note
    assert "rope" in note
    assert "lowest" in note
    assert unsolved_note(found)
    everywhere = found.assign(solved=True, **{"optimizer.lr": 0.003})
    assert "solved" not in edge_note(everywhere, (0.003, 0.01))
    assert not unsolved_note(everywhere)


def test_a_folder_without_cells_is_described(tmp_path: Path, monkeypatch, capsys) -> None:
    folder = written(tmp_path / "study", solvable=False)
    (folder / "rows.csv").unlink()
    assert report(monkeypatch, str(folder)) == 1
    alone = capsys.readouterr().err
    assert "outcomes.csv" in alone
    assert alone.count("\n") == 1
    for text, told in (("of another study", False), ("of results/study", True)):
        (tmp_path / "LOG.md").write_text(text.replace("another study", "another"))
        assert report(monkeypatch, str(folder)) == 1
        assert (str(tmp_path / "LOG.md") in capsys.readouterr().err) == told
