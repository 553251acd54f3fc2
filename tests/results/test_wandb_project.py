"""A W&B project gives the same tables as the ledger."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from helpers.configs import TINY
from helpers.paged import text_of
from pe_lab import config
from pe_lab.experiment.job import Job
from pe_lab.report import __main__ as report
from pe_lab.results import frame, wandb_project
from pe_lab.results.columns import ENVIRONMENT


@dataclass
class Run:
    """The part of wandb's public run that is used."""

    id: str
    config: dict[str, Any]
    summary: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    state: str = "finished"
    job_type: str = "training"

    def scan_history(self, keys: list[str]) -> list[dict[str, float]]:
        return [row for row in self.history if set(keys) <= set(row)]


def run_of(ledger: Path, job: Job) -> Run:
    """The run that the cell would have had, from its files."""
    summary = job.run.summary(job.cell.target)
    flat = {f"test/{name}": value for name, value in summary["test"].items()}
    flat |= {
        f"floor/{name}": value for name, value in config.flatten_settings(summary["floors"], separator="/").items()
    }
    flat |= {f"cost/{n}": summary[n] for n in ("parameters", "positional_parameters", "flops_per_token", "seconds")}
    rows = pd.read_csv(job.run.checkpoint(job.cell.target) / "metrics.csv").query("split == 'validation'")
    history = [{"epoch": row.epoch, f"validation/{row.metric}": row.value} for row in rows.itertuples()]
    own = OmegaConf.to_container(job.cell.cfg, resolve=True) | {"attention_resolved": "sdpa", "encoding": "of panels"}
    return Run(f"{job.run.name}-{job.cell.target}", own, flat, history)


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> list[Job]:
    ledger = tmp_path_factory.mktemp("ledger")
    words = [*TINY, "logger=none", f"ledger={ledger}", "pe=rope,none", "seed=0,1", "epochs=1,2"]
    made = [Job.from_config(cfg) for cfg in config.expand_overrides(words, multirun=True)]
    for job in made:
        job.request()
    for job in made:
        job.complete(wait=True)
    return made


@pytest.mark.long
def test_a_project_has_the_rows_and_curves_of_the_ledger(cells):
    ledger = Path(cells[0].cell.cfg.ledger)
    expected, found = frame.load(ledger), wandb_project.load("me/mine", [run_of(ledger, job) for job in cells])
    keys = ["pe", "epochs", "seed"]
    shared = [name for name in expected.cells if name not in ENVIRONMENT]
    assert list(found.cells) == list(expected.cells)
    assert found.cells[list(ENVIRONMENT)].isna().all(axis=None)  # a W&B run does not have them
    order = [table.sort_values(keys, ignore_index=True)[shared] for table in (expected.cells, found.cells)]
    pd.testing.assert_frame_equal(*order)
    keys += ["epoch", "metric"]
    order = [table.sort_values(keys, ignore_index=True) for table in (expected.curves, found.curves)]
    pd.testing.assert_frame_equal(*order, check_dtype=False)
    assert found.name == "mine"


def test_runs_that_are_no_finished_cells_are_listed_and_left_out(cells):
    ledger = Path(cells[0].cell.cfg.ledger)
    runs = [run_of(ledger, job) for job in cells]
    runs[0].summary.pop("test/loss")
    runs[0].state = "crashed"
    runs.append(Run("other", {}, dict(runs[1].summary)))
    runs.append(Run("x-evaluation-1", {}, {}, job_type="evaluation"))
    found = wandb_project.load("mine", runs)
    assert len(found.cells) == len(cells) - 1
    assert [("test/loss" in line, "crashed" in line, "config.pe" in line) for line in found.refused] == [
        (True, True, False),
        (False, False, True),
    ]


@pytest.mark.parametrize(
    ("config", "summary", "line"),
    [
        ({"study_name": "${oc.env:SECRET_TOKEN}"}, {}, "must have no interpolation"),
        ({"pe": {"name": "rope", "${x}": 1}}, {}, "must have no interpolation"),
        ({"pe": {"name": "rope", "x": [["${x}"]]}}, {}, "must have no interpolation"),
        ({"pe": {"name": ["rope"]}}, {}, "must have pe.name, data.name"),
        ({"pe": "rope"}, {}, "must have pe.name, data.name"),
        ({"model": None}, {}, "must have pe.name, data.name"),
        ({"seed": "many"}, {}, "must have pe.name, data.name"),
        ({"attention_resolved": {"x": 1}}, {}, "must have as attention_resolved a name"),
        ({}, {"test/loss": "${oc.env:SECRET_TOKEN}"}, "must have a number as test/loss"),
        ({}, {"floor/bayes": {"x": 1}}, "must have a number as floor/bayes"),
        ({}, {"cost/seconds": None}, "must have a number as cost/seconds"),
    ],
)
def test_a_foreign_wandb_run_is_refused_in_one_line(config, summary, line, cells, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    deep: dict = {}
    for _ in range(500):
        deep = {"a": deep}
    runs = [run_of(Path(job.cell.cfg.ledger), job) for job in cells]
    runs[0].config |= config
    runs[0].summary |= summary
    runs[1].config["pe"] = {"name": "rope"} | deep
    found = wandb_project.load("mine", runs)
    assert len(found.cells) == len(cells) - 2
    assert [reason.partition(" must")[0] for reason in found.refused] == [f"W&B run {run.id}" for run in runs[:2]]
    assert line in found.refused[0]
    assert "at most 64 levels" in found.refused[1]
    assert "hush" not in "".join(found.refused)


def test_a_project_without_a_finished_cell_is_refused():
    with pytest.raises(ValueError, match="must have a finished cell, got none in mine"):
        wandb_project.load("mine", [])


def test_a_report_of_a_project_is_written(cells, monkeypatch, program, tmp_path):
    ledger = Path(cells[0].cell.cfg.ledger)
    made = wandb_project.load("mine", [run_of(ledger, job) for job in cells])
    monkeypatch.setattr(wandb_project, "load", lambda project: made)
    assert program(report.main, "wandb:me/mine", "--out", tmp_path)[0] == 0
    assert "wandb_project.load('me/mine')" in text_of((tmp_path / "report.html").read_text())


def test_a_server_that_does_not_answer_is_one_line(monkeypatch, program):
    import wandb

    def refuse(*_, **__):
        raise wandb.errors.CommError("no\nserver")

    monkeypatch.setattr(wandb, "Api", refuse)
    _, _, error = program(report.main, "wandb:me/mine")
    assert error == "error: the W&B project must be one that can be read, got 'me/mine': no server\n"
