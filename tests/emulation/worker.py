"""A process of its own for compiled kernels: the suite's process defines them for Triton's interpreter."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context, parent_process
from typing import Any
from unittest import mock

Call = Callable[..., Any]


@cache
def worker() -> Call:
    """Return a function that calls a function, with its arguments, in a process without TRITON_INTERPRET.

    The function and what it takes and returns must be picklable: functions of a module of this package are. The process
    is started once and ends with this one.
    """
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with mock.patch.dict(os.environ):
        os.environ.pop("TRITON_INTERPRET", None)
        pool.submit(_settle).result()
    return lambda function, *given, **named: pool.submit(function, *given, **named).result()


def _settle() -> None:
    """End with the parent, however that ends, and compute with one thread."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()
