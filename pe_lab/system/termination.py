"""Turn signals and calls of sys.exit into exceptions, and end workers whose parent is gone."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from types import FrameType

RESEND_SECONDS = 0.01  # seconds until a signal is sent again that arrived where Python swallows exceptions
POLL_SECONDS = 1.0  # seconds between two checks that the parent lives
WATCH_THREAD = "watching the parent"  # name of the thread
SWALLOWING_MODULES = (
    "weakref",
    "_weakrefset",
)  # modules in whose callbacks Python swallows exceptions, as in `__del__`


class TerminatedError(RuntimeError):
    """This process received SIGTERM."""


class ProgramExit(SystemExit):
    """The program ends by itself or by a signal. Any other SystemExit comes from a class of a user."""


@contextmanager
def no_exit() -> Iterator[None]:
    """Turn sys.exit within the block into an error: a class of a user would end the program without a word.

    Raises:
        ValueError: sys.exit was called.
    """
    try:
        yield
    except ProgramExit:
        raise
    except SystemExit as end:
        calls = list(walk_tb(end.__traceback__))
        stack = [call for call in calls if not call[0].f_globals.get("__name__", "").startswith("wandb.")]
        frame, line = stack[-1]  # wandb puts a function of its own in the location of sys.exit
        location = f"{frame.f_code.co_filename}, line {line}"
        raise ValueError(f"a class must return or raise an error, got sys.exit({end.code!r}) in {location}") from None


def raising_handler(make: Callable[[], BaseException]) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that raises what `make` returns, or soon after: a `__del__` would lose it."""

    def handle(signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") in SWALLOWING_MODULES:
                threading.Timer(RESEND_SECONDS, os.kill, (os.getpid(), signum)).start()
                return
            frame = frame.f_back
        raise make()

    return handle


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise TerminatedError on SIGTERM within the block, so that the cell's failure is recorded.

    Outside the main thread, where Python cannot handle signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGTERM, raising_handler(lambda: TerminatedError("terminated by SIGTERM")))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_process(parent: int) -> None:
    """End this process soon after its parent is gone: a parent that is killed cannot end its workers itself.

    A thread checks. (PR_SET_PDEATHSIG reacts to the end of the forking thread, and exists only on Linux.) Ending
    abruptly is safe: leases end with the process, and files under way have temporary names.

    Args:
        parent: the process id of the parent. Nothing is done if it is this process, or on systems without parent
            processes.
    """
    child = os.getppid() == parent
    if (
        os.name != "posix"
        or os.getpid() == parent
        or any(thread.name == WATCH_THREAD for thread in threading.enumerate())
    ):
        return

    def watch() -> None:
        while os.getppid() == parent if child else _is_alive(parent):
            time.sleep(POLL_SECONDS)
        os._exit(1)

    with suppress(RuntimeError, MemoryError):  # no memory for a thread
        threading.Thread(target=watch, name=WATCH_THREAD, daemon=True).start()


def _is_alive(process: int) -> bool:
    """Return whether a process with that id exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True
