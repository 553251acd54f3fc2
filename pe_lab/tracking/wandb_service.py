"""End W&B's service process within a time limit."""

import atexit
from contextlib import suppress
from typing import Any

import wandb
from wandb.sdk import wandb_setup

from pe_lab.system.termination import TerminatedError
from pe_lab.system.time_limit import call_within

CLOSING_SECONDS = 10.0  # seconds for W&B's service to close its files, after a time limit or at the program's end


def end_service(kill: bool = False) -> None:
    """End this process's W&B service, so that the next W&B run starts another. Kill it if it does not end in time.

    Args:
        kill: whether to kill it at once; an open W&B run may then have an empty file.
    """
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
    singleton: Any = getattr(wandb_setup, "_singleton", None)
    with suppress(AttributeError):
        return singleton._connection._proc._process
    return None
