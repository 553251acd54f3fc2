"""The documentation: its examples run, its generated parts are up to date, its links lead somewhere."""

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest
import yaml

from pe_lab import config
from pe_lab.system.exact_csv import read_csv

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(
    r"<!-- test(?:: (?P<file>\S+))? -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"(?<!`)\[[^\]\n]+\]\((?!https?:)([^)\s]+)\)")
TESTED = [page for page in PAGES if EXAMPLE.search(page.read_text())]


def generator() -> ModuleType:
    spec = spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of an example: `pe-lab` and `python` are those of the tests."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("pe-lab", "-m pe_lab")):
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        script.chmod(0o755)
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "MPLBACKEND": "agg",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    for example in EXAMPLE.finditer(page.read_text(encoding="utf-8")):
        code = example["code"]
        if example["file"]:
            file = tmp_path / example["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code)
            if file.is_relative_to(tmp_path / "my-positions") or file.suffix != ".py":
                continue  # files of a project, which the commands after them use
        command = ["bash", "-euo", "pipefail", "-c", code]
        if example["language"] == "python":
            command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_examples_are_tested_on_the_pages_that_teach() -> None:
    assert {"quickstart.md", "your-model.md", "extend.md", "trainer.md"} <= {page.name for page in TESTED}


@pytest.mark.long
def test_generated_parts_are_up_to_date() -> None:
    generate = generator()
    for page in PAGES:
        text = page.read_text()
        assert generate.filled(text) == text, f"run: python docs/generate.py ({page.name} differs)"


def test_every_part_is_generated_somewhere_and_nothing_else_is() -> None:
    generate = generator()
    found = {part[2] for page in PAGES for part in generate.PART.finditer(page.read_text())}
    assert found == set(generate.parts())
    marked = sum(page.read_text().count("<!-- generated: ") for page in PAGES)
    assert marked == sum(len(generate.PART.findall(page.read_text())) for page in PAGES)


@pytest.mark.parametrize("group", ["pe", "data"])
def test_every_config_is_listed_with_its_comment(group: str) -> None:
    page = (ROOT / "docs" / {"pe": "encodings.md", "data": "tasks.md"}[group]).read_text()
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        assert f"| [`{path.stem}`][pe_lab." in page
    assert not [config["stem"] for config in generator().configs(group) if not config["comment"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        assert not path or (page.parent / path).exists(), f"{page.name}: {target}"


def test_files_that_pages_name_exist() -> None:
    named = re.compile(r"`((?:conf|pe_lab|sweeps|tests|docs|notebooks)/[\w./-]+)`")
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            missing = [path for path in named.findall(page.read_text()) if not (ROOT / path).exists()]
            assert missing == [], page.name


def test_functions_that_the_contributors_page_names_exist() -> None:
    named = re.findall(r"`((?:pe_lab|hydra_plugins)\.[\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 15
    for name in named:
        resolve_name(name)  # raises where there is none


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_commands_of_the_readme_are_not_cut() -> None:
    blocks = re.findall(r"^```bash.*?\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 100


def test_the_default_cell_has_learned_its_task() -> None:
    default = config.expand_overrides(config.sweep_overrides([]), multirun=True)[0]
    rows = read_csv(ROOT / "sweeps/results/depth_epochs_pe_2/rows.csv")
    cell = (rows["pe"] == default.pe.name) & (rows["depth"] == default.model.depth) & (rows["epochs"] == default.epochs)
    losses = rows[cell & (rows["data"] == default.data.name)]
    assert len(losses) >= 5
    assert (losses["test_loss"] < losses["floor_position_blind_split_known_loss"]).all()


def test_the_citation_has_what_the_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])
    from pe_lab import __version__

    assert citation["version"] == __version__
