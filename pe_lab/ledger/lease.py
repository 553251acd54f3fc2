"""Leases: one process at a time works in a folder of the ledger."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_lab.ledger.processes import register_process, try_lock
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import LedgerError, read_json

OWNER_FILE = "owner.json"  # which process holds the lease of a folder, while it does


class LeasedFolder:
    """A folder of the ledger that one process at a time works in: the owner of its lease."""

    def __init__(self, tree: LedgerFiles, folder: Path) -> None:
        self.tree = tree
        self.folder = folder
        self._start: dict[str, float] | None = None  # when this process started to train, and at which epoch or step

    @contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to become the owner; yield whether that succeeded, until the block or the process ends.

        The lock of the operating system decides. owner.json only tells other processes who the owner is.
        """
        with try_lock(self.tree, self.tree.prepare_file(self.folder / "lock")) as owned:
            if not owned:
                yield False
                return
            try:
                for path in self.folder.glob(".s*"):  # checkpoints and states that a killed owner left unfinished
                    self.tree.remove_all(path)
                self.heartbeat(0.0, 0)  # so that an early crash is attributed to this process
                self._start = None
                yield True
            finally:
                self.tree.remove(self.folder / OWNER_FILE)

    def heartbeat(self, reached: float, target: int, latest: tuple[str, float] | None = None) -> None:
        """Write that the owner is alive, what it has reached, and for which checkpoint it trains.

        Args:
            reached: the number of epochs done, or of steps in a run whose target is in steps; the key is `epoch`.
            target: the epochs or steps of the checkpoint, in the run's unit.
            latest: the name and value of a metric that was measured last, for people.
        """
        now = time.time()
        if self._start is None:
            self._start = {"since": now, "from": reached}
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "process": register_process(self.tree.root)}
        owner |= {"heartbeat": now, **self._start, "epoch": reached, "target": target, "latest": latest}
        self.tree.write_json(self.folder / OWNER_FILE, owner)

    def owner(self) -> dict[str, Any] | None:
        """Return the last heartbeat of the owner, also of one that was killed, or None."""
        return read_owner(self.folder)


def read_owner(folder: Path) -> dict[str, Any] | None:
    """Return the content of a folder's owner.json, or None if there is none that can be read."""
    try:
        owner = read_json(folder / OWNER_FILE)
    except LedgerError:
        return None
    return owner if isinstance(owner, dict) else None
