"""Signals as exceptions, wherever they come."""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.programs import FORKS, wait_for
from pe_lab.system.termination import TerminatedError, _is_alive, end_with_process, sigterm_raises


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


def _works(parent: int, said: Path) -> None:
    end_with_process(parent)
    end_with_process(parent)  # as in its next task
    watching = sum(thread.name == "watching the parent" for thread in threading.enumerate())
    said.with_suffix(".new").write_text(f"{os.getpid()} {watching}")
    said.with_suffix(".new").rename(said)
    time.sleep(600)


def _starts(said: Path, between: bool) -> None:
    """A parent with a worker, which is its child, or the child of another process that goes on."""
    parent = os.getpid()
    if os.fork() == 0:
        if between and os.fork():
            time.sleep(600)
        _works(parent, said)
    time.sleep(600)


@pytest.mark.long
@pytest.mark.parametrize("between", [False, True])
def test_a_worker_ends_when_its_parent_is_killed(between, tmp_path):
    parent = FORKS.Process(target=_starts, args=(tmp_path / "said", between))
    parent.start()
    worker, watching = map(
        int, wait_for(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text()).split()
    )
    assert watching == 1
    assert _is_alive(worker)
    parent.kill()
    parent.join()
    wait_for(lambda: not _runs(worker))


def _runs(process: int) -> bool:
    """Whether it is there and no zombie, whose parent has not looked."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_does_not_end_with_itself():
    end_with_process(os.getpid())
    assert all(thread.name != "watching the parent" for thread in threading.enumerate())
