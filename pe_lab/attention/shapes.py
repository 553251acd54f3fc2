"""Check shape, dtype and device of the inputs of attention."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Terms

TERM_SHAPES = {  # the shapes of the fields of Terms
    "gain": ("H|1", "d"),
    "distance_bias": ("H|1", "2R+1"),
    "logit_factors": ("H|1", "2R+1"),
    "decay": ("B|1", "H|1", "S"),
    "pair_bias": ("B|1", "H|1", "T", "S"),
    "weight_factors": ("H|1", "2R+1"),
    "relative_values": ("H|1", "2R+1", "e"),
}
BY_DISTANCE = ("distance_bias", "logit_factors", "weight_factors", "relative_values")
BY_SEQUENCE = ("gain", *BY_DISTANCE)  # may have a first axis for the sequences
ROTARY_SHAPES = {  # whether it is for keys, and the number of pairs that it may rotate
    "rotary_q": (False, "<=d/2"),
    "rotary_k": (True, "<=d/2"),
    "rotary_v": (True, "<=e/2"),
    "rotary_out": (False, "<=e/2"),
}
FREE_LETTERS = ("axes", "n")  # letters for any size
FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ANGLE_DTYPES = (torch.float32, torch.float64)


def fields_without(supported_fields: Collection[str], terms: type[Terms] = Terms) -> tuple[str, ...]:
    """Return the fields of terms that an implementation has no place for: all but those that it takes.

    A field that is added later is among them until the implementation takes it.
    """
    return tuple(field.name for field in fields(terms) if field.name not in supported_fields)


def first_present(names: Collection[str], terms: Terms) -> str | None:
    """Return the first of these fields that the terms have, or None."""
    for name in names:
        if getattr(terms, name) is not None:
            return name
    return None


Requirement = tuple[str, Tensor, tuple[str, ...], tuple[torch.dtype, ...]]


def check_inputs(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> None:
    """Check that the inputs fit the queries; no values are read, so the device is not synchronized.

    S is the number of keys that the layout has; k, v and the rotation of keys are those of the new tokens alone where
    the layout has a memory, which keeps the others.

    Raises:
        TypeError: an input is of another class.
        ValueError: the input, the requirement and what was given.
    """
    tensors = (("q", q, Tensor), ("k", k, Tensor), ("v", v, Tensor))
    for name, given, kind in (*tensors, ("terms", terms, Terms), ("layout", layout, Layout)):
        if not isinstance(given, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got {type(given).__name__}")
    if q.dim() != 4 or q.dtype not in FLOAT_DTYPES:
        raise ValueError(f"q must be floating point [B, H, T, d], got {_name(q.dtype)} {list(q.shape)}")
    B, H, T, d = q.shape
    lifted = d if terms.lift is None else terms.lift.head_dim
    S = T if layout.keys is None else layout.keys.segment.shape[-1]
    if S < T:
        raise ValueError(f"layout.keys must hold the {T} queries too, got {S} keys")
    sizes: dict[str, Sequence[int]] = {
        "B": (B,),
        "H": (H,),
        "T": (T,),
        "S": (S,),
        "d": (d,),
        "e": (v.shape[-1],),
        "<=d/2": range(1, lifted // 2 + 1),
        "<=e/2": range(1, v.shape[-1] // 2 + 1),
        "B|1": (B, 1),
        "H|1": (H, 1),
    }
    device = q.device
    for name, tensor, shape, dtypes in _requirements(q, k, v, terms, layout, dropout):
        actual = tensor.shape
        if name in BY_SEQUENCE and len(actual) == len(shape) + 1:
            shape = ("B|1", *shape)
        fits = len(actual) == len(shape)
        for size, letter in zip(actual, shape, strict=fits):
            fits = fits and (size % 2 == 1 if letter == "2R+1" else letter in FREE_LETTERS or size in sizes[letter])
        if not fits:
            keys = "" if layout.keys is None else f" and S = {S} keys"
            letters = ["T" if letter == "S" and not keys else letter for letter in shape]
            required = f"[{', '.join(letters)}] for q [B, H, T, d] = {list(q.shape)}{keys}"
            table = "; entry R + i - j is for token i and key j" if "2R+1" in letters else ""
            raise ValueError(f"{name} must be {required}, got {list(actual)}{table}")
        if dtypes and tensor.dtype not in dtypes:
            raise ValueError(f"{name} must be {' or '.join(map(_name, dtypes))}, got {_name(tensor.dtype)}")
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device} as q is, got {tensor.device}")
    if terms.window is not None and not _is_window(terms.window, H):
        raise ValueError(
            f"window must be {H} or 1 integers of at least 1, or None where there is no limit, got {terms.window}"
        )
    if dropout is not None and layout.keys is not None:
        raise ValueError("dropout must be None where there are keys of earlier tokens, as in decoding")
    for name in ROTARY_SHAPES:
        rotary = getattr(terms, name)
        if rotary is not None and rotary.sin.shape != rotary.cos.shape:
            raise ValueError(f"{name}.sin must be {list(rotary.cos.shape)} as its cos, got {list(rotary.sin.shape)}")


def _is_window(window: tuple[int | None, ...], heads: int) -> bool:
    """Return whether a window has a size for each head, or one for all."""
    return len(window) in (1, heads) and all(size is None or (type(size) is int and size >= 1) for size in window)


def _requirements(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None
) -> Iterator[Requirement]:
    """Yield every tensor but q: name, tensor, required shape, accepted dtypes (empty: any)."""
    keys = "T" if layout.memory is not None else "S"  # with a memory, only keys of new tokens are given
    yield "k", k, ("B", "H", keys, "d"), (q.dtype,)
    yield "v", v, ("B", "H", keys, "e"), (q.dtype,)
    for name, (of_keys, half) in ROTARY_SHAPES.items():
        rotary = getattr(terms, name)
        if rotary is not None:
            required_shape = ("B|1", "H|1", keys if of_keys else "T", half)
            yield f"{name}.cos", rotary.cos, required_shape, ANGLE_DTYPES
            yield f"{name}.sin", rotary.sin, required_shape, (rotary.cos.dtype,)
    if terms.carried is not None:
        yield "carried.vectors", terms.carried.vectors, ("B|1", "H|1", "S", "n"), FLOAT_DTYPES
    by_distance = terms.window is not None
    for name, shape in TERM_SHAPES.items():
        tensor = getattr(terms, name)
        if isinstance(tensor, Tensor):
            by_distance |= name in BY_DISTANCE
            yield name, tensor, shape, FLOAT_DTYPES
    grid = layout.pos.dim() == 3 and not by_distance  # a distance is one number
    yield "layout.pos", layout.pos, ("B|1", "T", "axes") if grid else ("B|1", "T"), ()
    yield "layout.segment", layout.segment, ("B|1", "T"), ()
    if layout.keys is not None:
        yield "layout.keys.pos", layout.keys.pos, ("B|1", "S", "axes") if grid else ("B|1", "S"), ()
        yield "layout.keys.segment", layout.keys.segment, ("B|1", "S"), ()
    if dropout is not None:
        yield "dropout.seed", dropout.seed, (), (torch.int64,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
