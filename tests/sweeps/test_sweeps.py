"""The W&B sweeps are valid, have the cells of their studies, and run as an agent runs them."""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from wandb import wandb_agent

from faults.programs import wait_for, wandb_services
from pe_lab import config
from pe_lab.ledger.ledger import Ledger

pytestmark = pytest.mark.slow

GENERATOR = Path(__file__).parents[2] / "sweeps/generate.py"
FOLDER = GENERATOR.parent / "agents"
FILES = sorted(FOLDER.glob("*.yaml"))
# that differ in what is searched, measured or read; the cells of the others are those of studies
TRAINED = [path for path in FILES if path.stem in ("digits", "learning_rate", "lengths", "text")]
OTHERS = [path for path in FILES if path not in TRAINED]
LARGE = ("all_encodings", "multitask")  # hundreds of cells each
GRIDS = [path for path in FILES if yaml.safe_load(path.read_text())["method"] == "grid"]
# the keys that W&B documents, and those of a parameter
KEYS = {"name", "project", "program", "command", "method", "metric", "parameters", "run_cap", "early_terminate"}
PARAMETER = ({"value"}, {"values"}, {"distribution", "min", "max"})
COMMAND = ["${env}", "${interpreter}", "-m", "${program}"]
CELL = ("pe", "data", "model", "optimizer", "trainer", "attention", "epochs", "seed", "evaluate", "probe", "study_name")
TINY = [
    "model.depth=1",
    "model.width=16",
    "model.num_heads=2",
    "epochs=1",
    "trainer.device=cpu",
    "logger.wandb.images=false",
]
# runs each command in a fork that has slow modules loaded already; prints the exit status of each
PROCESSES = """
import json, os, runpy, sys
# neither wandb nor what imports it: a process that ends removes the folder of wandb
import lightning, pandas, scipy.stats
for (module, *words), environment in json.load(sys.stdin):
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit(0)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
FEW = {
    "lengths": ["data.train=64", "data.validation=16", "data.test=16", "trainer.batch_size=32"],
    "pattern": ["data.train=64", "data.validation=16", "data.test=16", "trainer.batch_size=32"],
    "bag": ["data.train=64", "data.validation=16", "data.test=16", "trainer.batch_size=32"],
    "text": ["data.length=32", "data.train_sequences=64", "data.test_sequences=8", "trainer.batch_size=32"],
}


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def choices(sweep: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the values of every parameter, in the order of W&B's grid; of a distribution its ends."""
    by_name = sorted(sweep["parameters"].items())
    return {
        name: parameter.get(
            "values", [parameter["value"]] if "value" in parameter else [parameter.get("min"), parameter.get("max")]
        )
        for name, parameter in by_name
    }


def some(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first, the last and a random combination of values."""
    parameters = choices(sweep)
    drawn = random.Random(0)
    return [
        {name: values[0] for name, values in parameters.items()},
        {name: values[-1] for name, values in parameters.items()},
        {name: drawn.choice(values) for name, values in parameters.items()},
    ]


def large_apart(paths: list[Path]) -> list[Any]:
    """Return files as parameters, of which LARGE are exhaustive."""
    return [pytest.param(path, marks=pytest.mark.exhaustive if path.stem in LARGE else ()) for path in paths]


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """Return the command and the environment with which W&B's own agent starts chosen parameters."""

    def start(sweep: dict[str, Any], chosen: dict[str, Any], run: str = "run1") -> tuple[list[str], dict[str, str]]:
        started: dict[str, Any] = {}
        for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):  # the agent sets them; monkeypatch unsets them
            monkeypatch.setenv(name, "")
        monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of tests that ran before
        monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
        monkeypatch.setenv("WANDB_PROJECT", sweep["project"])
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(wandb_agent, "AgentProcess", lambda **given: started.update(given) or SimpleNamespace())
        made = wandb_agent.Agent(api=None, queue=None, sweep_id="sweep1")
        made._sweep_command = list(sweep["command"])
        args = {name: {"value": value} for name, value in chosen.items()}
        made._command_run({"run_id": run, "program": sweep["program"], "args": args})
        return started["command"], started["env"]

    return start


def identity(cfg: DictConfig) -> str:
    """Return everything that determines a cell, as text."""
    whole = OmegaConf.to_container(cfg, resolve=True)
    return json.dumps({name: whole[name] for name in CELL}, sort_keys=True)


@pytest.fixture(scope="module")
def study_cells():
    """Return the identities of a study's cells with seed 0, by the study's name."""
    return cache(
        lambda name: {identity(cfg) for cfg in config.expand_overrides([f"+study={name}", "seed=0"], multirun=True)}
    )


def test_the_sweeps_of_studies_are_those_that_are_generated():
    """Otherwise python .ci/update.py --only sweeps writes them."""
    named = importlib.util.spec_from_file_location("generate", GENERATOR)
    generate = importlib.util.module_from_spec(named)
    named.loader.exec_module(generate)
    assert {path.stem: path.read_text() for path in GRIDS} == generate.sweeps()


def test_studies_whose_cells_depend_on_results_have_no_sweep():
    """An agent chooses cells itself; the program refuses such a study under one."""
    named = importlib.util.spec_from_file_location("generate", GENERATOR)
    generate = importlib.util.module_from_spec(named)
    named.loader.exec_module(generate)
    with initialize_config_dir(str(config.config_folder()), version_base="1.3"):
        for study in (config.config_folder() / "study").glob("*.yaml"):
            text = study.read_text()
            if "sweeper:" in text:
                cfg = compose("config", [f"+study={study.stem}"])  # no cells: some have hundreds
                known = cfg.decide.baseline is None and cfg.tune.rates is None
                assert generate.has_sweep(text) == known, study.stem
    assert not generate.has_sweep("hydra: {sweeper: {params: {pe: rope}}}\ndecide: {baseline: rope}")
    assert not generate.has_sweep("hydra: {sweeper: {params: {pe: rope}}}\ntune: {rates: [1e-3, 1e-2]}")
    assert not generate.has_sweep("hydra: {sweeper: {params: {pe: rope}}}\ndefaults: [override /search: pe_bench_2]")
    assert generate.has_sweep("hydra: {sweeper: {params: {pe: rope}}}\ndefaults: [override /search: none]")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_has_the_keys_that_wandb_documents(path):
    sweep = read(path)
    assert set(sweep) <= KEYS
    assert sweep["name"] == path.stem
    assert sweep["method"] in ("grid", "random", "bayes")
    assert sweep["metric"]["goal"] == "minimize"
    assert sweep["command"][:4] == COMMAND
    assert sweep["command"][-1] == "${args_no_hyphens}"
    assert all(isinstance(word, str) for word in sweep["command"])
    for name, parameter in sweep["parameters"].items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name)
        assert set(parameter) in PARAMETER
        if "values" in parameter:
            assert len(parameter["values"]) == len(set(parameter["values"])) > 0
        elif "distribution" in parameter:
            assert sweep["method"] != "grid"
            assert parameter["distribution"] == "log_uniform_values"
            assert 0 < parameter["min"] < parameter["max"]
    if "early_terminate" in sweep:
        stop = sweep["early_terminate"]
        assert stop["type"] == "hyperband"
        assert stop["min_iter"] >= 1
        assert stop["eta"] > 1
        assert sweep["metric"]["name"] == "validation/loss"  # measured every epoch; a test is measured once


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_line_has_the_question_and_the_number_of_runs(path):
    sweep, first = read(path), path.read_text().splitlines()[0]
    runs = sweep.get("run_cap") or len(list(product(*choices(sweep).values())))
    assert re.match(r"# [A-Z].*\? ", first)
    assert int(re.search(r"(\d+) runs", first)[1]) == runs


@pytest.mark.parametrize("path", large_apart(GRIDS), ids=lambda path: path.stem)
def test_a_grid_has_the_cells_of_the_study_of_its_name(path, study_cells):
    sweep = read(path)
    words = sweep["command"][4:-1]
    others = [(name, values) for name, values in choices(sweep).items() if name != "seed"]
    swept = [f"{name}=choice({','.join(map(str, values))})" for name, values in others]
    here = [identity(cfg) for cfg in config.expand_overrides([*words, *swept, "seed=0"], multirun=True)]
    assert len(here) == len(set(here))
    assert set(here) == study_cells(path.stem)
    one = [f"{name}=choice({values[0]})" for name, values in others]
    assert [cfg.seed for cfg in config.expand_overrides([f"+study={path.stem}", *one], multirun=True)] == choices(
        sweep
    )["seed"]


@pytest.mark.parametrize("path", large_apart(FILES), ids=lambda path: path.stem)
def test_an_agent_starts_a_cell_of_the_study(path, agent, study_cells):
    sweep = read(path)
    for chosen in some(sweep):
        command, _ = agent(sweep, chosen)
        assert command[:4] == ["/usr/bin/env", "python", "-m", "pe_lab.run"]
        (cfg,) = config.expand_overrides(command[4:], multirun=False)
        assert cfg.study_name == path.stem
        if path in GRIDS:
            assert cfg.seed == chosen["seed"]
            assert identity(OmegaConf.merge(cfg, {"seed": 0})) in study_cells(path.stem)
        for name, value in chosen.items():
            found = OmegaConf.select(cfg, name)
            assert (found.name if OmegaConf.is_dict(found) else found) == value


@pytest.mark.parametrize("files", [TRAINED, pytest.param(OTHERS, marks=pytest.mark.exhaustive)], ids=len)
def test_a_cell_of_an_agent_logs_into_the_agents_wandb_run(agent, tmp_path, offline_runs, files):
    jobs, encoding = [], {}
    for path in files:
        sweep = read(path)
        few = FEW.get(path.stem, ["trainer.batch_size=512"])
        if path.stem == "text":
            few = [*few, f"data.path={some_text(tmp_path / 'corpus')}"]  # beside the ledger: all of its files are read
        command, environment = agent(sweep, some(sweep)[2], run=path.stem)
        encoding[path] = config.expand_overrides(command[4:], multirun=False)[0].pe.name
        assert command[:4] == ["/usr/bin/env", "python", "-m", "pe_lab.run"]
        jobs.append([[*command[3:], *TINY, *few, f"ledger={tmp_path / path.stem}"], environment])
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.stdout.splitlines()[-len(jobs) :] == ["status 0"] * len(jobs), done.stdout + done.stderr
    assert "W&B" not in done.stderr  # lost, or not started
    for path in files:
        (training_run,) = Ledger(tmp_path / path.stem).runs()
        assert training_run.summary(1)["name"].startswith(encoding[path])
        ((run, inside),) = offline_runs(tmp_path / path.stem).items()
        (metadata,) = inside["run"]
        assert (run, metadata["sweep_id"], metadata["project"]) == (path.stem, "sweep1", "pe_lab")
        assert metadata["run_group"] == path.stem
        logged = metadata["config"]["update"]
        assert logged["encoding"] == encoding[path]
        if "pe" in read(path)["parameters"]:
            assert logged["pe"] == encoding[path]  # the agent's parameter replaces the settings of the encoding
        assert logged["depth"] == 1
        assert any(read(path)["metric"]["name"] in line["item"] for line in inside["history"])


def some_text(folder: Path) -> Path:
    """Return a folder of small texts."""
    folder.mkdir()
    for number in range(8):
        words = random.Random(number).choices(["one", "two", "three", "four", "five"], k=400)
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder


def test_a_cell_that_is_in_the_ledger_is_logged_to_the_agents_wandb_run(agent, tmp_path, offline_runs, curves):
    sweep = read(FOLDER / "lengths.yaml")
    ledger = tmp_path / "ledger"
    for run in ("run1", "run2"):
        command, environment = agent(sweep, some(sweep)[0], run)
        done = subprocess.run(
            [*command, *TINY, *FEW["lengths"], f"ledger={ledger}"],
            env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (training_run,) = Ledger(ledger).runs()
    assert training_run.cost()["checkpoints"] == 1
    trained, replayed = map(curves, offline_runs(ledger).values())
    assert {"train/loss", "validation/loss", "test/loss", "cost/seconds", "length/raw/loss"} <= set(replayed)
    assert [point[2] for point in replayed["length/raw/loss"]] == [23, 27, 33, 43]
    assert replayed == trained


RATES = read(FOLDER / "learning_rate.yaml")


def started(command: list[str], environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """Start a command of an agent as a process."""
    return subprocess.Popen(
        [*command, *TINY, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_wandb_run_whose_service_dies_is_logged_again(agent, tmp_path, offline_runs, curves):
    """A sweep that searches needs the W&B run of every cell."""
    ledger = tmp_path / "ledger"
    process = started(*agent(RATES, some(RATES)[0]), "epochs=16", "trainer.batch_size=64", f"ledger={ledger}")
    wait_for(lambda: list(ledger.glob("wandb/offline-run-*/*.wandb")) and wandb_services(process.pid))
    for pid in wandb_services(process.pid):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "W&B" in err
    assert len(list(ledger.glob("wandb/offline-run-*"))) == 2
    (logged,) = map(curves, offline_runs(ledger).values())
    assert [epoch for _, epoch, *_ in logged["validation/loss"]] == [1, 2, 4, 8, 16]
    assert {"train/loss", "test/loss", "cost/seconds", "floor/bayes/loss"} <= set(logged)


def test_many_cells_in_one_wandb_run_of_an_agent_are_refused(agent, tmp_path):
    command, environment = agent(read(FOLDER / "bag.yaml"), {"pe": "none"})
    done = subprocess.run(
        [*command, "-m", "seed=0,1", f"ledger={tmp_path}"],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: a W&B agent must be given one cell at a time, got 2: leave out -m\n"


def test_a_cell_that_an_agent_ends_early_ends_by_the_signal(agent, tmp_path):
    """An agent counts a positive status as a failure, and stops after several of them."""
    ledger = tmp_path / "ledger"
    process = started(*agent(RATES, some(RATES)[0]), "epochs=10000", "trainer.batch_size=64", f"ledger={ledger}")
    wait_for(lambda: any((training_run.owner() or {}).get("epoch", 0) > 0 for training_run in Ledger(ledger).runs()))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGTERM, err
    assert "error: terminated by SIGTERM" in err
