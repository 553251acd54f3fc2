"""Start workers for missing cells, and again when one of them dies."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from omegaconf import DictConfig, OmegaConf

from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import POLL_SECONDS, Job
from pe_lab.ledger.processes import has_workers, working_for
from pe_lab.ledger.progress import Progress, RequestedCell
from pe_lab.system.errors import in_one_line

MAX_SHARED_DEATHS = 2  # deaths in company after which a run is tried alone


class Launch(Protocol):
    """Starts workers, each of which calls `complete_cells`, and waits for them."""

    def __call__(self, cfgs: list[DictConfig], workers: int, /) -> None: ...


def complete_cells(cfgs: list[DictConfig], sweep: str | None = None) -> None:
    """Complete, as a worker, those cells that no other process works on. After a failure it goes on with the next cell.

    Args:
        cfgs: the configs of the cells.
        sweep: the ledger's name of the process that waits for this one.
    """
    with working_for(Path(cfgs[0].ledger), sweep) if sweep else nullcontext():
        for cfg in cfgs:
            with printing_errors(cfg):
                Job.from_config(cfg).complete(wait=False)


@contextmanager
def printing_errors(cfg: DictConfig) -> Iterator[None]:
    """Print an exception as one line and continue."""
    try:
        yield
    except Exception as error:
        print(
            f"{cfg.pe.name}, {cfg.data.name}, {cfg.model.depth} layers, seed {cfg.seed}: {in_one_line(error)}",
            file=sys.stderr,
        )


def requested_cell(cell: Cell, varied: Sequence[str] = ()) -> RequestedCell:
    """Return what the ledger's progress needs to know of a cell; nothing is written.

    Args:
        varied: the settings whose values belong to its name.
    """
    values = {name.rpartition(".")[2]: OmegaConf.select(cell.cfg, name) for name in varied}
    name_parts = [cell.name(), *(f"{name} {value:g}" for name, value in values.items() if value is not None)]
    return RequestedCell(cell.run.name, cell.target, " ".join(name_parts), cell.cfg.model.depth, cell.requests)


def start_workers(jobs: list[Job], launch: Launch, workers: int, remote: bool) -> None:
    """Start workers for the missing cells, and start them again if one dies and ends the others.

    If workers died twice on a run, and nothing was finished in between, a single worker trains only this run. If it
    dies too, the cells of the run fail, because they would also kill this process. Remote workers are started once: if
    one dies, this process waits for the others.

    Raises:
        ValueError: the launcher refuses its settings.
        Exception: remote workers cannot be started.
    """
    deaths = WorkerDeaths()
    while remaining := [job for job in jobs if job.missing and job.failure is None]:
        suspect = deaths.suspect(remaining)
        chosen = [job for job in remaining if suspect in (None, job.run.name)]
        count = min(workers, len({job.run.name for job in remaining})) if suspect is None else 1
        try:
            # joblib runs n_jobs=1 in this process: start two, so that a crash stays outside
            launch([job.cell.cfg for job in chosen], max(count, 2) if deaths.processes else count)
            if suspect is None:
                return
            deaths.cleared.add(suspect)
            continue
        except ValueError:
            raise
        except Exception as error:
            if remote and not _wait_for_others(jobs, remaining):
                raise
            print(f"the launcher stopped: {in_one_line(error).partition('. ')[0]}", file=sys.stderr)
        if remote:
            return
        finished = {job.run.name for job in chosen if not job.missing}
        victims = deaths.record(remaining, finished)
        if suspect in victims:
            for job in chosen:
                job.fail("the process that trained or measured it was killed three times: is there enough memory?")
        if not victims and not finished:
            return


class WorkerDeaths:
    """Counts the workers that died on each run.

    Attributes:
        processes: the processes that died on each run since something was finished on it, by the run's name.
        cleared: the names of runs that were served alone without a death.
    """

    def __init__(self) -> None:
        self.processes: dict[str, set[str]] = {}
        self.cleared: set[str] = set()

    def suspect(self, left: list[Job]) -> str | None:
        """Return the name of a run to serve alone, or None."""
        names = dict.fromkeys(job.run.name for job in left)
        repeated = (name for name in names if len(self.processes.get(name, ())) >= MAX_SHARED_DEATHS)
        return next((name for name in repeated if name not in self.cleared), None)

    def record(self, left: list[Job], finished: set[str]) -> set[str]:
        """Add the processes that died since the last call. Returns the names of their runs.

        Args:
            finished: the names of runs on which something was finished; their earlier deaths no longer count.
        """
        self.processes = {name: dead for name, dead in self.processes.items() if name not in finished}
        victims: set[str] = set()
        for job in left:
            name = job.run.name
            if name in finished | self.cleared | victims:
                continue
            before = self.processes.get(name, set())
            if new := job.run.dead_processes() - before:
                self.processes[name] = before | new
                victims.add(name)
        return victims


def _wait_for_others(jobs: list[Job], left: list[Job]) -> bool:
    """Wait for the other workers, and while any process serves one of the cells.

    Returns whether there were any, or a cell is now complete.
    """
    ledger = Path(jobs[0].cell.cfg.ledger)
    progress = Progress(ledger, [requested_cell(job.cell) for job in left])

    def served() -> bool:  # a worker holds no lease between two cells, and not that of a run while it measures
        return has_workers(ledger) or bool(progress.snapshot().running)

    was_served = served()
    while served():
        time.sleep(POLL_SECONDS)
    return was_served or any(not job.missing for job in left)
