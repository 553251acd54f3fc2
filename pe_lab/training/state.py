"""The full state of a training in one file: all that changes on a run."""

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pe_lab.ledger.run import read_metadata
from pe_lab.system.files import LedgerError, parse_json
from pe_lab.training.module import Training

T = TypeVar("T")
ROW = {"split", "step", "epoch", "metric", "value"}


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that whoever may read other new files may read: safetensors makes it private."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    path.chmod(mode)


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
    save_tensors(tensors, path, {"pe_lab": json.dumps(kept | {"step": training.step})})


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a model the weights of a file.

    Raises:
        LedgerError: they are not of such a model.
    """
    if _shapes(path) != _shapes_of(model.state_dict()):
        raise LedgerError(f"ledger entry {path} must be the weights of the model, got others: remove {path.parent}")
    model.load_state_dict(load_file(path))


def restore(training: Training, path: Path) -> dict[str, Any]:
    """Bring a training to the state that `save` wrote; returns what was kept with it: at least rows and seconds.

    Raises:
        LedgerError: it is not a state of such a training, which is left as it was.
    """
    try:
        kept = parse_json(read_metadata(path)["pe_lab"])
        sound = isinstance(kept["step"], int) and isinstance(kept["seconds"], int | float)
        sound = sound and all(row.keys() == ROW for row in kept["rows"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    shapes = _parts(_shapes(path))
    indices = {name.partition(".")[0] for name in shapes.get("optimizer", {})}
    known = {str(index) for index in range(len(list(training.model.parameters())))}
    if not sound or shapes.get("model") != _shapes_of(training.model.state_dict()) or indices - known:
        raise LedgerError(f"ledger entry {path} must be a state of the training, got another")
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


def _shapes(path: Path) -> dict[str, list[int]]:
    """Of the tensors of a file."""
    with safe_open(path, "np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no dict


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _parts(values: dict[str, T]) -> dict[str, dict[str, T]]:
    """Values by the first part of their name."""
    parts: dict[str, dict[str, T]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = value
    return parts
