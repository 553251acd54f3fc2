"""Signals as exceptions, so that what a process is at can be recorded."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

AGAIN = 0.01  # seconds until a signal that came where nothing can be raised is sent again
LOOK = 1.0  # seconds between two looks at whether the parent is there
WATCHING = "watching the parent"  # the name of the thread that does
SWALLOWING = ("weakref", "_weakrefset")  # modules whose callbacks are called as `__del__` is


class TerminatedError(RuntimeError):
    """Somebody asked this process to end."""


def raising(make: Callable[[], BaseException]) -> Callable[[int, FrameType | None], None]:
    """A handler of signals that raises what `make` returns; in a `__del__`, where that is swallowed, soon after."""

    def handle(signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") in SWALLOWING:
                threading.Timer(AGAIN, os.kill, (os.getpid(), signum)).start()
                return
            frame = frame.f_back
        raise make()

    return handle


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM ends the cell, with a record of it, and not the sweep; left alone where Python cannot catch it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGTERM, raising(lambda: TerminatedError("terminated by SIGTERM")))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with(parent: int) -> None:
    """End this process soon after the one that started it is gone: killed, that cannot end its workers itself.

    Looked at from a thread. PR_SET_PDEATHSIG would be the death of the thread that forked, and is Linux's alone. Leases
    end with the process, and what it was writing has no name yet: it need not end in order.

    Args:
        parent: its process id. Of this very process, or where processes have no parents: nothing is done.
    """
    child = os.getppid() == parent
    if os.name != "posix" or os.getpid() == parent or any(of.name == WATCHING for of in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent if child else _lives(parent):
            time.sleep(LOOK)
        os._exit(1)

    with suppress(RuntimeError, MemoryError):  # no memory for a thread
        threading.Thread(target=watch, name=WATCHING, daemon=True).start()


def _lives(process: int) -> bool:
    """Whether there is a process of that id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of somebody else
        return True
    return True
