"""What another user may not read is named, and every answer says that it is a part."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.ledger import identity, record_checkpoint
from pe_lab import status
from pe_lab.benchmark.pack import pack_ledger
from pe_lab.ledger import __main__ as upkeep
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import Progress, RequestedCell, write_command
from pe_lab.report import __main__ as report
from pe_lab.results import frame
from pe_lab.results.from_ledger import read_curves

NOBODY = 65534
Program = Callable[..., tuple[int, list[str], str]]


@contextmanager
def another_user() -> Iterator[None]:
    """Be a user to whom permissions apply: root is not one."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def ledger() -> Iterator[Path]:
    """Four runs of two checkpoints that every user can read, and the command that requested them."""
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are only for its user
    folder.chmod(0o755)
    try:
        runs = [Ledger(folder).run(identity({"name": "rope"}, seed=seed)) for seed in range(4)]
        for run in runs:
            for epochs in (1, 4):
                record_checkpoint(run, epochs, 1.0)
        cells = [
            RequestedCell(run.name, epochs, f"seed-{n}-e{epochs}", 1) for n, run in enumerate(runs) for epochs in (1, 4)
        ]
        for path in folder.rglob("*.safetensors"):  # which safetensors writes for one user only
            path.chmod(0o644)
        write_command(folder, ["seed=range(4)"], None, cells)
        yield folder
    finally:
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o755)
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o755)
        shutil.rmtree(folder)


def closed(ledger: Path, *places: str, mode: int = 0) -> list[Path]:
    """Close a place in each of the first runs."""
    paths = [run.folder / place for run, place in zip(Ledger(ledger).runs(), places, strict=False)]
    for path in paths:
        path.chmod(mode)
    return paths


PLACES = [
    ("", ""),
    ("checkpoints", "run.json"),
    ("checkpoints/1", "checkpoints/4/summary.json"),
]


@pytest.mark.parametrize(("places", "mode"), [*((places, 0) for places in PLACES), (PLACES[0], 0o444)])
def test_cells_that_can_be_read_are_read_and_the_others_named(places: tuple[str, str], mode: int, ledger: Path) -> None:
    paths = closed(ledger, *places, mode=mode)
    with another_user():
        found = frame.load(ledger)
    lost = 1 if "/" in places[0] else 2
    assert len(found.cells) == 8 - 2 * lost
    assert len(found.refused) == 2
    for path, line in zip(paths, found.refused, strict=True):
        assert str(path) in line
        assert "Permission denied" in line


@pytest.mark.parametrize("places", PLACES)
def test_verify_goes_on_and_names_each_once(places: tuple[str, str], ledger: Path, program: Program) -> None:
    paths = closed(ledger, *places)
    with another_user():
        returned, lines, error = program(upkeep.main, "verify", ledger)
    assert (returned, error) == (1, "")
    assert lines[-1].endswith(": 0 damaged; partial: 2 files or folders could not be read")
    assert len(lines) == 3
    assert all(sum(str(path) in line for line in lines) == 1 for path in paths)


def test_verify_finds_damage_behind_what_it_cannot_read(ledger: Path, program: Program) -> None:
    closed(ledger, "", "checkpoints/1", "checkpoints")
    last = list(Ledger(ledger).runs())[-1]
    (last.checkpoint(4) / "summary.json").write_text("{}")
    with another_user():
        returned, lines, _ = program(upkeep.main, "verify", ledger)
    assert returned == 1
    assert any(str(last.checkpoint(4)) in line for line in lines)
    assert lines[-1].endswith(": 1 damaged; partial: 3 files or folders could not be read")


def test_status_names_cells_of_which_nothing_is_known(ledger: Path, program: Program) -> None:
    closed(ledger, "", "checkpoints")
    with another_user():
        returned, lines, error = program(status.main, ledger)
    assert returned == 1
    text = "\n".join(lines)
    assert "4 done, 4 unreadable of 8 cells" in text
    assert text.count("Permission denied") == 4
    assert error.startswith("partial: 4 ")


def test_status_says_that_a_command_cannot_be_read(ledger: Path, program: Program) -> None:
    (command,) = ledger.glob("commands/*.json")
    command.chmod(0)
    with another_user():
        returned, lines, error = program(status.main, ledger)
    assert returned == 1
    assert str(command) in error
    assert error.splitlines()[-1].startswith("partial: 1 ")
    assert lines in ([], [""])
    command.chmod(0o644)
    assert program(status.main, ledger)[0] == 0


def test_progress_of_what_can_be_read_is_complete(ledger: Path) -> None:
    runs = list(Ledger(ledger).runs())
    closed(ledger, "")
    cells = [RequestedCell(run.name, 4, run.name, 1) for run in runs]
    with another_user():
        found = Progress(ledger, cells).snapshot()
    assert [cell.run for cell in found.done] == [run.name for run in runs[1:]]
    assert [cell.run for cell, _ in found.unreadable] == [runs[0].name]
    assert found.missing == found.failed == []


def test_a_report_says_that_it_is_partial(ledger: Path, program: Program, tmp_path: Path) -> None:
    (path,) = closed(ledger, "")
    found = []

    def asked() -> None:
        with pytest.MonkeyPatch.context() as patch:
            load = frame.load

            def loaded(*arguments: object) -> frame.Results:
                with another_user():
                    found.append(load(*arguments))  # type: ignore[arg-type]
                return found[-1]

            patch.setattr(frame, "load", loaded)
            report.main()

    returned, _, error = program(asked, ledger, "--out", tmp_path)
    assert returned == 0, error
    assert any(line.startswith("partial: 1 ") for line in error.splitlines()), error
    assert str(path) in (tmp_path / "report.html").read_text()


def test_curves_and_records_that_cannot_be_read_are_named(ledger: Path) -> None:
    results = frame.load(ledger)
    (path,) = closed(ledger, "checkpoints/4/metrics.csv")
    refused: list[str] = []
    with another_user():
        curves = read_curves(ledger, results.cells, refused)
    assert curves["seed"].nunique() == 3
    assert len(refused) == 1
    assert str(path) in refused[0]


def test_a_part_of_a_ledger_is_not_packed_and_not_taken_for_all(ledger: Path, tmp_path: Path) -> None:
    closed(ledger, "checkpoints")
    with another_user(), pytest.raises(PermissionError):
        pack_ledger(ledger, tmp_path)
