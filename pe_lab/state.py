"""The full state of a training in one file: all that changes on a road."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pe_lab.ledger.files import loads
from pe_lab.training import Training


def save(training: Training, kept: dict[str, Any], path: Path) -> None:
    """Write weights, optimizer, the losses of this epoch and the step.

    Args:
        kept: what else belongs to them; JSON.
    """
    tensors = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
    for index, values in training.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": tensor for key, tensor in values.items()}
    if training.losses:
        tensors["losses.epoch"] = torch.stack(training.losses)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        path,
        metadata={"pe_lab": json.dumps(kept | {"step": training.step})},
    )


def kept_with(path: Path) -> dict[str, Any]:
    """What `save` wrote beside the tensors, and the step."""
    with safe_open(path, "pt") as file:
        return loads(file.metadata()["pe_lab"])


def road_of(path: Path) -> str | None:
    """The road that a state is of; None: it is no state."""
    try:
        return kept_with(path)["road"]
    except (SafetensorError, TypeError, KeyError, ValueError):
        return None


def restore(training: Training, path: Path) -> dict[str, Any]:
    """Bring a training to the state that `save` wrote; returns what was kept with it."""
    kept = kept_with(path)
    part = _parts(load_file(path))
    training.model.load_state_dict(part["model"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in part.get("optimizer", {}).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = training.optimizer.state_dict()["param_groups"]
    training.optimizer.load_state_dict({"state": state, "param_groups": groups})
    training.losses = list(part["losses"]["epoch"].to(training.model.tokens.weight.device)) if "losses" in part else []
    training.step = kept["step"]
    return kept


def _parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by the first part of their name."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = tensor
    return parts
