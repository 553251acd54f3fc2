"""Nested values with tensors in them, as JSON and named tensors."""

import math
from typing import Any

from torch import Tensor


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON that refers to its tensors by name; see `unpack`.

    Args:
        value: None, bool, int, float, str or a tensor, or a list, tuple or dict of such values.
        name: of the value. The names of its tensors begin with it.
        tensors: gets the tensors, by name.

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
        return {type(value).__name__: [pack(part, f"{name}.{index}", tensors) for index, part in enumerate(value)]}
    if isinstance(value, dict):
        return {
            "dict": [[pack(key, name, tensors), pack(part, f"{name}.{key}", tensors)] for key, part in value.items()]
        }
    raise ValueError(f"{name} must be made of tensors and plain values to be saved, got {type(value).__name__}")


def unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `pack` was given.

    Raises:
        ValueError, KeyError, TypeError: it was not made by `pack`.
    """
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {unpack(key, tensors): unpack(part, tensors) for key, part in content}
    return {"list": list, "tuple": tuple}[kind](unpack(part, tensors) for part in content)


def like(value: Any, other: Any) -> Any:
    """Return a value with copies of its tensors on the devices of those of another value of the same structure."""
    if isinstance(value, Tensor):
        # a copy has memory aligned as torch aligns it; dot products of a file's tensors, as in LBFGS, round differently
        return value.to(other.device, copy=True)
    if type(value) in (list, tuple):
        return type(value)(map(like, value, other))
    if isinstance(value, dict):
        return {key: like(part, other[key]) for key, part in value.items()}
    return value
