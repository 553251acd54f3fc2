"""The full state of a training in one file, from which it continues with the same bits."""

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pe_lab.ledger.states import read_metadata
from pe_lab.system.files import LedgerError, parse_json
from pe_lab.training.module import Training
from pe_lab.training.packing import like, pack, unpack

T = TypeVar("T")
ROW = {"split", "step", "epoch", "metric", "value"}


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of any new file; safetensors alone would make it private."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    path.chmod(mode)


def save(training: Training, kept: dict[str, Any], path: Path) -> None:
    """Write weights, the optimizer's state, the losses of this epoch and the step.

    Args:
        kept: what else to write; JSON.

    Raises:
        ValueError: the optimizer's state has something else in it than tensors and plain values.
    """
    tensors = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
    optimizer = _pack_optimizer(training.optimizer.state_dict(), tensors)
    if training.losses:
        tensors["losses.epoch"] = torch.stack(training.losses)
    metadata = kept | {"step": training.step, "optimizer": optimizer}
    save_tensors(tensors, path, {"pe_lab": json.dumps(metadata)})


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model.

    Raises:
        LedgerError: names or shapes differ from those of the model.
    """
    if _shapes(path) != _shapes_of(model.state_dict()):
        raise LedgerError(f"ledger entry {path} must be the weights of the model, got others: remove {path.parent}")
    model.load_state_dict(load_file(path))


def restore(training: Training, path: Path) -> dict[str, Any]:
    """Load the state that `save` wrote into a training; return what was kept with it: at least rows and seconds.

    Raises:
        LedgerError: it is not a state of such a training. The training has not been changed.
    """
    refused = LedgerError(f"ledger entry {path} must be a state of the training, got another")
    try:
        kept = parse_json(read_metadata(path)["pe_lab"])
        sound = isinstance(kept["step"], int) and isinstance(kept["seconds"], int | float)
        sound = sound and all(row.keys() == ROW for row in kept["rows"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refused from None
    if not sound or _parts(_shapes(path)).get("model") != _shapes_of(training.model.state_dict()):
        raise refused
    part = _parts(load_file(path))
    try:
        optimizer = _unpack_optimizer(kept.pop("optimizer", None), part, training.optimizer)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise refused from None
    training.model.load_state_dict(part["model"])
    _load_optimizer(training.optimizer, optimizer)
    training.losses = list(part["losses"]["epoch"].to(training.model.tokens.weight.device)) if "losses" in part else []
    training.step = kept["step"]
    return kept


def _pack_optimizer(given: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return an optimizer's state_dict as JSON; its tensors are added to `tensors`. Parameters are left out."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in given["param_groups"]]
    others = {key: value for key, value in given.items() if key not in ("state", "param_groups")}
    return {
        "state": pack(given["state"], "optimizer", tensors),
        "param_groups": pack(groups, "param_groups", tensors),
        "others": pack(others, "others", tensors),
    }


def _unpack_optimizer(
    packed: dict[str, Any] | None, part: dict[str, dict[str, Tensor]], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the state_dict that `_pack_optimizer` was given, for this optimizer.

    Args:
        packed: None: the file is of a version that kept tensors alone.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, IndexError: it is not the state of such an optimizer.
    """
    groups = optimizer.state_dict()["param_groups"]
    known = {index for group in groups for index in group["params"]}
    if packed is None:
        state: dict[Any, Any] = {}
        for name, tensor in part.get("optimizer", {}).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        found = {"state": state, "param_groups": groups}
    else:
        tensors = {f"{first}.{rest}": tensor for first, named in part.items() for rest, tensor in named.items()}
        kept = unpack(packed["param_groups"], tensors)
        found = {
            "state": unpack(packed["state"], tensors),
            "param_groups": [group | old for group, old in zip(groups, kept, strict=True)],
            **unpack(packed["others"], tensors),
        }
    if {index for index, _ in found["state"].items() if isinstance(index, int)} - known:
        raise ValueError("there is a state of a parameter that the model does not have")
    return found


def _load_optimizer(optimizer: torch.optim.Optimizer, found: dict[str, Any]) -> None:
    """Load a state_dict without the conversions of load_state_dict, which casts tensors to the parameters' type."""
    optimizer.load_state_dict(found)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, values in found["state"].items():
        place = parameters[key] if isinstance(key, int) else key
        if place in optimizer.state:
            optimizer.state[place] = like(values, optimizer.state[place])


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors of a file, by name."""
    with safe_open(path, "np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no dict


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _parts(values: dict[str, T]) -> dict[str, dict[str, T]]:
    """Group values by the part of their name before the first dot."""
    parts: dict[str, dict[str, T]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = value
    return parts
