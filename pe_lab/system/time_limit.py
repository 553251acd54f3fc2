"""Call something that may hang, and go on without it after a time limit."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
