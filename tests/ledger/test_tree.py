"""Nothing outside a ledger is changed through it, permissions follow the umask, and verify finds foreign entries."""

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

from benchmarks import ledger as made_up
from benchmarks.ledger import identity, record_checkpoint
from faults.sweeps import TINY, cells
from pe_lab import config
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.ledger import processes
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.maintenance import Counts, damaged_entries, removable_entries, remove_entry
from pe_lab.ledger.progress import RequestedCell, write_command
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.ledger.training_states import read_metadata
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import CHECKSUMS_FILE, LedgerError, file_digest
from pe_lab.tracking.loggers import csv_logger, tensorboard_logger, wandb_logger
from pe_lab.tracking.wandb_pictures import encoding_picture
from pe_lab.training.weights import save_tensors

REQUEST = {"kind": "length", "length": 2}
GONE = "0" * 32
ONE = {"process": GONE}


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """A run with a checkpoint, a record and the files of a dead process; this process is not registered yet."""
    monkeypatch.setattr(processes, "_REGISTERED", {})
    run = Ledger(tmp_path / "ledger").run(identity({"name": "rope"}))
    record_checkpoint(run, 4, 1.0)
    Records(run, 4).add(REQUEST, pd.DataFrame({"metric": ["loss"], "value": [1.0]}), {})
    for path in ("owner.json", "failed/8.json", f"requested/8.{GONE}", "records/4/owner.json"):
        run.tree.write_json(run.folder / path, ONE)
    for path in (".s-half", "records/4/.s-half"):
        (run.folder / path).mkdir()
    for path in (
        f".processes/{GONE}",
        "floors/x.json",
        "commands/x.json",
        "studies/question/rows.csv",
        ".aside/x/y",
        "pictures/x",
    ):
        run.tree.write_json(run.tree.root / path, ONE)
    return run


def state_of(run: Run, step: int) -> None:
    path = run.states.temporary_file()
    save_tensors({}, path, {"pe_lab": json.dumps({"run": run.name, "step": step})})
    run.states.keep(path, step, finished=False)


def everything(ledger: Path, identity: dict) -> list[Callable[[], object]]:
    """Return functions that together call everything that changes a ledger."""
    run, tree = Ledger(ledger).find(identity), LedgerFiles(ledger)
    records, rows = Records(run, 4), pd.DataFrame({"metric": ["loss"], "value": [2.0]})
    study = ledger / "studies" / "question"

    def measure() -> None:
        with records.lease():
            records.add({"kind": "probe"}, rows, {})

    def serve() -> None:
        with run.lease():
            run.heartbeat(1.0, 16)
            record_checkpoint(run, 16, 1.0)

    def prune() -> None:
        for found in removable_entries(ledger, [], forget=True):
            remove_entry(found)

    return [
        *(
            Ledger(ledger).prepare,
            lambda: Ledger(ledger).run(identity),
            lambda: Ledger(ledger).cached("floors", {"a": 1}, dict),
        ),
        *(lambda: run.set_aside_if_damaged(4), lambda: run.request(16), run.requested),
        *(lambda: run.withdraw(16), lambda: run.request(8)),
        *(lambda: run.fail(16, "reason", 1), lambda: state_of(run, 9), lambda: state_of(run, 10), run.states.newest),
        *(serve, measure, lambda: records.fail({"kind": "x"}, "reason"), lambda: records.clear_failure({"kind": "x"})),
        *(
            lambda: records.set_aside_if_damaged(REQUEST),
            lambda: run.account({"total": 1.0, "steps": 1.0, "evaluation": 0.0, "checkpoints": 1}),
        ),
        *(
            lambda: write_command(ledger, [], None, [RequestedCell(run.name, 4, "a", 1)]),
            lambda: tree.write(study / "a", "b"),
        ),
        *(
            lambda: tree.write(study / "rows.csv", "b"),
            lambda: tree.write(ledger / "x", "y"),
            lambda: tree.rename(ledger / "x", study / "y"),
        ),
        *(
            lambda: tree.set_aside(run.checkpoint(4), "reason"),
            lambda: tree.write(ledger / "pictures" / "x", "b"),
            prune,
        ),
    ]


def fingerprint(folder: Path) -> dict[str, tuple]:
    """Return inodes, modes, times and sizes of all files in a folder."""
    files = {}
    for parent, *both in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for names in both for name in names)):
            found = path.lstat()
            files[str(path.relative_to(folder))] = (found.st_ino, found.st_mode, found.st_mtime_ns, found.st_size)
    return files


FOLDERS = [
    *(
        "{run}",
        "{run}/checkpoints",
        "{run}/checkpoints/4",
        "{run}/records",
        "{run}/records/4",
        "{run}/requested",
        "{run}/failed",
    ),
    *(".processes", ".aside", "floors", "commands", "studies", "studies/question", "pictures"),
]
WITHOUT = ["{run}/.s-half", "{run}/records/4/.s-half"]  # the ledger removes the link, and not its target


@pytest.mark.parametrize("folder", [*FOLDERS, *WITHOUT])
def test_nothing_is_changed_behind_a_link(folder, run, tmp_path):
    ledger, victim = run.tree.root, tmp_path / "victim"
    place = ledger / folder.format(run=run.name)
    identity = run.identity()
    shutil.copytree(place, victim)
    (victim / "thesis.txt").write_text("years of work")
    shutil.rmtree(place)
    place.symlink_to(victim)
    before = fingerprint(victim)
    for change in everything(ledger, identity):
        with suppress(LedgerError):
            change()
        assert fingerprint(victim) == before
    assert folder in FOLDERS or not place.is_symlink()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_same_functions_change_each_folder_of_the_ledger(folder, run):
    """Without this, the test above could pass with functions that change nothing."""
    place = run.tree.root / folder.format(run=run.name)
    before = fingerprint(place)
    for change in everything(run.tree.root, run.identity()):
        change()
    assert not place.exists() or fingerprint(place) != before


def test_the_ledgers_own_folder_may_be_a_link(tmp_path, run):
    (tmp_path / "link").symlink_to(run.tree.root)
    for change in everything(tmp_path / "link", run.identity()):
        change()
    assert Ledger(run.tree.root).find(run.identity()).done(16)


def test_only_the_tree_module_changes_files():
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
    for path in sorted(Path(processes.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in changing | {"FileLock"}:
                called = ast.unparse(node.func)
                found += [(path.name, called)] if not called.startswith(("tree.", "self.tree.")) else []
    assert {name for name, _ in found} == {"tree.py", "ledger.py"}
    assert {called for name, called in found if name == "ledger.py"} == {"self.folder.mkdir"}  # the ledger's own


@pytest.mark.parametrize("folder", ["csv", "tensorboard", "wandb", "pictures"])
def test_loggers_and_pictures_do_not_write_through_a_link(folder, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / folder).symlink_to(tmp_path / "victim")
    (cfg,) = config.expand_overrides([*TINY, f"ledger={tmp_path / 'ledger'}", "logger=none"], multirun=True)
    cell = Cell.from_config(cfg)
    info = cell.checkpoint_info(1)
    writes = {
        "csv": lambda: csv_logger(info, "csv"),
        "tensorboard": lambda: tensorboard_logger(info, "tensorboard"),
        "wandb": lambda: wandb_logger(info, "wandb", "project", "offline", False, 5, 30, 60),
        "pictures": lambda: encoding_picture(info.ledger, "rope", cell.identity["pe"], cell.encoding),
    }
    with pytest.raises(LedgerError, match=f"{folder} must be a folder of the ledger, got a link: remove it"):
        writes[folder]()
    assert list((tmp_path / "victim").iterdir()) == []


def test_an_entry_that_another_process_has_replaced_is_not_set_aside(run):
    path, looks = run.folder / "cost.json", []

    def check() -> None:
        looks.append(path)
        if len(looks) == 1:  # another process replaces the entry before the second look
            raise LedgerError("damaged")

    run.account({"total": 1.0, "steps": 1.0, "evaluation": 0.0, "checkpoints": 1})
    assert run.tree.set_aside_if_damaged(path, check) is False
    assert run.cost()["total"] == 1.0


# -- verify -------------------------------------------------------------------------------------------


def test_verify_finds_states_of_other_runs_odd_names_and_incomplete_checksums(run, tmp_path):
    ledger = run.tree.root
    state_of(run, 9)
    for path in (ledger / "floors", ledger / "commands"):
        shutil.rmtree(path)
    for path in (run.folder / "owner.json", *run.folder.glob("records/4/*/")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert list(damaged_entries(ledger, Counts())) == []
    other = Ledger(ledger).run(identity({"name": "alibi"}))
    ((_, state),) = run.states.files()
    shutil.copy(state, other.folder)
    shutil.copy(state, run.folder / state.name.replace("state-9", "state-7"))
    shutil.copytree(run.checkpoint(4), run.folder / "checkpoints" / "04")
    os.mkfifo(run.folder / "queue")
    (run.checkpoint(4) / "weights.safetensors").write_text("garbage")
    (run.checkpoint(4) / CHECKSUMS_FILE).write_text("{}")
    found = "\n".join(damage.reason for damage in damaged_entries(ledger, Counts()))
    assert f"must be a state of its run, got one of {run.name}" in found
    assert "must be a state of its run, got one of 9 steps" in found
    assert "checkpoints/04 must be named by a number of epochs or steps" in found
    assert "queue must be a file or a folder, got a FIFO" in found
    assert "checkpoints/4 must have config.yaml, metrics.csv" in found
    assert len(found.splitlines()) == 5


# -- real cells ---------------------------------------------------------------------------------------------------


def serve(ledger: Path, *words: str) -> Job:
    (cfg,) = config.expand_overrides(
        [*TINY, "trainer.batch_size=256", f"ledger={ledger}", "logger=none", *words], multirun=True
    )
    job = Job.from_config(cfg)
    job.set_aside_if_damaged()
    job.request()
    job.complete(wait=True)
    job.withdraw()
    return job


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
        job = serve(tmp_path / "ledger", "epochs=1")
    assert job.run.checkpoints() == [1]
    assert len(job.run.states.files()) == 1
    modes = {path: path.stat().st_mode for path in (tmp_path / "ledger").rglob("*")}
    files = {stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISREG(mode)}
    assert (files, {stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISDIR(mode)}) == (
        {0o666 & ~mask},
        {0o777 & ~mask},
    )


def test_a_state_with_other_tensors_is_set_aside_and_the_training_starts_again(tmp_path, capsys):
    job = serve(tmp_path / "ledger", "epochs=1")
    ((_, state),) = job.run.states.files()
    tensors, metadata = load_file(state), read_metadata(state)
    name = next(name for name in tensors if name.startswith("state_dict.model."))
    forged = state.with_name("forged")
    save_tensors(tensors | {name: torch.zeros(2, 3, 5)}, forged, metadata)
    state.unlink()
    forged.rename(state.with_name(f"state-1-{file_digest(forged)[:16]}.safetensors"))
    serve(tmp_path / "ledger", "epochs=2")
    assert "must be a state of the training, got another; now in" in capsys.readouterr().err
    serve(tmp_path / "fresh", "epochs=2")
    last = "rope-pattern-d1-e2-s0"
    assert cells(tmp_path / "ledger")[last] == cells(tmp_path / "fresh")[last]


def test_weights_of_another_model_with_fitting_checksums_are_an_error(tmp_path):
    job = serve(tmp_path / "ledger", "epochs=1")
    checkpoint = job.run.checkpoint(1)
    save_tensors({"a": torch.zeros(3)}, checkpoint / "weights.safetensors")
    (checkpoint / CHECKSUMS_FILE).write_text(
        json.dumps(
            {path.name: file_digest(path) for path in checkpoint.glob("[!c]*")}
            | {"config.yaml": file_digest(checkpoint / "config.yaml")}
        )
    )
    with pytest.raises(LedgerError, match=rf"must be the weights of the model, got others: remove {checkpoint}"):
        serve(tmp_path / "ledger", "epochs=1", "evaluate.offset=[3]")


def test_made_up_ledgers_are_sound(tmp_path):
    made_up.make(tmp_path, 6)
    counts = Counts()
    assert list(damaged_entries(tmp_path, counts)) == []
    assert counts.checkpoints == 6
