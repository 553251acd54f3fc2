"""Show the progress of cells by reading the ledger, whichever process trains them."""

import _thread
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from pe_lab.ledger.progress import Progress, RequestedCell, Snapshot, Upcoming
from pe_lab.results.from_ledger import validation_by_step
from pe_lab.system.errors import in_one_line
from pe_lab.system.escaping import escape_control
from pe_lab.system.files import LedgerError

CORE_SHARE = 0.01  # the part of a core that reading the ledger may take
START_TIMEOUT = 10  # seconds after which a thread that has not started counts as ended
END_TIMEOUT = 60  # seconds to wait for the last line
LOG_EVERY = 60  # seconds between lines where standard error is no terminal
LOG_FIRST = 10  # seconds before the first of these


class ProgressDisplay:
    """A context manager that shows the progress of cells on standard error: a bar on a terminal, otherwise lines.

    Args:
        ledger: the folder of the ledger.
        cells: all cells that a study has requested so far.
        later: the trainings that the study may request later; None: unknown.
        quiet: whether to leave out how many cells are in the ledger already.
        train: whether cells are trained, and not only measured.
    """

    def __init__(
        self,
        ledger: Path,
        cells: list[RequestedCell],
        later: Upcoming | None = None,
        quiet: bool = False,
        train: bool = True,
    ) -> None:
        self.progress = Progress(ledger, cells, later or Upcoming())
        self.later, self.quiet = later, quiet
        self.outcome = "done" if train else "measured"
        self.printed = time.monotonic() - LOG_EVERY + LOG_FIRST
        self.started = False
        self.stopping, self.began, self.ended = threading.Event(), threading.Event(), threading.Event()
        tqdm.monitor_interval = 0  # no second thread: the bar is refreshed here

    def __enter__(self) -> None:
        self.state = self.progress.snapshot()
        if self.state.done and not self.quiet:
            total = _total_text(len(self.progress.cells), self.later)
            print(f"{len(self.state.done)} of {total} are in the ledger already", file=sys.stderr)
        if self.progress.open:
            try:
                # not threading.Thread, whose start() waits for a thread that may have ended for lack of memory
                _thread.start_new_thread(self._show, ())
                self.started = True
            except (RuntimeError, MemoryError) as error:
                print(f"progress is not shown: {in_one_line(error)}", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        if self.started and self.began.wait(START_TIMEOUT):
            self.ended.wait(END_TIMEOUT)

    def _show(self) -> None:
        """Watch in a thread of its own. An error ends only this thread, with one line."""
        try:
            self.began.set()
            self._watch()
        except BaseException as error:
            with suppress(BaseException):  # no memory to print it
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
                began = time.monotonic()
                with suppress(OSError, MemoryError):  # the next reading may succeed
                    self._print(bar)
                pause = max(1.0, (time.monotonic() - began) / CORE_SHARE)

    def _print(self, bar: tqdm) -> None:
        before, self.state = set(self.state.done), self.progress.snapshot()
        line = _progress_line(self.state, len(self.progress.cells), self.later)
        new = [cell for cell in self.state.done if cell not in before]
        for count, cell in enumerate(new, _count_ended(self.state, self.later) - len(new) + 1):
            measured = self._loss_text(cell)
            ended = _count_text(count, len(self.progress.cells), self.later)
            bar.write(f"{cell.name:28} {self.outcome}   {measured}{ended}", file=sys.stderr)
        bar.n = self.state.fraction_done
        bar.set_postfix_str(line)
        if bar.disable and time.monotonic() - self.printed > LOG_EVERY:
            self.printed = time.monotonic()
            print(line, file=sys.stderr)

    def _loss_text(self, cell: RequestedCell) -> str:
        """Return the test loss of a trained cell as text; of a try of tuning, which decides, the validation loss."""
        if self.later is None:
            loss = self.progress.test_loss(cell)
            return "" if loss is None else f"test loss {loss:.3g}, "
        with suppress(LedgerError, OSError, LookupError, ValueError):  # unreadable, or without a validation
            by_step = validation_by_step(self.progress.ledger.named(cell.run).checkpoint(cell.target))
            return f"validation loss {by_step[max(by_step)]['loss']:.3g}, "
        return ""


def _progress_line(state: Snapshot, cells: int, later: Upcoming | None = None) -> str:
    seconds = state.seconds_left if state.done or cells == 1 else None  # a cell in progress says little of others
    bound = "" if later is None or later.exact else " at most"
    left = "" if seconds is None else f", about {tqdm.format_interval(seconds)} left{bound}"
    running = ", ".join(
        f"{job.cell.name} at {job.reached / job.cell.target:.0%}" + f" ({job.latest})" * bool(job.latest)
        for job in state.running[:4]
    )
    return escape_control(
        f"{_count_text(_count_ended(state, later), cells, later)}{left}" + f"; {running}" * bool(running)
    )


def _count_ended(state: Snapshot, later: Upcoming | None) -> int:
    """Return the number of cells that are done. In a study that continues after a failure, failed cells count too."""
    return len(state.done) + (len(state.failed) if later else 0)


def _count_text(ended: int, cells: int, later: Upcoming | None) -> str:
    """Return how many of all cells, or of all trainings of a study, have ended."""
    return f"{ended}/{cells} cells" if later is None else f"{ended} of {_total_text(cells, later)}"


def _total_text(cells: int, later: Upcoming | None) -> str:
    if later is None:
        return f"{cells} cells"
    return f"{'' if later.exact else 'at most '}{cells + later.trainings} trainings"
