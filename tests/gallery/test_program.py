"""The program that writes the gallery: what it prints, and its errors as one line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab.cli import COMMANDS
from pe_lab.gallery import gallery_data as made_of
from pe_lab.gallery.__main__ import main
from pe_lab.gallery.definitions import definitions

Program = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: definitions()[name] for name in ("rope", "none", "alibi", "rope_2d")}
    monkeypatch.setattr(made_of, "definitions", lambda: few)


@pytest.mark.usefixtures("_few", "content")
@pytest.mark.slow  # `site` writes one in the fast tests
def test_it_writes_a_site_and_says_where(program: Program, results: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    status, lines, error = program(main, "--out", out, "--results", results, "--cache", cache)
    assert (status, error) == (0, "")
    assert lines[-1] == f"{out / 'index.html'}: 17 pages, from 60 rows"
    assert (out / "index.html").is_file()
    assert (out / "gallery.js").read_bytes() == (Path(made_of.__file__).parent / "static/gallery.js").read_bytes()


@pytest.mark.usefixtures("_few", "content")
def test_encodings_can_be_chosen(program: Program, results: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    status, _, error = program(main, "--pe", "rope,alibi,rope", "--out", out, "--results", results, "--cache", cache)
    assert (status, error) == (0, "")
    assert {path.stem for path in (out / "encodings").iterdir()} == {"rope", "alibi"}
    status, _, error = program(main, "--pe", "rope,alibbi", "--out", tmp_path / "other")
    assert status == 1
    assert error.startswith("error: --pe='alibbi': did you mean alibi?")
    assert program(main, "--pe", "", "--out", tmp_path / "other")[2] == (
        "error: --pe must be names of encodings with commas between them, got ''\n"
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("_few", "content")
@pytest.mark.slow  # two sites
def test_the_same_results_give_the_same_bytes(program: Program, results: Path, cache: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        program(main, "--out", tmp_path / name, "--results", results, "--cache", cache)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) > 17
    assert all((tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes() for path in files)


def test_damaged_results_give_one_line(program: Program, results: Path, tmp_path: Path) -> None:
    for path in results.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / "pe_bench_2_copy.csv"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    status, lines, error = program(main, "--out", tmp_path / "site", "--results", tmp_path)
    assert (status, lines) == (1, [])
    assert error.count("\n") == 1
    assert error.startswith(f"error: shipped results {damaged} must have the digest ")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("name", ["results", "studies"])
def test_a_folder_that_is_not_there_gives_one_line(program: Program, tmp_path: Path, name: str) -> None:
    status, _, error = program(main, f"--{name}", tmp_path / "none")
    assert status == 1
    assert error == f"error: --{name} must be an existing folder, got '{tmp_path / 'none'}'\n"


@pytest.mark.parametrize("name", ["out", "cache"])
def test_a_folder_that_cannot_be_made_gives_one_line_before_anything_is_computed(
    program: Program, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        status, lines, error = program(main, f"--{name}", folder)
        assert (status, lines) == (1, [])
        assert error == f"error: --{name} must be a folder that can be written to, got '{folder}'\n"


@pytest.mark.usefixtures("_few", "content")
@pytest.mark.slow  # a site
def test_a_cache_without_permission_is_read(
    program: Program, results: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != cache and allowed(path, mode))
    status, _, error = program(main, "--out", tmp_path / "site", "--results", results, "--cache", cache)
    assert (status, error) == (0, "")


@pytest.mark.parametrize("name", ["out", "cache"])
def test_a_folder_without_permission_gives_one_line(
    program: Program, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_lab.system.files.is_writable", lambda folder: tmp_path / "no" not in folder.parents)
    (tmp_path / "no").mkdir()
    status, lines, error = program(main, f"--{name}", tmp_path / "no" / "below")
    assert (status, lines) == (1, [])
    assert error == f"error: --{name} must be a folder that can be written to, got '{tmp_path / 'no' / 'below'}'\n"


def test_pe_lab_knows_the_command() -> None:
    assert COMMANDS["gallery"][0] == "pe_lab.gallery.__main__"


def test_without_the_extra_it_is_named_before_anything_is_drawn(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    status, lines, error = program(main, "--out", tmp_path / "site", "--cache", tmp_path / "cache")
    assert (status, lines) == (1, [])
    assert error.endswith("latex2mathml, which is not installed: pip install 'pe_lab[docs]'\n")
    assert not list(tmp_path.iterdir())
