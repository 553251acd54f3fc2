"""The ledger: a folder per training run, and in it a folder per checkpoint. A cell of a study is one checkpoint.

    <ledger>/format.json                    the number of this format
             <run>/run.json                 the run's identity: what determines it; its hash is the folder's name
                   checkpoints/<target>/    config, metric rows, summary, weights, environment, checksums
                   records/<target>/        what was measured on the checkpoint later, a folder per request; a lease
                   state-<step>-<digest>.safetensors   the newest training state: weights, optimizer, metric rows
                   requested/<target>.<process>        a request for a checkpoint; it counts while its process lives
                   failed/<target>.json     why a checkpoint could not be reached, perhaps with a traceback
                   lock, owner.json         the lease: which process trains the run, and how far it is
                   cost.json                seconds spent on it
             floors/<digest>.json           reference results, shared by the runs of one dataset
             commands/<digest>.json         which cells a command requested, for pe_lab.status
             studies/<name>/                tables of the cells that were requested under a name
             .processes/<process>           locked by a process while it lives
                        <process>.<worker>  a worker's, while it works for that process
             .aside/                        damaged entries that were moved out of the way
             wandb/, tensorboard/, csv/     files of loggers; not read
             pictures/                      a picture of each encoding, for W&B
             callbacks/<run>/               what callbacks of the user write

A target is the number of epochs, or of steps, after which the checkpoint is made.

Files are written under a temporary name and renamed, so that no reader sees a half-written file. There are no pickles.
An entry that does not match its name or its checksums is not read: readers raise LedgerError, and the process that can
make the entry again sets it aside first. Nothing is written, moved, removed or locked through a link below the ledger's
folder (pe_lab.ledger.tree). Anything that is not a file in the place of a file, or not a folder in the place of a
folder, is set aside as well. Only a link in the place of a folder is left to its owner, and raises LedgerError.

The file system must guarantee, between all machines that share the ledger: a rename within it is atomic, replaces a
file and fails on a folder that is not empty; a renamed file can be opened under its new name; an advisory lock (flock)
excludes all other processes and ends with its own. Not needed: equal clocks, fsync (a file that a power cut truncated
fails its checksum), hard links, modification times.
"""

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.ledger.format import RUN_NAME, require_format, write_format
from pe_lab.ledger.processes import PROCESSES_FOLDER, try_lock
from pe_lab.ledger.run import Run
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import (
    ASIDE_FOLDER,
    COMMANDS_FOLDER,
    NOT_READ,
    LedgerError,
    canonical_form,
    digest,
    folder_entries,
    kind_of_path,
    read_json,
)


class Ledger:
    """The runs in a folder.

    Raises:
        LedgerError: the ledger has another format.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.tree = LedgerFiles(folder)
        require_format(self.folder)

    def prepare(self) -> None:
        """Make the folder, and write its format number.

        Raises:
            ValueError: nothing can be written there; locks do not work there; it has a link where the ledger writes.
        """
        for name in (PROCESSES_FOLDER, ASIDE_FOLDER, COMMANDS_FOLDER, "floors", "studies"):
            self.tree.refuse_links(self.folder / name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe.{uuid.uuid4().hex}"
            with try_lock(self.tree, probe) as first, try_lock(self.tree, probe) as second:
                excluded = first and not second
            self.tree.remove(probe)
            write_format(self.folder)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise ValueError(
                    f"ledger must be a folder that can be written to, got {str(self.folder)!r} ({error.strerror})"
                ) from None
            excluded = False
        if not excluded:
            raise ValueError(
                f"ledger must be on a file system whose locks (flock) exclude, got {str(self.folder)!r}: two workers "
                f"could train the same run"
            )

    def run(self, identity: dict[str, Any]) -> Run:
        """Return the run of an identity, and write its identity if the run is new.

        An identity file that does not match the run's name is set aside; checkpoints and states name their run.

        Raises:
            LedgerError: a folder of the run is a link.
        """
        run = self.find(identity)
        for name in ("requested", "checkpoints", "records", "failed"):
            self.tree.refuse_links(run.folder / name)
        path = run.folder / "run.json"
        if kind_of_path(path):
            self.tree.set_aside_if_damaged(path, run.identity)
        if not kind_of_path(path):
            write_format(self.folder)
            self.tree.write_json(path, canonical_form(identity))
        return run

    def find(self, identity: dict[str, Any]) -> Run:
        """Return the run of an identity, whether it exists or not. Nothing is written."""
        return Run(self.folder / digest(identity))

    def named(self, name: str) -> Run:
        """Return the run of a name that was read from a file.

        Raises:
            LedgerError: it is not the name of a run, and may lead out of the ledger.
        """
        if not RUN_NAME.fullmatch(name):
            raise LedgerError(f"a training must be named by 16 hexadecimal digits, got {name!r} in {self.folder}")
        return Run(self.folder / name)

    def cached(self, folder: str, identity: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """Return a value that several runs share, computed once and stored as JSON.

        Args:
            folder: the folder in the ledger where the value is stored.
            identity: the identity of the value: all that it depends on. A stored value that is damaged is set aside.
        """
        path = self.folder / folder / f"{digest(identity)}.json"
        self.tree.set_aside_if_damaged(path, partial(read_cached, path))
        if (entry := read_cached(path)) is None:
            value = compute()
            entry = {"identity": canonical_form(identity), "value": value, "digest": digest({"value": value})}
            self.tree.write_json(path, entry)
        return entry["value"]

    def runs(self) -> Iterator[Run]:
        """Yield all runs, by name; also those that cannot be read, which raise OSError when they are."""
        for path in folder_entries(self.folder):
            try:
                is_run = kind_of_path(path / "run.json") is not None
            except OSError:
                is_run = RUN_NAME.fullmatch(path.name) is not None
            if is_run:
                yield Run(path)


def read_cached(path: Path) -> dict[str, Any] | None:
    """Return an entry that `Ledger.cached` wrote, with its "value", or None.

    Raises:
        LedgerError: the entry is damaged.
    """
    entry: dict[str, Any] | None = read_json(path)
    try:
        sound = entry is None or (
            digest({"value": entry["value"]}) == entry["digest"] and digest(entry["identity"]) == path.stem
        )
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise LedgerError(f"ledger entry {path} must have the value that it has the digest of, got another: {NOT_READ}")
    return entry
