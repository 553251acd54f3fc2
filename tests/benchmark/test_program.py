"""The program of the benchmark: what is given together with what has no use for it is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab.benchmark.__main__ import main

ONE = "only one of pe=NAME, --export, --pack and --replication can be given, got"
Program = Callable[..., tuple[int, list[str], str]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "copy"], "--tasks must be given with pe=NAME, of whose score card they are, got none"),
        (["--seeds", "3"], "--seeds must be given with pe=NAME, of whose score card they are, got none"),
        (
            ["--export", "there", "--out", "card", "--workers", "2", "--ledger", "x"],
            "--ledger, --out, --workers must be given with pe=NAME, of whose score card they are, got none",
        ),
        (
            ["pe=rope", "--export", "there"],
            f"{ONE} pe=NAME and --export",
        ),
        (["pe=rope", "--pack", "there"], f"{ONE} pe=NAME and --pack"),
        (
            ["--export", "a", "--pack", "b"],
            f"{ONE} --export and --pack",
        ),
        (
            ["--pack", "ledger", "--beside", "a.csv"],
            "--beside must not be given with --pack, which reads a ledger alone, got both",
        ),
        (["--version", "3"], "--version must be one of 1, 2, got 3"),
        (["pe=rope", "--version", "2"], "pe=NAME must be given with --version 1, as pe-bench 2 has none yet, got"),
        (
            ["--version", "2", "--beside", "a.csv"],
            "--beside must be given with --version 1, as pe-bench 2 has none yet",
        ),
        (["--replication", "--version", "1"], "--replication must be given with version 2, which has one, got"),
        (["--replace"], "--replace must be given with --pack of version 2, whose rows it takes, got none"),
        (["--replace", "--pack", "ledger", "--version", "1"], "--replace must be given with --pack of version 2"),
        (["pe=rope", "--replication"], f"{ONE} pe=NAME and --replication"),
        (["pe=rope", "--tasks", "copies"], "--tasks must be all, or among place, reverse, copy, "),
        (["pe=rope", "--seeds", "2"], "--seeds must be at least 3, so that differences have intervals, got 2"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, lines, error = program(main, *words)
    assert (status, lines) == (1, [])
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_rows_are_exported_beside_those_of_others(program: Program, tmp_path: Path) -> None:
    status, lines, _ = program(main, "--export", tmp_path / "rows", "--version", "1")
    assert status == 0
    assert [Path(line).name for line in lines] == ["pe-bench-1.csv", "pe-bench-1.json", "pe-bench-1.schema.json"]
    status, lines, _ = program(main, "--beside", tmp_path / "rows" / "pe-bench-1.csv")
    assert status == 0
    text = "\n".join(lines)
    assert "rope (pe-bench-1)" in text
    assert "The best mean score over " in text
