"""How far cells are, read off the ledger: whoever trains them, here or on another machine. Nothing is written.

Nothing here imports torch.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.ledger.files import ASKED, LedgerError, digest, read_json
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.presence import announce, is_present
from pe_lab.ledger.records import Records
from pe_lab.ledger.road import EPOCHS, Road, read_cost
from pe_lab.ledger.tree import Tree

FUTURE = 1e11  # seconds since 1970 that no date has
SILENT = 60  # seconds after which a holder of whom nothing else is known counts as gone


@dataclass(frozen=True)
class Asked:
    """A cell that a command asked for: the stop of a road, and what is to be measured on it."""

    road: str
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
    """A road that somebody serves.

    Attributes:
        cell: that he is on the way to.
        host, pid: who.
        since: when he began, in seconds since 1970; began: at which epoch.
        epoch: how far he is.
        beat: when he said so.
    """

    cell: Asked
    host: str
    pid: int
    since: float
    began: float
    epoch: float
    beat: float


@dataclass(frozen=True)
class State:
    """How far cells are: each is in one list.

    Attributes:
        done: trained and measured.
        running: what those that are served are at, one per road.
        failed: with the reason.
        waiting: somebody alive wants it, or is on the way to it.
        missing: nobody alive wants it.
        part: of the work that is done, 0 to 1.
        left: seconds until nothing is running or waiting, by the speed so far; None: nothing is known of it.
    """

    done: list[Asked]
    running: list[Running]
    failed: list[tuple[Asked, str]]
    waiting: list[Asked]
    missing: list[Asked]
    part: float
    left: float | None


class Progress:
    """Of cells in a ledger. What was seen done is not looked at again.

    Args:
        ledger: its folder.
        cells: in the order in which they are told.
    """

    def __init__(self, ledger: Path, cells: Iterable[Asked]) -> None:
        self.ledger = ledger
        self.cells = list(cells)
        self.open = list(self.cells)
        self.reached: dict[str, float] = {}  # epochs, by road
        self.longest: dict[str, Asked] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.epochs):
            self.longest[cell.road] = cell
        self.known: dict[str, tuple[float, float]] = {}  # epochs and seconds, of roads that nobody serves any more

    def look(self) -> State:
        """How far all are now."""
        for cell in [cell for cell in self.open if self._done(cell)]:
            self.open.remove(cell)
            self.reached[cell.road] = max(cell.epochs, self.reached.get(cell.road, 0))
        roads = {cell.road: self._road(cell) for cell in self.open}
        running = [self._running(cell.road) for cell in {cell.road: cell for cell in self.open}.values()]
        served = {of.cell.road: of for of in running if of}
        wanted = {name: self._wanted(road) for name, road in roads.items()}
        failed, waiting, missing, at = [], [], [], []
        for cell in self.open:
            failure = self._failure(cell)
            of = served.get(cell.road)
            if failure is not None:
                failed.append((cell, failure))
            elif of and of.cell.epochs == cell.epochs:
                at.append(cell)
            elif cell.epochs in wanted[cell.road]:
                waiting.append(cell)
            else:
                missing.append(cell)
        at_work = {cell.road for cell in at}
        shown = [of for of in served.values() if of.cell.road in at_work]
        finished = [cell for cell in self.cells if cell not in set(self.open)]
        part, left = self._work(served, {cell.road for cell in (*at, *waiting)})
        return State(finished, shown, failed, waiting, missing, part, left)

    def _road(self, cell: Asked) -> Road:
        return Ledger(self.ledger).named(cell.road)

    def _done(self, cell: Asked) -> bool:
        road = self._road(cell)
        if not road.done(cell.epochs):
            return False
        if not cell.requests:
            return True
        try:
            records = Records(road, cell.epochs)
            return all(map(records.has, cell.requests))
        except LedgerError:
            return False

    def _failure(self, cell: Asked) -> str | None:
        road = self._road(cell)
        if not road.done(cell.epochs):
            failure = road.failure(cell.epochs)
        else:
            try:
                records = Records(road, cell.epochs)
                failures = [records.failure(request) for request in cell.requests if not records.has(request)]
                failure = failures[0] if failures and all(failures) else None
            except LedgerError as error:
                failure = {"reason": error}
        return None if failure is None else str(failure.get("reason", "no reason is recorded"))

    def _wanted(self, road: Road) -> set[int]:
        wishes = (path.name.partition(".") for path in road.folder.glob("wanted/[0-9]*"))
        return {int(epochs) for epochs, _, who in wishes if EPOCHS.fullmatch(epochs) and self._lives(who)}

    def _lives(self, who: str, beat: float | None = None) -> bool:
        try:
            return is_present(self.ledger, who, clean=False)
        except OSError:  # a ledger that cannot be written to cannot be locked: the last sign of life must do
            return beat is not None and time.time() - beat < SILENT

    def _running(self, name: str) -> Running | None:
        """What somebody who lives does on this road."""
        holder = Ledger(self.ledger).named(name).holder()
        try:
            cell = self.longest[name]
            target = next((of for of in self.open if (of.road, of.epochs) == (name, holder["target"])), cell)  # type: ignore[index]
            times = [float(holder[key]) for key in ("since", "from", "epoch", "beat")]  # type: ignore[index]
            if not all(abs(time) < FUTURE for time in times):
                return None
            running = Running(target, str(holder["host"]), int(holder["pid"]), *times)  # type: ignore[index]
            return running if self._lives(str(holder["who"]), running.beat) else None  # type: ignore[index]
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
                seconds += of.beat - of.since
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
        """The epochs that a road was served for, whoever asked for them, and the seconds; 0: it is not known."""
        try:
            served = read_cost(self.ledger / name / "cost.json")["served"]
        except LedgerError:
            served = 0.0
        return (max(Ledger(self.ledger).named(name).stops(), default=0), served) if served else (0.0, 0.0)


def write_asked(ledger: Path, words: Sequence[str], study: str | None, cells: list[Asked]) -> None:
    """Keep which cells a command asked for, and that this process is at it."""
    content = [asdict(cell) for cell in cells]
    name = digest({"cells": content})
    path = ledger / ASKED / f"{name}.json"
    try:
        others = [str(who) for who in read_json(path)["who"] if is_present(ledger, str(who))]
    except (LedgerError, TypeError, KeyError):  # nobody has asked for the same, or it is not such a file
        others = []
    who = list(dict.fromkeys([*others, announce(ledger)]))
    content = {"words": list(words), "study": study, "since": time.time(), "who": who, "cells": content}
    Tree(ledger).write_json(path, content)
