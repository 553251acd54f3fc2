"""The console script pe-lab, and the errors of the programs."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points
from pathlib import Path

import pytest

import pe_lab
from helpers.configs import TINY_MODEL
from pe_lab import cli, run
from pe_lab.system.arguments import Parser, run_program

HEAVY = ("torch", "lightning", "pandas", "hydra", "wandb")


def ran(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=cwd)


def test_without_a_command_all_are_listed(program) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        status, printed, _ = program(cli.main, *arguments)
        assert status == 0
        assert all(any(line.startswith(f"  {name} ") for line in printed) for name in cli.COMMANDS)


def test_the_version_is_that_of_the_package(program) -> None:
    assert program(cli.main, "--version") == (0, [f"pe_lab {pe_lab.__version__}"], "")


def test_an_unknown_command_is_refused_in_one_line(program) -> None:
    status, _, error = program(cli.main, "nothing\n")
    assert status == 1
    assert error.startswith("error: COMMAND must be one of run, evaluate, ")
    assert error.count("\n") == 1


def test_the_list_of_commands_loads_nothing_heavy() -> None:
    code = f"import sys; from pe_lab import cli; cli.main(); print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n")


NOT_LOADED = {  # by the modules of a program or of a function
    "pe_lab.status": ("pandas", "torch"),
    "pe_lab.experiment.sweep_report": ("matplotlib",),
    "pe_lab.report.page, pe_lab.report.paper, pe_lab.report.sections": ("torch", "scipy.stats"),
    "pe_lab.probes.figures, pe_lab.results.trained_cell": ("lightning", "torch._dynamo", "triton"),
}


@pytest.mark.parametrize("modules", NOT_LOADED)
def test_modules_load_no_large_library_that_they_may_not_need(modules: str) -> None:
    """Imports take most of the time of a small report."""
    code = f"import sys, {modules}; print([name for name in {NOT_LOADED[modules]} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


WANTED = {  # what each command says of these arguments
    ("run", "pe=nothing"): "pe must be one of abacus, ",
    ("evaluate", "epochs=0"): "epochs must be ",
    ("status", "nowhere"): "LEDGER must be ",
    ("report",): "source must be a study's name, a ledger, ",
    ("report", "--paper"): "--paper must have a value, --paper DIR, got nothing after it",
    ("audit", "pe=nothing"): "pe must be one of abacus, ",
    ("ledger",): "COMMAND must be one of verify, prune, got nothing",
    ("ledger", "verify", "--nothing"): "unrecognized arguments: --nothing",
    ("data",): "the command must be export, got nothing",
    ("sync",): "LEDGER must be ",
}
WITHOUT_TORCH = """
import sys
from pe_lab import cli
for words in {words}:
    sys.argv = ["pe-lab", *words]
    try:
        cli.main()
    except SystemExit as end:
        print("ended", end.code, "torch" in sys.modules)
"""


def test_each_command_says_in_one_line_what_it_wants_without_loading_torch(tmp_path) -> None:
    code = WITHOUT_TORCH.format(words=list(WANTED))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["ended 1 False"] * len(WANTED), done.stderr
    for line, wanted in zip(done.stderr.splitlines(), WANTED.values(), strict=True):
        assert line.startswith(f"error: {wanted}")


HELP = """
import runpy, sys
for words in {lines}:
    sys.argv = [words[0], *words[1:], "--help"]
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print("ended", end.code)
"""


def test_every_command_has_a_program_with_help() -> None:
    """Of the script and of the module, one after the other in one process."""
    given = [(name, module) for name, (module, _) in cli.COMMANDS.items() if name not in ("run", "evaluate")]
    lines = [line for name, module in given for line in (["pe_lab", name], [module.removesuffix(".__main__")])]
    code = HELP.format(lines=lines)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    *printed, rest = done.stdout.split("ended 0\n")
    assert (len(printed), rest) == (len(lines), ""), done.stderr
    for words, text in zip(lines, printed, strict=True):
        program = f"pe-lab {words[1]}" if words[1:] else f"python -m {words[0]}"
        assert text.startswith(f"usage: {program} "), text


def test_the_script_is_installed_under_its_name() -> None:
    try:
        found = [entry.value for entry in entry_points(group="console_scripts") if entry.name == "pe-lab"]
    except PackageNotFoundError:
        found = []
    if not found:
        pytest.skip("the package is not installed with its scripts")
    assert found == ["pe_lab.cli:main"]


TINY = [*TINY_MODEL, "epochs=1"]
TINY += ["data=bag", "data.train=64", "logger=none"]


@pytest.mark.slow  # two programs
def test_one_cell_is_trained_by_the_script_as_by_the_module(tmp_path, monkeypatch, program) -> None:
    done = ran("pe_lab", "run", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    status, out, err = program(run.main, *TINY)  # what python -m pe_lab.run calls
    assert status == 0, err
    assert "1 of 1 cells are in the ledger already" in "\n".join([err, *out])


@pytest.mark.slow
def test_a_sweep_runs_its_workers_from_the_script(tmp_path) -> None:
    done = ran("pe_lab", "run", "-m", "pe=none,rope", "workers=2", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len([*tmp_path.glob("ledger/*/checkpoints/1")]) == 2


def test_a_missing_argument_is_named_with_what_it_must_be() -> None:
    parser = Parser("module")
    parser.add_argument("--to", required=True, help="the folder for tables")
    parser.add_argument("kind", choices=["a", "b"])
    with pytest.raises(ValueError, match=r"--to must be the folder for tables, got nothing; kind must be one of a, b"):
        parser.parse_args([])


@pytest.mark.parametrize(("raised", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 1), (ValueError, 1)])
def test_a_program_that_fails_ends_with_a_status(raised, status, capsys) -> None:
    def program() -> None:
        raise raised("x\ny")

    with pytest.raises(SystemExit) as end:
        run_program(program)
    assert end.value.code == status
    assert capsys.readouterr().err == ("error: x y\n" if raised is ValueError else "")


def test_help_for_a_reader_that_has_gone_prints_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pe_lab.run", "--help", "all"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_that_is_not_the_users_keeps_its_traceback() -> None:
    def program() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_program(program, (ValueError,))


def test_a_status_ends_the_program_and_none_continues() -> None:
    run_program(lambda: None)
    with pytest.raises(SystemExit) as end:
        run_program(lambda: 3)
    assert end.value.code == 3
