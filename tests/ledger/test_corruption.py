"""Each kind of file of a ledger is damaged in each way: the same command repairs the ledger, or says what to do.

The cases are the product of places and damages. The suite runs a fixed part of them, in which every place and every
damage occurs; PE_LAB_THOROUGH=1 runs all, and -s prints the table of outcomes.
"""

import json
import os
import re
import shutil
import signal
import socket
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import DictConfig, OmegaConf

from faults.sweeps import TINY, cells
from pe_lab import config, run
from pe_lab.experiment import scheduler
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.maintenance import Counts, damaged_entries, set_aside
from pe_lab.ledger.records import Records
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.status import read_commands
from pe_lab.system.files import ASIDE_FOLDER, CHECKSUMS_FILE, file_digest, is_file, kind_of_path

WORDS = [
    *(*TINY, "trainer.batch_size=256", "-m", "pe=rope,none", "epochs=2,1", "evaluate.offset=3"),
    *("study_name=question", "hydra/launcher=basic", "logger=none"),
]
NUMBER = re.compile(rb"(?<=[:\s\[])-?\d+(\.\d+)?(?=[,\s\]}])")  # in JSON
STRIDE = 11  # between the damages of two places, in the cases that the suite runs
SECONDS = 300  # after which a run counts as hanging
GONE = "0123456789abcdef" * 2  # a process that is gone

# {a} and {b} are runs, {record} is a record of the first, {floors} and {commands} are digests
FILES = [
    *("{a}/run.json", "{a}/cost.json", "{a}/lock", "{a}/owner.json", "{a}/{state}"),
    *("{a}/failed/1.json", f"{{a}}/requested/1.{GONE}"),
    *(f"{{a}}/checkpoints/1/{name}" for name in ("config.yaml", "metrics.csv", "summary.json", "environment.json")),
    *(f"{{a}}/checkpoints/1/{name}" for name in ("weights.safetensors", CHECKSUMS_FILE)),
    *(
        f"{{a}}/records/1/{{record}}/{name}"
        for name in ("request.json", "rows.csv", "environment.json", CHECKSUMS_FILE)
    ),
    *("{a}/records/1/{record}.failed.json", "{a}/records/1/lock", "{a}/records/1/owner.json"),
    *("floors/{floors}.json", "commands/{commands}.json", f".processes/{GONE}", "format.json"),
    *(f"studies/question/{name}" for name in ("rows.csv", "table.md")),
]
FOLDERS = [
    *("{a}", "{a}/checkpoints", "{a}/checkpoints/1", "{a}/records", "{a}/records/1", "{a}/records/1/{record}"),
    *("{a}/requested", "{a}/failed", "floors", "commands", "studies", "studies/question", ".processes", ".aside"),
]
# what is removed too, so that the command needs the damaged place: entries that are not needed are not read
NEEDED = dict.fromkeys(("{a}/{state}", "{a}/lock", "{a}/owner.json", f".processes/{GONE}"), "{a}/checkpoints/2")
NEEDED |= {"{a}/failed/1.json": "{a}/checkpoints/1"}
NEEDED |= dict.fromkeys(
    (f"{{a}}/requested/1.{GONE}", "{a}/requested", "{a}/failed", "{a}/checkpoints"), "{a}/checkpoints/2"
)
NEEDED |= dict.fromkeys(
    (f"{{a}}/records/1/{name}" for name in ("lock", "owner.json", "{record}.failed.json")), "{a}/records/1/{record}"
)
NEEDED |= dict.fromkeys(("floors/{floors}.json", "floors"), "{a}/checkpoints/2")
NEEDED |= {".aside": "{a}/checkpoints/1/summary.json"}
# files that every command writes anew or removes
REWRITTEN = ("commands/", "studies/", "/failed/", "/requested/", "owner.json", ".failed.json", ".processes/")
SHARED = (
    "floors",
    "commands",
    "studies",
    ".processes",
    ".aside",
    "format.json",
)  # what is in them concerns all trainings


@dataclass(frozen=True)
class Place:
    """A file or folder to damage.

    Attributes:
        path: in a ledger.
        other: the same file of another run, or None.
        outside: an empty folder outside the ledger.
    """

    path: Path
    other: Path | None
    outside: Path


def deleted(place: Place) -> None:
    shutil.rmtree(place.path) if kind_of_path(place.path) == "a folder" else place.path.unlink()


def emptied(place: Place) -> None:
    if place.path.is_dir():
        for path in place.path.iterdir():
            deleted(Place(path, None, place.outside))
    else:
        place.path.write_bytes(b"")


def truncated(place: Place) -> None:
    content = place.path.read_bytes()
    place.path.write_bytes(content[: len(content) * 2 // 3])


def flipped(place: Place) -> None:
    content = bytearray(place.path.read_bytes() or b"\0")
    content[len(content) // 2] ^= 4
    place.path.write_bytes(content)


def another(place: Place) -> None:
    """Replace it with the same file of another run, or remove it if there is none."""
    deleted(place)
    if place.other is not None:
        (shutil.copytree if place.other.is_dir() else shutil.copy)(place.other, place.path)


def _in_its_place(make: Callable[[Place], Any]) -> Callable[[Place], None]:
    def damage(place: Place) -> None:
        deleted(place)
        make(place)

    return damage


def _socket(place: Place) -> None:
    here = os.getcwd()
    os.chdir(place.path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.path.name)
    finally:
        os.chdir(here)


def _full_folder(place: Place) -> None:
    place.path.mkdir()
    (place.path / "thesis.txt").write_text("years of work")


def _link(to: str) -> Callable[[Place], None]:
    """Return a damage that replaces something with a link."""

    def damage(place: Place) -> None:
        kept = place.outside / "kept"
        if to == "what was there":
            place.path.rename(kept)
        elif to == "a folder":
            deleted(place)
            _full_folder(Place(kept, None, place.outside))
        elif to == "itself":
            deleted(place)
            kept = place.path
        else:
            deleted(place)
        place.path.symlink_to(kept)

    return damage


def _number(text: str) -> Callable[[Place], None]:
    """Return a damage that replaces the first number of a JSON file, or all of another file."""

    def damage(place: Place) -> None:
        content, found = NUMBER.subn(text.encode(), place.path.read_bytes(), count=1)
        place.path.write_bytes(content if found else text.encode())

    return damage


def _content(content: bytes) -> Callable[[Place], None]:
    return lambda place: place.path.write_bytes(content)  # type: ignore[return-value]


def _signed(content: bytes) -> Callable[[Place], None]:
    """Return a damage that replaces the content and makes its checksum fit."""

    def damage(place: Place) -> None:
        path = place.path
        if path.name.startswith("state-"):
            path.write_bytes(content)
            path.rename(path.with_name(f"state-2-{file_digest(path)[:16]}.safetensors"))
        else:
            path.write_bytes(content)
            checksums = path.parent / CHECKSUMS_FILE
            checksums.write_text(json.dumps(json.loads(checksums.read_text()) | {path.name: file_digest(path)}))

    return damage


def _anywhere(to: tuple[str, ...]) -> dict[str, Callable[[Place], None]]:
    return {f"link to {name}": _link(name) for name in to}


ANOTHER = "another training's"
DAMAGES: dict[str, Callable[[Place], None]] = {
    "deleted": deleted,
    "emptied": emptied,
    ANOTHER: another,
    "FIFO": _in_its_place(lambda place: os.mkfifo(place.path)),
    "socket": _in_its_place(_socket),
    **_anywhere(("what was there", "a folder", "nothing", "itself")),
}
OF_FILES = DAMAGES | {
    "truncated": truncated,
    "bit flipped": flipped,
    "empty folder": _in_its_place(lambda place: place.path.mkdir()),
    "full folder": _in_its_place(_full_folder),
    "not UTF-8": _content(b"\xff\xfe\xfa"),
    "not JSON": _content(b"{"),
    "another JSON": _content(b"[1]"),
    "empty JSON": _content(b"{}"),
    "null": _content(b"null"),
    "NaN": _number("NaN"),
    "Infinity": _number("-Infinity"),
    "1e999": _number("1e999"),
    "5,000 digits": _number("9" * 5000),
    "400 digits": _number("9" * 400),
    "nested 100,000 times": _content(b"[" * 100_000),
    "nested 900 times": _content(b'{"a":' * 900 + b"1" + b"}" * 900),
    "garbage with a fitting checksum": _signed(b"garbage \xff\x00" * 9),
    "JSON with a fitting checksum": _signed(b"{}"),
}
OF_FOLDERS = DAMAGES | {"file": _in_its_place(lambda place: place.path.write_text("years of work"))}
KINDS = ((FILES, OF_FILES), (FOLDERS, OF_FOLDERS))
SIGNED = {place for place in FILES if place.endswith((".safetensors", "{state}"))}
SIGNED |= {f"{{a}}/checkpoints/1/{name}" for name in ("summary.json", "environment.json")}
SIGNED |= {f"{{a}}/records/1/{{record}}/{name}" for name in ("request.json", "rows.csv")}


def applies(place: str, damage: str) -> bool:
    """Return whether a damage makes sense for a place."""
    return not (
        (damage.endswith("fitting checksum") and place not in SIGNED) or (damage == ANOTHER and "{a}" not in place)
    )


CASES = [case for places, damages in KINDS for case in product(places, damages) if applies(*case)]


def chosen() -> list[tuple[str, str]]:
    """Return the cases to test: all, or a part in which each place and each damage occurs."""
    if os.environ.get("PE_LAB_THOROUGH"):
        return CASES
    cases = []
    for places, damages in KINDS:
        there = [case for case in product(places, damages) if applies(*case)]
        for k, place in enumerate(places):
            mine = [case for case in there if case[0] == place]
            cases.append(mine[STRIDE * k % len(mine)])
        for k, damage in enumerate(damage for damage in damages if damage not in {damage for _, damage in cases}):
            mine = [case for case in there if case[1] == damage]
            cases.append(mine[STRIDE * k % len(mine)])
    return cases


# what verify finds, and the same command does not need where all is there
UNREAD = [
    *product(("{a}/{state}", "{a}/owner.json", "{a}/failed/1.json", "floors/{floors}.json"), ("not JSON", "FIFO"))
]
UNREAD += [("{a}/requested", "link to nothing"), ("studies/question/rows.csv", "socket")]


SETTINGS = OmegaConf.create(  # of Hydra
    {
        "runtime": {"choices": {"hydra/launcher": "basic"}},
        "job": {"chdir": None},
        "launcher": {},
        "sweeper": {},
        "overrides": {"hydra": []},
        "verbose": False,
    }
)


def launch(work: run.Worker, overrides: list[str], workers: int) -> None:
    """Serve the cells in this process."""
    scheduler.complete_cells(work.cfgs)


def command(ledger: Path) -> int:
    """Run the sweep in this process, without Hydra's launcher, and return its exit status. It is composed once."""
    words = [*WORDS, f"ledger={ledger}"]
    cfgs = [OmegaConf.merge(cfg, {"ledger": str(ledger)}) for cfg in composed()]
    with pytest.MonkeyPatch.context() as patch, within(SECONDS):
        patch.setattr("sys.argv", ["pe_lab.run", *words])
        patch.setenv("HYDRA_FULL_ERROR", "0")
        patch.setattr(config, "compose_cells", lambda *_: cfgs)
        patch.setattr(run, "_with_hydra", lambda task, _: task.sweep(SETTINGS, {}, [], launch))
        try:
            run.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@cache
def composed() -> list[DictConfig]:
    words = config.sweep_overrides(config.as_lists(WORDS))
    return config.expand_overrides([word for word in words if word != "-m"], multirun=True)


class HangsError(BaseException):
    """A command took too long. Not an Exception, so that no handler catches it."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise HangsError

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A ledger of two runs with two cells each, records, a study, and files of dead processes."""
    ledger = tmp_path_factory.mktemp("trained") / "ledger"
    assert command(ledger) == 0
    names, gone = paths(ledger), {"host": "gone", "pid": 1, "process": GONE}
    for place, content in (
        ("{a}/failed/1.json", {"reason": "out of memory", "step": 1, "time": 0.5, "host": "gone"}),
        (f"{{a}}/requested/1.{GONE}", {"host": "gone", "pid": 1, "since": 0.5}),
        ("{a}/records/1/{record}.failed.json", {"reason": "out of memory"}),
        ("{a}/records/1/owner.json", {"process": GONE}),
        ("{a}/owner.json", gone | {"heartbeat": 0.5, "since": 0.5, "from": 0, "epoch": 1.0, "target": 1}),
        (f".processes/{GONE}", None),
        (".aside/kept", None),
    ):
        path = ledger / place.format(**names)
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if content is None else json.dumps(content, indent=1))
    return ledger


def paths(ledger: Path) -> dict[str, str]:
    """Return the values of the names in FILES and FOLDERS."""
    training_runs = {training_run.identity()["pe"]["name"]: training_run for training_run in Ledger(ledger).runs()}
    a, b = training_runs["rope"], training_runs["none"]
    (floors,), (asked_for,) = ledger.glob("floors/*"), ledger.glob("commands/*")
    (record,) = (path.name for path in a.folder.glob("records/1/*") if path.is_dir())
    return {
        **{"a": a.name, "b": b.name, "record": record, "state": a.states.files()[0][1].name},
        **{"floors": floors.stem, "commands": asked_for.stem},
    }


def other_place(place: str, ledger: Path, names: dict[str, str]) -> Path | None:
    """Return the same file of another run, or None."""
    if "{a}" not in place:
        return None
    pattern = place.replace("{a}", "{b}").replace("{record}", "*").replace("{state}", "state-*").format(**names)
    return next((path for path in ledger.glob(pattern)), None)


def results(ledger: Path) -> dict[str, Any]:
    """Return all cells and their records."""
    found: dict[str, Any] = dict(cells(ledger))
    for training_run in Ledger(ledger).runs():
        for epochs in training_run.checkpoints():
            records = Records(training_run, epochs)
            for request in records.requests():
                rows = records.get(request)
                found[f"{training_run.name} {epochs} {request}"] = rows[rows["metric"] != "tokens_per_second"].to_csv()
    return found


def subject(line: str) -> Path:
    """Return the path in a line of `verify`."""
    return Path(line.removeprefix("ledger entry ").split()[0])


def inodes(folder: Path) -> set[int]:
    names = (Path(parent, name) for parent, *both in os.walk(folder) for names in both for name in names)
    return {path.lstat().st_ino for path in names}


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Counter[str]]]:
    """Count the outcomes of each damage, and print the table at the end."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    yield counted
    table = pd.DataFrame(counted).T.fillna(0).astype(int)
    print("", table, table.sum().to_string(), f"{int(table.to_numpy().sum())} cases", sep="\n")


ADVICE = re.compile(r"ledger entry (?P<path>\S+) must be a (folder|file).*: remove it")
FORMAT_ADVICE = re.compile(r"error: ledger .*format.* got .*: .*train into a new folder \(ledger=NEW\)\n")


@pytest.mark.long
@pytest.mark.parametrize(("place", "damage"), chosen(), ids=str)
def test_a_damaged_ledger_is_repaired_or_a_line_says_what_to_do(place, damage, trained, tmp_path, outcomes, capsys):
    ledger, outside = tmp_path / "ledger", tmp_path / "outside"
    shutil.copytree(trained, ledger)
    outside.mkdir()
    names = paths(ledger)
    path, there = ledger / place.format(**names), {found.relative_to(trained) for found in trained.rglob("*")}
    if needed := NEEDED.get(place):
        deleted(Place(ledger / needed.format(**names), None, outside))
    (OF_FILES | OF_FOLDERS)[damage](Place(path, other_place(place, ledger, names), outside))
    thing = os.lstat(path) if os.path.lexists(path) else None
    before = inodes(outside)
    outcome = "trace"
    try:
        status = command(ledger)
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        if status == 0:
            outcome = "healed"
        elif advice := ADVICE.search(errors):
            outcome = "a line says what to do"
            assert Path(advice["path"]) in (path, *path.parents)
            if not place.startswith(SHARED):  # the other run is trained all the same
                shutil.rmtree(ledger / names["b"] / "checkpoints" / "1")
                assert command(ledger) == 1
                assert Ledger(ledger).named(names["b"]).summary(1)["epochs"] == 1
            deleted(Place(Path(advice["path"]), None, outside))
            assert command(ledger) == 0
        elif FORMAT_ADVICE.fullmatch(errors):
            outcome = "a line says what to do"
            if thing:
                deleted(Place(path, None, outside))
            path.write_text('{"format": 2}')
            assert command(ledger) == 0
        else:
            outcome = "never heals" if command(ledger) else "healed in two runs"
    except HangsError:
        outcome = "hangs"
    finally:
        outcomes[damage][outcome] += 1
    assert outcome in ("healed", "a line says what to do"), errors
    assert results(ledger) == results(trained)
    # a replaced file may leave something that no result needs
    reasons = [damage.reason for damage in damaged_entries(ledger, Counts())]
    assert [reason for reason in reasons if subject(reason).relative_to(ledger) in there] == []
    assert [len(command.progress.snapshot().done) for command in read_commands(ledger)][-1:] == [4]
    tables = {kept.name for kept in (ledger / "studies" / "question").iterdir() if is_file(kept)}
    assert tables >= {kept.name for kept in (trained / "studies" / "question").iterdir()}
    assert inodes(outside) == before
    kept = thing and not (stat.S_ISREG(thing.st_mode) and any(part in place for part in REWRITTEN))
    if outcome == "healed" and kept and damage not in ("empty folder", "emptied"):
        assert thing.st_ino in inodes(ledger), f"it is gone, and not in {ASIDE_FOLDER}"


REPAIRED_BY_COMMAND = ("{a}", "{a}/run.json")  # which knows what the training is


@pytest.mark.parametrize(("place", "damage"), [*chosen(), *UNREAD], ids=str)
def test_what_verify_reports_is_repaired_without_the_command(place, damage, trained, tmp_path, capsys):
    ledger, outside = tmp_path / "ledger", tmp_path / "outside"
    shutil.copytree(trained, ledger)
    outside.mkdir()
    names = paths(ledger)
    path = ledger / place.format(**names)
    (OF_FILES | OF_FOLDERS)[damage](Place(path, other_place(place, ledger, names), outside))
    before = inodes(outside)
    moved = {}
    try:
        for found in damaged_entries(ledger, Counts()):  # an entry that is moved is not reported again
            moved[found.reason] = set_aside(LedgerFiles(ledger), found)
    except ValueError:  # its format cannot be read
        assert place == "format.json"
        return
    assert moved or (place, damage) not in UNREAD
    left = [reason for reason, is_moved in moved.items() if not is_moved]
    again = [damage.reason for damage in damaged_entries(ledger, Counts())]
    assert again == left
    assert not left or place in (*REPAIRED_BY_COMMAND, ASIDE_FOLDER)
    assert inodes(outside) == before
    assert len(capsys.readouterr().err.splitlines()) == len(moved) - len(left)


def test_the_suite_tests_every_place_and_every_damage(monkeypatch):
    monkeypatch.delenv("PE_LAB_THOROUGH", raising=False)
    assert len(CASES) >= 650
    for places, damages in KINDS:
        mine = [(place, damage) for place, damage in chosen() if place in places]
        assert {place for place, _ in mine} == {*places}
        assert {damage for _, damage in mine} == {*damages}
