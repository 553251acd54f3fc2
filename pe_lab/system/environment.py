"""The environment of a cell: versions, commit, device, threads."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pe_lab import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, commit, device and threads, as they are while the cell runs."""
    packages = ("torch", "lightning", "hydra-core", "numpy", "pandas", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "pe_lab": __version__,
        "commit": _commit(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _commit() -> str | None:
    """Return the commit of this package's checkout, with a + if files differ from it; None outside of a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
