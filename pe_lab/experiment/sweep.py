"""Bring many cells into the ledger: request all, train what is missing, print and write their tables."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.config import LR, study_settings
from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.added_seeds import add_seeds, require_question
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.declaration import require_margin, write_declaration
from pe_lab.experiment.job import Job
from pe_lab.experiment.progress_display import ProgressDisplay
from pe_lab.experiment.rounds import Outcome, Round, Stage, drive_stage, read_outcome
from pe_lab.experiment.scheduler import Launch, complete_cells, printing_errors, requested_cell, start_workers
from pe_lab.experiment.study_cells import is_declared, require_earlier_cells
from pe_lab.experiment.sweep_report import report_jobs, require_complete
from pe_lab.experiment.tuning import tune_cells, tuned_seeds
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import write_command
from pe_lab.ledger.run import DIVERGED
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.results import frame
from pe_lab.system.errors import in_one_line
from pe_lab.tracking.wandb_mode import settle_wandb

MAX_ROUND_ATTEMPTS = 3  # times that a round is served, while other processes clear failures of its cells


FittingCell = tuple[DictConfig, Cell]  # a config with the settings of its study, and its cell


class UnfitPair(NamedTuple):
    """A pair of encoding and task that do not fit each other, and why."""

    pe: str
    data: str
    reason: str


def run_cells(
    cfgs: list[DictConfig],
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    workers: int = 1,
    remote: bool = False,
    train: bool = True,
) -> list[Job]:
    """Bring cells into the ledger, with all their measurements, and print their tables. Returns their jobs.

    In a sweep, cells whose encoding is not made for their task are left out, and listed. The cells are added to those
    of a study that has their study_name. A study of conf/study has the cells of this command only.

    Args:
        cfgs: the configs of the cells, composed and checked.
        overrides: the overrides of the command line, shown by pe_lab.status; empty when called from Python.
        launch: a function that starts workers in other processes; None: everything runs in this process, and a failure
            ends it.
        workers: the largest number of workers.
        remote: whether workers have machines of their own; this process then trains nothing.
        train: whether to train missing cells; otherwise they are an error.

    Raises:
        ValueError: a cell cannot be built, or is not trained while `train` is false; the study declared something else,
            or tunes or adds seeds and has cells that are not among these. Nothing has been trained.
        LedgerError: `train` is false and an entry of the ledger is damaged.
        CellsMissingError: cells failed or were not reached.
    """
    fitting, unfit = split_fitting(cfgs)
    cfgs, cells = [cfg for cfg, _ in fitting], [cell for _, cell in fitting]
    study, ledger, name = study_settings(cfgs[0]), Path(cfgs[0].ledger), cfgs[0].study_name
    if name:
        LedgerFiles(ledger).refuse_links(ledger / "studies" / name)
    tunes, decides = study.tune.rates is not None, study.decide.baseline is not None
    if not train and not tunes and not decides:
        _require_trained(cells)
    if decides:
        require_question(cfgs)
    if tunes:
        tuned_seeds(cfgs)  # refuses settings that cannot be tuned
    if (tunes or decides) and not is_declared(overrides):
        require_earlier_cells(cfgs, seeds=decides)
    if train and not remote:
        require_margin(study.margin, cells)
    write_declaration(cfgs[0])
    if train and (note := _few_steps_note(cells)):
        print(note, file=sys.stderr)
    settle_wandb(cfgs[0])
    study_jobs = _RoundRunner(overrides, fitting, unfit, _Workers(launch, workers, remote), train)
    jobs = study_jobs.jobs_of(drive_stage(study_rounds(cfgs), study_jobs.complete_round))
    report_jobs(jobs, evaluated=not train, tuned=tunes, adds=not (tunes or decides or is_declared(overrides)))
    return jobs


def train_overrides(overrides: Sequence[str]) -> frame.Results:
    """Train the cells of overrides in this process, and return them; see `pe_lab.train`."""
    if not all(isinstance(override, str) for override in overrides):
        raise TypeError(f"a setting must be a text like 'pe=rope', got {overrides}")
    words = config.as_lists(list(overrides))
    if unused := [word for word in words if word.lstrip("+~").startswith("hydra")]:
        raise ValueError(f"{unused[0]} is a setting of pe-lab run, whose cells Hydra starts: leave it out")
    try:
        if config.study_overrides(["-m", *words]):
            raise ValueError(f"{' '.join(words)} is made of several sweeps: train it with pe-lab run -m")
        cfgs = config.expand_overrides(config.sweep_overrides(words), multirun=True)
    except HydraException as error:
        raise ValueError(in_one_line(error)) from None
    Ledger(cfgs[0].ledger).prepare()
    jobs = run_cells(cfgs, launch=lambda served, _: complete_cells(served))  # after a failure the next cell is trained
    trained = [(job.run.name, job.cell.target) for job in jobs if job.is_trained]
    return frame.load_cells(cfgs[0].ledger, trained, cfgs[0].study_name)


def study_rounds(cfgs: list[DictConfig]) -> Stage:
    """Go through the stages of a study. Most have one round: all cells.

    Args:
        cfgs: the configs of cells that fit, with the settings of their study.
    """
    study = study_settings(cfgs[0])
    if study.tune.rates is not None:
        return (yield from tune_cells(cfgs))
    if study.decide.baseline is not None:
        return (yield from add_seeds(cfgs))
    rates = {OmegaConf.select(cfg, LR) for cfg in cfgs}
    yield Round(cfgs, awaited=False, varied=(LR,) if len(rates) > 1 else ())
    return cfgs


@dataclass(frozen=True)
class _Workers:
    """How cells are trained: see the arguments of `run_cells`."""

    launch: Launch | None
    count: int
    remote: bool


class _RoundRunner:
    """Completes the rounds of a study, one after the other.

    Attributes:
        cells: the cells that are already built, by their config.
        jobs: the jobs of all rounds so far, by their config; a config hashes by its content, which a stage may not
            change.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        fitting: list[FittingCell],
        unfit: list[UnfitPair],
        workers: _Workers,
        train: bool,
    ) -> None:
        self.overrides, self.unfit, self.workers, self.train = overrides, unfit, workers, train
        self.cells = dict(fitting)
        self.jobs: dict[DictConfig, Job] = {}
        (first, _), *_ = fitting
        self.ledger, self.study = Path(first.ledger), first.study_name
        self.rounds, self.watched = 0, False

    def jobs_of(self, cfgs: list[DictConfig]) -> list[Job]:
        """Return the jobs of configs; jobs that do not exist are created."""
        for cfg in cfgs:
            if cfg not in self.jobs:
                self.jobs[cfg] = Job(self.cells.get(cfg) or Cell.from_config(cfg))
        return [self.jobs[cfg] for cfg in cfgs]

    def complete_round(self, current: Round) -> list[Outcome]:
        """Bring the cells of a round into the ledger, and return their outcomes.

        Raises:
            CellsMissingError: cells of this round were not reached, and another depends on them.
        """
        jobs, self.rounds = self.jobs_of(current.cfgs), self.rounds + 1
        # that a cell diverged is its outcome: it would diverge again
        wanted = [job for job in jobs if not (current.awaited and _is_diverged(job.cell))]
        if not self.train and jobs and (self.rounds > 1 or current.awaited):
            _require_trained([job.cell for job in wanted])
        for job in wanted:
            job.set_aside_if_damaged()
        if self.rounds == 1:
            _write_unfit(self.unfit, self.ledger, self.study)
        if not (current.awaited and jobs) or any(
            job.missing for job in wanted
        ):  # rounds that are complete are not printed again
            with _requesting(wanted):
                self._train(current, wanted)
        if not current.awaited:
            return []
        require_complete(jobs)
        return [read_outcome(job) for job in jobs]

    def _train(self, current: Round, jobs: list[Job]) -> None:
        """Write what this command requests, and train what is missing of the round."""
        requested = {job: requested_cell(job.cell, current.varied) for job in self.jobs.values()}
        write_command(self.ledger, self.overrides, self.study, [*requested.values()], current.text, current.later)
        if current.text:
            print(current.text, file=sys.stderr)
        if jobs:
            whole = current.later is not None
            shown = [*requested.values()] if whole else [requested[job] for job in jobs]
            with ProgressDisplay(self.ledger, shown, current.later, quiet=self.watched, train=self.train):
                _complete_jobs(jobs, self.workers, in_rounds=current.awaited)
            self.watched = True


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


def _complete_jobs(jobs: list[Job], workers: _Workers, in_rounds: bool) -> None:
    """Train and measure the missing cells with workers, and then in this process what they left.

    Args:
        in_rounds: whether the next round needs these cells. A failure then does not end the program, and a cell whose
            failure another process clears, to train it again, is waited for.
    """
    if workers.launch:
        start_workers(jobs, workers.launch, workers.count, workers.remote)
    local_jobs = [] if workers.remote else jobs
    for _ in range(MAX_ROUND_ATTEMPTS if in_rounds else 1):
        for job in local_jobs:
            with printing_errors(job.cell.cfg) if workers.launch or in_rounds else nullcontext():
                job.complete(wait=True)
        local_jobs = [job for job in local_jobs if job.missing and job.failure is None]


def split_fitting(cfgs: list[DictConfig]) -> tuple[list[FittingCell], list[UnfitPair]]:
    """Return the cells of a sweep, and the pairs that are left out: their encoding is not made for their task.

    Raises:
        ValueError: a cell cannot be built for another reason; or no cell fits, with the first one's reason.
    """
    fitting, unfit = [], []
    for cfg in cfgs:
        try:
            fitting.append((cfg, Cell.from_config(cfg)))
        except UnfitError as error:
            unfit.append(UnfitPair(cfg.pe.name, cfg.data.name, in_one_line(error)))
    if not fitting:
        pe, data, reason = unfit[0]
        raise UnfitError(f"pe={pe} data={data}: {reason}")
    return fitting, list(dict.fromkeys(unfit))


def _write_unfit(unfit: list[UnfitPair], ledger: Path, study: str | None) -> None:
    """Print which pairs are left out and why, and write the list into the study's folder."""
    if unfit:
        first, *others = unfit
        pairs = f"{len(unfit)} pairs, as {first.pe}" if others else first.pe
        print(f"skipped: {pairs} on {first.data}: {first.reason}", file=sys.stderr)
        if others:
            print(f"skipped as well: {', '.join(f'{pair.pe} on {pair.data}' for pair in others)}", file=sys.stderr)
    if study is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([UnfitPair._fields, *unfit])
        LedgerFiles(ledger).write(ledger / "studies" / study / "skipped.csv", text.getvalue())


def _few_steps_note(cells: list[Cell]) -> str | None:
    """Return a line on the shortest training that is missing, if it is too short to learn its task."""
    short = [cell for cell in cells if cell.steps_to(cell.target) < cell.dataset.few_steps]
    missing = [cell for cell in short if not cell.run.done(cell.target)]
    if not missing:
        return None
    cell = min(missing, key=lambda cell: cell.steps_to(cell.target))
    enough, length = cell.dataset.few_steps, f"{cell.unit}={cell.target}"
    if cell.unit == "epochs":
        length += f" is {cell.steps_to(cell.target)} steps"
    longer = enough if cell.unit == "steps" else -(-enough // cell.steps_per_epoch)
    return (
        f"note: {length}; models learn little from data={cell.cfg.data.name} in fewer than {enough} steps: use "
        f"{cell.unit}={longer} or more"
    )


def _is_diverged(cell: Cell) -> bool:
    """Return whether the ledger says that a cell's training ended with a loss that is not finite."""
    failure = None if cell.run.done(cell.target) else cell.run.failure(cell.target)
    return (failure or {}).get("kind") == DIVERGED


def _require_trained(cells: list[Cell]) -> None:
    """Raise ValueError if a cell is not in the ledger, or damaged. Nothing is written."""
    ledger = Path(cells[0].cfg.ledger)
    if not ledger.is_dir():
        raise ValueError(
            f"ledger must be a folder with trained cells, got {str(ledger)!r}, which does not exist: train them with "
            f"pe-lab run and the same overrides"
        )
    if untrained := [cell.name() for cell in cells if not cell.run.done(cell.target)]:
        raise ValueError(
            f"{len(untrained)} of {len(cells)} cells are not in the ledger {str(ledger)!r}, for "
            f"example {untrained[0]}: train them with pe-lab run and the same overrides"
        )
    for cell in cells:
        cell.run.verify(cell.target)
