"""A user's class that raises is named with its setting, file, line and function; the traceback is kept."""

import json
import sys
from pathlib import Path

import pytest

from faults.sweeps import TINY
from pe_lab import run
from pe_lab.check import __main__ as check

MODULE = """
import torch
from lightning import Callback
from pe_lab.encodings import PositionalEncoding, Terms


class Fails(PositionalEncoding):
    def terms(self, h, layout):
        {terms}

    def embed(self, x, layout):
        if x.requires_grad and x.grad_fn is not None and self.training:
            {embed}
        return x


class Stops(Callback):
    def on_train_start(self, *_):
        assert False
"""
BROKEN = {
    "library": ("torch.zeros(3, 7) @ torch.zeros(3, 7)", "Fails.terms: RuntimeError: mat1 and mat2"),
    "key": ("raise KeyError('late')", "Fails.terms: KeyError: 'late'"),
    "bare": ("assert False", "Fails.terms: AssertionError"),
    "checked": ("return Terms(**{'none_such': 1})", "Fails.terms: TypeError"),
}
SETTINGS = [*TINY, "epochs=1", "logger=none"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the module under a name, and configs of its classes; returns its flags."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, terms: str = "return Terms()", embed: str = "pass") -> list[str]:
        Path(f"{name}.py").write_text(MODULE.format(terms=terms, embed=embed), encoding="utf-8")
        texts = {"pe": f"_target_: {name}.Fails\n_partial_: true\nname: {name}\n"}
        texts["callbacks"] = f"# @package callbacks.{name}\n_target_: {name}.Stops\n"
        for group, text in texts.items():
            Path("conf", group).mkdir(parents=True, exist_ok=True)
            Path("conf", group, f"{name}.yaml").write_text(text, encoding="utf-8")
        return ["--config-dir=conf", *SETTINGS]

    return written


def line_of(module: str, text: str) -> int:
    lines = Path(f"{module}.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_class_that_raises_before_training_is_named_with_its_line_also_in_a_sweep(kind: str, write, program) -> None:
    code, end = BROKEN[kind]
    name = f"own_{kind}"
    words = write(name, terms=code)
    for pes in (["-m", f"pe=none,{name}"], [f"pe={name}"]):
        status, _, errors = program(run.main, *words, *pes)
        (line,) = [text for text in errors.splitlines() if text.startswith("error: ")]
        assert status == 1
        assert line.startswith(f"error: pe={name}: {name}.py:{line_of(name, code)} in {end}")
        assert "HYDRA_FULL_ERROR=1" in line


def test_the_variable_that_the_line_names_shows_the_users_frame(write, program, monkeypatch) -> None:
    words = write("own_traced", terms="raise KeyError('late')")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(KeyError) as caught:
        program(run.main, *words, "-m", "pe=none,own_traced")
    assert Path(str(caught.traceback[-1].path)).name == "own_traced.py"


@pytest.mark.parametrize(
    ("method", "required"), [("terms", "Terms"), ("embed", "a tensor"), ("mix", "two tensors"), ("locate", "a Layout")]
)
def test_a_method_that_returns_nothing_is_named_with_what_it_must_return(method, required, write, program) -> None:
    name = f"own_{method}_none"
    words = write(name)
    with Path(f"{name}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\nFails.{method} = lambda self, *_: None\nFails.{method}.__qualname__ = 'Fails.{method}'\n")
    status, _, errors = program(run.main, *words, f"pe={name}")
    assert status == 1
    assert f"error: pe={name}: Fails.{method} must return {required}, got NoneType" in errors


def test_a_failure_in_training_keeps_its_traceback_and_the_line_names_the_file(write, program) -> None:
    words = write("own_late", embed="raise KeyError('late')")
    status, _, errors = program(run.main, *words, "-m", "pe=none,own_late", "hydra/launcher=basic")
    place = f"pe=own_late: own_late.py:{line_of('own_late', 'KeyError')} in Fails.embed: KeyError: 'late'"
    (line,) = [text for text in errors.splitlines() if text.startswith("missing: ")]
    file = Path(line.rpartition("traceback: ")[2].rstrip(")"))
    record = json.loads(file.read_text(encoding="utf-8"))
    assert status == 1
    assert place in line
    assert record["reason"] == place
    assert any("own_late.py" in text for text in record["traceback"])
    assert "HYDRA_FULL_ERROR" not in errors


def test_a_callback_that_raises_is_named_and_not_the_encoding(write, program) -> None:
    words = write("own_stop")
    status, _, errors = program(run.main, *words, "pe=own_stop", "callbacks=own_stop")
    assert status == 1
    assert f"callbacks=own_stop: own_stop.py:{line_of('own_stop', 'assert False')} in Stops.on_train_start" in errors


def test_a_module_that_cannot_be_imported_is_named_with_its_line(write, program) -> None:
    words = write("own_syntax")
    for code, error in (("if if", "SyntaxError"), ("undefined_name", "NameError")):
        Path("own_syntax.py").write_text(f"\n{code}\n", encoding="utf-8")
        sys.modules.pop("own_syntax", None)
        status, _, errors = program(run.main, *words, "pe=own_syntax")
        assert status == 1
        assert "own_syntax.py:2" in errors
        assert error in errors


def test_settings_that_the_lab_refuses_keep_their_line(write, program) -> None:
    words = write("own_sound")
    status, _, errors = program(run.main, *words, "pe=rope", "model.width=6", "model.num_heads=2")
    assert status == 1
    assert ".py:" not in errors
    assert "HYDRA_FULL_ERROR" not in errors


def test_a_check_says_once_where_a_class_raises(write, program) -> None:
    write("own_unchecked", terms="raise KeyError('late')")
    status, lines, errors = program(check.main, "pe=own_unchecked", "--config-dir=conf")
    broken = [line for line in lines if line.startswith("BROKEN")]
    assert (status, errors) == (1, "")
    assert len(broken) == 2
    assert f"own_unchecked.py:{line_of('own_unchecked', 'KeyError')} in Fails.terms: KeyError: 'late'" in broken[0]


def test_a_check_of_a_class_that_cannot_be_made_has_one_line(write, program) -> None:
    write("own_unmade")
    with Path("own_unmade.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef __init__(self, sizes, name):\n    {}['size']\n\n\nFails.__init__ = __init__\n")
    status, _, errors = program(check.main, "pe=own_unmade", "--config-dir=conf")
    assert status == 1
    assert errors.startswith("error: pe=own_unmade: own_unmade.py:")
    assert errors.count("\n") == 1
