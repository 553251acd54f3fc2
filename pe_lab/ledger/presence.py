"""Who lives and who was first: locks on files, which the system lets go of when their process ends."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

# the lock by which this process shows each ledger that it lives
_ANNOUNCED: dict[tuple[Path, int], FileLock] = {}


def announce(ledger: Path) -> str:
    """This process's name in a ledger, under which others can see that it lives."""
    key = (ledger.absolute(), os.getpid())
    if key not in _ANNOUNCED:
        (ledger / ".present").mkdir(parents=True, exist_ok=True)
        lock = _lock(ledger.absolute() / ".present" / uuid.uuid4().hex)
        lock.acquire()
        _ANNOUNCED[key] = lock
    return Path(_ANNOUNCED[key].lock_file).name


def is_present(ledger: Path, who: str, clean: bool = True) -> bool:
    """Whether the process of that name lives.

    Args:
        clean: what a dead one left is removed.

    Raises:
        OSError: its lock cannot be tried, as in a ledger that must not be written to.
    """
    mine = _ANNOUNCED.get((ledger.absolute(), os.getpid()))
    if mine is not None and Path(mine.lock_file).name == who:
        return True
    path = ledger.absolute() / ".present" / who
    if Path(who).name != who or not path.is_file():
        return False
    with first_come(path) as free:
        if free and clean:
            path.unlink(missing_ok=True)
    return not free


def _lock(path: Path) -> FileLock:
    """The system's lock on a file, and nothing in its place: a lock that is a file outlives its process."""
    return FileLock(path, thread_local=False, fallback_to_soft=False)


@contextmanager
def first_come(lock: Path) -> Iterator[bool]:
    """Try to become the one process that holds a lock file; yields whether that is so. Ends with the process."""
    held = _lock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()
