"""Layout of tokens: their positions, the documents they belong to, and which may attend to which."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

PADDING = -1  # the segment of padding, which attends to itself only
FACTS = ("pos_range", "max_distance", "packed", "right_padded", "one_segment", "runs_on")
T = TypeVar("T")


def fact(compute: Callable[["Layout"], T]) -> "cached_property[T]":
    """Make a property of Python numbers, computed once, and of a layout that came from the CPU by its copy there."""

    def find(layout: "Layout") -> T:
        if layout.origin is None:
            return compute(layout)
        found: T = getattr(layout.origin.layout, compute.__name__)  # computed there, so that no device is waited for
        return found

    find.__doc__ = compute.__doc__
    return cached_property(find)


@dataclass(frozen=True)
class Origin:
    """The layout on the CPU from which another was copied, with the tensors of the copy."""

    layout: "Layout"
    pos: Tensor
    segment: Tensor


@dataclass(frozen=True)
class Layout:
    """Positions and documents of the tokens of a batch, given to every hook of an encoding.

    Args:
        pos: [B|1, T] or [B|1, T, axes] integer positions, increasing within a segment.
        segment: [B, T] integers: tokens attend within their segment (a packed document); PADDING for padding.
        causal: whether a token attends to itself and to earlier tokens only.
        seed: of the random draws of an encoding for this batch; None: from torch's global generator.
        origin: set by `to`; dropped where positions, segments or mask are replaced.

    Raises:
        ValueError: positions that are not integers.
    """

    pos: Tensor
    segment: Tensor
    causal: bool
    seed: int | None = None
    origin: Origin | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.pos.dtype == torch.bool or self.pos.is_floating_point() or self.pos.is_complex():
            raise ValueError(f"positions must be integers, got {self.pos.dtype}")
        object.__setattr__(self, "pos", self.pos.long())
        origin = self.origin
        if origin is not None and not (
            origin.pos is self.pos and origin.segment is self.segment and origin.layout.causal == self.causal
        ):
            object.__setattr__(self, "origin", None)

    @classmethod
    def of_lengths(cls, length: Tensor, max_length: int, causal: bool, grid_width: int | None = None) -> "Layout":
        """Return the layout of sequences of length [B] that start at position 0, padded on the right to `max_length`.

        Args:
            grid_width: columns of a grid that is read row by row: positions are (row, column); None: no grid.
        """
        pos = torch.arange(max_length, device=length.device)[None]
        segment = torch.where(pos < length[:, None], 0, PADDING)
        if grid_width is not None:
            pos = torch.stack((pos // grid_width, pos % grid_width), -1)
        return cls(pos, segment, causal)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Layout":
        """Return the layout on a device. One that leaves the CPU keeps its facts: none is read from the device.

        Args:
            non_blocking: do not wait for the copy, which must be from pinned memory.
        """
        pos, segment = (x.to(device, non_blocking=non_blocking) for x in (self.pos, self.segment))
        leaves = self.pos.device.type == self.segment.device.type == "cpu" != pos.device.type
        origin = Origin(self, pos, segment) if leaves else None
        return replace(self, pos=pos, segment=segment, origin=origin)

    @property
    def source(self) -> "Layout":
        """The layout that computes the facts: the copy on the CPU, if there is one."""
        return self if self.origin is None else self.origin.layout

    def sourced(self, source: "Layout") -> "Layout":
        """Return this layout with another, of the same positions and segments, as the one that computes the facts."""
        return replace(self, origin=Origin(source, self.pos, self.segment))

    def pinned(self) -> "Layout":
        """Return the layout in pinned memory, from where it is copied to a GPU without waiting."""
        return replace(self, pos=self.pos.pin_memory(), segment=self.segment.pin_memory())

    def moved(self, change: Callable[[Tensor], Tensor]) -> "Layout":
        """Return the layout with the positions that a function makes of them, on the CPU if it came from there."""
        if self.origin is None:
            return replace(self, pos=change(self.pos))
        source = replace(self.origin.layout, pos=change(self.origin.layout.pos))
        pos = source.pos.to(self.pos.device)
        return replace(self, pos=pos, origin=Origin(source, pos, self.segment))

    def shifted(self, offset: int) -> "Layout":
        """Return the layout with `offset` added to all positions; on a grid, to the rows only."""
        pos = self.pos.clone()
        pos[(..., 0) if pos.dim() == 3 else ...] += offset
        return replace(self, pos=pos)

    @cached_property
    def allowed(self) -> Tensor:
        """Whether query i may attend to key j, bool [B, 1, T, T]."""
        same = self.segment[:, None, :, None] == self.segment[:, None, None, :]
        return same.tril() if self.causal else same

    @fact
    def pos_range(self) -> tuple[int, int]:
        """The smallest and the largest position, padding aside."""
        pos = self.pos.expand(*self.segment.shape, *self.pos.shape[2:])[self.segment != PADDING]
        return (int(pos.min()), int(pos.max())) if len(pos) else (0, 0)

    @fact
    def max_distance(self) -> int:
        """The largest |pos_i - pos_j| of tokens that may attend to each other, on any axis."""
        pos = self.pos.expand(*self.segment.shape, *self.pos.shape[2:]).reshape(*self.segment.shape, -1)
        real = (self.segment != PADDING)[..., None]
        far = torch.iinfo(pos.dtype).max // 2
        if not self.packed:
            spread = pos.where(real, -far).amax(1) - pos.where(real, far).amin(1)
            return max(0, int(spread.max()))
        distance = (pos[:, :, None] - pos[:, None, :]).abs()
        return int(distance.where(self.allowed[:, 0, :, :, None] & real[:, :, None], 0).max())

    @cached_property
    def document_length(self) -> Tensor:
        """The number of tokens in the document of each token, [B, T]."""
        ordered, own = self.segment.sort(-1).values, self.segment.contiguous()
        after: Tensor = torch.searchsorted(ordered, own, right=True)
        return after - torch.searchsorted(ordered, own)

    @fact
    def packed(self) -> bool:
        """Whether some sequence holds more than one document."""
        real = self.segment != PADDING
        first = self.segment.where(real, torch.iinfo(self.segment.dtype).min).amax(1, keepdim=True)
        return bool(((self.segment != first) & real).any())

    @fact
    def right_padded(self) -> bool:
        """Whether every sequence is one document with its padding, if any, at the end."""
        real = self.segment != PADDING
        return not self.packed and not bool((real[:, 1:] & ~real[:, :-1]).any())

    @fact
    def one_segment(self) -> bool:
        """Whether every sequence is one document without padding."""
        return bool((self.segment == self.segment[:, :1]).all())

    @fact
    def runs_on(self) -> bool:
        """Whether pos_i - pos_j = i - j for all tokens that may attend to each other."""
        if self.pos.dim() == 3:
            return False
        start = (self.pos - torch.arange(self.pos.shape[1], device=self.pos.device)).expand_as(self.segment)
        ids, document = self.segment.unique(return_inverse=True)
        empty = start.new_zeros(len(document), len(ids))
        low = empty.scatter_reduce(1, document, start, "amin", include_self=False)
        high = empty.scatter_reduce(1, document, start, "amax", include_self=False)
        return bool(((low == high) | (ids == PADDING)).all())
