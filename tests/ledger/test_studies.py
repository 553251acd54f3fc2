"""A damaged table of a study is refused as a whole, in one line."""

import os
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.ledger import identity, record_checkpoint
from pe_lab.ledger import __main__ as maintenance
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.studies import read_study_cells, study_names
from pe_lab.results import sync
from pe_lab.system.files import LedgerError


@pytest.fixture
def rows(tmp_path) -> Path:
    """The table of a study of two cells, in a ledger in which there is something to prune."""
    run = Ledger(tmp_path / "ledger").run(identity({"name": "rope"}))
    for epochs in (1, 4):
        record_checkpoint(run, epochs, 1.0)
    (run.folder / ".s-unfinished").mkdir()
    path = run.tree.prepare_file(run.tree.root / "studies" / "question" / "rows.csv")
    table = pd.DataFrame({"pe": "rope", "data": "a,b", "epochs": [1, 4], "run": run.name, "loss": [0.5, 0.25]})
    table.to_csv(path, index=False)
    return path


def replace(old: bytes, new: bytes):
    return lambda content: content.replace(old, new)


DAMAGES = {
    "nothing": lambda content: b"",
    "the header alone": lambda content: content.splitlines(keepends=True)[0],
    "no column run": replace(b",run,", b",run_name,"),
    "no column epochs": replace(b",epochs,", b",steps,"),
    "a quote that does not end": replace(b"rope", b'"rope'),
    "NUL bytes": replace(b"rope", b"\0\0\0\0"),
    "zeros only": lambda content: bytes(len(content)),
    "binary": lambda content: b"\x89PNG\r\n\x1a\n\xff\xfe" + bytes(range(256)),
    "not UTF-8": replace(b"rope", b"r\xffpe"),
    "a run in capitals": lambda content: content[:40] + content[40:].upper(),
    "a run that leads out": lambda content: content[:30] + content[30:].replace(b",1,", b",1,../../etc/"),
    "no run": lambda content: b"pe,data,epochs,run,loss\nrope,a,1,,0.5\n",
    "epochs of text": replace(b",4,", b",four,"),
    "epochs of 4.0": replace(b",4,", b",4.0,"),
    "epochs of 0": replace(b",4,", b",0,"),
    "epochs of -4": replace(b",4,", b",-4,"),
    "epochs of NaN": replace(b",4,", b",nan,"),
    "no epochs": replace(b",4,", b",,"),
    "epochs of 5,000 digits": replace(b",4,", b"," + b"4" * 5000 + b","),
    "a field of 1 MB": replace(b"rope", b"r" * 2**20),
    "truncated in a value": lambda content: content[:-3],
    "truncated in a row": lambda content: content[:-9],
    "a value too many": replace(b"0.25", b"0.25,7"),
    "a value too few": replace(b",0.25", b""),
    "JSON": lambda content: b"[" * 100_000 + b"\n",
}


def deleted_and(make):
    def damage(path: Path) -> None:
        path.rename(path.with_name("kept.csv"))
        make(path)

    return damage


OTHERS = {
    "a link to it": deleted_and(lambda path: path.symlink_to("kept.csv")),
    "a link to nothing": deleted_and(lambda path: path.symlink_to("nothing")),
    "a link to itself": deleted_and(lambda path: path.symlink_to(path)),
    "a link to a device": deleted_and(lambda path: path.symlink_to("/dev/zero")),
    "a FIFO": deleted_and(os.mkfifo),
    "a folder": deleted_and(Path.mkdir),
    "in a folder that is a link": lambda path: (
        path.parent.rename(path.parents[3] / "outside") and path.parent.symlink_to(path.parents[3] / "outside")
    ),
}


@pytest.mark.parametrize("name", [*DAMAGES, *OTHERS])
def test_a_damaged_table_is_refused_in_one_line_and_nothing_is_removed(rows, program, name, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    ledger = rows.parents[2]
    if name in DAMAGES:
        content = rows.read_bytes()
        rows.write_bytes(DAMAGES[name](content))
        assert rows.read_bytes() != content
    else:
        OTHERS[name](rows)
    before = {path: path.lstat().st_mtime_ns for path in ledger.rglob("*")}
    for main, words in (
        (sync.main, [ledger, "--study", "question"]),
        (maintenance.main, ["prune", ledger, "--keep", "question"]),
    ):
        status, lines, errors = program(main, *words)
        assert (status, lines) == (1, [])
        assert len(errors.splitlines()) == 1
        assert errors.startswith(f"error: {rows} must be a ")
        assert errors.endswith("the command of the study, run again, writes it anew\n")
        assert len(errors) < 400 + len(str(rows))
    assert {path: path.lstat().st_mtime_ns for path in ledger.rglob("*")} == before


def test_the_cells_of_a_sound_table_are_read_in_order(rows, program):
    ledger = rows.parents[2]
    (run,) = Ledger(ledger).runs()
    assert study_names(ledger) == ["question"]
    assert read_study_cells(ledger, "question") == [(run.name, 1), (run.name, 4)]
    assert program(maintenance.main, "prune", ledger, "--keep", "question")[0] == 0
    assert not (run.folder / ".s-unfinished").exists()


def test_a_study_without_a_table_is_not_listed(tmp_path):
    (tmp_path / "studies" / "question").mkdir(parents=True)
    assert study_names(tmp_path) == []
    with pytest.raises(LedgerError, match=r"rows.csv must be a table of cells"):
        read_study_cells(tmp_path, "question")
