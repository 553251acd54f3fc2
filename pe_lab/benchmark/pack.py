"""Make rows of pe-bench 2 from a ledger, in which all or a part of the benchmark was trained."""

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import NAME, BenchmarkTask, benchmark_tasks
from pe_lab.config import LR, resolve_config
from pe_lab.data.score import BEST_FLOOR
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.experiment.rounds import Outcome, read_outcome
from pe_lab.experiment.tuning import TunedSeed
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.results.columns import ENVIRONMENT, reference_floors
from pe_lab.results.from_ledger import summary_and_environment
from pe_lab.statistics import steps_to_solve
from pe_lab.system.files import digest


def pack_ledger(ledger: Path, folder: Path | None = None, replace: bool = False) -> list[str]:
    """Add the seeds of a ledger whose tuning has ended to the shipped rows, and say in a line per task what was done.

    Args:
        folder: the folder of shipped results; None: the package's own.
        replace: whether the new rows take the place of shipped rows that contradict them.

    Raises:
        ValueError: there is no such ledger, a row is invalid, or rows contradict those that are shipped.
        LedgerError: an entry of the ledger is damaged, or shipped rows were changed.
    """
    if not ledger.is_dir():
        raise ValueError(f"--pack must be an existing folder, got {str(ledger)!r}")
    present, lines, results = _seeds_of_ledger(ledger), [], []
    for task in benchmark_tasks():
        new_rows, left_out = _make_rows(task, present[_settings_digest(task)], ledger)
        old_rows = task_rows.read_rows(task, folder)
        if new_rows or left_out:
            both = task_rows.merge_rows(task, old_rows, task_rows.rows_frame(new_rows), str(ledger), replace)
            results.append((task, both))
            left = f"; {left_out} seeds not ended, or of other options or revisions, are left out" if left_out else ""
            lines.append(f"{task.name}: {len(both)} rows, {len(new_rows)} of them in {ledger}{left}")
    for task, both in results:  # when nothing is refused any more
        if len(both):
            task_rows.write_rows(task, both, folder)
    return lines or [f"{NAME}: no cell of today's settings is in {ledger}"]


def _seeds_of_ledger(ledger: Path) -> dict[str, set[tuple[str, int]]]:
    """Return the encodings and seeds of a ledger by the digest of the settings that a task's cells share."""
    cells: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for run in Ledger(ledger).runs():
        identity = run.identity()
        pe = identity.get("pe")
        if isinstance(pe, dict) and "seed" in identity:
            cells[digest(compared_settings(identity))].add((str(pe.get("name")), identity["seed"]))
    return cells


def _settings_digest(task: BenchmarkTask) -> str:
    return digest(compared_settings(Cell.from_config(task.cfg).identity))


def _make_rows(task: BenchmarkTask, present: set[tuple[str, int]], ledger: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the seeds whose tuning has ended, and the number of others."""
    new_rows, left_out = [], 0
    for name in sorted({name for name, _ in present} & set(config.find_folders().names("pe"))):
        (base,) = config.expand_overrides([f"pe={name}"], multirun=False)
        for seed in sorted(seed for other, seed in present if other == name):
            cfg = deepcopy(task.cfg)
            cfg.pe, cfg.seed, cfg.ledger = base.pe, seed, str(ledger)
            row = read_task_row(task, cfg)
            new_rows += [row] if row else []
            left_out += row is None
    return new_rows, left_out


def read_task_row(task: BenchmarkTask, cfg: DictConfig) -> dict[str, Any] | None:
    """Return the row of a cell of a task from its ledger; None: its tuning has not ended there."""
    tuned = TunedSeed.from_config(cfg)
    while (need := tuned.next()) is not None:
        result = _outcome_of_job(tuned.cell(need))
        if result is None:
            return None
        tuned.take(need, result)
    cell, winner = Cell.from_config(cfg), tuned.winner()
    row: dict[str, Any] = {"benchmark": NAME, "task": task.name, "pe": cfg.pe.name, "seed": cfg.seed}
    row |= {"settings": _task_digest(cell, task), "encoding": digest(_encoding_options(cell, tuned.scale))}
    row |= {"revision": cell.identity["pe"]["revision"]} | _tuned_columns(tuned)
    row |= dict.fromkeys(task_rows.length_columns(task.cfg.evaluate.lengths)) | _try_columns(tuned)
    if winner is None:  # all tries diverged
        return row
    job = Job.from_config(winner)
    if not _is_known(job) or (job.missing and job.failure is None):
        return None
    job.run.verify(job.cell.target)
    summary = summary_and_environment(job.run, job.cell.target)
    row |= {"steps": summary["steps"]} | {name: summary[name] for name in task_rows.COSTS}
    for length, metrics in _metrics_by_length(job.run, job.cell.target, summary):
        row |= {f"{name}_x{length:g}": _none_if_missing(value) for name, value in _metric_columns(metrics).items()}
    row |= {"attention": cell.implementation, "run": job.run.name}
    return row | {column: summary["environment"].get(name) for column, name in ENVIRONMENT.items()}


def _metrics_by_length(run: Run, target: int, summary: Mapping[str, Any]) -> list[tuple[float, Mapping[str, float]]]:
    """Return each measured length, in training lengths, with its metrics; those of floors as <floor>/<metric>."""
    test = dict(summary["test"])
    for floor, values in summary["floors"].items():
        test |= {f"{floor}/{name}": value for name, value in values.items()}
    lengths: list[tuple[float, Mapping[str, float]]] = [(1.0, test)]
    records = Records(run, target)
    for request in records.requests():
        if request["kind"] == "length" and request.get("policy", "raw") == "raw" and not request.get("offset"):
            lines = records.get(request)
            lengths.append((float(request["length"]), dict(zip(lines["metric"], lines["value"], strict=True))))
    return lengths


def _metric_columns(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return the columns of rows at a length; the level is NaN where a task has none, the best loss 0."""
    floors = [name.removesuffix("/loss") for name in metrics if name.endswith("/loss")]
    level = next((metrics[f"{name}/loss"] for name in reference_floors(floors)), float("nan"))
    columns = {"loss": metrics["loss"], "level": level, "best": metrics.get(f"{BEST_FLOOR}/loss", 0.0)}
    return columns | {name: metrics.get(name) for name in ("accuracy", "exact_match")}


def compared_settings(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that all cells of a task share, by dotted name; epochs stand only in some identities.

    Encodings of a task differ in the implementation of attention that computes them, and each implementation has a
    revision of its own, so neither is shared: rows name the implementation in a column.
    """
    left_out = ("seed", LR, "attention", "attention_revision", "epochs")
    flat = config.flatten_settings(identity)
    return {name: value for name, value in flat.items() if name not in left_out and not name.startswith("pe.")}


def _none_if_missing(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else value


def _outcome_of_job(cfg: DictConfig) -> Outcome | None:
    """Return what became of a cell; None: it is not in the ledger, or failed for another reason than divergence."""
    job = Job.from_config(cfg)
    if not _is_known(job):
        return None
    result = read_outcome(job)
    return result if result.failure is None or result.diverged else None


def _is_known(job: Job) -> bool:
    """Return whether the ledger knows what became of a cell. Nothing is written."""
    return job.run.done(job.cell.target) or job.run.failure(job.cell.target) is not None


def _task_digest(cell: Cell, task: BenchmarkTask) -> str:
    """Return the digest of all that the rows of a task share: settings of its cells, cap, ladder and lengths."""
    tune = resolve_config(task.cfg.tune)  # without what judges and does not train, and what came later and is not used
    tune = {name: tune[name] for name in ("rates", "scaled", "fraction")}
    shared = compared_settings(cell.identity) | {"steps": task.cfg.steps, "tune": tune}
    return digest(shared | {"lengths": list(task.cfg.evaluate.lengths)})


def _encoding_options(cell: Cell, scale: str | None) -> dict[str, Any]:
    """Return the options and the revision of an encoding, without the scale that its tries set."""
    flat = config.flatten_settings({"pe": cell.identity["pe"]})
    return {name: value for name, value in flat.items() if name != scale}


def _tuned_columns(tuned: TunedSeed) -> dict[str, Any]:
    result = tuned.result()
    rate = result.pop(LR)
    return result | {"y": _none_if_missing(result["y"]), "lr": _none_if_missing(rate), "steps": None}


def _try_columns(tuned: TunedSeed) -> dict[str, Any]:
    """Return what is known of each try: its pass in log2 steps, its value at the choice and at its last evaluation."""
    (task,) = tuned.plan.tasks
    row: dict[str, Any] = {}
    curves = {try_of_seed.try_: curve for try_of_seed, curve in tuned.curves.items()}
    for number, try_ in enumerate(tuned.plan.tries[tuned.cfg.pe.name], 1):
        curve = curves.get(try_, {})
        passed = None
        if task.level is not None:
            scores = np.array([curve.get(step, np.nan) for step in task.evaluations])
            y, solved = steps_to_solve(task.evaluations, scores, task.level, task.cap)
            passed = float(y) if solved else None
        last = max(curve, default=None)
        values = (try_.rate, try_.scale, passed, curve.get(task.choice), last and curve[last], last)
        row |= {f"try{number}_{name}": value for name, value in zip(task_rows.CANDIDATE_FIELDS, values, strict=True)}
    return row
