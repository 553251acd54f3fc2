"""Many cells: wanted before the first starts, watched while they train, collected at the end."""

import _thread
import csv
import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from omegaconf import DictConfig
from tqdm import tqdm

from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.cell import POLL, Cell
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import Progress, RequestedCell, State, write_command
from pe_lab.ledger.tree import Tree
from pe_lab.status import duration
from pe_lab.system.errors import in_one_line
from pe_lab.tracking.wandb_mode import settle_wandb

LOOKING = 0.01  # the part of a core that watching may take
BIRTH = 10  # seconds after which a thread that has not begun counts as ended
LAST = 60  # seconds that the end of watching is waited for, at most
QUIET = 60  # seconds after which a log is told how far it is


class CellsMissingError(RuntimeError):
    """Some cells that were asked for are not in the ledger."""


class Unfit(NamedTuple):
    """A pair of encoding and task that cannot be, and why."""

    pe: str
    data: str
    reason: str


class Launch(Protocol):
    """Starts workers, each of which calls `work`, and waits for them."""

    def __call__(self, cfgs: list[DictConfig], workers: int) -> None: ...


def work(cfgs: list[DictConfig]) -> None:
    """What a worker does: serve those cells that nobody else serves. A failure is recorded, and it goes on."""
    for cfg in cfgs:
        with _telling(cfg):
            Cell(cfg).serve(wait=False)


@contextmanager
def _telling(cfg: DictConfig) -> Iterator[None]:
    """What keeps a cell from being served is told, and no more."""
    try:
        yield
    except Exception as error:
        print(
            f"{cfg.pe.name}, {cfg.data.name}, {cfg.model.depth} layers, seed {cfg.seed}: {in_one_line(error)}",
            file=sys.stderr,
        )


def run(
    cfgs: list[DictConfig],
    words: Sequence[str] = (),
    launch: Launch | None = None,
    workers: int = 1,
    elsewhere: bool = False,
    train: bool = True,
) -> None:
    """Bring cells into the ledger, with all that is to be measured on them, and print their tables.

    In a sweep, cells whose encoding is not made for their task are left out, and listed.

    Args:
        cfgs: composed and tested.
        words: that asked for them, to be told by pe_lab.status; none: Python did.
        launch: starts workers in other processes; None: all is done here, and what fails ends it.
        workers: at most so many.
        elsewhere: whether the workers have machines of their own; what they leave is then not trained here.
        train: the cells that are missing; otherwise they are an error.

    Raises:
        ValueError: a cell cannot be built, has no room on this machine, or is not trained and shall not be; nothing has
            been trained.
        LedgerError: an entry of the ledger is not what it says it is, and there is to be no training.
        CellsMissingError: what failed or was not reached.
    """
    cells, unfit = fitting(cfgs)
    if cfgs[0].study_name:
        Tree(cfgs[0].ledger).require(Path(cfgs[0].ledger, "studies", cfgs[0].study_name))
    if not train:
        _require_trained(cells)
    for cell in cells:
        cell.mend()
    for cell in [] if elsewhere else cells:
        if not cell.refused:
            cell.require_room()
    settle_wandb(cfgs[0])
    try:
        for cell in cells:
            if cell.missing:
                cell.request()
        asked = list(map(_asked, cells))
        ledger = Path(cfgs[0].ledger)
        write_command(ledger, words, cfgs[0].study_name, asked)
        _log_unfit(unfit, ledger, cfgs[0].study_name)
        with Watch(ledger, asked):
            if launch:
                _launch(cells, launch, workers, elsewhere)
            for cell in [] if elsewhere else cells:
                with _telling(cell.cfg) if launch else nullcontext():
                    cell.serve(wait=True)
                    cell.release()
    finally:
        for cell in cells:
            cell.withdraw()
    _report(cells)


def fitting(cfgs: list[DictConfig]) -> tuple[list[Cell], list[Unfit]]:
    """Return the cells of a sweep, and those that cannot be: their encoding is not made for their task.

    Raises:
        ValueError: a cell cannot be built for another reason; or none fits, and this is why the first does not.
    """
    cells, unfit = [], []
    for cfg in cfgs:
        try:
            cells.append(Cell(cfg))
        except UnfitError as error:
            unfit.append(Unfit(cfg.pe.name, cfg.data.name, in_one_line(error)))
    if not cells:
        raise UnfitError(unfit[0].reason)
    return cells, list(dict.fromkeys(unfit))


def _log_unfit(unfit: list[Unfit], ledger: Path, study: str | None) -> None:
    """Print which pairs are left out and why, and keep the list with the study."""
    if unfit:
        first, *others = unfit
        of = f"{len(unfit)} pairs, as {first.pe}" if others else first.pe
        print(f"skipped: {of} on {first.data}: {first.reason}", file=sys.stderr)
        if others:
            print(f"skipped as well: {', '.join(f'{one.pe} on {one.data}' for one in others)}", file=sys.stderr)
    if study is not None:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerows([Unfit._fields, *unfit])
        Tree(ledger).write(ledger / "studies" / study / "skipped.csv", text.getvalue())


def _launch(cells: list[Cell], launch: Launch, workers: int, elsewhere: bool) -> None:
    """Start workers for what is missing, and again when one of them died and took the others with it.

    A training on which workers died twice, and nothing was finished in between, is then served alone; when its worker
    dies again, its cells fail: they would kill this process as well. Workers elsewhere are started once: when one of
    them died, the others are waited for.

    Raises:
        Exception: what keeps workers from being started elsewhere.
    """
    died: dict[str, set[str]] = {}  # who, by run, since something was finished there
    cleared: set[str] = set()  # those that were served alone, and did not kill
    while left := [cell for cell in cells if cell.missing and cell.failure is None]:
        runs = {cell.run.name: cell.run for cell in left}
        suspect = next((name for name in runs if len(died.get(name, ())) > 1 and name not in cleared), None)
        chosen = [cell for cell in left if suspect in (None, cell.run.name)]
        at_once = min(workers, len(runs)) if suspect is None else 1
        try:
            # of two, one has nothing to do; joblib's only worker would be this process
            launch([cell.cfg for cell in chosen], max(at_once, 2) if died else at_once)
            if suspect is None:
                return
            cleared.add(suspect)
            continue
        except Exception as error:
            if elsewhere and not _wait_for_others(cells, left):
                raise
            print(f"the launcher stopped: {in_one_line(error).partition('. ')[0]}", file=sys.stderr)
        if elsewhere:
            return
        finished = {cell.run.name for cell in chosen if not cell.missing}
        died = {name: who for name, who in died.items() if name not in finished}
        new = {name: runs[name].dead() - died.get(name, set()) for name in runs if name not in finished | cleared}
        victims = [name for name, who in new.items() if who]
        for name in victims:
            died[name] = died.get(name, set()) | new[name]
        if suspect in victims:
            for cell in chosen:
                cell.fail("whoever trained or measured it was killed, three times: is there memory enough?")
        if not victims and not finished:
            return


def _wait_for_others(cells: list[Cell], left: list[Cell]) -> bool:
    """Wait as long as somebody serves one of the cells; returns whether anything came of it."""
    progress = Progress(Path(cells[0].cfg.ledger), map(_asked, left))
    began = bool(progress.look().running)
    while progress.look().running:
        time.sleep(POLL)
    return began or any(not cell.missing for cell in left)


def _asked(cell: Cell) -> RequestedCell:
    run = Ledger(cell.cfg.ledger).find(cell.identity)  # also of a cell that is refused
    return RequestedCell(run.name, cell.epochs, cell.name(), cell.cfg.model.depth, cell.requests)


def _require_trained(cells: list[Cell]) -> None:
    """Raises ValueError if a cell is not in the ledger, or not what was written; writes nothing."""
    ledger = Ledger(cells[0].cfg.ledger)
    untrained = [cell.name() for cell in cells if not ledger.find(cell.identity).done(cell.epochs)]
    if untrained:
        raise ValueError(
            f"{len(untrained)} of {len(cells)} cells are not in the ledger {ledger.folder}, as {untrained[0]}: "
            f"train them with python -m pe_lab.run and the same words"
        )
    for cell in cells:
        ledger.find(cell.identity).verify(cell.epochs)


def _report(cells: list[Cell]) -> None:
    """Print the tables of what is there, keep them beside the study's rows, and name what is missing.

    Raises:
        CellsMissingError: cells are missing.
        OSError: the tables cannot be written.
        LedgerError: a checkpoint is not what was written.
    """
    present = [cell for cell in cells if cell.trained]
    absent = [cell for cell in cells if cell.missing]
    try:
        if present:
            _log_tables(present, [cell for cell in cells if not cell.trained and cell.failure])
    finally:  # whatever keeps the tables from being made
        for cell in absent:
            failure = cell.failure
            print(f"missing: {cell.name()}: {failure['reason'] if failure else 'not reached'}", file=sys.stderr)
    if absent:
        raise CellsMissingError(
            f"{len(absent)} of {len(cells)} cells are missing; the same command, run again, trains what is missing"
        )


def _log_tables(present: list[Cell], failed: list[Cell]) -> None:
    """Print the tables of cells that are there, and write them into the study's folder.

    Raises:
        OSError: they cannot be written.
        LedgerError: a checkpoint is not what was written.
    """
    from pe_lab.results import curves, study
    from pe_lab.results.frame import Results
    from pe_lab.results.from_ledger import failures, outcome
    from pe_lab.results.rows import rows_of, settings_of

    ledger, name = Path(present[0].cfg.ledger), present[0].cfg.study_name
    settings, of_failed = ([settings_of(cell.cfg) for cell in cells] for cells in (present, failed))
    rows = rows_of(settings, [outcome(cell.run, cell.epochs) for cell in present])
    lost = failures(settings, of_failed, [(cell.failure or {}) | {"run": cell.run.name} for cell in failed])
    measured = [
        curves.Measured(one, cell.run, cell.epochs, cell.requests) for one, cell in zip(settings, present, strict=True)
    ]
    texts, files = study.tables(Results(ledger, name, rows, lost), curves.gather(measured))
    print("\n\n".join(texts.values()))
    if name:
        folder = ledger / "studies" / name
        try:
            for file, content in files.items():
                Tree(ledger).write(folder / file, content)
        except OSError as error:
            line = f"the tables of study_name={name} must be written to {folder}, got {error.strerror or error}"
            raise OSError(f"{line}: the same command, run again, writes them") from None


class Watch:
    """Shows how far cells are, by looking at the ledger: whoever trains them, here or elsewhere."""

    def __init__(self, ledger: Path, cells: list[RequestedCell]) -> None:
        self.progress = Progress(ledger, cells)
        self.told = time.monotonic()
        self.started = False
        self.stopping, self.began, self.ended = threading.Event(), threading.Event(), threading.Event()
        tqdm.monitor_interval = 0  # no thread of its own, to refresh what is refreshed here

    def __enter__(self) -> None:
        self.state = self.progress.look()
        if self.state.done:
            of = len(self.progress.cells)
            print(f"{len(self.state.done)} of {of} cells are in the ledger already", file=sys.stderr)
        if self.progress.open:
            try:
                # not threading.Thread, whose start() waits for a thread that may have ended for lack of memory
                _thread.start_new_thread(self._show, ())
                self.started = True
            except (RuntimeError, MemoryError) as error:
                print(f"progress is not shown: {in_one_line(error)}", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        if self.started and self.began.wait(BIRTH):
            self.ended.wait(LAST)

    def _show(self) -> None:
        """Watch in a thread of its own. What ends that is told in one line, and ends nothing else."""
        try:
            self.began.set()
            self._watch()
        except BaseException as error:
            with suppress(BaseException):  # out of memory to tell it
                print(f"showing progress ended: {in_one_line(error)}", file=sys.stderr)
        finally:
            self.ended.set()

    def _watch(self) -> None:
        with tqdm(
            total=1.0, bar_format="{percentage:3.0f}%|{bar:20}| {elapsed}{postfix}", disable=not sys.stderr.isatty()
        ) as bar:
            stopping, pause = False, 1.0
            while not stopping:
                stopping = self.stopping.wait(pause)
                looked = time.monotonic()
                with suppress(OSError, MemoryError):  # it is only for show
                    self._tell(bar)
                pause = max(1.0, (time.monotonic() - looked) / LOOKING)

    def _tell(self, bar: tqdm) -> None:
        before, self.state = set(self.state.done), self.progress.look()
        line = _line(self.state, len(self.progress.cells))
        for cell in self.state.done:
            if cell not in before:
                bar.write(f"{cell.name:28} done   {line.partition(';')[0]}", file=sys.stderr)
        bar.n = self.state.part
        bar.set_postfix_str(line)
        if bar.disable and time.monotonic() - self.told > QUIET:
            self.told = time.monotonic()
            print(line, file=sys.stderr)


def _line(state: State, cells: int) -> str:
    left = "" if state.left is None else f", {duration(state.left)} left"
    running = ", ".join(f"{of.cell.name} at epoch {of.epoch:.1f}" for of in state.running[:4])
    return f"{len(state.done)}/{cells} cells{left}; {running}"
