"""The program that writes again what is generated from the code."""

import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from pe_lab.benchmark.undefined_encodings import replace_lines
from pe_lab.gallery import definitions

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


@pytest.mark.parametrize("name", ["none", "rope", "xpos"])
def test_encodings_have_their_places(update: ModuleType, name: str) -> None:
    assert [*update.missing([name], ["public", "pages"])] == []


@pytest.mark.long
def test_places_without_an_encoding_are_named_before_anything_is_written(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    for part in (".ci", "conf", "docs", "pe_lab", "tests", "pyproject.toml"):
        place, ignored = PROGRAM.parents[1] / part, shutil.ignore_patterns("__pycache__")
        shutil.copytree(place, root / part, ignore=ignored) if place.is_dir() else shutil.copy(place, root / part)
    (root / "conf/pe/mine.yaml").write_text("_target_: pe_lab.encodings.mine.Mine\n_partial_: true\nname: mine\n")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    ran = subprocess.run(
        [sys.executable, "-B", ".ci/update.py", "mine"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    places = [line.partition(":")[0] for line in ran.stderr.splitlines()[1:]]
    assert places == [
        "pe_lab/encodings/families/mine.py",
        "pe_lab/gallery/encoding_families.py",
        "pe_lab/gallery/encodings.yaml",
        "tests/encodings",
    ]


def test_the_place_of_an_entry_is_that_of_its_file_and_name(update: ModuleType, monkeypatch) -> None:
    """An entry that is missing, and one that stands before the one that it belongs behind."""
    targets = update.encodings()
    (line,) = update.missing_in_gallery("alibi_2", targets | {"alibi_2": targets["alibi"]})
    assert line.endswith("alibi_2 must have an entry behind alibi")
    entries = [*definitions.definitions()]
    assert entries[:2] == ["none", "clipped_rope"]
    monkeypatch.setattr(definitions, "definitions", lambda: dict.fromkeys([*entries[1::-1], *entries[2:]]))
    assert [*update.missing_in_gallery("rope", targets)] == []
    (line,) = update.missing_in_gallery("clipped_rope", targets)
    assert line.endswith("clipped_rope must have an entry behind none")


def test_another_encoding_of_a_class_is_a_variant(update: ModuleType) -> None:
    (line,) = update.missing_class("alibi_2", update.encodings()["alibi"])
    assert line.startswith("pe_lab/encodings/named.py: ")


def test_pairs_of_some_encodings_are_replaced_and_the_others_stay_in_order(tmp_path: Path) -> None:
    file = tmp_path / "undefined.csv"
    columns = ["pe", "task", "reason"]
    old = [("b", "copy", "x"), ("c", "copy", "x"), ("a", "bag", "x"), ("b", "bag", "x")]
    pd.DataFrame(old, columns=columns).to_csv(file, index=False)
    new = pd.DataFrame([("a", "copy", "y"), ("b", "bag", "y")], columns=columns)
    replace_lines(file, new, ["a", "b"], ["copy", "bag"])
    lines = pd.read_csv(file).itertuples(index=False, name=None)
    assert list(lines) == [("a", "copy", "y"), ("c", "copy", "x"), ("b", "bag", "y")]
