"""A training run and its checkpoints. Its folder is described in pe_lab.ledger.ledger."""

import os
import re
import socket
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.ledger.lease import LeasedFolder, read_owner
from pe_lab.ledger.processes import is_alive, register_process
from pe_lab.ledger.training_states import TrainingStates, read_metadata
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import (
    CHECKSUMS_FILE,
    NOT_READ,
    LedgerError,
    digest,
    folder_entries,
    is_file,
    kind_of_path,
    read_json,
    verify_files,
)
from pe_lab.system.plain import plain_data_error

IDENTITY_FILE = "run.json"
ERROR, DIVERGED = "error", "diverged"  # kinds of failures
CHECKPOINT_NAME = re.compile(r"[1-9][0-9]*")  # the name of a checkpoint's folder
CHECKPOINT_FILES = ("config.yaml", "metrics.csv", "summary.json", "environment.json")
WEIGHTS_FILE = "weights.safetensors"
NO_COST = {"total": 0.0, "steps": 0.0, "evaluation": 0.0, "checkpoints": 0}


class Run(LeasedFolder):
    """One training from step 0 on, with a checkpoint for each target that was requested.

    A target is a number of epochs; of steps, in a run whose identity has the unit "steps".

    Its states, its lease and its checkpoints are in one folder, named by the hash of what determines the training.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(LedgerFiles(folder.parent), folder)
        self.states = TrainingStates(self.tree, folder)

    @property
    def name(self) -> str:
        return self.folder.name

    def identity(self) -> dict[str, Any]:
        """Return what determines the training.

        Raises:
            LedgerError: it does not hash to the folder's name, or is not plain data.
        """
        return read_identity(self.folder)

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(self, target: int) -> None:
        """Request a checkpoint for this process, and clear the record of an earlier failure."""
        self.tree.remove(self._failure_file(target))
        request = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        self.tree.write_json(self._request_file(target), request)

    def withdraw(self, target: int) -> None:
        """Withdraw this process's request."""
        self.tree.remove(self._request_file(target))

    def requested(self) -> list[int]:
        """Return the checkpoints that live processes request and that are neither done nor failed, in order."""
        requested = set()
        for path in folder_entries(self.folder / "requested", "[0-9]*"):
            target, _, process = path.name.partition(".")
            if not is_alive(self.tree.root, process):
                self.tree.remove(path)
            elif CHECKPOINT_NAME.fullmatch(target):
                requested.add(int(target))
        return sorted(target for target in requested if not self.done(target) and self.failure(target) is None)

    def fail(
        self,
        target: int,
        reason: str,
        step: int | None,
        core_seconds: float | None = None,
        kind: str = ERROR,
        traceback: list[str] | None = None,
    ) -> None:
        """Record why a checkpoint could not be reached.

        Args:
            target: the epochs or steps of the checkpoint, in the run's unit.
            reason: the reason in one line, for people.
            step: the step at which the training ended; None: it did not begin.
            core_seconds: the core-seconds spent in training steps, from the start of the run to there; repeated steps
                count once.
            kind: the kind of failure: ERROR, or DIVERGED: a loss was not finite, and would be so again.
            traceback: the lines of the traceback; None: the reason says all.
        """
        failure: dict[str, Any] = {
            "kind": kind,
            "reason": reason,
            "step": step,
            "time": time.time(),
            "host": socket.gethostname(),
        }
        failure |= {} if core_seconds is None else {"core_seconds": core_seconds}
        failure |= {} if traceback is None else {"traceback": traceback}
        self.tree.write_json(self._failure_file(target), failure)

    def failure(self, target: int) -> dict[str, Any] | None:
        """Return the record of a failure at this checkpoint, or None."""
        return read_failure(self._failure_file(target))

    def _request_file(self, target: int) -> Path:
        return self.folder / "requested" / f"{target}.{register_process(self.tree.root)}"

    def _failure_file(self, target: int) -> Path:
        return self.folder / "failed" / f"{target}.json"

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self, target: int) -> Path:
        """Return the folder of a checkpoint, whether it exists or not."""
        return self.folder / "checkpoints" / str(target)

    def done(self, target: int) -> bool:
        """Return whether a checkpoint is in the ledger; its content is not verified."""
        return is_file(self.checkpoint(target) / CHECKSUMS_FILE)

    def checkpoints(self) -> list[int]:
        """Return the targets of all checkpoints, in order."""
        folders = [path for path in folder_entries(self.folder / "checkpoints") if CHECKPOINT_NAME.fullmatch(path.name)]
        return sorted(int(path.name) for path in folders if kind_of_path(path / CHECKSUMS_FILE))

    def recording(self, target: int) -> AbstractContextManager[Path]:
        """Return a context manager: a folder to write a checkpoint into, which becomes the checkpoint on success."""
        return self.tree.new_folder(self.checkpoint(target), self.folder)

    def verify(self, target: int) -> None:
        """Compare a checkpoint with its checksums.

        Raises:
            LedgerError: a file is missing or changed; it is a checkpoint of another run; its weights cannot be read.
        """
        checkpoint = self.checkpoint(target)
        verify_files(checkpoint, *CHECKPOINT_FILES, WEIGHTS_FILE)
        summary = read_json(checkpoint / "summary.json")
        if not isinstance(summary, dict) or (summary.get("run"), read_target(summary)) != (self.name, target):
            raise LedgerError(f"ledger entry {checkpoint} must be a checkpoint of this run, got another: {NOT_READ}")
        read_json(checkpoint / "environment.json")
        read_metadata(checkpoint / WEIGHTS_FILE)

    def summary(self, target: int) -> dict[str, Any]:
        """Verify a checkpoint and return its summary.

        Raises:
            LedgerError: as `verify`.
        """
        self.verify(target)
        summary: dict[str, Any] = read_json(self.checkpoint(target) / "summary.json")
        return summary

    def set_aside_if_damaged(self, target: int) -> None:
        """Set a checkpoint aside if it is damaged, and likewise the run's cost.

        Raises:
            LedgerError: the checkpoint or its records are behind a link.
        """
        self.cost()
        for name in ("checkpoints", "records"):
            self.tree.refuse_links(self.folder / name / str(target))
        if kind_of_path(self.checkpoint(target)):
            self.tree.set_aside_if_damaged(self.checkpoint(target), partial(self.verify, target))

    def set_aside(self, entry: Path, reason: object) -> None:
        """Move a damaged entry out of the way."""
        self.tree.set_aside(entry, reason)

    # -- cost ---------------------------------------------------------------------------------------------------------

    def account(self, spent: dict[str, float]) -> None:
        """Add to the cost: seconds in "total", in "steps" and in "evaluation"; "checkpoints" made."""
        cost = {name: value + spent.get(name, 0) for name, value in self.cost().items()}
        self.tree.write_json(self.folder / "cost.json", cost)

    def cost(self) -> dict[str, float]:
        """Return what the run has cost so far, as in `account`."""
        path = self.folder / "cost.json"
        self.tree.set_aside_if_damaged(path, partial(read_cost, path))
        return read_cost(path)

    def dead_processes(self) -> set[str]:
        """Return the processes that ended while they owned the run or its records, until another takes their place."""
        folders = (self.folder, *(path.parent for path in self.folder.glob("records/*/owner.json")))
        owners = [owner for folder in folders if (owner := read_owner(folder)) and "process" in owner]
        processes = {str(owner["process"]) for owner in owners}
        return {process for process in processes if not is_alive(self.tree.root, process)}


def read_target(summary: dict[str, Any]) -> Any:
    """Return the target of a checkpoint from its summary: in steps, if it has one in steps, or its epochs."""
    return summary.get("target", summary.get("epochs"))


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the identity in the folder of a run: see `Run.identity`."""
    identity: Any = read_json(folder / IDENTITY_FILE)
    try:
        name = digest(identity) if isinstance(identity, dict) else "nothing readable"
    except ValueError as error:
        name = str(error)
    if name != folder.name:
        raise LedgerError(f"ledger entry {folder} must hold what its name is the hash of, got {name}: {NOT_READ}")
    if reason := plain_data_error(identity):
        raise LedgerError(f"ledger entry {folder / IDENTITY_FILE} {reason}: {NOT_READ}")
    checked: dict[str, Any] = identity
    return checked


def read_cost(path: Path) -> dict[str, float]:
    """Return what a run has cost, as in `Run.account`; zeros if the file is missing.

    Raises:
        LedgerError: it does not hold these numbers.
    """
    cost = read_json(path)
    if cost is None:
        return dict(NO_COST)
    # an integer may have more digits than a float
    if not isinstance(cost, dict) or not all(
        isinstance(cost.get(name), int | float) and 0 <= cost[name] < 1e18 for name in NO_COST
    ):
        raise LedgerError(f"ledger entry {path} must have the numbers {', '.join(NO_COST)}, got others: {NOT_READ}")
    return cost


def read_failure(path: Path) -> dict[str, Any] | None:
    """Return the record of a failure, with its file if that has a traceback; or None.

    A damaged record counts as a failure until the next request.
    """
    try:
        failure = read_json(path)
    except LedgerError as error:
        return {"reason": str(error)}
    if failure is None:
        return None
    if isinstance(failure, dict) and isinstance(failure.get("reason"), str):
        return failure | ({"file": str(path)} if "traceback" in failure else {})
    return {"reason": f"ledger entry {path} must be the record of a failure: {NOT_READ}"}
