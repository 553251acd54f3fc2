"""The format number of a ledger, and ledgers of another format."""

import json
import os

import pytest

from faults.programs import FORKS, Program
from faults.sweeps import TINY
from pe_lab import status
from pe_lab.ledger import __main__ as maintenance
from pe_lab.ledger.ledger import Ledger
from pe_lab.report import __main__ as report
from pe_lab.results import sync
from pe_lab.system.files import LedgerError


@pytest.fixture
def run(tmp_path):
    return Ledger(tmp_path).run({"pe": {"name": "rope", "theta": 10000}, "seed": 0})


FORMAT = {"format": 2}
OTHER_FORMATS = {
    "a newer number": '{"format": 3}',
    "an older number": '{"format": 1}',
    "nothing": "",
    "not UTF-8": b"\xff\xfe",
    "a list": "[2]",
    "a float": '{"format": 2.0}',
    "a text": '{"format": "2"}',
    "true": '{"format": true}',
    "another key": '{"version": 2}',
    "null": "null",
    "NaN": '{"format": NaN}',
    "400 digits": '{"format": ' + "9" * 400 + "}",
    "5,000 digits": '{"format": ' + "9" * 5000 + "}",
    "nested": "[" * 1_000_000,
}


def refused(folder) -> str:
    """Return the line with which a ledger is refused, by readers and writers alike."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(LedgerError, match="train into a new folder") as error:
        Ledger(folder)
    assert sorted(folder.rglob("*")) == before
    line = str(error.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 400 + len(str(folder))
    return line


def test_a_ledger_gets_its_format_number_when_it_is_made(tmp_path):
    Ledger(tmp_path / "prepared").prepare()
    Ledger(tmp_path / "used").run({"seed": 0})
    for name in ("prepared", "used"):
        assert json.loads((tmp_path / name / "format.json").read_text()) == FORMAT


def test_readers_of_an_empty_folder_write_nothing(tmp_path):
    assert list(Ledger(tmp_path).runs()) == []
    assert not Ledger(tmp_path).find({"seed": 0}).done(1)
    assert list(tmp_path.iterdir()) == []
    assert list(Ledger(tmp_path / "nowhere").runs()) == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("content", OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_a_ledger_of_another_or_a_damaged_format_is_refused_in_one_line(run, tmp_path, content):
    (tmp_path / "format.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "format" in refused(tmp_path)


@pytest.mark.parametrize("kind", ["a folder", "a FIFO", "a link"])
def test_a_format_that_is_not_a_file_is_refused_in_one_line(run, tmp_path, kind):
    path = tmp_path / "format.json"
    path.rename(tmp_path / "elsewhere")
    make = {"a folder": path.mkdir, "a FIFO": lambda: os.mkfifo(path), "a link": lambda: path.symlink_to("elsewhere")}
    make[kind]()
    assert f"must be a file with {json.dumps(FORMAT)}, got {kind}: " in refused(tmp_path)


def test_a_ledger_of_an_earlier_version_is_refused_in_one_line(run, tmp_path):
    (tmp_path / "format.json").unlink()
    assert f"must be a file with {json.dumps(FORMAT)}, got none: " in refused(tmp_path)
    (run.folder / "run.json").rename(run.folder / "road.json")
    assert "must have the format 2, got the older 1: " in refused(tmp_path)


def test_a_folder_without_runs_becomes_a_ledger_whatever_else_is_in_it(tmp_path):
    (tmp_path / "studies" / "question").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("notes")
    Ledger(tmp_path).prepare()
    assert json.loads((tmp_path / "format.json").read_text()) == FORMAT


def _make(folder, seed, start):
    start.wait()
    Ledger(folder).prepare()
    Ledger(folder).run({"seed": seed})


@pytest.mark.long
def test_processes_that_make_the_same_ledger_at_the_same_time_do_not_fail(tmp_path):
    for attempt in range(2):
        folder, start = tmp_path / str(attempt), FORKS.Event()
        processes = [FORKS.Process(target=_make, args=(folder, seed, start)) for seed in range(4)]
        for process in processes:
            process.start()
        start.set()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        assert len(list(Ledger(folder).runs())) == 4


PROGRAMS = {
    "status": (status.main, ["{}"]),
    "report": (report.main, ["{}"]),
    "sync": (sync.main, ["{}"]),
    "verify": (maintenance.main, ["verify", "{}"]),
    "prune": (maintenance.main, ["prune", "{}"]),
}


@pytest.fixture(params=["older", "newer", "damaged"])
def other(request, run, tmp_path):
    """A ledger of another format, which no program may change."""
    ledger = run.folder.parent
    content = {"older": '{"format": 1}', "newer": '{"format": 3}', "damaged": "{"}[request.param]
    (ledger / "format.json").write_text(content)
    before = {path: path.stat().st_mtime_ns for path in ledger.rglob("*")}
    yield ledger
    assert {path: path.stat().st_mtime_ns for path in ledger.rglob("*")} == before


def require_one_line(status, out, errors):
    assert (status, out) == (1, [])
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("error: ledger ")
    assert "train into a new folder (ledger=NEW)" in errors


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_refuses_a_ledger_of_another_format(other, program, name):
    main, words = PROGRAMS[name]
    require_one_line(*program(main, *(word.format(other) for word in words)))


@pytest.mark.parametrize("train", [True, False])
def test_training_and_evaluation_refuse_a_ledger_of_another_format(other, tmp_path_factory, train):
    overrides = [*TINY, "pe=rope", "epochs=1", "logger=none", f"ledger={other}"]
    status, out, errors = Program(overrides, tmp_path_factory.mktemp("printed"), train=train).wait()
    require_one_line(status, out.splitlines(), errors)
