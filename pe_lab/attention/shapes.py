"""Check shape, dtype and device of the inputs of attention."""

from collections.abc import Container, Iterator

import torch
from torch import Tensor

from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.base import Terms
from pe_lab.encodings.layout import Layout

SHAPES = {  # of the fields of Terms
    "gain": ("H|1", "d"),
    "bias": ("H|1", "2R+1"),
    "gate": ("H|1", "2R+1"),
    "decay": ("B|1", "H|1", "T"),
    "bias_full": ("B|1", "H|1", "T", "T"),
    "values": ("H|1", "2R+1", "d"),
}
BY_DISTANCE = ("bias", "gate", "values")
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ANGLES = (torch.float32, torch.float64)
ODD = range(1, 2**62, 2)
ANY = range(2**62)

Requirement = tuple[str, Tensor, tuple[str, ...], tuple[torch.dtype, ...]]


def check(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> None:
    """Refuse inputs that do not fit the queries; no values are read, so that no device is synchronized.

    Raises:
        ValueError: the input, the requirement and what was given.
    """
    if q.dim() != 4 or q.dtype not in FLOATING:
        raise ValueError(f"q must be floating point [B, H, T, d], got {_name(q.dtype)} {list(q.shape)}")
    B, H, T, d = q.shape
    sizes: dict[str, Container[float]] = {
        "B": (B,),
        "H": (H,),
        "T": (T,),
        "d": (d,),
        "d/2": (d / 2,),
        "B|1": (B, 1),
        "H|1": (H, 1),
    }
    sizes |= {"2R+1": ODD, "axes": ANY}
    device = q.device
    for name, tensor, shape, dtypes in _requirements(q, k, v, terms, layout, dropout):
        given = tensor.shape
        fits = len(given) == len(shape)
        for size, letter in zip(given, shape, strict=fits):
            fits = fits and size in sizes[letter]
        if not fits:
            required = f"[{', '.join(shape)}] for q [B, H, T, d] = {list(q.shape)}"
            raise ValueError(f"{name} must be {required}, got {list(given)}")
        if dtypes and tensor.dtype not in dtypes:
            raise ValueError(f"{name} must be {' or '.join(map(_name, dtypes))}, got {_name(tensor.dtype)}")
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device} as q is, got {tensor.device}")
    for name, rotary in (("rotary_q", terms.rotary_q), ("rotary_k", terms.rotary_k)):
        if rotary is not None and rotary.sin.shape != rotary.cos.shape:
            raise ValueError(f"{name}.sin must be {list(rotary.cos.shape)} as its cos, got {list(rotary.sin.shape)}")


def _requirements(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None
) -> Iterator[Requirement]:
    """Yield every tensor but q: name, tensor, required shape, accepted dtypes (empty: any)."""
    yield "k", k, ("B", "H", "T", "d"), (q.dtype,)
    yield "v", v, ("B", "H", "T", "d"), (q.dtype,)
    rotations = {"rotary_q": terms.rotary_q, "rotary_k": terms.rotary_k}
    for name, rotary in rotations.items():
        if rotary is not None:
            yield f"{name}.cos", rotary.cos, ("B|1", "H|1", "T", "d/2"), ANGLES
            yield f"{name}.sin", rotary.sin, ("B|1", "H|1", "T", "d/2"), (rotary.cos.dtype,)
    by_distance = False
    for name, shape in SHAPES.items():
        tensor = getattr(terms, name)
        if tensor is not None:
            by_distance |= name in BY_DISTANCE
            yield name, tensor, shape, FLOATING
    grid = layout.pos.dim() == 3 and not by_distance  # a distance is one number
    yield "layout.pos", layout.pos, ("B|1", "T", "axes") if grid else ("B|1", "T"), ()
    yield "layout.segment", layout.segment, ("B|1", "T"), ()
    if dropout is not None:
        yield "dropout.seed", dropout.seed, (), (torch.int64,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
