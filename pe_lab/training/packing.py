"""Nested values with tensors in them, as JSON and named tensors."""

import math
from typing import Any

from torch import Tensor


def pack_value(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON that refers to its tensors by name; see `unpack_value`.

    Args:
        value: None, bool, int, float, str or a tensor, or a list, tuple or dict of such values.
        name: the name of the value, with which the names of its tensors begin.
        tensors: a dict to which the tensors are added, by name.

    Raises:
        ValueError: the value has something else in it.
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return {
            type(value).__name__: [pack_value(part, f"{name}.{index}", tensors) for index, part in enumerate(value)]
        }
    if isinstance(value, dict):
        return {
            "dict": [
                [pack_value(key, name, tensors), pack_value(part, f"{name}.{key}", tensors)]
                for key, part in value.items()
            ]
        }
    raise ValueError(f"{name} must be made of tensors and plain values to be saved, got {type(value).__name__}")


def unpack_value(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `pack_value` was given.

    Raises:
        ValueError, KeyError, TypeError: the value was not made by `pack_value`.
    """
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {unpack_value(key, tensors): unpack_value(part, tensors) for key, part in content}
    return {"list": list, "tuple": tuple}[kind](unpack_value(part, tensors) for part in content)


def copy_like(value: Any, other: Any) -> Any:
    """Return a value with copies of its tensors on the devices of those of another value of the same structure."""
    if isinstance(value, Tensor):
        # a copy has memory aligned as torch aligns it; dot products of a file's tensors, as in LBFGS, round differently
        return value.to(other.device, copy=True)
    if type(value) in (list, tuple):
        return type(value)(map(copy_like, value, other))
    if isinstance(value, dict):
        return {key: copy_like(part, other[key]) for key, part in value.items()}
    return value
