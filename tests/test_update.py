"""The program that writes again what is generated from the code."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from pe_lab.benchmark.undefined_encodings import replace_lines

PROGRAM = Path(__file__).parents[1] / ".ci/update.py"


@pytest.fixture
def update() -> ModuleType:
    spec = spec_from_file_location("update", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_public_names_are_those_that_it_writes(update: ModuleType, tmp_path: Path, monkeypatch) -> None:
    written = update.PUBLIC.read_bytes()
    monkeypatch.setattr(update, "PUBLIC", tmp_path / "public.py")
    update.public([])
    assert update.PUBLIC.read_bytes() == written


def test_a_class_of_a_new_file_becomes_public(update: ModuleType, tmp_path: Path, monkeypatch) -> None:
    known = update.encodings()
    monkeypatch.setattr(update, "encodings", lambda: known | {"mine": "pe_lab.encodings.bias.Mine"})
    monkeypatch.setattr(update, "PUBLIC", tmp_path / "public.py")
    update.public([])
    names: dict[str, object] = {}
    exec(update.PUBLIC.read_text().replace(", Mine", ""), names)  # the class is not there
    assert "Mine" in names["__all__"]


def test_a_name_that_is_no_encoding_is_refused_in_one_line() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "rpoe"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "rpoe" in line


def test_pairs_of_some_encodings_are_replaced_and_the_others_stay_in_order(tmp_path: Path) -> None:
    file = tmp_path / "undefined.csv"
    columns = ["pe", "task", "reason"]
    old = [("b", "copy", "x"), ("c", "copy", "x"), ("a", "bag", "x"), ("b", "bag", "x")]
    pd.DataFrame(old, columns=columns).to_csv(file, index=False)
    new = pd.DataFrame([("a", "copy", "y"), ("b", "bag", "y")], columns=columns)
    replace_lines(file, new, ["a", "b"], ["copy", "bag"])
    lines = pd.read_csv(file).itertuples(index=False, name=None)
    assert list(lines) == [("a", "copy", "y"), ("c", "copy", "x"), ("b", "bag", "y")]
