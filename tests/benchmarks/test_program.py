"""One program runs every benchmark: each has a help, and a wrong name is refused in one line with the nearest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.__main__ import BENCHMARKS, main

Program = Callable[..., tuple[int, list[str], str]]
SHARED = {  # parts of benchmarks
    *("implementations", "presets", "subject", "choosing", "plain", "transformers_models", "simulated_runs"),
    *("simulated_looks", "ahead"),
}


def test_every_script_is_a_benchmark_or_a_part_of_one() -> None:
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("__")}
    assert names == {*BENCHMARKS, *SHARED}


def test_without_a_name_all_are_listed(program: Program) -> None:
    status, lines, errors = program(main)
    assert (status, errors) == (0, "")
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_has_a_help_that_names_its_command(name: str, program: Program) -> None:
    status, lines, errors = program(main, name, "--help")
    assert (status, errors) == (0, "")
    assert lines[0].startswith(f"usage: python -m benchmarks {name} ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["sped"], "error: NAME='sped': did you mean speed? NAME must be one of encoding_steps, "),
        (["encoding_steps", "--encodings", "rop"], "error: --encodings='rop': did you mean rope? "),
        (["encoding_steps", "--sizes", "16,35"], "error: --sizes must be sequences x tokens, as 16x35, got '16'"),
        (["encoding_steps", "--rounds", "1"], "error: --rounds must be at least 2, got 1"),
        (["static", "--architecture", "sm_81"], "error: --architecture='sm_81': did you mean sm_"),
        (["resources", "--architecture", "sm_81"], "error: --architecture='sm_81': did you mean sm_"),
        (["export", "ropee"], "error: pe='ropee': did you mean rope? "),
        (["export", "--columns", "onyx"], "error: --columns='onyx': did you mean onnx? "),
        (["faults", "SIGKIL at"], "error: FAULT must be one of SIGKILL at a random point, "),
        (["faults", "SIGKIL at a random point"], "error: FAULT='SIGKIL at a random point': did you mean SIGKILL at a "),
        (["speed", "--threads", "0"], "error: --threads must be at least 1, got 0"),
        (["ledger", "--cells", "0"], "error: --cells must be at least 1, got 0"),
        (["simulate_tables", "--studies", "0"], "error: --studies must be at least 1, got 0"),
        (["simulate_verdicts", "--to", "x.csv", "--large", "0"], "error: --large must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line_before_anything_is_measured(
    words: list[str], line: str, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, lines, errors = program(main, *words)
    assert (status, lines) == (1, [])
    assert errors.startswith(line)
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())
