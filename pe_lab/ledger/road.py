"""One training, a road, and the stops on it; its folder is described in pe_lab.ledger.ledger."""

import math
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from pe_lab.ledger.files import (
    CHECKSUMS,
    NOT_READ,
    LedgerError,
    digest,
    file_digest,
    read_json,
    set_aside,
    verify,
    write_json,
    writing,
)
from pe_lab.ledger.plain import complaint
from pe_lab.ledger.presence import announce, first_come, is_present

HOLDER = "holder.json"  # who has a lease, as long as he has it
STATE = re.compile(r"state-(\d+)-([0-9a-f]{16})\.safetensors")
NO_COST = {"served": 0.0, "steps": 0.0, "evaluation": 0.0, "stops": 0}


class Road:
    """One training, and the stops on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._began: dict[str, float] | None = None  # when, and at which epoch, this process first told that it serves

    @property
    def name(self) -> str:
        return self.folder.name

    def identity(self) -> dict[str, Any]:
        """What determines the training.

        Raises:
            LedgerError: it does not hash to the folder's name, or is not plain data.
        """
        identity = read_json(self.folder / "road.json")
        if not isinstance(identity, dict) or digest(identity) != self.name:
            found = digest(identity) if isinstance(identity, dict) else "nothing readable"
            raise LedgerError(
                f"ledger entry {self.folder} must hold what its name is the hash of, got {found}: {NOT_READ}"
            )
        if found := complaint(identity):
            raise LedgerError(f"ledger entry {self.folder / 'road.json'} {found}: {NOT_READ}")
        return identity

    # -- wishes ---------------------------------------------------------------------------------------------------

    def want(self, epochs: int) -> None:
        """Write down that this process wants a stop; the record of an earlier failure there is cleared."""
        (self.folder / "failed" / f"{epochs}.json").unlink(missing_ok=True)
        write_json(self._wish(epochs), {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()})

    def unwant(self, epochs: int) -> None:
        """Take this process's wish back."""
        self._wish(epochs).unlink(missing_ok=True)

    def _wish(self, epochs: int) -> Path:
        return self.folder / "wanted" / f"{epochs}.{announce(self.folder.parent)}"

    def wanted(self) -> list[int]:
        """Stops that somebody alive wants and that are neither done nor failed, in order."""
        stops = set()
        for path in self.folder.glob("wanted/[0-9]*"):
            epochs, _, who = path.name.partition(".")
            if is_present(self.folder.parent, who):
                stops.add(int(epochs))
            else:
                path.unlink(missing_ok=True)
        return sorted(epochs for epochs in stops if not self.done(epochs) and self.failure(epochs) is None)

    # -- stops ----------------------------------------------------------------------------------------------------

    def stop(self, epochs: int) -> Path:
        return self.folder / "stops" / str(epochs)

    def done(self, epochs: int) -> bool:
        return (self.stop(epochs) / CHECKSUMS).exists()

    def stops(self) -> list[int]:
        """The stops that are done, in order."""
        names = (path.parent.name for path in self.folder.glob(f"stops/*/{CHECKSUMS}"))
        return sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d*", name))

    def verify(self, epochs: int) -> None:
        """Compare a stop with its checksums.

        Raises:
            LedgerError: a file is missing, or its content is not what was written; it is of another road.
        """
        verify(self.stop(epochs))
        summary = read_json(self.stop(epochs) / "summary.json")
        if not isinstance(summary, dict) or (summary.get("road"), summary.get("epochs")) != (self.name, epochs):
            raise LedgerError(f"ledger entry {self.stop(epochs)} must be a stop of this road, got another: {NOT_READ}")

    def mend(self, epochs: int) -> None:
        """Set a stop aside if it is damaged, and the road's cost likewise."""
        self.cost()
        if self.stop(epochs).exists():
            try:
                self.verify(epochs)
            except LedgerError as error:
                self.set_aside(self.stop(epochs), error)

    def summary(self, epochs: int) -> dict[str, Any]:
        """What a stop came to, after its checksums have been compared.

        Raises:
            LedgerError: as `verify`.
        """
        self.verify(epochs)
        return read_json(self.stop(epochs) / "summary.json")

    def recording(self, epochs: int) -> AbstractContextManager[Path]:
        """A folder to write a stop's files into; when the block ends well it becomes the stop."""
        return writing(self.stop(epochs), self.folder)

    def fail(self, epochs: int, reason: str, step: int | None) -> None:
        """Record why a stop could not be reached."""
        write_json(
            self.folder / "failed" / f"{epochs}.json",
            {"reason": reason, "step": step, "time": time.time(), "host": socket.gethostname()},
        )

    def failure(self, epochs: int) -> dict[str, Any] | None:
        """The record of a failure at this stop, or None."""
        path = self.folder / "failed" / f"{epochs}.json"
        return read_failure(path)

    # -- the newest state -----------------------------------------------------------------------------------------

    def newest_state(self, at_most: float = math.inf) -> tuple[int, Path] | None:
        """The steps and the file of the state that is farthest, or None; for who holds the lease.

        Args:
            at_most: steps that it may have.

        One whose content does not hash to its name is set aside.
        """
        while states := [(step, path) for step, path in self.states() if step <= at_most]:
            step, newest = states[-1]
            try:
                verify_state(newest)
            except FileNotFoundError:  # a newer one has just taken its place
                continue
            except LedgerError as error:
                self.set_aside(newest, error)
            else:
                return step, newest
        return None

    def states(self) -> list[tuple[int, Path]]:
        """The steps and the files of the states that are there, in order."""
        found = ((STATE.fullmatch(path.name), path) for path in self.folder.glob("state-*"))
        return sorted((int(name[1]), path) for name, path in found if name)

    def set_aside(self, entry: Path, reason: object) -> None:
        """Move something that is damaged out of the way."""
        set_aside(entry, self.folder.parent, reason)

    def keep_state(self, temporary: Path, step: int, finished: bool) -> None:
        """Give a state file, written in this folder, its name, and drop older ones.

        Args:
            finished: its stop is recorded, so that nobody needs it if there is one that is farther.
        """
        states = self.states()
        needed = not finished or all(other <= step for other, _ in states)
        if needed and all(other != step for other, _ in states):
            os.replace(temporary, self.folder / f"state-{step}-{file_digest(temporary)[:16]}.safetensors")
        else:
            temporary.unlink()
        for other, path in states:
            if other < step or (other == step and not needed):
                path.unlink(missing_ok=True)

    def temporary_file(self) -> Path:
        return self.folder / f".state.{uuid.uuid4().hex}"

    # -- the lease ------------------------------------------------------------------------------------------------

    @contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to become the one that serves this road; yields whether that is so. Ends with the process at the latest.

        The operating system's lock decides; holder.json only tells others who it is.
        """
        with first_come(self.folder / "lock") as mine:
            if not mine:
                yield False
                return
            try:
                for left in self.folder.glob(".s*"):  # stops and states that a killed holder left half-written
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                self.beat(0.0, 0)  # whoever dies before he has said how far he is has died here all the same
                self._began = None
                yield True
            finally:
                (self.folder / HOLDER).unlink(missing_ok=True)

    def beat(self, epoch: float, target: int) -> None:
        """Tell others that the holder of the lease lives, and how far it is."""
        now = time.time()
        if self._began is None:
            self._began = {"since": now, "from": epoch}
        words = {"host": socket.gethostname(), "pid": os.getpid(), "who": announce(self.folder.parent), "beat": now}
        write_json(self.folder / HOLDER, words | self._began | {"epoch": epoch, "target": target})

    def account(self, spent: dict[str, float]) -> None:
        """Add to the road's cost: "stops"; seconds "served" under the lease, and of them in "steps", "evaluation"."""
        before = self.cost()
        write_json(self.folder / "cost.json", {name: before.get(name, 0) + value for name, value in spent.items()})

    def cost(self) -> dict[str, float]:
        """What serving this road has cost so far: see `account`."""
        try:
            return read_cost(self.folder / "cost.json")
        except LedgerError as error:
            self.set_aside(self.folder / "cost.json", error)
            return dict(NO_COST)

    def dead(self) -> set[str]:
        """Processes that died while they trained here, or measured, by their last words; until somebody else does."""
        found = set()
        for path in (self.folder / HOLDER, *self.folder.glob(f"records/*/{HOLDER}")):
            with suppress(LedgerError, TypeError, KeyError):  # nobody, or not such a file
                found.add(str(read_json(path)["who"]))
        return {who for who in found if not is_present(self.folder.parent, who)}

    def holder(self) -> dict[str, Any] | None:
        """Who holds the lease and how far it is, or None; of a holder that died, its last words."""
        try:
            return read_json(self.folder / HOLDER)
        except LedgerError:
            return None


def verify_state(path: Path) -> None:
    """Compare a state with the digest in its name.

    Raises:
        LedgerError: its content has another.
    """
    expected, found = STATE.fullmatch(path.name)[2], file_digest(path)[:16]  # type: ignore[index]
    if found != expected:
        raise LedgerError(f"ledger entry {path} must have the digest {expected}, got {found}: {NOT_READ}")


def read_cost(path: Path) -> dict[str, float]:
    """What serving a road has cost: see `Road.account`.

    Raises:
        LedgerError: it is not what was written.
    """
    cost = read_json(path)
    if cost is None:
        return dict(NO_COST)
    if not isinstance(cost, dict) or not all(isinstance(cost.get(name), int | float) for name in NO_COST):
        raise LedgerError(f"{path} must have the numbers {', '.join(NO_COST)}, got others")
    return cost


def read_failure(path: Path) -> dict[str, Any] | None:
    """The record of a failure, or None. One that cannot be read counts too, until somebody wants the thing again."""
    try:
        failure = read_json(path)
    except LedgerError as error:
        return {"reason": str(error)}
    return (
        failure if failure is None or isinstance(failure, dict) else {"reason": f"{path} must be a record: {NOT_READ}"}
    )
