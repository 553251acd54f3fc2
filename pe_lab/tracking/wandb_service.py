"""Limits on what W&B blocks in: calls that wait for its server, and the end of its service, a process of its own."""

import atexit
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pe_lab.system.termination import TerminatedError

T = TypeVar("T")
CLOSING = 10.0  # seconds that W&B's service gets to close its files, after a limit or at the program's end


class LateError(TimeoutError):
    """A call took longer than it was given."""


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """What a call returns, from a thread of its own; signals are handled while it is waited for.

    A call that takes longer goes on in its thread, which keeps no program from ending.

    Raises:
        LateError: it takes longer.
        Exception: what it raises.
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
    """End this process's W&B service, so that the next run starts another; it is killed if it does not end in time.

    Args:
        kill: at once; a run that is open may then have a file with nothing in it.
    """
    import wandb

    process = _process()
    try:
        if kill and process is not None:
            process.kill()
        within(CLOSING, wandb.teardown, "ending W&B's service")
    except TerminatedError:
        raise
    except Exception:  # whatever it comes to
        pass
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def end_service_at_exit() -> None:
    """Have the service ended when the program ends, before W&B waits for it without a limit."""
    atexit.unregister(end_service)
    atexit.register(end_service)


def _process() -> Any:
    """The service, if this process started it; W&B has no public name for it."""
    from wandb.sdk import wandb_setup

    with suppress(AttributeError):
        return wandb_setup._singleton._connection._proc._process
    return None
