"""The ledger: one folder per run (a training), in it one per stop (a number of epochs trained: a cell).

    <ledger>/<run>/run.json               what determines the training; its hash is the folder's name
                    checkpoints/<epochs>/         config, metric rows, summary, weights, environment, checksums
                    records/<epochs>/       what was measured on the checkpoint later, a folder per request; owner.json
                    state-<step>-<digest>.safetensors   the newest full state: weights, optimizer, rows so far
                    requested/<epochs>.<who>   a wish; it counts as long as its writer lives
                    failed/<epochs>.json    why a checkpoint could not be reached
                    lock, owner.json       the lease: who serves the run, and how far it is
                    cost.json               seconds spent on it
             floors/<digest>.json           what results are held against, shared by the runs of one dataset
             commands/<digest>.json            which cells a command asked for: what pe_lab.status tells of
             studies/<name>/                tables of the cells that were asked for under a name
             .processes/<who>                 locked by a process as long as it lives
             .aside/                        what was found damaged, out of the way

Everything is written under a temporary name and renamed, so a reader never sees half a thing. Nothing is a pickle.
What does not hash to its name or its checksums is never read: readers raise, and who is to make it sets it aside.
No component of a path below the ledger's folder may be a link where something is written, moved, removed or locked:
see pe_lab.ledger.tree. What stands in the place of a file and is none, or in that of a folder, is set aside likewise;
only a link in the place of a folder is left to whoever put it there, and what needs it is not made.
What is relied on, between all machines that share a ledger: a rename within one file system replaces a file, and fails
on a folder that is not empty, at once for all; a file that was renamed can be opened by its new name; an advisory lock
(flock) excludes all others, and ends with its process. Clocks need not agree. Not relied on: fsync (what a power cut
leaves half-written fails its checksum), hard links, modification times.
"""

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.ledger.lease import PROCESSES, try_lock
from pe_lab.ledger.run import Run
from pe_lab.ledger.tree import Tree
from pe_lab.system.files import ASIDE, COMMANDS, NOT_READ, LedgerError, canonical, digest, kind, read_json

HASH = re.compile(r"[0-9a-f]{16}")


class Ledger:
    """The runs of one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.tree = Tree(folder)

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            ValueError: nothing can be written there; it has a link where the ledger writes.
        """
        for name in (PROCESSES, ASIDE, COMMANDS, "floors", "studies"):
            self.tree.require(self.folder / name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe.{uuid.uuid4().hex}"
            with try_lock(self.tree, probe) as first, try_lock(self.tree, probe) as second:
                excluded = first and not second
            self.tree.remove(probe)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise ValueError(
                    f"ledger must be a folder that can be written to, got {str(self.folder)!r} ({error.strerror})"
                ) from None
            excluded = False
        if not excluded:
            raise ValueError(
                f"ledger must be on a file system whose locks (flock) exclude, got {str(self.folder)!r}: two workers "
                f"could serve one training"
            )

    def run(self, identity: dict[str, Any]) -> Run:
        """The run of an identity; its folder is made if it is not there.

        An identity there that is not the one of the name is set aside; checkpoints and states name their run.

        Raises:
            LedgerError: the folder is a link, and leads out of the ledger.
        """
        run = self.find(identity)
        for name in ("requested", "checkpoints", "records", "failed"):
            self.tree.require(run.folder / name)
        path = run.folder / "run.json"
        if kind(path):
            self.tree.mend(path, run.identity)
        if not kind(path):
            self.tree.write_json(path, canonical(identity))
        return run

    def find(self, identity: dict[str, Any]) -> Run:
        """The run of an identity, whether it is there or not; nothing is written."""
        return Run(self.folder / digest(identity))

    def named(self, name: str) -> Run:
        """The run of a name that comes from a file.

        Raises:
            LedgerError: it is no hash, and may lead out of the ledger.
        """
        if not HASH.fullmatch(name):
            raise LedgerError(f"a training must be named by 16 hexadecimal digits, got {name!r} in {self.folder}")
        return Run(self.folder / name)

    def kept(self, what: str, identity: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """A result in JSON that many cells share, computed by the first that asks for it.

        Args:
            what: the folder it is kept in, apart from the runs.
            identity: what determines it. What is there and is not what was written is set aside.
        """
        path = self.folder / what / f"{digest(identity)}.json"
        self.tree.mend(path, partial(read_kept, path))
        if (found := read_kept(path)) is None:
            value = compute()
            found = {"identity": canonical(identity), "value": value, "digest": digest({"value": value})}
            self.tree.write_json(path, found)
        return found["value"]

    def runs(self) -> Iterator[Run]:
        """All runs, by name."""
        for path in sorted(self.folder.glob("*/run.json")):
            yield Run(path.parent)


def read_kept(path: Path) -> dict[str, Any] | None:
    """What `Ledger.kept` wrote, with its "value", or None.

    Raises:
        LedgerError: it is not what was written.
    """
    found = read_json(path)
    try:
        whole = found is None or (
            digest({"value": found["value"]}) == found["digest"] and digest(found["identity"]) == path.stem
        )
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise LedgerError(f"ledger entry {path} must have the value that it has the digest of, got another: {NOT_READ}")
    return found
