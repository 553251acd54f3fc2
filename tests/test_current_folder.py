"""Files in the current folder are not imported by chance: only users' classes are, where a command names them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pe_lab
from faults.sweeps import TINY

MINE = """
from pe_lab.encodings import PositionalEncoding
from helper import NAME


class Mine(PositionalEncoding):
    pass
"""
NAMED = ["pe=none", "pe.name=mine", "pe._target_=mine.Mine", "model.depth=1", "data=bag", "data.train=64"]
INSTALLED = ("cloudpickle", "hydra", "joblib", "numpy", "omegaconf", "pandas", "torch", "yaml")
OPTIONAL = ("bottleneck", "gmpy2", "numexpr", "pyarrow", "backend")  # looked for by the packages that we import
MARK = "imported"


def poison(folder: Path, names: tuple[str, ...]) -> None:
    """Write modules that leave a mark when they are imported."""
    for name in names:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(folder / MARK)!r}, 'a').write({name + chr(10)!r})\n")


def run(folder: Path, *command: str, status: int = 0, **variables: str) -> str:
    """Run a command in a folder, require its exit status, and return what it printed."""
    env = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a class that was trained by two workers, beside modules that have names of installed packages."""
    folder = tmp_path_factory.mktemp("current")
    (folder / "mine.py").write_text(MINE)
    (folder / "helper.py").write_text("NAME = 'mine'\n")
    poison(folder, INSTALLED)
    words = [*NAMED, *TINY, "seed=0,1", "workers=2", "epochs=1", "logger=none", "study_name=mine"]
    said = run(folder, sys.executable, "-m", "pe_lab.run", "-m", *words)
    assert len([*folder.glob("ledger/*/checkpoints/1")]) == 2
    assert "_target_" not in said  # no worker left its cell to the process that waits
    return folder


@pytest.mark.long
def test_a_class_of_the_current_folder_is_found_by_workers_after_all_packages(folder: Path) -> None:
    assert not (folder / MARK).exists()


PROGRAMS = {  # with their exit status
    "report mine --out out": 0,
    "benchmark --replace": 1,
    "evaluate pe=none": 1,
    "run --help": 0,
    "run --info plugins": 0,
    "check pe=none model.depth=0": 1,
    "status": 0,
    "ledger verify": 0,
    "audit pe=none pictures=false seconds=0.1": 0,
}
ALL = """
import sys
sys.path[:] = [path for path in sys.path if path]  # as the script of pip, which puts its own folder first
from pe_lab.cli import main
for words in sys.argv[1:]:
    sys.argv = ["pe-lab", *words.split()]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    print("status", status or 0, words)
"""


@pytest.fixture
def poisoned(folder: Path) -> Path:
    """The folder, with modules that the packages look for which we import, and plugins of theirs."""
    poison(folder, (*OPTIONAL, "hydra_plugins/__init__", "hydra_plugins/evil/__init__"))
    (info := folder / "evil-1.0.dist-info").mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nevil = backend:load\n")
    return folder


@pytest.mark.long
def test_programs_import_nothing_from_the_current_folder(poisoned: Path) -> None:
    said = run(poisoned, sys.executable, "-c", ALL, *PROGRAMS)
    assert not (poisoned / MARK).exists(), (poisoned / MARK).read_text()
    assert [line for line in said.splitlines() if line.startswith("status")] == [
        f"status {status} {words}" for words, status in PROGRAMS.items()
    ]


@pytest.mark.long
@pytest.mark.parametrize("words", ["report mine --out out", "run --info plugins"])
def test_started_as_modules_they_import_nothing_from_there_either(poisoned: Path, words: str) -> None:
    run(poisoned, sys.executable, "-m", "pe_lab", *words.split())
    assert not (poisoned / MARK).exists(), (poisoned / MARK).read_text()


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A checkout with a program that prints the path."""
    package = tmp_path / "checkout" / "pe_lab"
    package.mkdir(parents=True)
    shutil.copy(str(pe_lab.__file__), package)
    (package / "show.py").write_text("import sys\nprint(*sys.path, sep='\\n')\n")
    (tmp_path / "other").mkdir()
    return tmp_path


@pytest.mark.parametrize("flags", [["-m", "pe_lab.show"], ["-mpe_lab.show"], ["-Bm", "pe_lab.show", "-m", "x"]])
def test_the_current_folder_leaves_the_path_unless_it_is_the_checkout(shown: Path, flags: list[str]) -> None:
    checkout, other = shown / "checkout", shown / "other"

    def path(folder: Path, *first: str, **variables: str) -> list[str]:
        return run(folder, sys.executable, *first, *flags, **variables).splitlines()

    assert path(checkout, PYTHONPATH="")[0] == str(checkout)
    assert str(other) not in path(other, PYTHONPATH=str(checkout))
    both = os.pathsep.join([str(checkout), str(other)])
    assert path(other, PYTHONPATH=both)[:2] == [str(checkout), str(other)]  # the user's own wish
    swapped = os.pathsep.join([str(other), str(checkout)])
    assert path(other, "-P", PYTHONPATH=swapped)[:2] == [str(other), str(checkout)]


def test_a_program_that_only_imports_the_package_keeps_its_path(shown: Path) -> None:
    other = shown / "other"
    (other / "study").mkdir()
    (other / "study" / "__init__.py").write_text("import pe_lab\n")
    (other / "study" / "__main__.py").write_text("import sys\nprint(sys.path[0])\n")
    for start, first in ((["-m", "study"], str(other)), (["-c", "import pe_lab, sys; print(sys.path[0])"], "")):
        assert run(other, sys.executable, *start, "pe_lab.show", PYTHONPATH=str(shown / "checkout")) == f"{first}\n"
