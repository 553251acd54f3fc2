"""Frames hold the values of the ledger's files: nothing is averaged, and nothing is dropped without a message."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.ledger import COLUMNS, identity, make, record_checkpoint
from helpers.configs import TINY_MODEL, in_ledger
from pe_lab import config
from pe_lab.experiment import sweep
from pe_lab.experiment.job import Job
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import DIVERGED, ERROR, Run
from pe_lab.results import measurement_tables
from pe_lab.results.cell_rows import rows_of, settings_of
from pe_lab.results.columns import ENVIRONMENT, LEADING_COLUMNS, setting_columns
from pe_lab.results.frame import UNKNOWN_TASK, load
from pe_lab.results.from_ledger import FAILURE_COLUMNS, _checkpoint_length, summary_and_environment
from pe_lab.statistics import compare_cells
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.files import CHECKSUMS_FILE, canonical_form, digest, file_digest, write_json

TINY = [*TINY_MODEL, "trainer.batch_size=4522", "trainer.device=cpu"]

PAID = {"parameters": 1, "positional_parameters": 0, "flops_per_token": 1.0, "seconds": 1.0, "attention": "sdpa"}


def composed(ledger: Path, *overrides: str) -> list[Job]:
    return [Job.from_config(cfg) for cfg in in_ledger(ledger, *TINY, "logger=none", *overrides)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a ledger of 8 cells with a study of 4 of them and later measurements on one."""
    folder = tmp_path_factory.mktemp("ledger")
    asked = ["pe=rope,none", "seed=0,1"]
    sweep.run_cells([job.cell.cfg for job in composed(folder, *asked, "epochs=1,2")])
    sweep.run_cells([job.cell.cfg for job in composed(folder, *asked, "epochs=2", "study_name=two")])
    (job,) = composed(folder, "pe=rope", "epochs=2", "evaluate.lengths=[1,2]", "probe=[rank]")
    job.request()
    job.complete(wait=True)
    job.withdraw()
    return folder


@pytest.fixture
def real(trained, tmp_path) -> Path:
    """Return a copy of the ledger that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "ledger"))


def add(folder: Path, pe: str = "rope", epochs: tuple[int, ...] = (1,), **others: Any) -> Run:
    """Make a run with checkpoints; the arguments replace parts of its identity or of its summaries."""
    options = {name: others.pop(name) for name in ("theta", "half", "revision") if name in others}
    parts = {name: others.pop(name) for name in list(others) if name in identity({}) or name == "attention_revision"}
    loss = others.pop("loss", 1.0)
    settings = identity({"name": pe} | options, others.pop("depth", 1))
    training_run = Ledger(folder).run(
        settings | {name: _merged(settings.get(name), part) for name, part in parts.items()}
    )
    for at in epochs:
        record_checkpoint(training_run, at, loss / at, **others)
    return training_run


def _merged(before: Any, part: Any) -> Any:
    return before | part if isinstance(before, dict) else part


def sign(folder: Path) -> None:
    """Write the checksums of a folder's files."""
    (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
    write_json(folder / CHECKSUMS_FILE, {path.name: file_digest(path) for path in folder.iterdir()})


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def only(lines: list[str], *words: str) -> None:
    """Assert that there is one line and that it has these words."""
    assert len(lines) == 1, lines
    assert "\n" not in lines[0]
    assert "/" in lines[0].split(" ")[0] or lines[0].startswith("ledger entry /")
    for word in words:
        assert str(word) in lines[0]


def test_a_loaded_study_says_what_it_holds(trained):
    lines = repr(load(trained, "two")).splitlines()
    assert lines[0] == f"Results two in {trained}"
    assert lines[1].split() == [".cells", "4", "cells:", "rope,", "none"]
    assert {line.split()[0].removeprefix(".") for line in lines[1:]} <= set(dir(load(trained, "two")))


def test_a_cell_is_what_its_checkpoint_says(trained):
    results = load(trained)
    assert results.refused == []
    assert len(results.failed) == 0
    assert results.name == trained.name
    cells = results.cells
    assert len(cells) == 8
    assert cells[["pe", "seed", "epochs"]].to_numpy().tolist() == [
        [pe, seed, epochs] for pe in ("none", "rope") for seed in (0, 1) for epochs in (1, 2)
    ]
    for job in cells.to_dict("records"):
        checkpoint = trained / job["run"] / "checkpoints" / str(job["epochs"])
        summary, environment = (
            json.loads((checkpoint / f"{name}.json").read_text()) for name in ("summary", "environment")
        )
        settings = json.loads((trained / job["run"] / "run.json").read_text())
        assert (job["pe"], job["seed"], job["depth"]) == (
            settings["pe"]["name"],
            settings["seed"],
            settings["model"]["depth"],
        )
        expected = {f"test_{name}": value for name, value in summary["test"].items()}
        for floor, values in summary["floors"].items():
            expected |= {f"floor_{floor}_{name}": value for name, value in values.items()}
        expected |= {name: environment[called] for name, called in ENVIRONMENT.items()}
        names = ("run", "epochs", "parameters", "positional_parameters", "flops_per_token", "seconds")
        expected |= {name: summary[name] for name in (*names, "attention", "device")}
        assert {name: job[name] for name in expected} == expected
        assert job["data"] == settings["data"]["name"] == "structured"
        assert set(job) == {*expected, "pe", "data", "seed", "depth"}


def test_the_rows_are_those_that_the_sweep_makes_of_configs(trained):
    made = composed(trained, "pe=rope,none", "seed=0,1", "epochs=1,2")
    rows = rows_of(
        [settings_of(job.cell.cfg) for job in made], [summary_and_environment(job.run, job.cell.target) for job in made]
    )
    found = load(trained).cells
    order = ["pe", "seed", "epochs"]
    assert setting_columns(found) == setting_columns(rows) == ["data", "depth", "epochs"]
    rows, found = (table.sort_values(order, ignore_index=True) for table in (rows, found))
    pd.testing.assert_frame_equal(found, rows)


@pytest.mark.parametrize(
    "overrides",
    [
        ["pe=rope", "pe.theta=100,10000.0"],
        ["pe=rope", "pe.theta=100,1e4", "pe.pairing=half,interleaved"],
        ["pe=rope,none", "optimizer.lr=0.001,0.003"],
        ["pe=rope,none", "trainer.clip=null,1.0", "model.dropout=0.0,0.1"],
        ["pe=rope", "data.length=16,20", "optimizer.betas=[0.9,0.999],[0.9,0.95]"],
        ["pe=rope", "data=structured,parity"],
    ],
)
def test_settings_and_labels_are_those_of_the_configs(tmp_path, overrides):
    made = composed(tmp_path, *overrides, "epochs=1", "seed=0,1")
    for number, job in enumerate(made):
        record_checkpoint(Ledger(tmp_path).run(job.cell.identity), 1, 0.5 + number)
    rows = rows_of([settings_of(job.cell.cfg) for job in made], [summary_and_environment(job.run, 1) for job in made])
    found = load(tmp_path).cells
    assert len(found) == len(made)
    pd.testing.assert_frame_equal(
        found.sort_values("run", ignore_index=True), rows.sort_values("run", ignore_index=True)
    )


def test_an_option_that_varies_is_part_of_the_label(tmp_path):
    for theta in (100, 10000):
        add(tmp_path, theta=theta)
    add(tmp_path, "none")
    assert list(load(tmp_path).cells["pe"]) == ["none", "rope theta=100", "rope theta=10000"]


def test_an_option_that_older_cells_lack_distinguishes_them(tmp_path):
    add(tmp_path)
    add(tmp_path, half=True)
    add(tmp_path, "none", seed=1, model={"new": 3})
    cells = load(tmp_path).cells
    assert cells["pe"].iloc[0] == "none"
    assert set(cells["pe"].iloc[1:]) == {"rope", "rope half=True"}
    assert cells["model.new"].tolist() == pytest.approx([3, np.nan, np.nan], nan_ok=True)
    assert set(compare_cells(cells)["verdict"]) == {"no shared seed"}


@pytest.mark.parametrize(("part", "column"), [({"revision": 2}, "pe"), ({"model": {"revision": 2}}, "model.revision")])
def test_mixed_revisions_are_distinguished(tmp_path, part, column):
    add(tmp_path)
    add(tmp_path, **part)
    cells = load(tmp_path).cells
    assert sorted(map(str, cells[column])) == (["rope revision=1", "rope revision=2"] if column == "pe" else ["1", "2"])


def test_mixed_versions_stand_in_their_columns(tmp_path):
    for number in (8, 9):
        add(tmp_path, seed=number, torch=f"2.{number}.0", commit=str(number) * 40)
    cells = load(tmp_path).cells
    assert list(cells["torch"]) == ["2.8.0", "2.9.0"]
    assert list(cells["commit"]) == ["8" * 40, "9" * 40]
    assert setting_columns(cells) == ["data", "depth", "epochs"]


def test_a_learning_rate_that_goes_with_the_encoding_is_shown_and_makes_no_new_setting(tmp_path):
    for pe, lr in (("rope", 0.001), ("none", 0.003)):
        for seed in (0, 1):
            add(tmp_path, pe, seed=seed, optimizer={"lr": lr}, loss=lr * (1 + seed))
    cells = load(tmp_path).cells
    assert setting_columns(cells) == ["data", "depth", "epochs"]
    assert list(cells["optimizer.lr"]) == [0.003, 0.003, 0.001, 0.001]
    assert list(compare_cells(cells)["seeds"]) == [2]


def test_a_learning_rate_that_is_swept_is_a_setting(tmp_path):
    for lr in (0.001, 0.003):
        for pe in ("rope", "none"):
            add(tmp_path, pe, optimizer={"lr": lr})
    cells = load(tmp_path).cells
    assert setting_columns(cells) == ["data", "depth", "epochs", "optimizer.lr"]
    assert len(compare_cells(cells)) == 2


def test_a_learning_rate_that_differs_between_seeds_is_a_setting(tmp_path):
    """Otherwise a mean over seeds would be a mean over rates."""
    for seed, lr in enumerate((0.001, 0.003)):
        add(tmp_path, seed=seed, optimizer={"lr": lr})
    assert "optimizer.lr" in setting_columns(load(tmp_path).cells)


def test_an_attention_and_its_revision_that_go_with_the_encoding_tell_nothing_apart(tmp_path):
    for seed in (0, 1):
        add(tmp_path, "rope", seed=seed)
        add(tmp_path, "none", seed=seed, attention="reference", attention_revision=2)
    cells = load(tmp_path).cells
    assert setting_columns(cells) == ["data", "depth", "epochs"]
    assert list(compare_cells(cells)["seeds"]) == [2]


def test_a_study_is_its_own_cells_in_its_own_order(real):
    results = load(real, "two")
    rows = pd.read_csv(real / "studies" / "two" / "rows.csv", dtype={"run": str})
    assert (results.name, results.study, results.refused) == ("two", "two", [])
    assert list(results.cells["pe"]) == ["rope", "rope", "none", "none"]
    assert set(results.cells["epochs"]) == {2}
    columns = ["run", "epochs", "seed", "test_loss"]
    pd.testing.assert_frame_equal(results.cells[columns], rows[columns])
    flip(real / results.cells["run"].iloc[0] / "checkpoints" / "1" / "summary.json")
    assert load(real, "two").refused == []  # that is none of its cells


def test_a_study_keeps_its_order_where_checkpoints_of_runs_alternate(tmp_path):
    training_runs = [add(tmp_path, pe, (1, 2)) for pe in ("rope", "none")]
    cells = [(epochs, training_run.name) for epochs in (2, 1) for training_run in training_runs]
    rows = pd.DataFrame(cells, columns=["epochs", "run"]).assign(pe=["rope", "none"] * 2, depth=1, seed=0)
    (tmp_path / "studies" / "turns").mkdir(parents=True)
    rows.assign(test_loss=0.5, **PAID).to_csv(tmp_path / "studies" / "turns" / "rows.csv", index=False)
    results = load(tmp_path, "turns")
    assert list(zip(results.cells["epochs"], results.cells["run"], strict=True)) == cells
    assert set(results.curves["epochs"]) == {2}


def test_a_cell_of_a_study_that_is_gone_is_reported(real):
    first, second = load(real, "two").cells["run"].iloc[:2]
    shutil.rmtree(real / first)
    shutil.rmtree(real / second / "checkpoints" / "2")
    results = load(real, "two")
    assert len(results.cells) == 2
    assert len(results.refused) == 2
    assert first in results.refused[0]
    assert second in results.refused[1]


def test_the_folder_of_a_study_has_all_of_it(real):
    folder = real / "studies" / "two"
    stored, loaded = load(folder), load(real, "two")
    assert stored.name == "two"
    pd.testing.assert_frame_equal(stored.cells, loaded.cells)
    pd.testing.assert_frame_equal(stored.curves, loaded.curves)
    assert stored.records.empty
    assert list(stored.failed) == list(loaded.failed) == [*LEADING_COLUMNS, *FAILURE_COLUMNS]
    assert stored.failed.empty
    pd.DataFrame({"pe": ["rope"], "data": ["copy"], "reason": ["so"]}).to_csv(folder / "failed.csv", index=False)
    for results in (load(folder), load(real, "two")):
        assert results.failed[["data", "reason"]].to_numpy().tolist() == [["copy", "so"]]
    for content in ("\n", ""):
        (folder / "failed.csv").write_text(content)
        assert load(folder).failed.empty


def test_pairs_that_a_study_left_out_are_read_from_its_folder(real):
    folder = real / "studies" / "two"
    for results in (load(folder), load(real, "two"), load(real)):
        assert results.skipped.empty
        assert list(results.skipped) == ["pe", "data", "reason"]
    left = pd.DataFrame({"pe": ["cope"], "data": ["pattern"], "depth": [4], "reason": ["cope is for causal tasks"]})
    left.to_csv(folder / "skipped.csv", index=False)
    for results in (load(folder), load(real, "two")):
        pd.testing.assert_frame_equal(results.skipped, left)
    (folder / "skipped.csv").write_text("")
    assert list(load(folder).skipped) == ["pe", "data", "reason"]
    (folder / "skipped.csv").write_text("pe,data\ncope,pattern\n")
    with pytest.raises(ValueError, match=r"skipped.csv must have the columns pe, data, reason, got pe, data$"):
        load(real, "two")


def test_the_task_of_an_old_folder_is_unknown_and_nothing_else_is_lost(real):
    folder = real / "studies" / "two"
    records = pd.DataFrame(
        {name: [1] for name in (*LEADING_COLUMNS, *measurement_tables.RECORD_COLUMNS)}
        | {"kind": ["length"], "metric": ["loss"]}
    )
    failed = pd.DataFrame({name: [1] for name in LEADING_COLUMNS} | {"reason": ["so"]})
    for name, table in (("records", records), ("failed", failed)):
        table.assign(pe="rope", data="structured").to_csv(folder / f"{name}.csv", index=False)
    new = load(folder)
    for name in ("rows", "curves", "records", "failed"):
        table = pd.read_csv(folder / f"{name}.csv", dtype=str)
        missing = ["data", *(name for name in ENVIRONMENT if name in table)]
        table.drop(columns=missing).to_csv(folder / f"{name}.csv", index=False)
    old = load(folder)
    for name in ("cells", "curves", "records", "failed"):
        now, before = getattr(old, name), getattr(new, name)
        assert list(now) == list(before)
        assert set(now["data"]) == {UNKNOWN_TASK}
        known = [column for column in now if column not in ("data", *ENVIRONMENT)]
        pd.testing.assert_frame_equal(now[known], before[known])
    assert old.cells[list(ENVIRONMENT)].isna().all(axis=None)
    assert setting_columns(old.cells) == ["data", "depth", "epochs"]
    assert set(load(real, "two").cells["data"]) == {"structured"}  # the ledger knows


COMMITTED = sorted(path.parent for path in Path(config.__file__).parents[2].glob("sweeps/results/*/rows.csv"))


@pytest.mark.skipif(not COMMITTED, reason="not a checkout")
def test_the_committed_studies_say_their_tasks_and_versions():
    assert len(COMMITTED) >= 10
    for folder in COMMITTED:
        results = load(folder)
        assert UNKNOWN_TASK not in set(results.cells["data"])
        assert results.cells[list(LEADING_COLUMNS)].notna().all(axis=None)
        for path in folder.glob("*.csv"):
            header = path.read_text().partition("\n")[0].split(",")
            settings = [name for name in header if name in LEADING_COLUMNS and name != "seed"]
            if path.stem == "decisions":  # of two encodings, so that these follow the setting
                assert settings == ["data", "depth", "epochs", "pe"]
                continue
            if path.stem == "verdicts":  # likewise, with epochs stated as steps
                assert settings == ["data", "depth", "pe"]
                continue
            if path.stem in ("outcomes", "tries"):  # epochs are stated as steps
                assert settings == ["pe", "data", "depth"]
                assert "seed" in header
                continue
            assert settings == ["pe", "data", "depth", "epochs"]
            if path.stem not in ("table", "rates"):
                assert "seed" in header
        assert list(ENVIRONMENT) == [
            name for name in (folder / "rows.csv").read_text().partition("\n")[0].split(",") if name in ENVIRONMENT
        ]


def test_a_table_in_csv_keeps_runs_named_by_digits_and_settings_that_are_null(tmp_path):
    job = {"pe": "1e5", "data": "none", "depth": 1, "epochs": 1, "seed": 0, "trainer.clip": "null", "test_loss": 0.5}
    job |= {"run": "0000000000000012", "python": "3.12", "torch": "2.10", "pe_lab": "0.10", "commit": "1" * 40}
    job |= PAID
    (tmp_path / "rows.csv").write_text("\n".join([",".join(job), ",".join(map(str, job.values())), ""]))
    assert load(tmp_path).cells.iloc[0].dropna().to_dict() == job


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "a,b\n1,2\n",
        'pe,"depth\n',
        "a\n1,2\n3,4,5\n",
        "pe,depth,epochs,seed,training_run,test_loss\n",
        b"\xff",
    ],
)
def test_rows_of_another_kind_are_an_error_in_one_line(tmp_path, content):
    for folder in (tmp_path, tmp_path / "studies" / "name"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    for study in (None, "name"):
        with pytest.raises(ValueError, match="rows.csv must") as error:
            load(tmp_path, study)
        assert "\n" not in str(error.value)


def test_what_is_no_ledger_is_an_error_in_one_line(real, tmp_path):
    with pytest.raises(ValueError, match=r"^study must be one of two in .*, got 'three'$"):
        load(real, "three")
    with pytest.raises(ValueError, match="^the ledger must be an existing folder, got '.*nowhere'$"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="^the ledger must have a finished cell, got none in .*empty"):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match="^study must exist, got .*: there is none in"):
        load(tmp_path / "empty", "one")


def test_the_name_of_a_ledger_is_that_of_its_folder(tmp_path, monkeypatch):
    add(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load(".").name == tmp_path.name


def test_a_failed_cell_has_its_settings_and_its_reason(tmp_path):
    training_run = add(tmp_path, "rope", (1, 2), theta=100)
    add(tmp_path, "none")
    training_run.fail(2, "it was reached after all", 3)
    training_run.fail(4, "the loss must be finite", 7, kind=DIVERGED)
    other = Ledger(tmp_path).run(identity({"name": "rope", "theta": 500}))
    other.fail(16, "no memory", None)
    results = load(tmp_path)
    assert results.refused == []
    assert len(results.cells) == 3
    failed = results.failed.sort_values("epochs").to_dict("records")
    assert [(cell["pe"], cell["epochs"], cell["reason"], cell["run"]) for cell in failed] == [
        ("rope theta=100", 4, "the loss must be finite", training_run.name),
        ("rope theta=500", 16, "no memory", other.name),
    ]
    assert [cell["kind"] for cell in failed] == [DIVERGED, ERROR]
    assert failed[0]["step"] == 7
    assert pd.isna(failed[1]["step"])


def test_a_failed_cell_is_distinguished_from_those_that_are_there(tmp_path):
    add(tmp_path, "rope", theta=100)
    Ledger(tmp_path).run(identity({"name": "rope", "theta": 500}, depth=2)).fail(1, "no memory", None)
    failed = load(tmp_path).failed
    assert failed[["pe", "depth"]].to_numpy().tolist() == [["rope theta=500", 2]]


def test_a_ledger_of_failures_alone_has_no_cells(tmp_path):
    Ledger(tmp_path).run(identity({"name": "rope"})).fail(4, "no memory", None)
    results = load(tmp_path)
    assert results.cells.empty
    assert list(results.failed["reason"]) == ["no memory"]
    assert results.curves.empty
    assert results.records.empty


@pytest.mark.parametrize(
    ("name", "content"), [("four.json", "{}"), ("04.json", "{}"), ("4.json", "[1]"), ("4.json", "{"), ("4.json", "3")]
)
def test_a_failure_that_cannot_be_read_is_reported(tmp_path, name, content):
    training_run = add(tmp_path)
    (training_run.folder / "failed").mkdir()
    (training_run.folder / "failed" / name).write_text(content)
    results = load(tmp_path)
    assert len(results.cells) == 1
    assert results.failed.empty
    only(results.refused, training_run.name, name)


@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_damaged_checkpoint_is_refused_and_the_others_are_there(real, name, damage):
    training_run = load(real).cells["run"].iloc[0]
    checkpoint = real / training_run / "checkpoints" / "2"
    flip(checkpoint / name) if damage == "flip" else (checkpoint / name).unlink()
    results = load(real)
    assert len(results.cells) == 7
    only(results.refused, checkpoint / name, "must have the digest")


@pytest.mark.parametrize("name", ["2", "half", "01", "²", ".hidden"])
def test_an_incomplete_checkpoint_is_refused(tmp_path, name):
    training_run = add(tmp_path)
    checkpoint = training_run.checkpoint(1).with_name(name)
    shutil.copytree(training_run.checkpoint(1), checkpoint)
    if name == "2":
        (checkpoint / CHECKSUMS_FILE).unlink()
    results = load(tmp_path)
    assert list(results.cells["epochs"]) == [1]
    only(results.refused, checkpoint, "checksums.json")


def test_a_checkpoint_that_was_moved_is_refused(tmp_path):
    first, second = add(tmp_path, "rope"), add(tmp_path, "none", (1, 2))
    shutil.copytree(second.checkpoint(2), first.checkpoint(2))
    shutil.move(second.checkpoint(2), second.checkpoint(4))
    results = load(tmp_path)
    assert sorted(results.cells["pe"]) == ["none", "rope"]
    assert len(results.refused) == 2
    assert {"it was moved here" in one for one in results.refused} == {True}
    assert {str(path) for path in (first.checkpoint(2), second.checkpoint(4))} == {
        one.split(" must")[0].removeprefix("ledger entry ") for one in results.refused
    }


@pytest.mark.parametrize("damage", ["flip", "{", "[]", "null", "{}", '{"pe": 1}', "NaN", '{"seed": NaN}', "gone"])
def test_a_run_whose_identity_does_not_fit_its_name_is_refused(tmp_path, damage):
    training_run = add(tmp_path)
    add(tmp_path, "none")
    path = training_run.folder / "run.json"
    if damage == "flip":
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    elif damage == "gone":
        path.unlink()
    else:
        path.write_text(damage)
    results = load(tmp_path)
    assert list(results.cells["pe"]) == ["none"]
    assert len(results.refused) == 1
    assert "\n" not in results.refused[0]
    if damage != '{"seed": NaN}':
        assert training_run.name in results.refused[0]


@pytest.mark.parametrize(
    "settings", [{"a": 1}, {"pe": "rope", "seed": 0}, identity({"name": 3}), identity({"name": "rope"}, seed="zero")]
)
def test_a_run_that_is_no_training_is_refused(tmp_path, settings):
    training_run = Ledger(tmp_path).run(settings)
    record_checkpoint(training_run, 1, 0.5)
    only(load(tmp_path).refused, training_run.name, "pe, data, depth and seed")


def _without(name: str) -> Any:
    return lambda summary: {key: value for key, value in summary.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        *(_without(name) for name in ("test", "floors", "parameters", "flops_per_token", "attention", "run", "epochs")),
        *(
            lambda summary, part=part: summary | part
            for part in ({"test": {}}, {"test": [1]}, {"test": {"loss": "low"}})
        ),
        *(
            lambda summary, part=part: summary | part
            for part in ({"floors": None}, {"floors": {"bayes": 1}}, {"test": None})
        ),
        lambda summary: summary | {"floors": {"bayes": {"loss": [1]}}},
        *(lambda summary, whole=whole: whole for whole in ([1], 3, None, "text")),
    ],
)
def test_a_summary_of_another_kind_is_refused_though_its_checksum_is_right(tmp_path, change):
    training_run = add(tmp_path)
    add(tmp_path, "none")
    path = training_run.checkpoint(1) / "summary.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    sign(training_run.checkpoint(1))
    results = load(tmp_path)
    assert list(results.cells["pe"]) == ["none"]
    only(results.refused, training_run.checkpoint(1))


@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b"[]"])
def test_what_is_no_json_is_refused_though_its_checksum_is_right(tmp_path, name, content):
    training_run = add(tmp_path)
    (training_run.checkpoint(1) / name).write_bytes(content)
    sign(training_run.checkpoint(1))
    results = load(tmp_path)
    assert results.cells.empty
    only(results.refused, training_run.checkpoint(1))


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"summary.json": 1}', "{}"])
def test_checksums_of_another_kind_are_refused(tmp_path, content):
    training_run = add(tmp_path)
    (training_run.checkpoint(1) / CHECKSUMS_FILE).write_text(content)
    only(load(tmp_path).refused, training_run.checkpoint(1))


def test_curves_are_the_validation_of_the_longest_checkpoint(trained):
    results = load(trained)
    found = results.curves
    assert list(found.columns) == ["pe", "data", "depth", "epochs", "seed", "epoch", "metric", "value"]
    assert set(found["epochs"]) == {2}
    for training_run, cells in results.cells.groupby("run"):
        rows = read_csv(trained / training_run / "checkpoints" / "2" / "metrics.csv")
        rows = rows[(rows["split"] == "validation") & rows["metric"].isin(measurement_tables.CURVE_METRICS)]
        here = found[(found["pe"] == cells["pe"].iloc[0]) & (found["seed"] == cells["seed"].iloc[0])]
        assert (
            here[["epoch", "metric", "value"]].to_numpy().tolist()
            == rows[["epoch", "metric", "value"]].to_numpy().tolist()
        )
        assert len(here) >= 4


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "a,b\n1,2\n",
        "split,step,epoch,value,metric\n",
        f"{COLUMNS}\nvalidation,1\n",
        b"\xff",
    ],
)
def test_damaged_metrics_are_reported_when_curves_are_read(tmp_path, content):
    training_run = add(tmp_path, "rope", (1, 2))
    add(tmp_path, "none", (1, 4))
    path = training_run.checkpoint(2) / "metrics.csv"
    if content is None:
        flip(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        sign(training_run.checkpoint(2))
    results = load(tmp_path)
    assert len(results.cells) == 4
    assert results.refused == []
    found = results.curves
    assert set(found["pe"]) == {"none"}
    assert found[["epoch", "metric", "value"]].to_numpy().tolist() == [
        [1, "loss", 0.25],
        [2, "loss", 0.125],
        [4, "loss", 0.0625],
    ]
    only(results.refused, training_run.checkpoint(2) / "metrics.csv")


def test_a_value_that_is_no_number_is_refused_with_its_file(tmp_path):
    training_run = add(tmp_path)
    (training_run.checkpoint(1) / "metrics.csv").write_text("split,step,epoch,metric,value\nvalidation,1,1,loss,low\n")
    sign(training_run.checkpoint(1))
    results = load(tmp_path)
    assert results.curves.empty
    only(results.refused, "metrics.csv", "low")


def test_records_are_those_that_the_sweep_gathers(trained):
    results = load(trained)
    found = results.records
    assert results.refused == []
    (job,) = composed(trained, "pe=rope", "epochs=2", "evaluate.lengths=[1,2]", "probe=[rank]")
    expected = measurement_tables.gather_records(
        [measurement_tables.CellMeasurements(settings_of(job.cell.cfg), job.run, job.cell.target, job.cell.requests)]
    )
    assert list(found.columns) == list(expected.columns)
    assert set(found["kind"]) == {"length", "probe"}
    order = ["kind", "length", "metric", "layer"]
    assert set(found["pe"]) == {"rope"}
    assert set(found["seed"]) == {0}
    found, expected = (table.sort_values(order, ignore_index=True) for table in (found, expected))
    first = (found["length"] == 1) & (found["kind"] == "length")
    assert first.sum() > 3
    assert found[first]["tokens"].isna().all()
    found.loc[first, "tokens"] = 16  # a summary does not have them
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_the_test_and_its_floors_are_length_1_by_their_names(tmp_path):
    floors = {"bayes": {"loss": 0.1, "role_loss": 0.2}, "position_blind": {"loss": 0.3}}
    training_run = add(tmp_path, test={"loss": 1.0, "role_loss": 2.0}, floors=floors)
    add(tmp_path, "none")
    rows = pd.DataFrame({"tokens": [32], "metric": ["loss"], "value": [3.0]})
    Records(training_run, 1).add({"kind": "length", "length": 2, "policy": "raw", "offset": 0}, rows, {})
    found = load(tmp_path).records
    assert set(found["pe"]) == {"rope"}
    assert found[found["length"] == 2][["metric", "value", "tokens"]].to_numpy().tolist() == [["loss", 3.0, 32]]
    first = found[found["length"] == 1].set_index("metric")["value"].to_dict()
    flat = {"bayes/loss": 0.1, "bayes/role_loss": 0.2, "position_blind/loss": 0.3}
    assert first == {"loss": 1.0, "role_loss": 2.0} | flat


def lengths_of(ledger: Path) -> Path:
    """Return the one record of a length."""
    requests = {path.parent: json.loads(path.read_text()) for path in ledger.glob("*/records/2/*/request.json")}
    (entry,) = [folder for folder, request in requests.items() if request["kind"] == "length"]
    return entry


@pytest.mark.parametrize("damage", ["flip", "unsign", "rename", "weights", "kind", "json", "rows", "csv"])
def test_a_damaged_record_is_reported_and_the_others_are_there(real, damage):
    entry = lengths_of(real)
    request = json.loads((entry / "request.json").read_text())
    moved = entry
    if damage == "flip":
        flip(entry / "rows.csv")
    elif damage == "unsign":
        (entry / CHECKSUMS_FILE).unlink()
    elif damage == "rename":
        moved = entry.rename(entry.with_name("0" * 16))
    elif damage in ("weights", "kind"):
        request[damage] = "other"
        moved = entry.rename(entry.with_name(digest(request)))
        write_json(moved / "request.json", canonical_form(request))
        sign(moved)
    else:
        name, content = {"json": ("request.json", "["), "rows": ("rows.csv", "a\n1\n"), "csv": ("rows.csv", "")}[damage]
        (entry / name).write_text(content)
        sign(entry)
    results = load(real)
    assert len(results.cells) == 8
    assert set(results.records["kind"]) == {"probe"}
    only(results.refused, moved)


def test_a_record_that_is_being_written_is_not_read(real):
    entry = lengths_of(real)
    expected = load(real).records
    shutil.copytree(entry, entry.with_name(".s-half"))
    (entry.parent / f"{'0' * 16}.failed.json").write_text("{}")
    results = load(real)
    pd.testing.assert_frame_equal(results.records, expected)
    assert results.refused == []


def test_a_checkpoint_without_the_checksum_of_its_weights_has_no_records(real):
    entry = lengths_of(real)
    checkpoint = entry.parents[2] / "checkpoints" / "2"
    (checkpoint / "weights.safetensors").unlink()
    sign(checkpoint)
    entries = [path for path in entry.parent.iterdir() if path.is_dir()]
    results = load(real)
    assert results.records.empty
    assert len(results.refused) == len(entries) >= 2


@pytest.mark.long
def test_2000_cells_are_read_in_two_seconds(tmp_path):
    make(tmp_path, 2000)
    began, cpu = time.perf_counter(), time.process_time()
    results = load(tmp_path)
    cpu = time.process_time() - cpu
    print(f"\n2000 cells: {cpu:.2f} s of CPU, {time.perf_counter() - began:.2f} s")
    assert len(results.cells) == 2000
    assert results.refused == []
    assert results.cells.groupby("pe").size().to_dict() == dict.fromkeys(
        ("rope", "alibi", "none", "learnable", "sinusoidal"), 400
    )
    assert len(compare_cells(results.cells)) == 200
    assert cpu < 4  # twice what it may take


@pytest.mark.parametrize("per_epoch", [63, 158, 1000])
def test_runs_that_stop_before_their_last_step_have_the_epochs_of_the_others(per_epoch: int) -> None:
    """Otherwise they would be another setting, compared apart."""
    summaries = [{"target": 240, "steps": steps, "epochs": steps / per_epoch} for steps in range(1, 241)]
    assert {_checkpoint_length(240, summary)["epochs"] for summary in summaries} == {240 / per_epoch}
