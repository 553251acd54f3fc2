"""Signals as exceptions, wherever they come."""

import os
import signal
import time
import weakref
from collections.abc import Callable

import pytest

from pe_lab.termination import TerminatedError, sigterm_raises


def send() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.001)


class Deleted:
    def __del__(self) -> None:
        send()


class Finalized:
    def __init__(self) -> None:
        weakref.finalize(self, send)


@pytest.mark.filterwarnings("error")  # of what a __del__ swallows
@pytest.mark.parametrize("when", [send, Deleted, Finalized])
def test_it_is_raised_wherever_it_comes(when: Callable[[], object]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError), sigterm_raises():
        when()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.001)
    assert signal.getsignal(signal.SIGTERM) == before
