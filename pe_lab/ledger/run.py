"""One training, a run, and the checkpoints on it; its folder is described in pe_lab.ledger.ledger."""

import json
import math
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pe_lab.ledger.lease import is_alive, register, try_lock
from pe_lab.ledger.tree import Tree
from pe_lab.system.files import (
    CHECKSUMS,
    NOT_READ,
    LedgerError,
    digest,
    file_digest,
    is_file,
    kind,
    read_json,
    verify,
)
from pe_lab.system.plain import complaint

OWNER = "owner.json"  # who has a lease, as long as he has it
STATE = re.compile(r"state-([0-9]+)-([0-9a-f]{16})\.safetensors")
EPOCHS = re.compile(r"[1-9][0-9]*")  # the name of a checkpoint
CHECKPOINT_FILES = ("config.yaml", "metrics.csv", "summary.json", "environment.json", "weights.safetensors")
NO_COST = {"served": 0.0, "steps": 0.0, "evaluation": 0.0, "checkpoints": 0}


class Run:
    """One training, and the checkpoints on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = Tree(folder.parent)
        self._began: dict[str, float] | None = None  # when, and at which epoch, this process first told that it serves

    @property
    def name(self) -> str:
        return self.folder.name

    def identity(self) -> dict[str, Any]:
        """What determines the training.

        Raises:
            LedgerError: it does not hash to the folder's name, or is not plain data.
        """
        identity = read_json(self.folder / "run.json")
        try:
            found = digest(identity) if isinstance(identity, dict) else "nothing readable"
        except ValueError as error:
            found = str(error)
        if found != self.name:
            raise LedgerError(
                f"ledger entry {self.folder} must hold what its name is the hash of, got {found}: {NOT_READ}"
            )
        if found := complaint(identity):
            raise LedgerError(f"ledger entry {self.folder / 'run.json'} {found}: {NOT_READ}")
        return identity

    # -- requests ---------------------------------------------------------------------------------------------------

    def request(self, epochs: int) -> None:
        """Write down that this process wants a checkpoint; the record of an earlier failure there is cleared."""
        self.tree.remove(self.folder / "failed" / f"{epochs}.json")
        words = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        self.tree.write_json(self._request_file(epochs), words)

    def withdraw(self, epochs: int) -> None:
        """Take this process's wish back."""
        self.tree.remove(self._request_file(epochs))

    def _request_file(self, epochs: int) -> Path:
        return self.folder / "requested" / f"{epochs}.{register(self.tree.root)}"

    def requested(self) -> list[int]:
        """Stops that somebody alive wants and that are neither done nor failed, in order."""
        checkpoints = set()
        for path in self.folder.glob("requested/[0-9]*"):
            epochs, _, who = path.name.partition(".")
            if not is_alive(self.tree.root, who):
                self.tree.remove(path)
            elif EPOCHS.fullmatch(epochs):
                checkpoints.add(int(epochs))
        return sorted(epochs for epochs in checkpoints if not self.done(epochs) and self.failure(epochs) is None)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self, epochs: int) -> Path:
        return self.folder / "checkpoints" / str(epochs)

    def done(self, epochs: int) -> bool:
        return is_file(self.checkpoint(epochs) / CHECKSUMS)

    def checkpoints(self) -> list[int]:
        """The checkpoints that are done, in order."""
        names = (path.parent.name for path in self.folder.glob(f"checkpoints/*/{CHECKSUMS}"))
        return sorted(int(name) for name in names if EPOCHS.fullmatch(name))

    def verify(self, epochs: int) -> None:
        """Compare a checkpoint with its checksums.

        Raises:
            LedgerError: a file is missing, or its content is not what was written; it is of another run; its weights
                cannot be read.
        """
        checkpoint = self.checkpoint(epochs)
        verify(checkpoint, *CHECKPOINT_FILES)
        summary = read_json(checkpoint / "summary.json")
        if not isinstance(summary, dict) or (summary.get("run"), summary.get("epochs")) != (self.name, epochs):
            raise LedgerError(f"ledger entry {checkpoint} must be a checkpoint of this run, got another: {NOT_READ}")
        read_json(checkpoint / "environment.json")
        read_metadata(checkpoint / "weights.safetensors")

    def mend(self, epochs: int) -> None:
        """Set a checkpoint aside if it is damaged, and the run's cost likewise.

        Raises:
            LedgerError: the checkpoint, or what is measured on it, is behind a link.
        """
        self.cost()
        for name in ("checkpoints", "records"):
            self.tree.require(self.folder / name / str(epochs))
        if kind(self.checkpoint(epochs)):
            self.tree.mend(self.checkpoint(epochs), partial(self.verify, epochs))

    def summary(self, epochs: int) -> dict[str, Any]:
        """What a checkpoint came to, after its checksums have been compared.

        Raises:
            LedgerError: as `verify`.
        """
        self.verify(epochs)
        return read_json(self.checkpoint(epochs) / "summary.json")

    def recording(self, epochs: int) -> AbstractContextManager[Path]:
        """A folder to write a checkpoint's files into; when the block ends well it becomes the checkpoint."""
        return self.tree.writing(self.checkpoint(epochs), self.folder)

    def fail(self, epochs: int, reason: str, step: int | None) -> None:
        """Record why a checkpoint could not be reached."""
        self.tree.write_json(
            self.folder / "failed" / f"{epochs}.json",
            {"reason": reason, "step": step, "time": time.time(), "host": socket.gethostname()},
        )

    def failure(self, epochs: int) -> dict[str, Any] | None:
        """The record of a failure at this checkpoint, or None."""
        path = self.folder / "failed" / f"{epochs}.json"
        return read_failure(path)

    # -- the newest state -----------------------------------------------------------------------------------------

    def newest_state(self, at_most: float = math.inf) -> tuple[int, Path] | None:
        """The steps and the file of the state that is farthest, or None; for who holds the lease.

        Args:
            at_most: steps that it may have.

        One whose content does not hash to its name, or that is of another run, is set aside.
        """
        while states := [(step, path) for step, path in self.states() if step <= at_most]:
            step, newest = states[-1]
            with suppress(FileNotFoundError):  # a newer one has just taken its place
                if not self.tree.mend(newest, partial(self.verify_state, newest)):
                    return step, newest
        return None

    def verify_state(self, path: Path) -> None:
        """Compare a state with the digest and the steps in its name, and with the run that it is in.

        Raises:
            FileNotFoundError: there is none.
            LedgerError: they are others.
        """
        step, expected = STATE.fullmatch(path.name).groups()  # type: ignore[union-attr]
        if (found := file_digest(path)[:16]) != expected:
            raise LedgerError(f"ledger entry {path} must have the digest {expected}, got {found}: {NOT_READ}")
        try:
            told = json.loads(read_metadata(path)["pe_lab"])  # metrics on the way may be NaN
            of = told["run"], told["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            of = None, None
        if of != (self.name, int(step)):
            which = of[0] if of[0] != self.name else f"{of[1]} steps"
            raise LedgerError(f"ledger entry {path} must be a state of its run, got one of {which}: {NOT_READ}")

    def states(self) -> list[tuple[int, Path]]:
        """The steps and the files of the states that are there, in order."""
        found = ((STATE.fullmatch(path.name), path) for path in self.folder.glob("state-*"))
        return sorted((int(name[1]), path) for name, path in found if name)

    def set_aside(self, entry: Path, reason: object) -> None:
        """Move something that is damaged out of the way."""
        self.tree.set_aside(entry, reason)

    def keep_state(self, temporary: Path, step: int, finished: bool) -> None:
        """Give a state file, written in this folder, its name, and drop older ones.

        Args:
            finished: its checkpoint is recorded, so that nobody needs it if there is one that is farther.
        """
        states = self.states()
        needed = not finished or all(other <= step for other, _ in states)
        if needed and all(other != step for other, _ in states):
            self.tree.rename(temporary, self.folder / f"state-{step}-{file_digest(temporary)[:16]}.safetensors")
        else:
            self.tree.remove(temporary)
        for other, path in states:
            if other < step or (other == step and not needed):
                self.tree.remove(path)

    def temporary_file(self) -> Path:
        """A path for a state until it is whole."""
        return self.tree.place(self.folder / f".state.{uuid.uuid4().hex}")

    # -- the lease ------------------------------------------------------------------------------------------------

    @contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to become the one that serves this run; yields whether that is so. Ends with the process at the latest.

        The operating system's lock decides; owner.json only tells others who it is.
        """
        with try_lock(self.tree, self.tree.place(self.folder / "lock")) as mine:
            if not mine:
                yield False
                return
            try:
                for left in self.folder.glob(".s*"):  # checkpoints and states that a killed owner left half-written
                    self.tree.clear(left)
                self.heartbeat(0.0, 0)  # whoever dies before he has said how far he is has died here all the same
                self._began = None
                yield True
            finally:
                self.tree.remove(self.folder / OWNER)

    def heartbeat(self, epoch: float, target: int) -> None:
        """Tell others that the owner of the lease lives, and how far it is."""
        now = time.time()
        if self._began is None:
            self._began = {"since": now, "from": epoch}
        words = {"host": socket.gethostname(), "pid": os.getpid(), "who": register(self.tree.root), "heartbeat": now}
        self.tree.write_json(self.folder / OWNER, words | self._began | {"epoch": epoch, "target": target})

    def account(self, spent: dict[str, float]) -> None:
        """Add to the run's cost: "checkpoints" made; seconds "served", and of these in "steps" and "evaluation"."""
        before = self.cost()
        after = {name: before.get(name, 0) + value for name, value in spent.items()}
        self.tree.write_json(self.folder / "cost.json", after)

    def cost(self) -> dict[str, float]:
        """What serving this run has cost so far: see `account`."""
        path = self.folder / "cost.json"
        self.tree.mend(path, partial(read_cost, path))
        return read_cost(path)

    def dead(self) -> set[str]:
        """Processes that died while they trained here, or measured, by their last words; until somebody else does."""
        found = set()
        for path in (self.folder / OWNER, *self.folder.glob(f"records/*/{OWNER}")):
            with suppress(LedgerError, TypeError, KeyError):  # nobody, or not such a file
                found.add(str(read_json(path)["who"]))
        return {who for who in found if not is_alive(self.tree.root, who)}

    def owner(self) -> dict[str, Any] | None:
        """Who holds the lease and how far it is, or None; of a owner that died, its last words."""
        try:
            return read_json(self.folder / OWNER)
        except LedgerError:
            return None


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says beside its tensors, whose places in it are checked.

    Raises:
        LedgerError: it is no such file.
    """
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except SafetensorError as error:
        raise LedgerError(f"ledger entry {path} must be a safetensors file, got {error}: {NOT_READ}") from None


def read_cost(path: Path) -> dict[str, float]:
    """What serving a run has cost: see `Run.account`.

    Raises:
        LedgerError: it is not what was written.
    """
    cost = read_json(path)
    if cost is None:
        return dict(NO_COST)
    # a whole number may have more digits than a float can
    if not isinstance(cost, dict) or not all(
        isinstance(cost.get(name), int | float) and 0 <= cost[name] < 1e18 for name in NO_COST
    ):
        raise LedgerError(f"ledger entry {path} must have the numbers {', '.join(NO_COST)}, got others: {NOT_READ}")
    return cost


def read_failure(path: Path) -> dict[str, Any] | None:
    """The record of a failure, or None. One that cannot be read counts too, until somebody wants the thing again."""
    try:
        failure = read_json(path)
    except LedgerError as error:
        return {"reason": str(error)}
    if failure is None or (isinstance(failure, dict) and isinstance(failure.get("reason"), str)):
        return failure
    return {"reason": f"ledger entry {path} must be the record of a failure: {NOT_READ}"}
