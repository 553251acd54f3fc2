"""Make the results that come with the package from a ledger in which the benchmark was trained."""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from pe_lab import config
from pe_lab.benchmark.sound import complaint_of
from pe_lab.benchmark.tasks import SEARCH, tasks
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.shipped import gathered
from pe_lab.ledger.ledger import Ledger
from pe_lab.results import shipped
from pe_lab.results.shipped import Key, Shipped
from pe_lab.results.stored import read_settings


def pack(ledger: Path, folder: Path | None = None) -> dict[str, int]:
    """Add the benchmark's cells of a ledger to the shipped results, and return how many cells each study has then.

    Cells that were taken from the shipped results are not added again.

    Args:
        folder: of the shipped results; None: that of the package.

    Raises:
        ValueError: there is no such ledger. Or a value of a cell cannot be. Or a cell is there with other results: the
            same identity must give the same bits. Or a cell was trained with other settings than those of the study
            today.
        LedgerError: an entry of the ledger is damaged.
    """
    if not ledger.is_dir():
        raise ValueError(f"--pack must be an existing folder, got {str(ledger)!r}")
    studies = {name for task in tasks() for name in (task.study, f"{task.study}{SEARCH}")}
    found: dict[str, dict[Key, Shipped]] = defaultdict(dict)
    for study in set(shipped.studies(folder)) & studies:
        found[study] = {cell.key: cell for cell in shipped.read(study, folder)}
    for run in Ledger(ledger).runs():
        for epochs in run.checkpoints():
            study = str(read_settings(run, epochs).get("study_name"))
            if study in studies and not run.is_shipped(epochs):
                cell = gathered(run, epochs)
                if wrong := complaint_of(cell):
                    raise ValueError(f"{run.checkpoint(epochs)} {wrong}")
                _require_todays(study, cell)
                found[study][cell.key] = _agreed(cell, found[study].get(cell.key))
    for study, cells in sorted(found.items()):
        shipped.write(study, cells.values(), folder)
    return {study: len(cells) for study, cells in sorted(found.items())}


def _require_todays(study: str, cell: Shipped) -> None:
    """Require the settings that the study has today, so that rows of a task that changed are never mixed.

    Raises:
        ValueError: a setting differs.
    """
    wanted, found = settings_today(study.removesuffix(SEARCH)), compared(cell.identity)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{name} of {study} must be {wanted.get(name)!r} as in its file, got {found.get(name)!r} in the run "
                f"{cell.key[0]}: leave it out of the ledger"
            )


@cache
def settings_today(study: str) -> dict[str, Any]:
    """Return what the identities of a study's cells share, by dotted name: all but encoding, seed and rate."""
    (cfg,) = config.expand(config.of_jobs([f"+study={study}", "pe=none"]), multirun=True)
    return compared(Cell.from_config(cfg).identity)


def compared(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that all cells of a task share, by dotted name; epochs stand only in some identities."""
    left_out = ("pe.", "seed", "optimizer.lr", "attention", "epochs")
    return {name: value for name, value in config.flatten(identity).items() if not name.startswith(left_out)}


def _agreed(cell: Shipped, known: Shipped | None) -> Shipped:
    """Return a cell with the measurements of both: it may have been measured again.

    Raises:
        ValueError: they have other results.
    """
    if known is None:
        return cell
    if (cell.weights, cell.summary["test"]) != (known.weights, known.summary["test"]):
        raise ValueError(
            f"{cell.summary['name']} must have the results that are shipped, got others: the run {cell.key[0]} is not "
            f"reproduced, or its revision must be raised"
        )
    more = [record for record in cell.records if known.record(record["request"]) is None]
    return Shipped(**(vars(known) | {"records": [*known.records, *more]}))
