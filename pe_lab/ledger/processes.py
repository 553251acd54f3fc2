"""Which processes are alive, and which one holds a lock. The operating system releases a lock when its process ends."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import LedgerError, folder_entries, is_file

PROCESSES_FOLDER = ".processes"  # the folder of a ledger with a locked file per live process
PROCESS_FILE = re.compile(r"[0-9a-f]{32}")  # the name of such a file
# the lock that shows that this process is alive, by ledger and process id
_REGISTERED: dict[tuple[Path, int], FileLock] = {}


def register_process(ledger: Path) -> str:
    """Return this process's name in a ledger; other processes see under it that this one is alive."""
    key = (ledger.absolute(), os.getpid())
    if key not in _REGISTERED:
        tree = LedgerFiles(ledger.absolute())
        lock = tree.lock(tree.prepare_file(tree.root / PROCESSES_FOLDER / uuid.uuid4().hex))
        lock.acquire()
        _REGISTERED[key] = lock
    return Path(_REGISTERED[key].lock_file).name


def is_alive(ledger: Path, process: str, clean: bool = True) -> bool:
    """Return whether the process of that name is alive.

    Args:
        clean: whether to remove the file of a process that is not alive.

    Raises:
        OSError: its lock cannot be tried, as in a read-only ledger.
    """
    registration = _REGISTERED.get((ledger.absolute(), os.getpid()))
    if registration is not None and Path(registration.lock_file).name == process:
        return True
    if not PROCESS_FILE.fullmatch(process):
        return False
    tree = LedgerFiles(ledger.absolute())
    path = tree.root / PROCESSES_FOLDER / process
    try:
        if not is_file(path):
            if clean:
                tree.remove(path)
            return False
        with try_lock(tree, path) as free:
            if free and clean:
                tree.remove(path)
    except LedgerError:  # behind a link, where no process of this ledger registers
        return False
    return not free


@contextmanager
def working_for(ledger: Path, process: str) -> Iterator[None]:
    """Let the process of that name see, within the block, that this one works for it."""
    tree = LedgerFiles(ledger.absolute())
    path = tree.root / PROCESSES_FOLDER / f"{process}.{register_process(ledger)}"
    tree.write(path, "")
    try:
        yield
    finally:
        tree.remove(path)


def has_workers(ledger: Path) -> bool:
    """Return whether any live process works for this one."""
    files = folder_entries(ledger / PROCESSES_FOLDER, f"{register_process(ledger)}.*")
    return any(is_alive(ledger, process_name(path)) for path in files)


def process_name(file: Path) -> str:
    """Return the process of a file in PROCESSES_FOLDER, whether it is named `<process>` or `<other>.<process>`."""
    return file.name.rpartition(".")[2]


@contextmanager
def try_lock(tree: LedgerFiles, path: Path) -> Iterator[bool]:
    """Try to lock a file; yield whether this process now holds the lock, until the block ends.

    Raises:
        LedgerError: the path is not a file, or behind a link.
    """
    lock = tree.lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
