"""Signals as exceptions, so that what a process is at can be recorded."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.01  # seconds until a signal that came where nothing can be raised is sent again
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
