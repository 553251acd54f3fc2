"""Studies in rounds: the results of the cells so far determine which cells are trained next.

A stage of such a study is a generator. It yields a `Round`, the cells that it needs now. It is resumed when each of
them is in the ledger or has failed, and is sent their outcomes, in the order of the configs. It returns the configs
that the study goes on with: the next stage receives them, and those of the last stage are the cells of the tables.

    def search(cfgs: list[DictConfig]) -> Stage:
        tried = [with_settings(cfg, {"optimizer.lr": rate}) for cfg in cfgs for rate in RATES]
        outcomes = yield Round(tried, "learning rates, round 1")
        best = ...                                 # from outcomes[i].test or .checkpoint, unless outcomes[i].failure
        return [with_settings(cfg, {"optimizer.lr": rate}) for cfg, rate in zip(cfgs, best)]

Stages are chained by `yield from`, in `pe_lab.experiment.sweep.study_rounds`. A study that was killed, or that several
machines run, goes on where it was, because a stage depends on nothing but its configs and the outcomes: no clock, no
order in which cells finished, no random numbers without a fixed seed. Started again it yields the same rounds, and
those that are complete cost no training. A stage writes its own tables into the study's folder, if there is one.
"""

from collections.abc import Callable, Generator, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from pe_lab.experiment.job import Job
from pe_lab.experiment.ranks import core_seconds
from pe_lab.ledger.progress import Upcoming
from pe_lab.ledger.run import DIVERGED
from pe_lab.results.from_ledger import summary_and_environment


@dataclass(frozen=True)
class Round:
    """Cells that a stage needs before it can continue.

    Attributes:
        cfgs: the configs of the cells; empty: only the text is new.
        text: the progress of the study in one line, shown by pe_lab.status and on the terminal.
        awaited: whether the stage goes on with the outcomes. A divergence is then an outcome like others, and a failure
            does not end the program. If not, these are the last cells, and the stage is sent no outcomes.
        varied: the settings that distinguish cells of the study, shown in progress lines.
        later: the trainings that later rounds may need, if known.
    """

    cfgs: list[DictConfig]
    text: str = ""
    awaited: bool = True
    varied: tuple[str, ...] = ()
    later: Upcoming | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: it is in the ledger, or it failed.

    Attributes:
        cfg: the config of the cell.
        run: the name of its run.
        checkpoint: the folder of its checkpoint, which exists unless the cell failed.
        failure: the reason why the cell is not in the ledger; None: the cell is there.
        test: the metrics on the test split; empty if it failed.
        floors: the floors of the metrics, by floor and metric; empty if it failed.
        core_seconds: the core-seconds spent in training steps, from the start of its run to this checkpoint, or to
            where it failed: see `ranks.core_seconds`. Of a run that was killed, only the steps that are on record
            count.
        diverged: whether it failed because a loss was not finite.
        failed_at: the step at which it failed; None: it did not, or the step is not known.
    """

    cfg: DictConfig
    run: str
    checkpoint: Path
    failure: str | None = None
    test: dict[str, float] = field(default_factory=dict)
    floors: dict[str, dict[str, float]] = field(default_factory=dict)
    core_seconds: float = 0.0
    diverged: bool = False
    failed_at: int | None = None


Stage = Generator[Round, list[Outcome], list[DictConfig]]


def drive_stage(stage: Stage, complete_round: Callable[[Round], list[Outcome]]) -> list[DictConfig]:
    """Run a stage to its end, and return the configs that it returns.

    Args:
        complete_round: a function that brings the cells of a round into the ledger and returns their outcomes.
    """
    try:
        current = next(stage)
        while True:
            current = stage.send(complete_round(current))
    except StopIteration as end:
        cfgs: list[DictConfig] = end.value
        return cfgs


def with_settings(cfg: DictConfig, settings: dict[str, Any]) -> DictConfig:
    """Return a copy of a config in which settings have other values.

    Args:
        settings: the values by dotted name, of settings that the config has.
    """
    changed = deepcopy(cfg)
    for name, value in settings.items():
        OmegaConf.update(changed, name, value, merge=False)
    return changed


def read_outcome(job: Job) -> Outcome:
    """Read what became of a cell that is in the ledger or failed.

    Raises:
        LedgerError: its checkpoint is damaged.
    """
    failure, run = job.failure, job.run
    checkpoint = run.checkpoint(job.cell.target)
    if not job.is_trained:
        failure = failure or {"reason": "not reached"}
        cost = failure.get("core_seconds")
        if type(cost) is not float:  # it was killed
            threads = 1 if job.cell.device.type == "cpu" else torch.get_num_threads()
            seconds = run.cost()["steps"] if job.refused is None else 0.0  # refused: the ledger cannot be used for it
            cost = core_seconds(seconds, threads, processes=1)  # they are the sum over processes
        reason, diverged = str(failure["reason"]), failure.get("kind") == DIVERGED
        step = failure.get("step")
        return Outcome(
            job.cell.cfg,
            run.name,
            checkpoint,
            reason,
            core_seconds=cost,
            diverged=diverged,
            failed_at=step if type(step) is int else None,
        )
    summary = summary_and_environment(run, job.cell.target)
    threads = summary["environment"].get("threads")
    cost = core_seconds(summary["seconds"], threads if type(threads) is int else 1, job.cell.devices)
    return Outcome(job.cell.cfg, run.name, checkpoint, None, summary["test"], summary["floors"], cost)


def cost_by_run(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return the core-seconds of each run by its name: up to its last checkpoint among these."""
    cost: dict[str, float] = {}
    for outcome in outcomes:
        cost[outcome.run] = max(cost.get(outcome.run, 0.0), outcome.core_seconds)
    return cost
