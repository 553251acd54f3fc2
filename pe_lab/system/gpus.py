"""The GPUs that the workers of a sweep share. Nothing here imports torch."""

import os
import re
from pathlib import Path

DEVICE_FOLDER = Path("/dev")  # where the driver lists its devices, as nvidia0, nvidia1, ...
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: those it lists, or all."""
    there = [node for node in DEVICE_FOLDER.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name)]
    if not there or VISIBLE_VARIABLE not in os.environ:
        return [str(number) for number in range(len(there))]
    visible = [name.strip() for name in os.environ[VISIBLE_VARIABLE].split(",")]
    end = next((number for number, name in enumerate(visible) if name in ("", "-1")), len(visible))  # as CUDA reads it
    return visible[:end]


def gpu_groups(shared: list[str], devices: int) -> list[str]:
    """Return GPUs in groups of so many, as CUDA_VISIBLE_DEVICES names them; those that are left are not used."""
    return [",".join(shared[at : at + devices]) for at in range(0, len(shared) - devices + 1, devices)]


def select_worker_gpu(worker: int, shared: list[str]) -> None:
    """Let this process see its GPUs only, chosen by its number as a worker. Call it before CUDA is used.

    Args:
        worker: the number of the worker: 0, 1, ...
        shared: the GPUs of each worker; if empty, nothing changes.
    """
    if shared:
        os.environ[VISIBLE_VARIABLE] = shared[worker % len(shared)]
