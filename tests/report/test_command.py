"""The command `python -m pe_lab.report`: what it writes, and what it says of bad input."""

import shlex
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from helpers.frames import results_of
from helpers.paged import text_of
from helpers.reports import learned, made_cells, made_curves, made_records, run, store
from pe_lab import config
from pe_lab.report.__main__ import command_of, locate, main
from pe_lab.results import frame


def test_the_command_writes_one_page_without_a_twin(study, monkeypatch, capsys):
    run(monkeypatch, study, "--baseline", "none")
    assert (study / "report.html").stat().st_size > 10_000
    assert list(study.glob("*.md")) == []
    text = text_of((study / "report.html").read_text())
    assert "## Which encoding for which need" in text
    assert "comparisons with none (each setting: " in text
    assert "80 cells" in capsys.readouterr().out


def test_a_study_is_preferred_to_a_folder_of_its_name_that_holds_no_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("ledger/studies/mytext", "mytext"):
        Path(folder).mkdir(parents=True)
    assert locate("mytext", "ledger", None) == (Path("ledger"), "mytext")
    Path("mytext", "rows.csv").touch()
    assert locate("mytext", "ledger", None) == (Path("mytext"), None)


def test_an_unknown_metric_is_refused_before_anything_is_drawn(study, program):
    status, lines, errors = program(main, study, "--metric", "acc")
    assert (status, lines) == (1, [])
    assert "accuracy" in errors


@pytest.mark.long
@pytest.mark.usefixtures("without_figures")
def test_margin_and_pair_can_be_chosen_on_the_command_line(study, cells, monkeypatch):
    learned(cells).to_csv(study / "rows.csv", index=False)
    (study / "declared.json").write_text('{"margin": {"loss": "0.05 gap"}, "baseline": "none"}')
    run(monkeypatch, study)
    text = text_of((study / "report.html").read_text())
    assert "comparisons with none" in text  # the declared baseline
    gap = "5 % of the gap between the best loss without position and the best possible one"
    assert f"The declared margin is 0.02 nats ({gap})." in text
    assert "`alibi` (the best of the others by mean" in text
    run(monkeypatch, study, "--margin", "0.5 nats", "--against", "learnable", "--baseline", "rope")
    text = text_of((study / "report.html").read_text())
    assert "The margin, chosen for this report, is 0.5 nats." in text
    assert "The margin of 0.5 nats was given for this report; the study declared 5 % of the gap." in text
    assert "`learnable` (as asked) against `rope`." in text
    assert "statistics.Margin.parse('0.5 nats')" in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "source must be a study's name, a ledger, a study's folder, or wandb:ENTITY/PROJECT, got nothing"),
        (["{study}", "--colour", "x"], "unrecognized arguments: --colour x"),
        (["nowhere"], "source must be a folder, or a study in ledger, got 'nowhere': no study is there; pe-lab run"),
        (["tune_lr"], "tune_lr must be trained before its report, got no such study in ledger: pe-lab run -m +study="),
        (
            ["{study}", "--baseline", "ropes"],
            "baseline='ropes': did you mean rope? baseline must be one of rope, alibi, none, learnable",
        ),
        (["{study}", "--against", "rope"], "against must be one of alibi, none, learnable, got 'rope'"),
        (["{study}", "--margin", "little"], "margin must be a number and one of gap, nats, share"),
        (["{study}", "--margin", "0.1 share"], "the margin of loss must be in gap or nats, got '0.1 share'"),
        (["{study}", "--metric", "f1"], "metric must be one of loss, accuracy, got 'f1'"),
        (["{study}", "--audit", "{study}"], "--audit must be a folder with the table.csv of an audit"),
        (["{empty}"], "the ledger must have a finished cell, got none"),
        (["{empty}", "--study", "x"], "study must exist, got 'x': there is none in"),
        (["{broken}"], "rows.csv must have the cells of a study"),
        (["{words}"], "rows.csv must have a number or nothing in the column test_loss, got 'low' in line 4"),
        (["{costs}"], "rows.csv must have the columns attention, seconds, got none of that name"),
        (["{curves}"], "curves.csv must have the columns epoch, got none of that name"),
        (["{records}"], "records.csv must have a number or nothing in the column value, got 'low' in line 2"),
    ],
)
def test_bad_input_is_one_line(words, line, study, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    store(tmp_path / "broken", pd.DataFrame({"a": [1]}))
    places = {name: tmp_path / name for name in ("empty", "broken", "words", "costs", "curves", "records")}
    places["study"] = study
    cells = made_cells()
    low = cells.astype({"test_loss": object})
    low.loc[2, "test_loss"] = "low"
    store(tmp_path / "words", low)
    store(tmp_path / "costs", cells.drop(columns=["seconds", "attention"]))
    store(tmp_path / "curves", cells, curves=made_curves(cells).drop(columns="epoch"))
    records = made_records(cells).astype({"value": object})
    records.loc[0, "value"] = "low"
    store(tmp_path / "records", cells, records=records)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *(word.format(**places) for word in words))
    assert ended.value.code == 1
    out, error = capsys.readouterr()
    error = error.strip()
    assert not out or not {"--baseline", "--against"} & set(words)  # before anything is drawn
    assert error.startswith("error: ")
    assert line in error
    assert "\n" not in error


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("maximum recursion depth exceeded")])
def test_exhausted_memory_or_recursion_is_one_line(error, study, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pe_lab.report.sections.sections", fail)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, study)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {str(error) or 'MemoryError'}\n"


def test_one_encoding_and_one_cell_have_a_report_too(tmp_path, cells, monkeypatch):
    for name, few in (("one_pe", cells[cells["pe"] == "rope"]), ("one_cell", cells.head(1))):
        folder = store(tmp_path / name, few, curves=made_curves(cells))
        run(monkeypatch, folder)
        assert (folder / "report.html").is_file()


@pytest.mark.usefixtures("without_figures")
def test_failed_cells_are_listed_and_in_no_mean(tmp_path, cells, monkeypatch):
    failed = pd.DataFrame(
        {"pe": ["rope"], "depth": [16], "epochs": [1], "seed": [0], "reason": ["loss must be finite"]}
    )
    folder = store(tmp_path / "study", cells, failed=failed)
    run(monkeypatch, folder)
    text = text_of((folder / "report.html").read_text())
    assert "## Failed and omitted cells" in text
    assert "loss must be finite" in text


@pytest.mark.usefixtures("without_figures")
def test_pairs_that_a_study_left_out_are_listed(tmp_path, cells, monkeypatch):
    folder = store(tmp_path / "study", cells)
    (folder / "skipped.csv").write_text("pe,data,reason\ncope,pattern,pe=cope is causal\n")
    run(monkeypatch, folder)
    text = text_of((folder / "report.html").read_text())
    assert "| cope | pattern | pe=cope is causal |" in text
    assert "Left out of the study" in text


def test_a_command_is_told_only_where_its_file_gives_the_settings_of_the_cells() -> None:
    """The study `text` states its epochs, and no depth."""
    told = {}
    for epochs in (1, 8):
        rows = made_cells().query("epochs == 1").assign(epochs=epochs, data="clm")
        told[epochs] = command_of(results_of(rows, study="text"))
    assert "+study=text" in told[1]
    assert told[8] == ""


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.parent for path in ROOT.glob("sweeps/results/*/rows.csv"))
NAMED_AS_STUDIES = [folder for folder in SHIPPED if (ROOT / f"conf/study/{folder.name}.yaml").is_file()]


@pytest.mark.parametrize("folder", NAMED_AS_STUDIES, ids=lambda folder: folder.name)
def test_the_command_of_shipped_results_trains_their_tasks(folder) -> None:
    results = frame.load(folder)
    told = command_of(results)
    if not told:  # `text`, which was trained for more epochs
        return
    _, _, _, *overrides = shlex.split(told)
    tasks = {cfg.data.name for cfg in config.expand_overrides([*overrides, "seed=0"], multirun=True)}
    assert set(results.cells["data"]) <= tasks


@pytest.mark.parametrize("folder", NAMED_AS_STUDIES, ids=lambda folder: folder.name)
def test_shipped_results_have_the_name_of_a_study_only_if_it_tunes_alike(folder) -> None:
    declared = frame.load(folder).declared
    study = OmegaConf.load(ROOT / f"conf/study/{folder.name}.yaml")
    assert (declared.tune is None) == ("tune" not in study)
    assert (declared.search is None) == ("search" not in study)


def test_a_study_that_is_not_in_the_ledger_names_its_committed_results(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"\+study=depth_epochs_pe; .*sweeps/results/depth_epochs_pe_2"):
        locate("depth_epochs_pe", str(tmp_path), None)


def test_a_command_names_the_task_where_the_study_trains_another_one_now() -> None:
    assert command_of(frame.load(ROOT / "sweeps/results/layers")).endswith("+study=layers data=structured_heldout")
    assert command_of(frame.load(ROOT / "sweeps/results/lengths")).endswith("+study=lengths")
