"""The results of the package are made from ledgers, and never overwritten by others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig

import fabricated
from faults.sweeps import TINY
from pe_lab import config
from pe_lab.benchmark import pack as packing
from pe_lab.benchmark.pack import pack
from pe_lab.benchmark.tasks import Task
from pe_lab.experiment import sweep
from pe_lab.experiment.cell import Cell
from pe_lab.ledger.ledger import Ledger
from pe_lab.results import shipped
from pe_lab.statistics import Margin
from pe_lab.system.files import CHECKSUMS, digest, file_digest, write_json

SETTINGS_TODAY = packing.settings_today
SMALL = [word for word in TINY if not word.startswith("data")]
SMALL += ["data=copy", "data.train=64", "data.validation=16", "data.test=16", "logger=none"]


@pytest.fixture(autouse=True)
def _two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(Task(name, "order", "?", Margin(0.05, "gap")) for name in ("one", "two"))
    monkeypatch.setattr(packing, "tasks", lambda: found)
    monkeypatch.setattr(packing, "settings_today", lambda study: today(study))


def cells(ledger: Path, study: str, *overrides: str) -> list[DictConfig]:
    words = [*SMALL, f"ledger={ledger}", f"study_name={study}", *overrides]
    return config.expand(config.of_jobs(words), multirun=True)


def today(study: str) -> dict[str, object]:
    """What cells of these studies share."""
    (cfg,) = cells(Path("ledger"), study, "pe=alibi", "seed=5")
    return packing.compared(Cell.from_config(cfg).identity)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    sweep.run(cells(folder, "one", "pe=none", "seed=0,1", "epochs=1"))
    sweep.run(cells(folder, "one-search", "pe=none", "seed=1000", "epochs=1"))
    sweep.run(cells(folder, "another", "pe=none", "seed=7", "epochs=1"))
    return folder


def test_cells_of_tasks_and_their_searches_are_packed_and_no_others(ledger: Path, tmp_path: Path) -> None:
    assert pack(ledger, tmp_path) == {"one": 2, "one-search": 1}
    assert sorted(cell.identity["seed"] for cell in shipped.read("one", tmp_path)) == [0, 1]
    before = (tmp_path / "one.jsonl.gz").read_bytes()
    assert pack(ledger, tmp_path) == {"one": 2, "one-search": 1}
    assert (tmp_path / "one.jsonl.gz").read_bytes() == before


def test_more_cells_and_more_measurements_are_added(ledger: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    pack(ledger, package)
    more = tmp_path / "more"
    sweep.run(cells(more, "one", "pe=none", "seed=1,2", "epochs=1", "evaluate.lengths=[1,2]", "shipped=false"))
    assert pack(more, package)["one"] == 3
    counts = {cell.identity["seed"]: len(cell.records) for cell in shipped.read("one", package)}
    assert counts == {0: 0, 1: 1, 2: 1}


def test_other_results_of_the_same_cell_are_refused(ledger: Path, tmp_path: Path) -> None:
    pack(ledger, tmp_path)
    first, second = shipped.read("one", tmp_path)
    test = first.summary["test"] | {"loss": first.summary["test"]["loss"] + 1e-12}
    shipped.write("one", [replace(first, summary=first.summary | {"test": test}), second], tmp_path)
    with pytest.raises(ValueError, match=r"must have the results that are shipped, got others: the run \w{16} is not"):
        pack(ledger, tmp_path)


def test_what_was_taken_from_the_package_is_not_packed_again(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, other = tmp_path / "package", tmp_path / "other"
    pack(ledger, package)
    monkeypatch.setattr(shipped, "FOLDER", package)
    sweep.run(cells(other, "two", "pe=none", "seed=0", "epochs=1"))
    assert json.loads(next(other.glob("*/checkpoints/1/shipped.json")).read_text())["weights"]
    assert "two" not in pack(other)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.train=80"], r"data.train of one must be 64 as in its file, got 80 in the run \w{16}: leave it out"),
        (["trainer.batch_size=2"], r"batch_size of one must be"),
        (["model.depth=2"], r"model.depth of one must be 1 as in its file, got 2"),
    ],
)
def test_cells_of_a_task_that_changed_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    sweep.run(cells(tmp_path / "ledger", "one", "pe=none", "seed=0", "epochs=1", *words))
    with pytest.raises(ValueError, match=message):
        pack(tmp_path / "ledger", tmp_path / "package")
    assert not (tmp_path / "package").exists()


def forged(ledger: Path, folder: Path, seed: object, **test: object) -> None:
    """Copy a run with another seed and other metrics, with hashes and checksums that are right."""
    run = next(run for run in Ledger(ledger).runs() if run.identity()["seed"] == 0)
    identity = run.identity() | {"seed": seed}
    copied = folder / digest(identity)
    shutil.copytree(run.folder, copied)
    write_json(copied / "run.json", identity)
    write_json(folder / "format.json", json.loads((ledger / "format.json").read_text()))
    (checkpoint,) = copied.glob("checkpoints/*")
    summary = json.loads((checkpoint / "summary.json").read_text())
    write_json(checkpoint / "summary.json", summary | {"run": copied.name, "test": summary["test"] | test})
    sums = json.loads((checkpoint / CHECKSUMS).read_text())
    write_json(checkpoint / CHECKSUMS, {name: file_digest(checkpoint / name) for name in sums})


@pytest.mark.parametrize(
    ("seed", "test", "column"), [("x", {}, "seed"), (0, {"loss": -5}, "loss"), (0, {"loss": 10**400}, "loss")]
)
def test_a_value_that_cannot_be_is_not_packed(
    seed: object, test: dict[str, object], column: str, ledger: Path, tmp_path: Path
) -> None:
    forged(ledger, tmp_path / "forged", seed, **test)
    with pytest.raises(ValueError, match=rf"{tmp_path}/forged/\w{{16}}/checkpoints/1 must have .* in {column}, got "):
        pack(tmp_path / "forged", tmp_path / "package")
    assert not (tmp_path / "package").exists()
    forged(ledger, tmp_path / "sound", 9)
    assert pack(tmp_path / "sound", tmp_path / "package") == {"one": 1}


def test_the_rate_the_seed_and_the_encoding_are_no_settings_of_a_task() -> None:
    shared = SETTINGS_TODAY("pe_bench_1_copy")
    assert shared["data.train"] == 4000
    assert shared["batch_size"] == 16
    assert shared["optimizer.name"] == "adam"
    assert not {"seed", "optimizer.lr", "pe.name"} & shared.keys()
    assert not any(name.startswith("attention") for name in shared)


def test_cells_of_a_search_have_the_settings_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    shared = today("one")

    def settings(study: str) -> dict[str, object]:
        asked.append(study)
        return shared

    monkeypatch.setattr(packing, "settings_today", settings)
    cell = fabricated.cell("copy", "rope", 0, 0.5)
    packing._require_todays("one-search", replace(cell, identity=shared | {"seed": 7, "optimizer.lr": 0.1}))
    assert asked == ["one"]
    packing._require_todays("one-search", replace(cell, identity=shared | {"epochs": 1}))  # as of `drope`
    with pytest.raises(ValueError, match="more of one-search must be None as in its file, got 1"):
        packing._require_todays("one-search", replace(cell, identity=shared | {"more": 1}))


def test_a_cell_that_is_there_keeps_its_measurements_once_and_must_have_its_weights() -> None:
    cell = fabricated.cell("copy", "rope", 0, 0.5)
    (record,) = cell.records
    other = record | {"request": record["request"] | {"length": 4.0}}
    assert packing._agreed(cell, cell).records == [record]
    assert packing._agreed(replace(cell, records=[other, record]), cell).records == [record, other]
    with pytest.raises(ValueError, match="rope-0 must have the results that are shipped, got others"):
        packing._agreed(replace(cell, weights="0" * 64), cell)


def test_a_ledger_that_is_not_there_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--pack must be an existing folder, got '.*nowhere'"):
        pack(tmp_path / "nowhere", tmp_path / "results")
    assert not list(tmp_path.iterdir())
