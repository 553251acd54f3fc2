"""How far cells are, read off the ledger: whoever trains them, here or on another machine. Nothing is written.

Nothing here imports torch.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.ledger.lease import is_alive, register
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import EPOCHS, Run, read_cost
from pe_lab.ledger.tree import Tree
from pe_lab.system.files import COMMANDS, LedgerError, digest, read_json

FUTURE = 1e11  # seconds since 1970 that no date has
SILENT = 60  # seconds after which a owner of whom nothing else is known counts as gone


@dataclass(frozen=True)
class RequestedCell:
    """A cell that a command asked for: the checkpoint of a run, and what is to be measured on it."""

    run: str
    epochs: int
    name: str
    depth: int
    requests: list[dict[str, Any]] = field(default_factory=list, hash=False)

    @property
    def work(self) -> float:
        """Of an epoch, in epochs of a layer; the rest of the model counts as a third of one."""
        return self.depth + 1 / 3


@dataclass(frozen=True)
class Running:
    """A run that somebody serves.

    Attributes:
        cell: that he is on the way to.
        host, pid: who.
        since: when he began, in seconds since 1970; began: at which epoch.
        epoch: how far he is.
        heartbeat: when he said so.
    """

    cell: RequestedCell
    host: str
    pid: int
    since: float
    began: float
    epoch: float
    heartbeat: float


@dataclass(frozen=True)
class State:
    """How far cells are: each is in one list.

    Attributes:
        done: trained and measured.
        running: what those that are served are at, one per run.
        failed: with the reason.
        waiting: somebody alive wants it, or is on the way to it.
        missing: nobody alive wants it.
        part: of the work that is done, 0 to 1.
        left: seconds until nothing is running or waiting, by the speed so far; None: nothing is known of it.
    """

    done: list[RequestedCell]
    running: list[Running]
    failed: list[tuple[RequestedCell, str]]
    waiting: list[RequestedCell]
    missing: list[RequestedCell]
    part: float
    left: float | None


class Progress:
    """Of cells in a ledger. What was seen done is not looked at again.

    Args:
        ledger: its folder.
        cells: in the order in which they are told.
    """

    def __init__(self, ledger: Path, cells: Iterable[RequestedCell]) -> None:
        self.ledger = ledger
        self.cells = list(cells)
        self.open = list(self.cells)
        self.reached: dict[str, float] = {}  # epochs, by run
        self.longest: dict[str, RequestedCell] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.epochs):
            self.longest[cell.run] = cell
        self.known: dict[str, tuple[float, float]] = {}  # epochs and seconds, of runs that nobody serves any more

    def look(self) -> State:
        """How far all are now."""
        for cell in [cell for cell in self.open if self._done(cell)]:
            self.open.remove(cell)
            self.reached[cell.run] = max(cell.epochs, self.reached.get(cell.run, 0))
        runs = {cell.run: self._run(cell) for cell in self.open}
        running = [self._running(cell.run) for cell in {cell.run: cell for cell in self.open}.values()]
        served = {of.cell.run: of for of in running if of}
        wanted = {name: self._wanted(run) for name, run in runs.items()}
        failed, waiting, missing, at = [], [], [], []
        for cell in self.open:
            failure = self._failure(cell)
            of = served.get(cell.run)
            if failure is not None:
                failed.append((cell, failure))
            elif of and of.cell.epochs == cell.epochs:
                at.append(cell)
            elif cell.epochs in wanted[cell.run]:
                waiting.append(cell)
            else:
                missing.append(cell)
        at_work = {cell.run for cell in at}
        shown = [of for of in served.values() if of.cell.run in at_work]
        finished = [cell for cell in self.cells if cell not in set(self.open)]
        part, left = self._work(served, {cell.run for cell in (*at, *waiting)})
        return State(finished, shown, failed, waiting, missing, part, left)

    def _run(self, cell: RequestedCell) -> Run:
        return Ledger(self.ledger).named(cell.run)

    def _done(self, cell: RequestedCell) -> bool:
        run = self._run(cell)
        if not run.done(cell.epochs):
            return False
        if not cell.requests:
            return True
        try:
            records = Records(run, cell.epochs)
            return all(map(records.has, cell.requests))
        except LedgerError:
            return False

    def _failure(self, cell: RequestedCell) -> str | None:
        run = self._run(cell)
        if not run.done(cell.epochs):
            failure = run.failure(cell.epochs)
        else:
            try:
                records = Records(run, cell.epochs)
                failures = [records.failure(request) for request in cell.requests if not records.has(request)]
                failure = failures[0] if failures and all(failures) else None
            except LedgerError as error:
                failure = {"reason": error}
        return None if failure is None else str(failure.get("reason", "no reason is recorded"))

    def _wanted(self, run: Run) -> set[int]:
        requests = (path.name.partition(".") for path in run.folder.glob("requested/[0-9]*"))
        return {int(epochs) for epochs, _, who in requests if EPOCHS.fullmatch(epochs) and self._lives(who)}

    def _lives(self, who: str, heartbeat: float | None = None) -> bool:
        try:
            return is_alive(self.ledger, who, clean=False)
        except OSError:  # a ledger that cannot be written to cannot be locked: the last sign of life must do
            return heartbeat is not None and time.time() - heartbeat < SILENT

    def _running(self, name: str) -> Running | None:
        """What somebody who lives does on this run."""
        owner = Ledger(self.ledger).named(name).owner()
        try:
            cell = self.longest[name]
            target = next((of for of in self.open if (of.run, of.epochs) == (name, owner["target"])), cell)  # type: ignore[index]
            times = [float(owner[key]) for key in ("since", "from", "epoch", "heartbeat")]  # type: ignore[index]
            if not all(abs(time) < FUTURE for time in times):
                return None
            running = Running(target, str(owner["host"]), int(owner["pid"]), *times)  # type: ignore[index]
            return running if self._lives(str(owner["who"]), running.heartbeat) else None  # type: ignore[index]
        except (TypeError, KeyError, ValueError, OverflowError):  # nobody, or not such a file
            return None

    def _work(self, served: dict[str, Running], at: set[str]) -> tuple[float, float | None]:
        """The part of the work that is done, and seconds that what is running or waiting will take."""
        done = whole = seconds = paid = longest = ahead = 0.0
        for name, cell in self.longest.items():
            reached = self.reached.get(name, 0.0)
            if name in served:
                of = served[name]
                paid += cell.work * (of.epoch - of.began)
                seconds += of.heartbeat - of.since
                reached = max(reached, of.epoch)
            elif reached:
                if name not in self.known:
                    self.known[name] = self._cost(name)
                epochs, cost = self.known[name]
                paid += cell.work * epochs
                seconds += cost
            reached = min(reached, cell.epochs)
            whole += cell.work * cell.epochs
            done += cell.work * reached
            if name in at:
                left = cell.work * (cell.epochs - reached)
                ahead, longest = ahead + left, max(longest, left)
        part = done / whole if whole else 1.0
        if not at:
            return part, 0.0
        if not paid or seconds <= 0 or not served:
            return part, None
        return part, max(ahead / len(served), longest) * seconds / paid

    def _cost(self, name: str) -> tuple[float, float]:
        """The epochs that a run was served for, whoever asked for them, and the seconds; 0: it is not known."""
        try:
            served = read_cost(self.ledger / name / "cost.json")["served"]
        except LedgerError:
            served = 0.0
        return (max(Ledger(self.ledger).named(name).checkpoints(), default=0), served) if served else (0.0, 0.0)


def write_command(ledger: Path, words: Sequence[str], study: str | None, cells: list[RequestedCell]) -> None:
    """Keep which cells a command asked for, and that this process is at it."""
    content = [asdict(cell) for cell in cells]
    name = digest({"cells": content})
    path = ledger / COMMANDS / f"{name}.json"
    try:
        others = [str(who) for who in read_json(path)["who"] if is_alive(ledger, str(who))]
    except (LedgerError, TypeError, KeyError):  # nobody has asked for the same, or it is not such a file
        others = []
    who = list(dict.fromkeys([*others, register(ledger)]))
    content = {"words": list(words), "study": study, "since": time.time(), "who": who, "cells": content}
    Tree(ledger).write_json(path, content)
