"""W&B runs that are rebuilt from the ledger equal those that training logged."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import wandb

from helpers.configs import TINY
from pe_lab import config
from pe_lab.experiment.job import Job
from pe_lab.ledger.ledger import Ledger
from pe_lab.results import sync
from pe_lab.tracking import wandb_run

ASKED = ["evaluate.lengths=[1,2]", "evaluate.offset=[0,8]", "probe=[attention]"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> Path:
    """A ledger with two cells of one run and their W&B runs; the longer cell is in a study."""
    ledger = tmp_path_factory.mktemp("logged")
    words = [
        *TINY,
        "logger=wandb",
        "logger.wandb.images=false",
        "epochs=1,2",
        "study_name=question",
        f"ledger={ledger}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        cells = [Job.from_config(cfg) for cfg in config.expand_overrides([*words, *ASKED], multirun=True)]
        for job in cells:
            job.request()
        for job in cells:
            job.complete(wait=True)
    study = ledger / "studies" / "other" / "rows.csv"
    study.parent.mkdir(parents=True)
    pd.DataFrame({"pe": ["rope"], "epochs": [2], "run": [cells[0].run.name]}).to_csv(study, index=False)
    return ledger


@pytest.fixture
def copy(logged, tmp_path, monkeypatch) -> Path:
    """The same ledger without its W&B runs."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    shutil.copytree(logged, tmp_path / "ledger", ignore=shutil.ignore_patterns("wandb", ".processes"))
    return tmp_path / "ledger"


def of_run(inside: dict[str, list[dict]]) -> dict:
    """Return the settings and the metrics of a W&B run."""
    ((run,), (end,)) = inside["run"], inside["exit"]
    return {
        "name": run["display_name"],
        "group": run["run_group"],
        "project": run["project"],
        "job": run["job_type"],
        "config": run["config"]["update"] | {"ledger": None},
        "tags": run["tags"],
        "metrics": sorted(map(str, inside["metric"])),  # axis and summary of each
        "exit": end["exit_code"],
    }


@pytest.mark.long
def test_rebuilt_runs_equal_the_runs_of_training(logged, copy, program, offline_runs, curves):
    status, out, _ = program(sync.main, copy)
    assert (status, out) == (0, ["2 of 2 runs are in W&B, offline, project pe_lab"])
    trained, rebuilt = offline_runs(logged), offline_runs(copy)
    assert set(rebuilt) == set(trained)
    assert len(trained) == 2
    assert {of_run(inside)["tags"][0] for inside in trained.values()} == {"question"}
    for name, inside in trained.items():
        assert of_run(rebuilt[name]) == of_run(inside)
        assert curves(rebuilt[name]) == curves(inside)
    (training_run,) = Ledger(copy).runs()
    points = curves(rebuilt[f"{training_run.name}-2"])
    assert [point[:2] for point in points["validation/loss"]] == [(9, 1), (18, 2)]
    assert [point[1] for point in points["floor/bayes/loss"]] == [0, 2]
    assert points["test/loss"][0][-1] == training_run.summary(2)["test"]["loss"]
    assert [point[-1] for point in points["lengths.nrows"]] == [4]
    assert {"length/raw/loss", "length/raw+8/loss", "probe/attention/entropy/head1", "test/way_to_bayes"} <= set(points)


def test_only_the_cells_of_a_study_are_rebuilt_in_a_group_of_its_name(copy, program, offline_runs):
    status, out, _ = program(sync.main, copy, "--study", "other", "--project", "mine")
    assert (status, out) == (0, ["1 of 1 runs are in W&B, offline, project mine"])
    ((name, inside),) = offline_runs(copy).items()
    assert name.endswith("-2")
    found = of_run(inside)
    assert (found["group"], found["project"]) == ("other", "mine")
    assert found["tags"] == ["other", "structured", "rope"]


def test_a_damaged_checkpoint_is_skipped_and_the_others_are_rebuilt(copy, program, offline_runs):
    (training_run,) = Ledger(copy).runs()
    summary = training_run.checkpoint(1) / "summary.json"
    summary.write_text(summary.read_text().replace("sdpa", "magic"))
    status, out, err = program(sync.main, copy)
    assert (status, out) == (1, ["1 of 2 runs are in W&B, offline, project pe_lab"])
    (line,) = err.splitlines()
    assert line.startswith(f"skipped: {training_run.name}, 1 epochs: ledger entry {summary} must have the digest")
    assert set(offline_runs(copy)) == {f"{training_run.name}-2"}


def test_a_class_of_the_users_own_is_not_imported(copy, monkeypatch, program, offline_runs, sign, tmp_path):
    """Its module may be missing; the W&B run is complete, other lengths included."""
    (training_run,) = Ledger(copy).runs()
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for epochs in (1, 2):
        file = training_run.checkpoint(epochs) / "config.yaml"
        file.write_text(file.read_text().replace("pe_lab.data.structured.Structured", "mine.Data"))
        file.write_text(file.read_text().replace("name: structured", "name: mine"))
        sign(training_run.checkpoint(epochs))
    status, out, err = program(sync.main, copy)
    assert (status, out, err) == (0, ["2 of 2 runs are in W&B, offline, project pe_lab"], "")
    for inside in offline_runs(copy).values():
        data = of_run(inside)["config"]["data"]
        assert (data["name"], data["_target_"], data["length"]) == ("mine", "mine.Data", 16)


def test_a_missing_cell_of_a_study_is_skipped_in_one_line(copy, program):
    rows = copy / "studies" / "other" / "rows.csv"
    rows.write_text(rows.read_text().replace(",2,", ",3,"))
    status, out, err = program(sync.main, copy, "--study", "other")
    assert (status, out[0].split(",")[0]) == (1, "0 of 1 runs are in W&B")
    assert "3 epochs: the ledger must have the cell, got none in " in err


def test_a_run_that_cannot_be_opened_is_counted(copy, monkeypatch, program):
    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(wandb.errors.CommError("deleted")))
    status, out, err = program(sync.main, copy)
    assert (status, out[0].split(",")[0]) == (1, "0 of 2 runs are in W&B")
    assert err.count("W&B did not start, the ledger has the run: deleted") == 2


def test_a_run_that_was_logged_in_part_is_closed_as_failed(copy, monkeypatch, program, offline_runs):
    monkeypatch.setattr(wandb_run.WandbRun, "log_rows", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    status, _, err = program(sync.main, copy)
    assert status == 1
    assert err.count("no space") == 2
    assert {end["exit_code"] for inside in offline_runs(copy).values() for end in inside["exit"]} == {1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "LEDGER must be the folder of the ledger, got nothing"),
        (["nowhere"], "LEDGER must be a folder with trained cells, got 'nowhere'"),
        (["{copy}", "--study", "x"], "--study must be one of other in {copy}, got 'x'"),
        (["{copy}", "--project", "a/b"], "logger.wandb.project must be a name of letters"),
        (["{copy}", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input_gets_one_line(words, expected, copy, program):
    status, out, err = program(sync.main, *(word.format(copy=copy) for word in words))
    assert (status, out) == (1, [])
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error: {expected.format(copy=copy)}")


def test_rebuilding_with_wandb_off_is_refused(copy, monkeypatch, program):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    status, _, err = program(sync.main, copy)
    assert (status, err) == (1, "error: WANDB_MODE must be online or offline to rebuild W&B runs, got 'disabled'\n")
