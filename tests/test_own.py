"""A package outside of the repository, that of docs/extend.md: trained, measured, audited, checked and reported."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pe_lab import config
from pe_lab.cli import COMMANDS
from pe_lab.data import __main__ as export
from pe_lab.report import __main__ as report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extend.md"
FILE = re.compile(r"<!-- test: my-positions/(\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TINY = ["model.width=16", "model.num_heads=2", "epochs=1", "trainer.batch_size=16", "logger=none"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that docs/extend.md shows."""
    folder = tmp_path_factory.mktemp("own") / "my-positions"
    for name, text in {**dict(FILE.findall(PAGE.read_text())), "my_positions/__init__.py": ""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def site(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with that project: its wheel, unpacked."""
    built = tmp_path_factory.mktemp("wheel")
    wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"]
    subprocess.run([*wheel, "--outdir", str(built), str(project)], check=True, capture_output=True)
    (archive,) = built.glob("*.whl")
    shutil.unpack_archive(archive, built / "site", "zip")
    return built / "site"


def run(site: Path | None, *words: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program where the package is installed; None: where it is not."""
    paths = filter(None, [str(site) if site else "", os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def test_the_page_shows_every_file_of_the_project(project: Path) -> None:
    tree = re.search(r"^my-positions/\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert tree is not None
    stack, listed = [""], set()
    for line in tree[1].splitlines():
        name = line.split()[0]
        stack[(len(line) - len(line.lstrip())) // 2 :] = [name]
        if not name.endswith("/"):
            listed.add("".join(stack[1:]))
    assert listed == {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}


PROGRAMS = {  # what each says when it has taken the folder, and goes on
    "run": (["pe=gaussian", "model.depth=0"], "model.depth must be an integer of at least 1, got 0"),
    "evaluate": (["pe=gaussian", "pe.width=0"], "pe.width must be a positive number, got 0"),
    "status": (["nowhere"], "LEDGER must be a folder in which cells were requested, got 'nowhere'"),
    "report": (["nowhere"], "source must be a folder, or a study in ledger, got 'nowhere'"),
    "audit": (["pe=gaussian", "pe.width=0"], "pe.width must be a positive number, got 0"),
    "data": (["export", "data=first", "data.length=0"], "data.length must be an integer of at least 1, got 0"),
    "check": (["data=first", "data.train=0"], "data.train must be an integer of at least 1, got 0"),
}


@pytest.mark.parametrize("command", PROGRAMS)
def test_every_program_that_composes_takes_the_folder(
    project: Path, tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    words, line = PROGRAMS[command]
    monkeypatch.chdir(tmp_path)
    main = import_module(COMMANDS[command][0]).main
    flag = f"--config-dir={project / 'my_positions' / 'conf'}"
    monkeypatch.syspath_prepend(project)
    status, out, err = program(main, words[0], flag, *words[1:])
    assert (status, out) == (1, [])
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1
    status, _, err = program(main, *words, "--config-dir=nowhere")
    assert (status, err) == (1, "error: --config-dir must be a folder of configs, got 'nowhere'\n")


def test_a_dataset_of_ones_own_is_exported(project: Path, tmp_path: Path, program, monkeypatch) -> None:
    monkeypatch.syspath_prepend(project)
    flag = f"--config-dir={project / 'my_positions' / 'conf'}"
    status, lines, err = program(export.main, "export", "data=first", "data.train=64", f"out={tmp_path}", flag)
    assert (status, err) == (0, "")
    assert lines[-1] == "train 64, validation 128, test 128, demo 8"
    assert (tmp_path / "first/first.csv").is_file()


def test_a_report_names_the_command_that_trains_a_study_of_ones_own(project: Path) -> None:
    flag = f"--config-dir={project / 'my_positions' / 'conf'}"
    with config.add_config_dirs([flag]):
        assert report.command("distance") == f"pe-lab run {flag} -m +study=distance"
        assert report.command("layers") == "pe-lab run -m +study=layers"
    assert report.command("distance") == ""


@pytest.mark.slow
def test_a_package_of_ones_own_is_trained_measured_audited_checked_and_reported(site: Path, tmp_path: Path) -> None:
    own = ["pe=gaussian", "data=first", "model.depth=1"]
    run(site, "pe_lab.run", "-m", "+study=distance", "seed=0,1", "workers=2", "model.depth=1", *TINY, cwd=tmp_path)
    assert len([*tmp_path.glob("ledger/*/checkpoints/1")]) == 6
    identities = "".join(path.read_text() for path in tmp_path.glob("ledger/*/run.json"))
    assert identities.count("my_positions.encodings.Gaussian") == 2
    assert identities.count("my_positions.data.First") == 6
    again = run(site, "pe_lab.run", *own, *TINY, cwd=tmp_path)
    assert "1 of 1 cells are in the ledger already" in again.stderr + again.stdout

    run(site, "pe_lab.evaluate", *own, "probe=rank", *TINY, cwd=tmp_path)
    assert [*tmp_path.glob("ledger/*/records/1/*/rows.csv")]
    run(site, "pe_lab.audit", "pe=gaussian,none", "pictures=false", "seconds=0.1", cwd=tmp_path)
    with (tmp_path / "audit/table.csv").open(encoding="utf-8") as file:
        assert [row["pe"] for row in csv.DictReader(file)] == ["gaussian", "none"]
    for word in own[:2]:
        checked = run(site, "pe_lab.check", word, cwd=tmp_path).stdout
        assert f"{word}, my_positions." in checked
        assert "BROKEN" not in checked

    run(site, "pe_lab.report", "distance", "--audit", "audit", cwd=tmp_path)
    report = tmp_path / "ledger/studies/distance/report.html"
    assert "pe-lab run -m +study=distance" in report.read_text()
    # stored configs are complete: what was trained is reported where the package is not installed
    report.unlink()
    run(None, "pe_lab.report", "distance", "--audit", "audit", cwd=tmp_path)
    assert "gaussian" in report.read_text()
    assert "6 done of 6 cells" in run(None, "pe_lab.status", "ledger", "--all", cwd=tmp_path).stdout
    refused = run(None, "pe_lab.run", *own, *TINY, cwd=tmp_path, status=1)
    assert refused.stderr.startswith("error: data must be one of addition, ")


@pytest.mark.slow
def test_the_tests_of_the_project_pass(project: Path, site: Path) -> None:
    done = run(site, "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)
    assert "2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["cores", "submitit_here"])
def test_a_folder_of_ones_own_is_found_by_workers_of_every_launcher(tmp_path: Path, launcher: str) -> None:
    """Nothing but --config-dir says where the class is: it is neither installed nor in the current folder."""
    project, work = tmp_path / "project", tmp_path / "work"
    (project / "conf" / "pe").mkdir(parents=True)
    work.mkdir()
    files = dict(FILE.findall(PAGE.read_text()))
    (project / "own_encoding.py").write_text(files["my_positions/encodings.py"])
    text = files["my_positions/conf/pe/gaussian.yaml"].replace("my_positions.encodings", "own_encoding")
    (project / "conf/pe/gaussian.yaml").write_text(text)
    words = ["pe=gaussian", "data=bag", "data.train=64", "seed=0,1", "model.depth=1", "workers=2", *TINY]
    flags = [f"--config-dir={project / 'conf'}", f"hydra/launcher={launcher}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        done = run(None, "pe_lab.run", "-m", *flags, *words, cwd=work)
    logs = [path.read_text() for path in tmp_path.glob("cache/pe_lab/hydra/.submitit/*/*_log.err")]
    assert len(logs) == (2 if launcher == "submitit_here" else 0)
    assert "_target_" not in "".join([done.stderr, *logs])  # no worker left its cell to the process that waits
    assert len([*work.glob("ledger/*/checkpoints/1")]) == 2
    (command,) = [json.loads(path.read_text()) for path in work.glob("ledger/commands/*.json")]
    assert command["overrides"][0] == flags[0]  # what status prints can be run again
