"""The program of the benchmark: what is given together with what has no use for it is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab.benchmark import task_results
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


def test_one_task_has_its_table_and_the_best_at_each_length(program: Program) -> None:
    status, lines, _ = program(main, "causal_text")
    assert status == 0
    table = next(number for number, line in enumerate(lines) if line.split()[:1] == ["pe"])
    found = next(one for one in task_results.read_results() if one.task.name == "causal_text")
    assert [line.split()[0] for line in lines[table + 1 :]] == list(found.table["pe"])
    best = [line.rpartition(": ")[2].split(", ") for line in lines[3:table]]
    assert best == [found.best, found.at(2.0).best, found.at(4.0).best]
    assert best[0] != best[2]
