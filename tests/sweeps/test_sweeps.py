"""The W&B sweeps: valid, of the same cells as the studies, and run as an agent runs them."""

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
from omegaconf import DictConfig, OmegaConf
from wandb import wandb_agent

from faults.programs import wait_for, wandb_services
from pe_lab import config
from pe_lab.ledger.ledger import Ledger

FOLDER = Path(__file__).parents[2] / "sweeps"
FILES = sorted(FOLDER.glob("*.yaml"))
GRIDS = [path for path in FILES if yaml.safe_load(path.read_text())["method"] == "grid"]
# the keys that W&B documents, and what parameters may say
KEYS = {"name", "project", "program", "command", "method", "metric", "parameters", "run_cap", "early_terminate"}
PARAMETER = ({"value"}, {"values"}, {"distribution", "min", "max"})
COMMAND = ["${env}", "${interpreter}", "-m", "${program}"]
CELL = ("pe", "data", "model", "optimizer", "trainer", "attention", "epochs", "seed", "evaluate", "probe", "study_name")
TINY = ["model.depth=1", "model.width=16", "model.num_heads=2", "epochs=1", "trainer.device=cpu", "logger.images=false"]
# a process for each command, which finds loaded what takes long to load; prints how each ended
PROCESSES = """
import json, os, runpy, sys
# not wandb: who ends removes its folder
import lightning, pe_lab.experiment.executor, pe_lab.probes, pe_lab.results.rates
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
    return yaml.safe_load(path.read_text())


def choices(sweep: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of every parameter, in the order in which a grid takes them; of a distribution its ends."""
    by_name = sorted(sweep["parameters"].items())
    return {
        name: of.get("values", [of["value"]] if "value" in of else [of.get("min"), of.get("max")])
        for name, of in by_name
    }


def some(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """The first, the last and a random combination."""
    of = choices(sweep)
    drawn = random.Random(0)
    return [
        {name: values[0] for name, values in of.items()},
        {name: values[-1] for name, values in of.items()},
        {name: drawn.choice(values) for name, values in of.items()},
    ]


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """What W&B's own agent would start for chosen parameters: the command and its environment."""

    def start(sweep: dict[str, Any], chosen: dict[str, Any], run: str = "run1") -> tuple[list[str], dict[str, str]]:
        started: dict[str, Any] = {}
        for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):  # set by the agent, and to be unset again
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
    """All that makes a cell, as text."""
    whole = OmegaConf.to_container(cfg, resolve=True)
    return json.dumps({name: whole[name] for name in CELL}, sort_keys=True)


@pytest.fixture(scope="module")
def study_cells():
    """The identities of a study's cells with seed 0, by its name."""
    return cache(lambda name: {identity(cfg) for cfg in config.expand([f"+study={name}", "seed=0"], multirun=True)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_says_what_wandb_documents(path):
    sweep = read(path)
    assert set(sweep) <= KEYS
    assert sweep["name"] == path.stem
    assert sweep["method"] in ("grid", "random", "bayes")
    assert sweep["metric"]["goal"] == "minimize"
    assert sweep["command"][:4] == COMMAND
    assert sweep["command"][-1] == "${args_no_hyphens}"
    assert all(isinstance(word, str) for word in sweep["command"])
    for name, of in sweep["parameters"].items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name)
        assert set(of) in PARAMETER
        if "values" in of:
            assert len(of["values"]) == len(set(of["values"])) > 0
        elif "distribution" in of:
            assert sweep["method"] != "grid"
            assert of["distribution"] == "log_uniform_values"
            assert 0 < of["min"] < of["max"]
    if "early_terminate" in sweep:
        stop = sweep["early_terminate"]
        assert stop["type"] == "hyperband"
        assert stop["min_iter"] >= 1
        assert stop["eta"] > 1
        assert sweep["metric"]["name"] == "validation/loss"  # measured every epoch; a test is measured once


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_line_asks_the_question_and_says_how_many_runs(path):
    sweep, first = read(path), path.read_text().splitlines()[0]
    runs = sweep.get("run_cap") or len(list(product(*choices(sweep).values())))
    assert re.match(r"# [A-Z].*\? ", first)
    assert int(re.search(r"(\d+) runs", first)[1]) == runs


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_has_the_cells_of_the_study_of_its_name(path, study_cells):
    sweep = read(path)
    words = sweep["command"][4:-1]
    others = [(name, values) for name, values in choices(sweep).items() if name != "seed"]
    swept = [f"{name}=choice({','.join(map(str, values))})" for name, values in others]
    here = [identity(cfg) for cfg in config.expand([*words, *swept, "seed=0"], multirun=True)]
    assert len(here) == len(set(here))
    assert set(here) == study_cells(path.stem)
    one = [f"{name}=choice({values[0]})" for name, values in others]
    assert [cfg.seed for cfg in config.expand([f"+study={path.stem}", *one], multirun=True)] == choices(sweep)["seed"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_an_agent_starts_is_a_cell_of_the_study(path, agent, study_cells):
    sweep = read(path)
    for chosen in some(sweep):
        command, _ = agent(sweep, chosen)
        assert command[:4] == ["/usr/bin/env", "python", "-m", "pe_lab.run"]
        (cfg,) = config.expand(command[4:], multirun=False)
        assert cfg.study_name == path.stem
        if path in GRIDS:
            assert cfg.seed == chosen["seed"]
            assert identity(OmegaConf.merge(cfg, {"seed": 0})) in study_cells(path.stem)
        for name, value in chosen.items():
            found = OmegaConf.select(cfg, name)
            assert (found.name if OmegaConf.is_dict(found) else found) == value


def test_what_an_agent_starts_runs_and_logs_into_the_agents_run(agent, tmp_path, offline_runs):
    jobs, chosen = [], {}
    for path in FILES:
        sweep = read(path)
        chosen[path] = some(sweep)[2]
        few = FEW.get(path.stem, ["trainer.batch_size=512"])
        if path.stem == "text":
            few = [*few, f"data.path={some_text(tmp_path / 'text')}"]
        command, environment = agent(sweep, chosen[path], run=path.stem)
        assert command[:4] == ["/usr/bin/env", "python", "-m", "pe_lab.run"]
        jobs.append([[*command[3:], *TINY, *few, f"ledger={tmp_path / path.stem}"], environment])
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout.splitlines()[-len(jobs) :] == ["status 0"] * len(jobs), done.stdout + done.stderr
    assert "W&B" not in done.stderr  # lost, or not started
    for path in FILES:
        (training_run,) = Ledger(tmp_path / path.stem).runs()
        assert training_run.summary(1)["name"].startswith(chosen[path]["pe"])
        ((run, inside),) = offline_runs(tmp_path / path.stem).items()
        (metadata,) = inside["run"]
        assert (run, metadata["sweep_id"], metadata["project"]) == (path.stem, "sweep1", "pe_lab")
        assert metadata["run_group"] == path.stem
        logged = metadata["config"]["update"]
        assert logged["encoding"] == logged["pe"] == chosen[path]["pe"]  # W&B's choice takes the place of our group
        assert logged["depth"] == 1
        assert any(read(path)["metric"]["name"] in line["item"] for line in inside["history"])


def some_text(folder: Path) -> Path:
    """A folder of small texts."""
    folder.mkdir()
    for number in range(8):
        words = random.Random(number).choices(["one", "two", "three", "four", "five"], k=400)
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder


def test_a_cell_that_is_in_the_ledger_is_told_to_the_agents_run(agent, tmp_path, offline_runs, curves):
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
    assert training_run.cost()["stops"] == 1
    trained, told = map(curves, offline_runs(ledger).values())
    assert {"train/loss", "validation/loss", "test/loss", "cost/seconds", "length/raw/loss"} <= set(told)
    assert [point[2] for point in told["length/raw/loss"]] == [23, 27, 33, 43]
    assert told == trained


RATES = read(FOLDER / "learning_rate.yaml")


def started(command: list[str], environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """What an agent starts, as a process."""
    return subprocess.Popen(
        [*command, *TINY, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_run_whose_service_dies_is_told_again_to_the_agent(agent, tmp_path, offline_runs, curves):
    """A sweep that searches needs the run of every cell."""
    ledger = tmp_path / "ledger"
    process = started(*agent(RATES, some(RATES)[0]), "epochs=16", "trainer.batch_size=64", f"ledger={ledger}")
    wait_for(lambda: list(ledger.glob("wandb/offline-run-*/*.wandb")) and wandb_services(process.pid))
    for pid in wandb_services(process.pid):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "W&B" in err
    assert len(list(ledger.glob("wandb/offline-run-*"))) == 2
    (told,) = map(curves, offline_runs(ledger).values())
    assert [epoch for _, epoch, *_ in told["validation/loss"]] == [1, 2, 4, 8, 16]
    assert {"train/loss", "test/loss", "cost/seconds", "floor/bayes/loss"} <= set(told)


def test_many_cells_in_an_agents_run_are_refused(agent, tmp_path):
    command, environment = agent(read(FOLDER / "bag.yaml"), {"pe": "none"})
    done = subprocess.run(
        [*command, "-m", "seed=0,1", f"ledger={tmp_path}"],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: a W&B agent must be given one cell at a time, got 2: leave out -m\n"


def test_a_run_that_is_stopped_early_ends_as_by_the_signal(agent, tmp_path):
    """An agent counts a positive status as a failure, and gives up after some."""
    ledger = tmp_path / "ledger"
    process = started(*agent(RATES, some(RATES)[0]), "epochs=10000", "trainer.batch_size=64", f"ledger={ledger}")
    wait_for(lambda: any((training_run.owner() or {}).get("epoch", 0) > 0 for training_run in Ledger(ledger).runs()))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    assert "error: terminated by SIGTERM" in err
