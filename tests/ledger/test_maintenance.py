"""python -m pe_lab.ledger verify and prune, on a ledger of real cells."""

import json
import os
import random
import shutil
import signal
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from faults.injection import damage
from faults.programs import Program, wait_for
from faults.sweeps import SWEEP, cells
from pe_lab.ledger import __main__ as ledger_main
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.maintenance import Counts, damaged_entries
from pe_lab.ledger.processes import register_process, working_for
from pe_lab.system.files import CHECKSUMS_FILE

MEASURED = [*SWEEP, "evaluate.offset=0,3", "study_name=question"]


@pytest.fixture(scope="module")
def measured(sound, tmp_path_factory) -> Path:
    """The sound ledger with a record for every cell, in a study."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(sound, folder / "ledger")
    status, _, errors = Program([*MEASURED, f"ledger={folder / 'ledger'}", "logger=none"], folder / "printed").wait()
    assert status == 0, errors
    return folder / "ledger"


@pytest.fixture
def ledger(measured, tmp_path) -> Path:
    shutil.copytree(measured, tmp_path / "ledger")
    return tmp_path / "ledger"


@pytest.fixture
def program(program) -> Callable[..., tuple[int, list[str], str]]:
    return partial(program, ledger_main.main)


def test_verify_counts_the_entries_of_a_sound_ledger(ledger, program):
    code, lines, _ = program("verify", ledger)
    assert (code, lines) == (0, ["4 trainings, 12 cells, 12 records, 4 states, 2 floors: 0 damaged"])


def checked(ledger: Path) -> list[Path]:
    """Return all files that have a checksum or a fixed content."""
    kept = [path for path in sorted(ledger.rglob("*")) if path.is_file() and path.stat().st_size]
    unchecked = ("studies", "commands", ".aside", "format.json")
    return [path for path in kept if path.relative_to(ledger).parts[0] not in unchecked]


@pytest.mark.long
def test_verify_finds_every_damaged_file_and_nothing_else(ledger, program):
    """A cost has no checksum, so that only truncation can be found."""
    rng = random.Random(0)
    for path in checked(ledger):
        content = path.read_bytes()
        if path.name == "cost.json":
            path.write_bytes(content[:-3])
        else:
            damage(path, rng)
        found = [damage.reason for damage in damaged_entries(ledger, Counts())]
        assert len(found) >= 1, path
        assert all(str(path.parent) in line or str(path) in line for line in found), found
        path.write_bytes(content)
    assert list(damaged_entries(ledger, Counts())) == []


def test_verify_finds_a_checkpoint_without_a_file_or_its_checksums(ledger, program):
    run = next(iter(Ledger(ledger).runs()))
    (run.checkpoint(1) / "metrics.csv").unlink()
    (run.checkpoint(4) / CHECKSUMS_FILE).unlink()
    run.checkpoint(16).rename(run.folder / "checkpoints" / "sixteen")
    code, lines, _ = program("verify", ledger)
    assert code == 1
    assert len([line for line in lines if f"{run.name}/checkpoints" in line]) == 3
    assert lines[-1].startswith("4 trainings, 12 cells")


def test_verify_finds_a_link(ledger, program, tmp_path):
    (ledger / "studies" / "other").symlink_to(tmp_path)
    code, lines, _ = program("verify", ledger)
    assert (code, len(lines)) == (1, 2)
    assert "must be a file or a folder, got a link" in lines[0]


def test_prune_keeps_every_result(ledger, program, sound):
    _, planned, _ = program("prune", ledger, "--dry-run")
    assert len(list(ledger.glob("*/state-*"))) == 4
    code, lines, _ = program("prune", ledger)
    assert code == 0
    assert [line.split()[:3] for line in lines if "states" in line] == [["4", "states", "of"]]
    assert [line.replace("are free", "would be free") for line in lines] == planned
    assert list(ledger.glob("*/state-*")) == []
    assert list(ledger.glob(".processes/*")) == []
    assert cells(ledger) == cells(sound)
    assert program("verify", ledger)[1][-1] == "4 trainings, 12 cells, 12 records, 0 states, 2 floors: 0 damaged"
    assert program("prune", ledger)[1] == ["0.0 MB are free"]


@pytest.mark.long
def test_a_longer_training_starts_again_without_its_states(ledger, program):
    assert program("prune", ledger)[0] == 0
    status, _, errors = Program(
        [*MEASURED, "epochs=17", f"ledger={ledger}", "logger=none"], ledger.parent / "printed"
    ).wait()
    assert status == 0, errors


def test_prune_keeps_the_states_of_studies(ledger, program):
    assert program("prune", ledger, "--keep", "question")[0] == 0
    assert len(list(ledger.glob("*/state-*"))) == 4
    code, _, err = program("prune", ledger, "--keep", "answer")
    assert (code, err) == (1, f"error: --keep must be one of question in {ledger}, got 'answer'\n")


@pytest.mark.long
def test_prune_keeps_the_state_of_an_interrupted_training_and_removes_unfinished_files(tmp_path, program):
    ledger = tmp_path / "ledger"
    words = [*SWEEP, "epochs=400", f"ledger={ledger}", "logger=none"]
    process = Program(words, tmp_path / "printed")
    states = wait_for(lambda: list(ledger.glob("*/state-*")))
    process.kill(signal.SIGKILL)
    process.wait()
    (states[0].parent / ".s-half").mkdir()
    (states[0].parent / ".state.half").write_text("half")
    code, lines, _ = program("prune", ledger)
    assert code == 0
    assert len(list(ledger.glob("*/state-*"))) == 1
    assert not list(ledger.glob("*/.s*"))
    assert not list(ledger.glob("*/requested/*"))
    assert not list(ledger.glob("*/owner.json"))
    assert [line.split()[0] for line in lines if "unfinished" in line] == ["2"]


def test_prune_removes_ended_commands_only_with_forget(ledger, program):
    commands = list(ledger.glob("commands/*"))
    assert commands
    assert program("prune", ledger)[0] == 0
    assert list(ledger.glob("commands/*")) == commands
    me = register_process(ledger)
    contents = ({"processes": ["nobody", me]}, [], {"processes": "nobody"})
    others = [ledger / "commands" / f"{number}.json" for number in range(len(contents))]
    for path, content in zip(others, contents, strict=True):
        path.write_text(json.dumps(content))
    (ledger / "commands" / "long.json").write_text(json.dumps({"processes": ["a" * 300]}))  # no process has such a name
    (ledger / "commands" / "folder.json").mkdir()
    (ledger / "commands" / "deep.json").write_text("[" * 100_000)
    others += [ledger / "commands" / "deep.json", ledger / "commands" / "folder.json"]
    code, lines, _ = program("prune", ledger, "--forget")
    assert code == 0
    assert sorted(ledger.glob("commands/*")) == others
    assert [line.split()[0] for line in lines if "commands that have ended" in line] == [str(len(commands) + 1)]


def test_prune_removes_old_temporary_files(ledger, program):
    names = (".probe", "floors/.f.json", "commands/.a.json", "studies/question/.t.txt")
    left = [ledger / f"{name}.{uuid.uuid4().hex}" for name in names]
    others = [
        ledger / name for name in ("floors/.gitignore", "studies/question/.notes", "studies/question/.git/config")
    ]
    for path in (*left, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
        os.utime(path.parent, (0, 0))
    assert program("prune", ledger)[0] == 0
    assert all(path.exists() for path in left)
    for path in (*left, *others):
        os.utime(path, (0, 0))
    assert program("prune", ledger)[0] == 0
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_prune_removes_what_a_dead_worker_left_and_nothing_of_a_live_one(ledger, program):
    dead = ledger / ".processes" / f"{register_process(ledger)}.{uuid.uuid4().hex}"
    with working_for(ledger, uuid.uuid4().hex):
        (live,) = ledger.glob(".processes/*.*")
        dead.touch()
        assert program("prune", ledger)[0] == 0
        assert [*ledger.glob(".processes/*.*")] == [live]
    assert not live.exists()


def test_prune_accepts_a_link_to_the_ledger(ledger, program, tmp_path):
    (tmp_path / "link").symlink_to(ledger)
    assert program("prune", tmp_path / "link", "--dry-run") == program("prune", ledger, "--dry-run")
    assert program("prune", tmp_path / "link", "--forget")[0] == 0
    assert not list(ledger.glob("*/state-*"))
    assert not list(ledger.glob("commands/*"))


@pytest.mark.parametrize("link", [".processes", ".aside", "run"])
def test_prune_removes_nothing_through_a_link(ledger, program, tmp_path, link):
    outside = tmp_path / "outside"
    shutil.copytree(next(iter(Ledger(ledger).runs())).folder, outside)
    (outside / "thesis.txt").write_text("years of work")
    (outside / "requested" / "1.notes").write_text("notes")
    before = sorted(outside.rglob("*"))
    place = next(iter(Ledger(ledger).runs())).folder if link == "run" else ledger / link
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(outside)
    assert program("prune", ledger)[0] == 0
    assert sorted(outside.rglob("*")) == before


@pytest.mark.slow
def test_prune_leaves_a_running_sweep_alone(tmp_path, program):
    ledger = tmp_path / "ledger"
    words = [*SWEEP, "epochs=100,1", f"ledger={ledger}", "logger=none"]
    process = Program(words, tmp_path / "printed")
    wait_for((ledger / "format.json").exists)
    killed = 0
    while not process.ended:
        code, _, err = program("prune", ledger)
        assert code == 0, err
        for run in [] if killed else Ledger(ledger).runs():
            step = max((step for step, _ in run.states.files()), default=0)
            if run.owner() and 40 < step < 300:  # of 400: the state is needed
                process.kill(signal.SIGKILL)
                process.wait()
                assert program("prune", ledger)[0] == 0
                assert run.states.files()[-1][0] >= step
                process, killed = Program(words, tmp_path / "printed"), killed + 1
                break
    assert killed == 1
    status, _, errors = process.wait()
    assert status == 0, errors
    assert len(cells(ledger)) == 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["verify", "nowhere"], "LEDGER must be an existing folder, got 'nowhere'"),
        (["prune", "nowhere"], "LEDGER must be an existing folder, got 'nowhere'"),
        (["mend"], "COMMAND must be one of verify, prune, got 'mend'"),
        ([], "COMMAND must be one of verify, prune, got nothing"),
    ],
)
def test_bad_input_is_one_line(words, expected, program):
    code, lines, err = program(*words)
    assert (code, lines, len(err.splitlines())) == (1, [], 1)
    assert expected in err
