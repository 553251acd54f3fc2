"""A user's class that calls sys.exit(0) fails its cell with a line; it does not end the program as if all were well."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults.sweeps import TINY
from pe_lab import run
from pe_lab.check import __main__ as check
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.termination import no_exit

MODULE = """
import sys
from pe_lab.encodings import PositionalEncoding
{import}

class Quits(PositionalEncoding):
    def __init__(self, sizes, name):
        super().__init__(sizes, name)
        {init}

    def embed(self, h, layout):
        {embed}
        return h
"""
QUIT = {"import": "sys.exit(0)", "init": "sys.exit(0)", "embed": "h.requires_grad and sys.exit(0)"}
WORDS = ["pe=none", "pe.name=quits"]


@pytest.fixture
def quits(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of a class that calls sys.exit at the place of the parameter."""
    name = f"quits_at_{request.param}"
    places = dict.fromkeys(QUIT, "pass") | {request.param: QUIT[request.param]}
    (tmp_path / f"{name}.py").write_text(MODULE.format(**places))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pe-lab"])
    return f"{name}.Quits"


@pytest.mark.parametrize("quits", QUIT, indirect=True)
def test_a_program_fails_with_one_line_that_says_where(quits: str, program) -> None:
    words = [*WORDS, f"pe._target_={quits}"]
    for main, given in ((run.main, [*words, *TINY, "epochs=1", "logger=none"]), (check.main, words)):
        if main is check.main and "embed" in quits:
            continue  # it examines many models before
        status, _, errors = program(main, *given)
        lines = [line for line in errors.splitlines() if "sys.exit(0)" in line]
        assert status == 1
        assert len(lines) == 1
        assert f"{quits.partition('.')[0]}.py" in lines[0]
        assert "Traceback" not in errors


@pytest.mark.parametrize("quits", ["embed"], indirect=True)
def test_other_cells_of_the_sweep_are_trained_and_the_failure_is_recorded(quits: str, program) -> None:
    words = [f"pe._target_={quits},pe_lab.encodings.base.PositionalEncoding", *WORDS, *TINY, "epochs=1", "logger=none"]
    status, _, errors = program(run.main, "-m", "hydra/launcher=basic", *words)
    assert status == 1
    assert "Traceback" not in errors
    failures = {training.failure(1) is not None: training for training in Ledger("ledger").runs()}
    assert failures[False].done(1)
    assert "sys.exit(0)" in failures[True].failure(1)["reason"]


def test_the_place_is_named_when_wandb_has_replaced_sys_exit() -> None:
    replaced = {"__name__": "wandb.sdk.lib.exit_hooks", "sys": sys}
    exec("def exit(code):\n    sys.exit(code)", replaced)
    with pytest.raises(ValueError, match=r"sys.exit\(3\) in .*test_exit.py, line"), no_exit():
        replaced["exit"](3)


STOPPED = """
import os, signal, sys, time
from pe_lab import run
from pe_lab.experiment import sweep

def stopped(*given, **named):
    os.kill(os.getpid(), {signum:d})
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests
sweep.run_cells = stopped
sys.argv[1:] = {words}
run.main()
"""


@pytest.mark.covering
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
@pytest.mark.parametrize("words", [["pe=rope"], ["-m", "pe=rope,alibi"]], ids=["cell", "sweep"])
def test_a_signal_ends_the_program_with_one_line_that_names_what_is_kept(
    words: list[str], signum: int, tmp_path: Path
) -> None:
    given = [*words, *TINY, "epochs=1", "logger=none", f"ledger={tmp_path / 'mine'}"]
    command = [sys.executable, "-c", STOPPED.format(signum=signum, words=given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (128 + signum, "")
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "mine") in line
