"""Bring many cells into the ledger: request all, train what is missing, print and write their tables."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.experiment.memory import require_memory
from pe_lab.experiment.scheduler import Launch, printing_errors, requested_cell, start_workers
from pe_lab.experiment.tables import report
from pe_lab.experiment.watch import Watch
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import write_command
from pe_lab.ledger.tree import Tree
from pe_lab.system.errors import in_one_line
from pe_lab.tracking.wandb_mode import settle_wandb


class Unfit(NamedTuple):
    """A pair of encoding and task that do not fit each other, and why."""

    pe: str
    data: str
    reason: str


def run(
    cfgs: list[DictConfig],
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    workers: int = 1,
    elsewhere: bool = False,
    train: bool = True,
) -> None:
    """Bring cells into the ledger, with all their measurements, and print their tables.

    In a sweep, cells whose encoding is not made for their task are left out, and listed.

    Args:
        cfgs: composed and checked.
        overrides: of the command line, shown by pe_lab.status; empty when called from Python.
        launch: starts workers in other processes; None: everything runs in this process, and a failure ends it.
        workers: at most so many.
        elsewhere: whether workers have machines of their own; this process then trains nothing.
        train: missing cells; otherwise they are an error.

    Raises:
        ValueError: a cell cannot be built, does not fit in memory, or is not trained while `train` is false. Nothing
            has been trained.
        LedgerError: `train` is false and an entry of the ledger is damaged.
        CellsMissingError: cells failed or were not reached.
    """
    cells, unfit = fitting(cfgs)
    jobs = [Job(cell) for cell in cells]
    ledger, study = Path(cfgs[0].ledger), cfgs[0].study_name
    if study:
        Tree(ledger).refuse_links(ledger / "studies" / study)
    if not train:
        _require_trained(cells)
    _prepare(jobs, elsewhere)
    settle_wandb(cfgs[0])
    with _requesting(jobs):
        requested = [requested_cell(cell) for cell in cells]
        write_command(ledger, overrides, study, requested)
        _write_unfit(unfit, ledger, study)
        with Watch(ledger, requested):
            _serve(jobs, launch, workers, elsewhere)
    report(jobs)


def _prepare(jobs: list[Job], elsewhere: bool) -> None:
    """Set damaged entries aside, and raise ValueError if a cell that this machine trains does not fit in its memory."""
    for job in jobs:
        job.set_aside_if_damaged()
    for job in [] if elsewhere else jobs:
        if not job.refused:
            require_memory(job.cell)


@contextmanager
def _requesting(jobs: list[Job]) -> Iterator[None]:
    """Request within the block what is missing."""
    try:
        for job in jobs:
            if job.missing:
                job.request()
        yield
    finally:
        for job in jobs:
            job.withdraw()


def _serve(jobs: list[Job], launch: Launch | None, workers: int, elsewhere: bool) -> None:
    """Train and measure what is missing: by workers, then in this process what they left. For arguments see `run`."""
    if launch:
        start_workers(jobs, launch, workers, elsewhere)
    for job in [] if elsewhere else jobs:
        with printing_errors(job.cell.cfg) if launch else nullcontext():
            job.serve(wait=True)


def fitting(cfgs: list[DictConfig]) -> tuple[list[Cell], list[Unfit]]:
    """Return the cells of a sweep, and the pairs that are left out: their encoding is not made for their task.

    Raises:
        ValueError: a cell cannot be built for another reason; or no cell fits, with the first one's reason.
    """
    cells, unfit = [], []
    for cfg in cfgs:
        try:
            cells.append(Cell.from_config(cfg))
        except UnfitError as error:
            unfit.append(Unfit(cfg.pe.name, cfg.data.name, in_one_line(error)))
    if not cells:
        raise UnfitError(unfit[0].reason)
    return cells, list(dict.fromkeys(unfit))


def _write_unfit(unfit: list[Unfit], ledger: Path, study: str | None) -> None:
    """Print which pairs are left out and why, and write the list into the study's folder."""
    if unfit:
        first, *others = unfit
        pairs = f"{len(unfit)} pairs, as {first.pe}" if others else first.pe
        print(f"skipped: {pairs} on {first.data}: {first.reason}", file=sys.stderr)
        if others:
            print(f"skipped as well: {', '.join(f'{pair.pe} on {pair.data}' for pair in others)}", file=sys.stderr)
    if study is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([Unfit._fields, *unfit])
        Tree(ledger).write(ledger / "studies" / study / "skipped.csv", text.getvalue())


def _require_trained(cells: list[Cell]) -> None:
    """Raise ValueError if a cell is not in the ledger, or damaged. Nothing is written."""
    ledger = Ledger(cells[0].cfg.ledger)
    untrained = [cell.name() for cell in cells if not ledger.find(cell.identity).done(cell.epochs)]
    if untrained:
        raise ValueError(
            f"{len(untrained)} of {len(cells)} cells are not in the ledger {ledger.folder}, as {untrained[0]}: "
            f"train them with python -m pe_lab.run and the same overrides"
        )
    for cell in cells:
        ledger.find(cell.identity).verify(cell.epochs)
