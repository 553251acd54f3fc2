"""Where processes that this one starts import modules from. Nothing here imports torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"  # of Python: a process does not look for modules in the current folder first


@contextmanager
def safe_path() -> Iterator[None]:
    """Let processes that are started within the block not import modules from the current folder before all others.

    joblib starts its workers by `python -m`. A worker gets the path of this process only after its first imports.
    """
    before = os.environ.get(SAFE_PATH_VARIABLE)
    os.environ[SAFE_PATH_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SAFE_PATH_VARIABLE, None)
        else:
            os.environ[SAFE_PATH_VARIABLE] = before
