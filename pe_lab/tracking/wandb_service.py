"""Time limits on W&B: on calls that wait for its server, and on the end of its service process."""

import atexit
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pe_lab.system.termination import TerminatedError

T = TypeVar("T")
CLOSING_SECONDS = 10.0  # seconds for W&B's service to close its files, after a time limit or at the program's end


class LateError(TimeoutError):
    """A call took longer than its time limit."""


def call_within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Call something in a thread and return its result; signals are handled meanwhile.

    A call that takes longer goes on in its daemon thread.

    Raises:
        LateError: the call takes longer than `seconds`.
        Exception: the call raised it.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, name=what, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise LateError(f"{what} took more than {seconds:g} s") from None
    if isinstance(error, SystemExit):  # would end the program
        raise RuntimeError(f"{what} ended with status {error.code}")
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def end_service(kill: bool = False) -> None:
    """End this process's W&B service, so that the next W&B run starts another. Kill it if it does not end in time.

    Args:
        kill: whether to kill it at once; an open W&B run may then have an empty file.
    """
    import wandb

    process = _process()
    try:
        if kill and process is not None:
            process.kill()
        call_within(CLOSING_SECONDS, wandb.teardown, "ending W&B's service")
    except TerminatedError:
        raise
    except Exception:  # the service is ended below in any case
        pass
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def end_service_at_exit() -> None:
    """End the service when the program exits, before W&B would wait for it without a limit."""
    atexit.unregister(end_service)
    atexit.register(end_service)


def _process() -> Any:
    """Return the service process if this process started it. W&B has no public name for it."""
    from wandb.sdk import wandb_setup

    singleton: Any = getattr(wandb_setup, "_singleton", None)
    with suppress(AttributeError):
        return singleton._connection._proc._process
    return None
