"""What is there for whoever installs the package or takes it up: locked versions, an image, a workflow, a citation."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import pe_lab
from pe_lab.benchmark.tasks import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = [Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines() if re.match(r"\w", line)]


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["docs"], *EXTRAS["notebooks"]])
def test_a_dependency_is_locked_to_a_version_in_its_range(text: str) -> None:
    wanted = Requirement(text)
    pins = [str(one.specifier) for one in LOCKED if one.name == wanted.name.lower().replace("_", "-")]
    assert pins
    for pin in pins:
        assert pin.startswith("==")
        assert Version(pin[2:]) in wanted.specifier, f"{text}: {pin}, run the command in requirements.lock again"


def test_a_plain_installation_can_end_the_workers_of_a_sweep() -> None:
    """Without psutil joblib runs pgrep, which a signal to the process group ends too: workers and program stay."""
    assert "psutil" in {Requirement(text).name for text in PROJECT["dependencies"]}


def test_what_the_image_copies_is_there() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = " ".join(copied).split()
    assert all((ROOT / name).exists() for name in names)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*build["packages"], *build["force-include"], PROJECT["readme"], *PROJECT["license-files"]} <= set(names)


def test_the_workflow_runs_what_is_run_here() -> None:
    """The README's command for tests, and programs of the repository; on the lowest version of Python and another."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    quick, everything = ([step["run"] for step in jobs[name]["steps"] if "run" in step] for name in ("quick", "all"))
    assert (quick[1:-1], everything) == ([".ci/check"], [".ci/run"])
    assert all(os.access(ROOT / program, os.X_OK) for program in (".ci/check", ".ci/run"))
    assert f".venv/bin/{quick[-1]}" in (ROOT / "README.md").read_text()
    lowest, newest = jobs["quick"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={lowest}"
    assert Version(newest) > Version(lowest)


def test_public_names_are_there_without_further_imports() -> None:
    code = (
        "import pe_lab, sys; assert {*pe_lab.__all__} <= {*dir(pe_lab)}; assert 'torch' not in sys.modules; "
        "print(*[getattr(pe_lab, n) for n in pe_lab.__all__])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="nothing"):
        pe_lab.nothing  # noqa: B018


def test_the_results_that_come_with_the_package_are_cited_with_their_version() -> None:
    (data,) = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    assert (data["type"], data["version"]) == ("data", str(VERSION))
