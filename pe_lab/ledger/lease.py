"""Who lives and who was first: locks on files, which the system lets go of when their process ends."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pe_lab.ledger.tree import Tree
from pe_lab.system.files import LedgerError, is_file

PROCESSES = ".processes"
WHO = re.compile(r"[0-9a-f]{32}")  # the name of a process
# the lock by which this process shows each ledger that it lives
_REGISTERED: dict[tuple[Path, int], FileLock] = {}


def register(ledger: Path) -> str:
    """This process's name in a ledger, under which others can see that it lives."""
    key = (ledger.absolute(), os.getpid())
    if key not in _REGISTERED:
        tree = Tree(ledger.absolute())
        lock = tree.lock(tree.place(tree.root / PROCESSES / uuid.uuid4().hex))
        lock.acquire()
        _REGISTERED[key] = lock
    return Path(_REGISTERED[key].lock_file).name


def is_alive(ledger: Path, who: str, clean: bool = True) -> bool:
    """Whether the process of that name lives.

    Args:
        clean: what a dead one left is removed.

    Raises:
        OSError: its lock cannot be tried, as in a ledger that must not be written to.
    """
    mine = _REGISTERED.get((ledger.absolute(), os.getpid()))
    if mine is not None and Path(mine.lock_file).name == who:
        return True
    tree = Tree(ledger.absolute())
    path = tree.root / PROCESSES / who
    if not WHO.fullmatch(who):
        return False
    try:
        if not is_file(path):
            if clean:
                tree.remove(path)
            return False
        with try_lock(tree, path) as free:
            if free and clean:
                tree.remove(path)
    except LedgerError:  # it is behind a link, where no process of this ledger is
        return False
    return not free


@contextmanager
def try_lock(tree: Tree, lock: Path) -> Iterator[bool]:
    """Try to become the one process that holds a lock file; yields whether that is so. Ends with the process.

    Raises:
        LedgerError: what is there is no file; it is behind a link.
    """
    held = tree.lock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()
