"""What Hydra's manual says of a program holds for pe_lab.run, or is refused in one line: a table of its commands."""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from helpers.configs import TINY_MODEL
from pe_lab import cli, run
from pe_lab.ledger.ledger import Ledger

ROOT = Path(__file__).parents[1]
TINY = [*TINY_MODEL, "trainer.device=cpu", "epochs=1"]
TINY += ["data=bag", "data.train=64", "logger=none"]
SHOWN = {  # what is printed, and nothing is trained
    "--help": "trainer.batch_size=64",
    "--help all": "decide.seeds=5..12",
    "-h pe=alibi": "pe.slopes=geometric",
    "--hydra-help": "Hydra (1.",
    "--version": "Hydra 1.",
    "--cfg job": "ledger: ledger",
    "-c hydra hydra.job.name=other": "name: other",
    "--cfg all": "hydra:",
    "--cfg job --package model": "# @package model",
    "--cfg job --resolve seed=7 '+data.path=${seed}'": "path: 7",
    "--info": "Defaults List",
    "pe=alibi --info": "Defaults List",
    "--cfg job ++model.depth=7": "depth: 7",
    "--cfg job ~seed": "ledger: ledger",
    "--cfg job --resolve seed=${oc.env:NOTHING,5}": "seed: 5",
    "--cfg job seed=int(3.0)": "seed: 3",
    "--cfg job logger=[wandb,csv] --package logger": "csv_logger",
    "--cfg job +logger=csv --package logger": "csv_logger",
    "--cfg job hydra.mode=MULTIRUN data=bag data.train=64": "train: 64",
    "--info config": "Config",
    "--info defaults": "hydra/sweeper/pe_lab",
    "--info defaults-tree": "pe: rope",
    "--info plugins": "PeLabSweeper",
    "--info searchpath": "pkg://hydra.conf",
    "-sc install=bash": "hydra_bash_completion pe-lab",
    "-sc uninstall=bash": "unset hydra_bash_completion",
    "-sc install=zsh": "hydra_bash_completion pe-lab",
    "-sc install=fish": "pe-lab",
}
REFUSED = {  # with what the line must mention
    "--config-name=other": ["--config-name"],
    "--config-path=/tmp": ["--config-path"],
    "--experimental-rerun=config.pickle": ["--experimental-rerun"],
    "--package model": ["--package", "--cfg"],
    "--resolve": ["--resolve", "--cfg"],
    "--cfg everything": ["job", "hydra", "all"],
    "--cfg job -m": ["--multirun", "--cfg"],
    "-sc install=tcsh": ["tcsh"],
    "--info pe=alibi": ["info must be one of", "defaults-tree"],
    "hydra.sweep.subdir=${hydra.job.num}": ["hydra.sweep.subdir=${hydra.job.num}", "-m"],
    "hydra.searchpath=[file:///tmp]": ["hydra.searchpath", "--config-dir"],
    "hydra/launcher=nothing": ["hydra/launcher", "joblib"],
    "hydra/sweeper=nothing": ["hydra/sweeper", "basic"],
    "hydra.nothing=1": ["hydra.nothing"],
    "+hydra.nothing=1": ["hydra.nothing", "sweeper"],
    "++hydra.job.nothing=1": ["hydra.job.nothing", "chdir"],
    "~nothing": ["nothing"],
    "~seed": ["seed"],
    "+seed=1": ["seed", "++seed=1"],
    "+nothing=1": ["nothing=1", "model"],
    "++pe.nothing=1": ["pe.nothing", "theta"],
    "+pe=alibi": ["pe"],
    "pe=null": ["pe must be one of", "None"],
    "logger=null": ["logger must be one of", "None"],
    "hydra/launcher=null": ["Config group override"],
    "logger=csv +logger=tensorboard": ["logger must be given once", "+logger=[tensorboard]"],
    "+probe=rank +probe=position": ["probe must be given once"],
    "seed=glob(*)": ["-m"],
    "hydra.verbose=true": ["hydra.verbose", "hydra/job_logging"],
    "-m hydra.verbose=true": ["hydra.verbose", "hydra/job_logging"],
    "hydra.runtime.cwd=/tmp": ["hydra.runtime.cwd"],
    "hydra.job.env_copy=[HOME]": ["hydra.job.env_copy"],
    "-m hydra.job.num=3": ["hydra.job.num=3"],
    "hydra.help.template=x": ["--help", "hydra.help.template"],
    "--help hydra/help=default": ["--help", "hydra/help"],
    "hydra.sweep.dir=out": ["hydra.sweep.dir=out", "-m"],
    "-m hydra.run.dir=out": ["hydra.run.dir=out", "hydra.sweep.dir"],
    "-m hydra/sweeper=basic hydra/launcher=basic hydra.run.dir=out": ["hydra.run.dir=out", "hydra.sweep.dir"],
    "hydra.launcher=x": ["hydra.launcher", "x"],
    "-m hydra.launcher=x": ["hydra.launcher must be a group"],
    "hydra.sweeper=x": ["hydra.sweeper must be a group"],
    "workers=2": ["workers=2", "-m"],
    "hydra/launcher=joblib": ["hydra/launcher=joblib", "-m"],
    "hydra.launcher.n_jobs=2": ["hydra.launcher.n_jobs=2", "-m"],
    "hydra/sweeper=basic": ["hydra/sweeper=basic", "-m"],
    "-m workers=2 hydra/launcher=basic": ["workers", "basic", "2"],
    "-m workers=2 hydra/sweeper=basic hydra/launcher=basic": ["workers=2", "hydra/sweeper=pe_lab"],
    "seed=1,2": ["-m"],
    "-m seed=interval(0,3)": ["interval(0,3)"],
    "-m hydra.sweeper.max_batch_size=2": ["max_batch_size"],
    "-m hydra/sweeper=basic decide.baseline=rope pe=none,rope hydra/launcher=basic": ["decide.baseline"],
}
Lab = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder that is empty, and where launchers leave their files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield tmp_path / "here"
    for handler in root.handlers:
        if handler not in handlers:  # it is Hydra's, and has the output of this test
            handler.close()
    root.level, root.handlers = level, handlers


@pytest.mark.parametrize("line", SHOWN)
def test_what_hydra_shows_is_shown_and_nothing_is_written(here: Path, program: Lab, line: str) -> None:
    status, printed, err = program(run.main, *shlex.split(line))
    assert (status, err) == (0, "")
    assert SHOWN[line] in "\n".join(printed)
    assert not [*here.iterdir()]


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_named_in_one_line(program: Lab, line: str) -> None:
    status, _, err = program(run.main, *shlex.split(line))
    assert (status, err != "") == (1, True)
    *others, last = err.splitlines()
    assert last.startswith("error: ")
    assert all(part in last for part in REFUSED[line])
    assert others == [] or "hydra/sweeper=basic" in line  # Hydra says which job failed


def test_a_program_that_torchrun_has_started_is_refused(program: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    status, _, err = program(run.main, *TINY)
    assert (status, err.count("\n")) == (1, 1)
    assert "trainer.devices" in err


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("pe-lab run pe=ali", "pe=alibi"),
        ("pe-lab pe=ali", "pe=alibi"),
        ("pe-lab run -m pe=rope model.de", "model.depth="),
        ("pe-lab evaluate evaluate.po", "evaluate.policy."),
        ("pe-lab run hydra/sw", "hydra/sweeper="),
    ],
)
def test_a_shell_completes_what_is_typed(
    program: Callable[..., tuple[int, list[str], str]], monkeypatch: pytest.MonkeyPatch, line: str, choice: str
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    _, lines, _ = program(cli.main, "-sc", "query=bash")
    assert choice in " ".join(lines).split()


def trained(ledger: str = "ledger") -> list[dict]:
    return sorted((one.identity() for one in Ledger(ledger).runs()), key=lambda identity: str(identity["pe"]))


def test_a_cell_is_a_job_with_a_folder_a_log_and_its_config(here: Path, program: Lab) -> None:
    words = ["hydra.run.dir=out/${pe.name}", "hydra.output_subdir=.hydra", "hydra.job.name=mine"]
    words += ["hydra/job_logging=default", "hydra.verbose=true", "hydra.job.chdir=true"]
    words += ["+hydra.callbacks.log._target_=hydra.experimental.callbacks.LogJobReturnCallback"]
    status, _, err = program(run.main, *TINY, *words)
    assert status == 0, err
    assert len(trained()) == 1  # beside the folder of the job, though that was the current one
    assert {path.name for path in here.iterdir()} == {"ledger", "out"}
    out = here / "out" / "rope"
    assert {path.name for path in (out / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    (line,) = [line for line in (out / "mine.log").read_text().splitlines() if "Succeeded with return value" in line]
    assert 0 < float(line.rpartition(" ")[2]) < 4  # the validation loss


def test_a_job_that_fails_is_failed_for_hydra_and_one_line_for_the_user(here: Path, program: Lab) -> None:
    words = ["hydra.run.dir=out", "hydra/job_logging=default", "pe=cope", "optimizer.lr=1e30", "optimizer.eps=1e-30"]
    words += ["+hydra.callbacks.log._target_=hydra.experimental.callbacks.LogJobReturnCallback"]
    status, _, err = program(run.main, *TINY, *words)
    lines = [line for line in err.splitlines() if "/1 cells" not in line]  # progress, if loading Lightning takes long
    assert (status, len(lines)) == (1, 1)
    assert "cope" in lines[0]
    assert "cope" in (here / "out" / "run.log").read_text()


def test_the_sweep_of_the_plugin_gives_its_jobs_folders_and_variables(here: Path, program: Lab) -> None:
    words = ["-m", "pe=none,rope", "hydra/launcher=basic", "hydra.sweep.dir=${ledger}/jobs/${study_name}"]
    words += ["study_name=mine", "hydra.sweep.subdir=${hydra.job.num}", "hydra/job_logging=default"]
    status, _, err = program(run.main, *TINY, *words)
    assert status == 0, err
    assert [identity["pe"]["name"] for identity in trained()] == ["none", "rope"]
    assert [path.relative_to(here / "ledger/jobs").as_posix() for path in here.glob("ledger/jobs/*/*")] == ["mine/0"]


@pytest.mark.parametrize("words", [["-m"], ["hydra.mode=MULTIRUN"]])
def test_other_sweepers_get_a_job_for_each_cell(here: Path, program: Lab, words: list[str]) -> None:
    words = [*words, "pe=none,rope", "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=1", "hydra/launcher=basic"]
    words += ["hydra.sweep.dir=out", "hydra.sweep.subdir=${hydra.job.num}-${hydra.job.override_dirname}"]
    status, _, err = program(run.main, *TINY, *words)
    assert status == 0, err
    assert [identity["pe"]["name"] for identity in trained()] == ["none", "rope"]
    assert (here / "out" / "multirun.yaml").exists()
    assert len([*(here / "out").glob("*-*")]) == 2


def test_another_sweeper_goes_on_after_a_job_that_fails_and_says_which(program: Lab) -> None:
    words = ["-m", "pe=none,cope,rope", "hydra/sweeper=basic", "hydra/launcher=basic"]
    status, _, err = program(run.main, *TINY, *words)
    assert status == 1
    assert [identity["pe"]["name"] for identity in trained()] == ["none", "rope"]
    assert [line for line in err.splitlines() if "pe=cope" in line and "causal" in line]


def test_the_sweeper_needs_a_program_that_sweeps() -> None:
    (sweeper,) = [one for one in Plugins.instance().discover(Sweeper) if one.__name__ == "PeLabSweeper"]
    made = sweeper(params={}, workers=-1)
    made.setup(hydra_context=None, task_function=print, config=None)
    with pytest.raises(ValueError, match=r"hydra/sweeper=pe_lab needs .*pe-lab run"):
        made.sweep([])


@pytest.mark.slow
def test_a_sweep_by_joblib_has_workers_of_hydra_and_parameters_of_a_study(here: Path) -> None:
    words = ["-m", "+study=bag", "~hydra.sweeper.params.seed", "seed=0", "pe=none,rope", "model.depth=1", "epochs=1"]
    words += ["workers=2", "+hydra.job.env_set.PE_LAB_MARK=1", "hydra.sweep.dir=out"]
    words += ["hydra.sweep.subdir=${hydra.job.num}", "hydra/job_logging=default"]
    given = [word for word in TINY if not word.startswith(("data=", "epochs", "model.depth"))]
    command = [sys.executable, "-m", "pe_lab.run", *given, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert [identity["pe"]["name"] for identity in trained()] == ["none", "rope"]
    assert sorted(path.name for path in (here / "out").iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_the_first_line_comes_before_anything_slow_is_loaded(here: Path) -> None:
    code = """
import builtins, sys
import pe_lab.run
usual = builtins.__import__
def slow(name, *rest, **more):
    if name.partition(".")[0] in ("torch", "lightning", "pandas", "wandb"):
        print("imports", name, file=sys.stderr)
        sys.exit(3)
    return usual(name, *rest, **more)
builtins.__import__ = slow
pe_lab.run.main()
"""
    done = subprocess.run([sys.executable, "-c", code, *TINY], capture_output=True, text=True, check=False)
    first, second, *_ = done.stderr.splitlines()
    assert "rope on bag" in first
    assert "imports" in second
