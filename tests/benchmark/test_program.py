"""The program of the benchmark: what is given together with what has no use for it is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab.benchmark.__main__ import main

ONE = "only one of --export, --pack and --replication can be given, got"
Program = Callable[..., tuple[int, list[str], str]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--export", "a", "--pack", "b"], f"{ONE} --export and --pack"),
        (["--pack", "b", "--replication"], f"{ONE} --pack and --replication"),
        (["--replace"], "--replace must be given with --pack, whose rows it takes, got none"),
        (["--replace", "--export", "there"], "--replace must be given with --pack"),
        (["--pack", "nowhere"], "--pack must be an existing folder, got 'nowhere'"),
        (["--version", "1"], "unrecognized arguments: --version"),
        (
            ["pe=mine", "pe.theta=5"],
            "an encoding must be trained by pe-lab run -m +study=pe_bench_2_TASK pe=mine pe.theta=5 seed=0,1,2,3,4",
        ),
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
