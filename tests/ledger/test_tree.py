"""What is changed in a ledger is changed in it, for all who may; and what only looks like a part of it is told."""

import ast
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pe_lab import config
from pe_lab.bench import ledger as made_up
from pe_lab.bench.ledger import identity, record
from pe_lab.bench.sweeps import TINY, cells
from pe_lab.cell import Cell
from pe_lab.ledger import presence
from pe_lab.ledger.files import CHECKSUMS, LedgerError, file_digest
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.road import Road, read_metadata
from pe_lab.ledger.tree import Tree
from pe_lab.ledger.upkeep import Counts, removable, remove, verify
from pe_lab.loggers import csv_logger, tensorboard_logger, wandb_logger
from pe_lab.pictures import encoding_picture
from pe_lab.progress import Asked, write_asked
from pe_lab.state import save_tensors

REQUEST = {"kind": "length", "length": 2}
GONE = "0" * 32
ONE = {"who": GONE}


@pytest.fixture
def road(tmp_path, monkeypatch) -> Road:
    """A training with two stops, a record, a state and what a dead process left; nobody has said yet that he lives."""
    monkeypatch.setattr(presence, "_ANNOUNCED", {})
    road = Ledger(tmp_path / "ledger").road(identity({"name": "rope"}))
    record(road, 4, 1.0)
    Records(road, 4).add(REQUEST, pd.DataFrame({"metric": ["loss"], "value": [1.0]}), {})
    for path in ("holder.json", "failed/8.json", f"wanted/8.{GONE}", "records/4/holder.json"):
        road.tree.write_json(road.folder / path, ONE)
    for path in (".s-half", "records/4/.s-half"):
        (road.folder / path).mkdir()
    for path in (
        f".present/{GONE}",
        "floors/x.json",
        "asked/x.json",
        "studies/question/rows.csv",
        ".aside/x/y",
        "pictures/x",
    ):
        road.tree.write_json(road.tree.root / path, ONE)
    return road


def state_of(road: Road, step: int) -> None:
    path = road.temporary_file()
    save_tensors({}, path, {"pe_lab": json.dumps({"road": road.name, "step": step})})
    road.keep_state(path, step, finished=False)


def everything(ledger: Path, of: dict) -> list[Callable[[], object]]:
    """All that changes a ledger."""
    road, tree = Ledger(ledger).find(of), Tree(ledger)
    records, rows = Records(road, 4), pd.DataFrame({"metric": ["loss"], "value": [2.0]})
    study = ledger / "studies" / "question"

    def measure() -> None:
        with records.lease():
            records.add({"kind": "probe"}, rows, {})

    def serve() -> None:
        with road.lease():
            road.beat(1.0, 16)
            record(road, 16, 1.0)

    def prune() -> None:
        for found in removable(ledger, [], forget=True):
            remove(found)

    return [
        *(
            Ledger(ledger).prepare,
            lambda: Ledger(ledger).road(of),
            lambda: Ledger(ledger).kept("floors", {"a": 1}, dict),
        ),
        *(lambda: road.mend(4), lambda: road.want(16), road.wanted, lambda: road.unwant(16), lambda: road.want(8)),
        *(lambda: road.fail(16, "reason", 1), lambda: state_of(road, 9), lambda: state_of(road, 10), road.newest_state),
        *(serve, measure, lambda: records.fail({"kind": "x"}, "reason"), lambda: records.forget({"kind": "x"})),
        *(
            lambda: records.mend(REQUEST),
            lambda: road.account({"served": 1.0, "steps": 1.0, "evaluation": 0.0, "stops": 1}),
        ),
        *(lambda: write_asked(ledger, [], None, [Asked(road.name, 4, "a", 1)]), lambda: tree.write(study / "a", "b")),
        *(
            lambda: tree.write(study / "rows.csv", "b"),
            lambda: tree.write(ledger / "x", "y"),
            lambda: tree.rename(ledger / "x", study / "y"),
        ),
        *(lambda: tree.set_aside(road.stop(4), "reason"), lambda: tree.write(ledger / "pictures" / "x", "b"), prune),
    ]


def shown(folder: Path) -> dict[str, tuple]:
    """Whatever would tell that something was changed in a folder."""
    found = {}
    for parent, *both in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for names in both for name in names)):
            told = path.lstat()
            found[str(path.relative_to(folder))] = (told.st_ino, told.st_mode, told.st_mtime_ns, told.st_size)
    return found


FOLDERS = [
    *(
        "{road}",
        "{road}/stops",
        "{road}/stops/4",
        "{road}/records",
        "{road}/records/4",
        "{road}/wanted",
        "{road}/failed",
    ),
    *(".present", ".aside", "floors", "asked", "studies", "studies/question", "pictures"),
]
WITHOUT = ["{road}/.s-half", "{road}/records/4/.s-half"]  # what a ledger is to remove: the link, not what it leads to


@pytest.mark.parametrize("folder", [*FOLDERS, *WITHOUT])
def test_nothing_is_changed_behind_a_link(folder, road, tmp_path):
    ledger, victim = road.tree.root, tmp_path / "victim"
    place = ledger / folder.format(road=road.name)
    of = road.identity()
    shutil.copytree(place, victim)
    (victim / "thesis.txt").write_text("years of work")
    shutil.rmtree(place)
    place.symlink_to(victim)
    before = shown(victim)
    for change in everything(ledger, of):
        with suppress(LedgerError):
            change()
        assert shown(victim) == before
    assert folder in FOLDERS or not place.is_symlink()


@pytest.mark.parametrize("folder", FOLDERS)
def test_in_a_folder_of_the_ledger_something_is_changed(folder, road):
    """So that the test above says something."""
    place = road.tree.root / folder.format(road=road.name)
    before = shown(place)
    for change in everything(road.tree.root, road.identity()):
        change()
    assert not place.exists() or shown(place) != before


def test_a_ledger_that_is_a_link_itself_is_used(tmp_path, road):
    (tmp_path / "link").symlink_to(road.tree.root)
    for change in everything(tmp_path / "link", road.identity()):
        change()
    assert Ledger(road.tree.root).find(road.identity()).done(16)


def test_only_one_module_changes_what_is_at_a_path_of_the_ledger():
    changing = {
        "unlink",
        "mkdir",
        "rmdir",
        "rmtree",
        "rename",
        "replace",
        "touch",
        "write_bytes",
        "chmod",
        "symlink_to",
    }
    found = []
    for path in sorted(Path(presence.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in changing | {"FileLock"}:
                called = ast.unparse(node.func)
                found += [(path.name, called)] if not called.startswith(("tree.", "self.tree.")) else []
    assert {name for name, _ in found} == {"files.py", "tree.py", "ledger.py", "plain.py"}
    assert {called for name, called in found if name == "plain.py"} == {"text.replace"}  # of letters
    assert {called for name, called in found if name == "files.py"} == {"os.replace", "path.parent.mkdir"}
    assert {called for name, called in found if name == "ledger.py"} == {"self.folder.mkdir"}  # the ledger's own


@pytest.mark.parametrize("folder", ["csv", "tensorboard", "wandb", "pictures"])
def test_loggers_and_pictures_write_through_no_link(folder, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / folder).symlink_to(tmp_path / "victim")
    (cfg,) = config.expand([*TINY, f"ledger={tmp_path / 'ledger'}", "logger=none"], multirun=True)
    cell = Cell(cfg)
    writes = {
        "csv": lambda: csv_logger(cell, 1, "csv"),
        "tensorboard": lambda: tensorboard_logger(cell, 1, "tensorboard"),
        "wandb": lambda: wandb_logger(cell, 1, "wandb", "project", "offline", False, 5, 30, 60),
        "pictures": lambda: encoding_picture(cell),
    }
    with pytest.raises(LedgerError, match=f"{folder} must be a folder of the ledger, got a link: remove it"):
        writes[folder]()
    assert list((tmp_path / "victim").iterdir()) == []


def test_what_another_has_made_anew_meanwhile_is_not_set_aside(road):
    path, looks = road.folder / "cost.json", []

    def check() -> None:
        looks.append(path)
        if len(looks) == 1:  # the second time, another process has been there
            raise LedgerError("damaged")

    road.account({"served": 1.0, "steps": 1.0, "evaluation": 0.0, "stops": 1})
    assert road.tree.mend(path, check) is False
    assert road.cost()["served"] == 1.0


# -- what verify finds -------------------------------------------------------------------------------------------


def test_states_of_others_odd_names_and_lists_that_lack_a_file_are_found(road, tmp_path):
    ledger = road.tree.root
    state_of(road, 9)
    for path in (ledger / "floors", ledger / "asked"):
        shutil.rmtree(path)
    for path in (road.folder / "holder.json", *road.folder.glob("records/4/*/")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert list(verify(ledger, Counts())) == []
    other = Ledger(ledger).road(identity({"name": "alibi"}))
    ((_, state),) = road.states()
    shutil.copy(state, other.folder)
    shutil.copy(state, road.folder / state.name.replace("state-9", "state-7"))
    shutil.copytree(road.stop(4), road.folder / "stops" / "04")
    os.mkfifo(road.folder / "queue")
    (road.stop(4) / "weights.safetensors").write_text("garbage")
    (road.stop(4) / CHECKSUMS).write_text("{}")
    found = "\n".join(verify(ledger, Counts()))
    assert f"must be a state of its road, got one of {road.name}" in found
    assert "must be a state of its road, got one of 9 steps" in found
    assert "stops/04 must be named by a number of epochs" in found
    assert "queue must be a file or a folder, got a FIFO" in found
    assert "stops/4 must have config.yaml, metrics.csv" in found
    assert len(found.splitlines()) == 5


# -- real cells ---------------------------------------------------------------------------------------------------


def serve(ledger: Path, *words: str) -> Cell:
    (cfg,) = config.expand([*TINY, "trainer.batch_size=256", f"ledger={ledger}", "logger=none", *words], multirun=True)
    cell = Cell(cfg)
    cell.mend()
    cell.want()
    cell.serve(wait=True)
    cell.unwant()
    return cell


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o027])
def test_permissions_follow_the_umask(mask, tmp_path):
    with umask(mask):
        cell = serve(tmp_path / "ledger", "epochs=1")
    assert cell.road.stops() == [1]
    assert len(cell.road.states()) == 1
    modes = {path: path.stat().st_mode for path in (tmp_path / "ledger").rglob("*")}
    files = {stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISREG(mode)}
    assert (files, {stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISDIR(mode)}) == (
        {0o666 & ~mask},
        {0o777 & ~mask},
    )


def test_a_state_whose_tensors_are_others_is_set_aside_and_the_training_starts_anew(tmp_path, capsys):
    cell = serve(tmp_path / "ledger", "epochs=1")
    ((_, state),) = cell.road.states()
    tensors, told = load_file(state), read_metadata(state)
    name = next(name for name in tensors if name.startswith("model."))
    forged = state.with_name("forged")
    save_tensors(tensors | {name: torch.zeros(2, 3, 5)}, forged, told)
    state.unlink()
    forged.rename(state.with_name(f"state-1-{file_digest(forged)[:16]}.safetensors"))
    serve(tmp_path / "ledger", "epochs=2")
    assert "must be a state of the training, got another; now in" in capsys.readouterr().err
    serve(tmp_path / "fresh", "epochs=2")
    last = "rope-pattern-d1-e2-s0"
    assert cells(tmp_path / "ledger")[last] == cells(tmp_path / "fresh")[last]


def test_weights_of_another_model_with_fitting_checksums_are_named(tmp_path):
    cell = serve(tmp_path / "ledger", "epochs=1")
    stop = cell.road.stop(1)
    save_tensors({"a": torch.zeros(3)}, stop / "weights.safetensors")
    (stop / CHECKSUMS).write_text(
        json.dumps(
            {path.name: file_digest(path) for path in stop.glob("[!c]*")}
            | {"config.yaml": file_digest(stop / "config.yaml")}
        )
    )
    with pytest.raises(LedgerError, match=rf"must be the weights of the model, got others: remove {stop}"):
        serve(tmp_path / "ledger", "epochs=1", "evaluate.offset=[3]")


def test_made_up_ledgers_are_whole(tmp_path):
    made_up.make(tmp_path, 6)
    counts = Counts()
    assert list(verify(tmp_path, counts)) == []
    assert counts.stops == 6
