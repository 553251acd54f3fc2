"""How far requested cells are, read from the ledger alone. Nothing is written, and torch is not imported."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.processes import is_alive, register_process
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import CHECKPOINT_NAME, Run, read_cost
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import COMMANDS_FOLDER, LedgerError, digest, folder_entries, read_json, unread_message

LATEST_TIME = 1e11  # seconds since 1970: about the year 5100
TIME_KEYS = {"since": "since", "start": "from", "reached": "epoch", "heartbeat": "heartbeat"}  # keys of owner.json
SILENT_SECONDS = 60  # seconds since its last heartbeat after which an owner counts as dead, where locks cannot be tried


def unit_cost(depth: int) -> float:
    """Return the cost of one epoch or step, relative to one layer; the rest of the model counts as 1/3 of a layer."""
    return depth + 1 / 3


@dataclass(frozen=True)
class Upcoming:
    """What a study in rounds may request after its present round, at most.

    Attributes:
        trainings: the number of trainings.
        work: the sum of epochs or steps times `unit_cost`, over the trainings.
        exact: whether all of them are certain to be requested.
    """

    trainings: int = 0
    work: float = 0.0
    exact: bool = True


@dataclass(frozen=True)
class RequestedCell:
    """A cell that a command requested.

    Attributes:
        run: the name of its run.
        target: the number of epochs of the checkpoint, or of steps where its run is counted in them.
        name: the name of the cell, for people.
        depth: the number of layers of the model.
        measurements: the requests for records of the checkpoint.
    """

    run: str
    target: int
    name: str
    depth: int
    measurements: list[dict[str, Any]] = field(default_factory=list, hash=False)

    @property
    def unit_cost(self) -> float:
        """The cost of one epoch or step, see `unit_cost`."""
        return unit_cost(self.depth)

    def to_json(self) -> dict[str, Any]:
        """Return the cell as a command's file has it, where the target is named epochs."""
        cell = asdict(self)
        return cell | {"epochs": cell.pop("target")}

    @classmethod
    def from_json(cls, cell: dict[str, Any]) -> "RequestedCell":
        """Return a cell from a command's file.

        Raises:
            TypeError, KeyError: it has other keys.
        """
        return cls(**{key: value for key, value in cell.items() if key != "epochs"}, target=cell["epochs"])


@dataclass(frozen=True)
class RunningCell:
    """A cell that is being trained, and the last heartbeat of its run's owner.

    Attributes:
        host, pid: the host and the process id of the owner.
        since: the time when it began to train, in seconds since 1970.
        start: the epoch or step at which it began.
        reached: the epoch it has reached, or the step where the target is one of steps.
        heartbeat: the time of the heartbeat, in seconds since 1970.
        latest: the name and value of the metric that was measured last; empty: there is none yet.
    """

    cell: RequestedCell
    host: str
    pid: int
    since: float
    start: float
    reached: float
    heartbeat: float
    latest: str = ""


@dataclass(frozen=True)
class Snapshot:
    """How far requested cells are at one moment. Each cell is in one of the lists.

    Attributes:
        done: the cells that are trained and measured.
        running: the cells that are being trained, at most one per run.
        failed: the cells that failed, with the reason.
        waiting: the cells that a live process requests.
        missing: the cells that no live process requests.
        fraction_done: the fraction of the work that is done, 0 to 1.
        seconds_left: the seconds until nothing runs or waits, and what may be requested later is done too, at the speed
            so far; None: the speed is unknown.
        unreadable: the cells that could not be read, with the reason: nothing is known of them.
    """

    done: list[RequestedCell]
    running: list[RunningCell]
    failed: list[tuple[RequestedCell, str]]
    waiting: list[RequestedCell]
    missing: list[RequestedCell]
    fraction_done: float
    seconds_left: float | None
    unreadable: list[tuple[RequestedCell, str]] = field(default_factory=list)


class Progress:
    """Watches requested cells. A cell that was seen done is not read again.

    Args:
        folder: the folder of the ledger.
        cells: the requested cells.
        later: the trainings that may be requested after them.

    Raises:
        LedgerError: the ledger has another format.
    """

    def __init__(self, folder: Path, cells: Iterable[RequestedCell], later: Upcoming = Upcoming()) -> None:
        self.ledger, self.later = Ledger(folder), later
        self.cells = list(cells)
        self.open = list(self.cells)
        self.longest = {cell.run: cell for cell in sorted(self.cells, key=lambda cell: cell.target)}
        self.estimator = TimeEstimator(self.ledger, self.longest, later.work)
        self.measuring: tuple[float, int] | None = None  # when only measuring was left, and how many there were

    def snapshot(self) -> Snapshot:
        """Read how far all cells are now."""
        unreadable: dict[str, str] = {}  # why, by run
        for cell in list(self.open):
            with _noting_unreadable(unreadable, cell.run):
                if self._is_done(cell):
                    self.open.remove(cell)
                    self.estimator.reached[cell.run] = max(cell.target, self.estimator.reached.get(cell.run, 0))
        active: dict[str, RunningCell] = {}
        requested: dict[str, set[int]] = {}
        for name in dict.fromkeys(cell.run for cell in self.open):
            with _noting_unreadable(unreadable, name):
                run = self.ledger.named(name)
                requested[name] = self._requested(run)
                if running := self._running(run):
                    active[name] = running
        failed, waiting, missing, training, unknown = [], [], [], set(), []
        for cell in self.open:
            failure = None
            with _noting_unreadable(unreadable, cell.run):
                failure = self._failure(cell)
            if cell.run in unreadable:
                unknown.append((cell, unreadable[cell.run]))
            elif failure is not None:
                failed.append((cell, failure))
            elif cell.run in active and active[cell.run].cell.target == cell.target:
                training.add(cell.run)
            elif cell.target in requested[cell.run]:
                waiting.append(cell)
            else:
                missing.append(cell)
        shown = [running for name, running in active.items() if name in training]
        unfinished = set(self.open)
        done = [cell for cell in self.cells if cell not in unfinished]
        only_measuring = waiting and not active and all(map(self._is_trained, waiting))
        unfinished_runs = training | {cell.run for cell in waiting}
        estimate = self._measured() if only_measuring else self.estimator.estimate(active, unfinished_runs)
        return Snapshot(done, shown, failed, waiting, missing, *estimate, unknown)

    def summary(self, cell: RequestedCell) -> Any:
        """Return the content of a trained cell's summary.json, which is not verified.

        Raises:
            LedgerError: it is damaged.
        """
        return read_json(self.ledger.named(cell.run).checkpoint(cell.target) / "summary.json")

    def test_loss(self, cell: RequestedCell) -> float | None:
        """Return the test loss of a trained cell; None if it cannot be read."""
        try:
            return float(self.summary(cell)["test"]["loss"])
        except (LedgerError, OSError, LookupError, TypeError, ValueError, AttributeError):
            return None

    def _is_done(self, cell: RequestedCell) -> bool:
        run = self.ledger.named(cell.run)
        if not run.done(cell.target):
            return False
        if not cell.measurements:
            return True
        try:
            records = Records(run, cell.target)
            return all(map(records.has, cell.measurements))
        except LedgerError:
            return False

    def _is_trained(self, cell: RequestedCell) -> bool:
        return self.ledger.named(cell.run).done(cell.target)

    def _measured(self) -> tuple[float, float | None]:
        """Return the fraction of measurements that is there, and the seconds that others will take."""
        total, there, now = 0, 0, time.monotonic()
        for cell in self.cells:
            with suppress(LedgerError):
                records = Records(self.ledger.named(cell.run), cell.target)
                there += sum(map(records.has, cell.measurements)) if cell in self.open else len(cell.measurements)
            total += len(cell.measurements)
        self.measuring = began, first = self.measuring or (now, there)
        seconds = (now - began) * (total - there) / (there - first) if there > first else None
        return there / total if total else 1.0, seconds

    def _failure(self, cell: RequestedCell) -> str | None:
        run = self.ledger.named(cell.run)
        if not run.done(cell.target):
            failure = run.failure(cell.target)
        else:
            try:
                records = Records(run, cell.target)
                failures = [records.failure(request) for request in cell.measurements if not records.has(request)]
                failure = failures[0] if failures and all(failures) else None
            except LedgerError as error:
                failure = {"reason": error}
        return None if failure is None else str(failure.get("reason", "no reason is recorded"))

    def _requested(self, run: Run) -> set[int]:
        """Return the checkpoints of a run that live processes request."""
        requests = (path.name.partition(".") for path in folder_entries(run.folder / "requested", "[0-9]*"))
        return {
            int(target) for target, _, name in requests if CHECKPOINT_NAME.fullmatch(target) and self._is_alive(name)
        }

    def _is_alive(self, process: str, heartbeat: float | None = None) -> bool:
        try:
            return is_alive(self.ledger.folder, process, clean=False)
        except OSError:  # locks cannot be tried in a read-only ledger: use the last heartbeat
            return heartbeat is not None and time.time() - heartbeat < SILENT_SECONDS

    def _running(self, run: Run) -> RunningCell | None:
        """Return what a live owner of a run trains, or None; also if owner.json is damaged."""
        owner = run.owner() or {}
        try:
            targets = (cell for cell in self.open if (cell.run, cell.target) == (run.name, owner["target"]))
            cell = next(targets, self.longest[run.name])
            times = {name: float(owner[key]) for name, key in TIME_KEYS.items()}
            if not all(abs(seconds) < LATEST_TIME for seconds in times.values()):
                return None
            name, value = owner.get("latest") or ("", 0.0)
            latest = f"{name} {value:.3g}" if name else ""
            running = RunningCell(cell, str(owner["host"]), int(owner["pid"]), **times, latest=latest)
            return running if self._is_alive(str(owner["process"]), running.heartbeat) else None
        except (TypeError, KeyError, ValueError, OverflowError):
            return None


class TimeEstimator:
    """Estimates the time left from the seconds that were spent on the same runs.

    Args:
        longest: the requested cell with the largest target, by run.
        later: the work that may be requested later, in the unit of `Upcoming.work`.
    """

    def __init__(self, ledger: Ledger, longest: dict[str, RequestedCell], later: float = 0.0) -> None:
        self.ledger = ledger
        self.longest, self.later = longest, later
        self.reached: dict[str, float] = {}  # epochs or steps that are done, by run
        self._costs: dict[str, tuple[float, float]] = {}  # epochs or steps, and seconds, of runs without an owner

    def estimate(self, active: dict[str, RunningCell], unfinished: set[str]) -> tuple[float, float | None]:
        """Return the fraction of the work that is done, and the seconds that unfinished runs will take.

        Args:
            active: the runs with a live owner, by name.
            unfinished: the names of runs with cells that run or wait.
        """
        done = seconds = timed = longest = 0.0
        total = left = self.later
        for name, cell in self.longest.items():
            reached = self.reached.get(name, 0.0)
            if running := active.get(name):
                timed += cell.unit_cost * (running.reached - running.start)
                seconds += running.heartbeat - running.since
                reached = max(reached, running.reached)
            elif reached:
                if name not in self._costs:
                    self._costs[name] = self._cost(name)
                reached_before, cost = self._costs[name]
                timed += cell.unit_cost * reached_before
                seconds += cost
            reached = min(reached, cell.target)
            total += cell.unit_cost * cell.target
            done += cell.unit_cost * reached
            if name in unfinished:
                remaining = cell.unit_cost * (cell.target - reached)
                left, longest = left + remaining, max(longest, remaining)
        fraction = done / total if total else 1.0
        if not unfinished:
            return fraction, None if self.later else 0.0
        if not timed or seconds <= 0 or not active:
            return fraction, None
        return fraction, max(left / len(active), longest) * seconds / timed

    def _cost(self, name: str) -> tuple[float, float]:
        """Return the epochs or steps that a run was trained for, by any command, and the seconds; zeros if unknown."""
        run = self.ledger.named(name)
        try:
            seconds = read_cost(run.folder / "cost.json")["total"]
            return (max(run.checkpoints(), default=0), seconds) if seconds else (0.0, 0.0)
        except (LedgerError, OSError):
            return 0.0, 0.0


@contextmanager
def _noting_unreadable(unreadable: dict[str, str], run: str) -> Iterator[None]:
    """Note why a run cannot be read."""
    try:
        yield
    except OSError as error:
        unreadable.setdefault(run, unread_message(error))


def write_command(
    ledger: Path,
    overrides: Sequence[str],
    study: str | None,
    cells: list[RequestedCell],
    text: str = "",
    later: Upcoming | None = None,
) -> None:
    """Write which cells a command requests, and that this process runs it.

    Args:
        text: the progress of a study in rounds. Its command line and name identify it: its cells become more.
        later: the trainings that such a study may request after these cells, if that is known.
    """
    requested = [cell.to_json() for cell in cells]
    key = {"overrides": list(overrides), "study": study} if text else {"cells": requested}
    path = ledger / COMMANDS_FOLDER / f"{digest(key)}.json"
    try:
        alive = [str(process) for process in read_json(path)["processes"] if is_alive(ledger, str(process))]
    except (LedgerError, TypeError, KeyError):  # the first such command, or a damaged file
        alive = []
    processes = list(dict.fromkeys([*alive, register_process(ledger)]))
    content = {"overrides": list(overrides), "study": study, "since": time.time(), "processes": processes}
    rounds: dict[str, Any] = ({"text": text} if text else {}) | ({"later": asdict(later)} if later else {})
    LedgerFiles(ledger).write_json(path, content | {"cells": requested} | rounds)
