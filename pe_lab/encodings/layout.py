"""Layout of tokens: their positions, the documents they belong to, and which may attend to which."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from pe_lab.encodings.layout_properties import PADDING, PROPERTY_NAMES, UNMARKED, KnownLayout, LayoutProperties
from pe_lab.encodings.memory import Carried, Memory

__all__ = ["PADDING", "PROPERTY_NAMES", "UNMARKED", "CpuCopy", "Layout"]

K = TypeVar("K", bound="Layout")


@dataclass(frozen=True)
class CpuCopy:
    """The layout on the CPU that another was copied from, with the tensors of the copy."""

    layout: "Layout"
    pos: Tensor
    segment: Tensor
    keys: "Layout | None" = None
    marks: Tensor | None = None


@dataclass(frozen=True)
class Layout(LayoutProperties):
    """Positions and documents of the tokens of a batch, given to every hook of an encoding.

    Make one by `whole` or `of_lengths`, which need not read the device. A hook reads `pos` and `segment` of its T
    tokens, and what follows from them: `distance` and `allowed` of each pair of query and key, `max_distance` for the
    size of a table, `rank` and `key_count` of each token. No method changes positions or documents:
    what makes other ones returns another layout.

    Args:
        pos: [B|1, T] or [B|1, T, axes] positions, increasing within a segment: integers, or float64, which encodings
            refuse that do not declare `float_positions`.
        segment: [B, T] integers: tokens attend within their segment (a packed document); PADDING for padding.
        causal: whether a token attends to itself and to earlier tokens only.
        seed: the seed of an encoding's random draws for this batch; None: torch's global generator is used.
        keys: the layout of the S keys, where these T tokens are the last of more, as in cached decoding; None: S = T.
        start: the index of the key that is the first query's own, in a `block`; None: queries are the last of the keys.
        memory: the memory of earlier tokens in a layer; `attend` adds keys and values. Set by `Stack`.
        carried: the vectors that the layer before carries for this one; None: there are none. Set by `Stack`.
        marks: [B, T] integers that the dataset gives to tokens, for encodings that read them: 1, 2, ... say, for the
            digits of a number, 0 for a token between numbers; UNMARKED for a token outside of what is marked; None:
            the dataset marks no tokens.
        origin: the layout on the CPU that this one was copied from, set by `to`; dropped where positions, segments,
            mask or marks are replaced.
        structure: the facts that are known without reading the tensors, such as the range of positions. Set by `whole`
            and `of_lengths`; None: they are computed when they are read. Dropped where positions or segments are
            replaced.

    Raises:
        ValueError: positions that are neither integers nor float64; marks that are not integers, or not one for each
            token; keys with bidirectional attention.
    """

    pos: Tensor
    segment: Tensor
    causal: bool
    seed: int | None = None
    keys: "Layout | None" = field(default=None, kw_only=True)
    start: int | None = field(default=None, kw_only=True)
    memory: Memory | None = field(default=None, repr=False, compare=False, kw_only=True)
    carried: Carried | None = field(default=None, repr=False, compare=False, kw_only=True)
    marks: Tensor | None = field(default=None, kw_only=True)
    origin: CpuCopy | None = field(default=None, repr=False, compare=False, kw_only=True)
    structure: KnownLayout | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        is_integer = not (self.pos.dtype == torch.bool or self.pos.is_floating_point() or self.pos.is_complex())
        if not is_integer and self.pos.dtype != torch.float64:
            raise ValueError(f"positions must be integers, or float64, got {self.pos.dtype}")
        if is_integer and self.pos.dtype != torch.long:
            object.__setattr__(self, "pos", self.pos.long())
        if self.marks is not None:
            _require_marks(self.marks, self.segment)
        if self.keys is not None and self.start is None and not self.causal:
            raise ValueError("keys of earlier tokens need causal attention, got causal=False")
        origin = self.origin
        if origin is not None and not (
            origin.pos is self.pos
            and origin.segment is self.segment
            and origin.layout.causal == self.causal
            and origin.keys is self.keys
            and origin.marks is self.marks
        ):
            object.__setattr__(self, "origin", None)
        structure = self.structure
        if structure is not None and not (structure.pos is self.pos and structure.segment is self.segment):
            object.__setattr__(self, "structure", None)

    @classmethod
    def whole(
        cls,
        batch: int,
        length: int,
        causal: bool,
        grid_width: int | None = None,
        *,
        start: int = 0,
        device: torch.device | str | None = None,
    ) -> "Layout":
        """Return the layout of sequences without padding; nothing is read from the device.

        Args:
            grid_width: the number of columns, see `of_lengths`; the grid begins at (0, 0).
            start: the first position, on a line.
        """
        pos = torch.arange(start, start + length, device=device)[None]
        segment = torch.zeros(batch, length, dtype=torch.long, device=device)
        return cls._consecutive(pos, segment, causal, grid_width, start, whole=True)

    @classmethod
    def _consecutive(
        cls, pos: Tensor, segment: Tensor, causal: bool, grid_width: int | None, start: int, whole: bool
    ) -> "Layout":
        """Return the layout at positions from `start` on, [1, T], on a grid at rows and columns."""
        last = start + pos.shape[1] - 1
        if grid_width is not None:
            pos = torch.stack((pos // grid_width, pos % grid_width), -1)
            last = torch.sym_max(last // grid_width, torch.sym_min(last, grid_width - 1))
        structure = KnownLayout(pos, segment, (start, last), whole, runs_on=grid_width is None)
        return cls(pos, segment, causal, structure=structure)

    @classmethod
    def of_lengths(cls, length: Tensor, max_length: int, causal: bool, grid_width: int | None = None) -> "Layout":
        """Return the layout of sequences of length [B] that start at position 0, padded on the right to `max_length`.

        Args:
            length: integers from 0 to `max_length`; their values are not read, so the device is not synchronized.
            grid_width: the number of columns of a grid that is read row by row: positions are (row, column); None: no
                grid.

        Raises:
            TypeError: the lengths are no tensor.
        """
        if not isinstance(length, Tensor):
            raise TypeError(f"length must be a Tensor [B] of integers, got {type(length).__name__}")
        pos = torch.arange(max_length, device=length.device)[None]
        segment = torch.where(pos < length[:, None], 0, PADDING)
        return cls._consecutive(pos, segment, causal, grid_width, 0, whole=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Layout":
        """Return the layout on a device; facts known on the CPU are kept, not read from the device.

        Args:
            non_blocking: whether to return without waiting for the copy, which must be from pinned memory.
        """
        pos, segment = (x.to(device, non_blocking=non_blocking) for x in (self.pos, self.segment))
        leaves = self.pos.device.type == self.segment.device.type == "cpu" != pos.device.type
        keys = None if self.keys is None else self.keys.to(device, non_blocking)
        marks = None if self.marks is None else self.marks.to(device, non_blocking=non_blocking)
        origin = CpuCopy(self, pos, segment, keys, marks) if leaves else None
        structure = None if self.structure is None else replace(self.structure, pos=pos, segment=segment)
        return replace(self, pos=pos, segment=segment, keys=keys, marks=marks, origin=origin, structure=structure)

    @property
    def unshifted(self) -> "Layout":
        """The layout whose positions the next tokens continue: the input of `locate`, where that shifts positions."""
        return self

    @property
    def source(self) -> "Layout":
        """The layout that computes facts: the copy on the CPU, if there is one."""
        return self if self.origin is None else self.origin.layout

    def as_kind(self, kind: type[K], **attributes: Any) -> K:
        """Return this layout as one of a subclass.

        Args:
            attributes: those that the subclass adds.
        """
        return kind(**{name: getattr(self, name) for name in _FIELDS}, **attributes)

    def with_source(self, source: "Layout") -> "Layout":
        """Return this layout with another one of equal content, which computes its facts."""
        return replace(self, origin=CpuCopy(source, self.pos, self.segment, self.keys, self.marks))

    def read(self) -> "Layout":
        """Compute all facts now, so that a compiled model need not read tensors, and return the layout."""
        for name in (*PROPERTY_NAMES, "largest_mark"):
            getattr(self, name)
        return self

    def pinned(self) -> "Layout":
        """Return the layout in pinned memory, for asynchronous copies to a GPU."""
        keys = None if self.keys is None else self.keys.pinned()
        marks = None if self.marks is None else self.marks.pin_memory()
        return replace(self, pos=self.pos.pin_memory(), segment=self.segment.pin_memory(), keys=keys, marks=marks)

    def moved(self, change: Callable[[Tensor], Tensor]) -> "Layout":
        """Return the layout with a function applied to its positions, on the CPU if it came from there."""
        keys = None if self.keys is None else self.keys.moved(change)
        if self.origin is None:
            return replace(self, pos=change(self.pos), keys=keys)
        source = self.origin.layout.moved(change)
        pos = source.pos.to(self.pos.device)
        return replace(self, pos=pos, keys=keys, origin=CpuCopy(source, pos, self.segment, keys, self.marks))

    def shifted(self, offset: int) -> "Layout":
        """Add `offset` to all positions, on a grid of two axes to the rows only, and return the layout."""
        pos = self.pos.clone()
        pos[(..., 0) if pos.shape[2:] == (2,) else ...] += offset
        return replace(self, pos=pos, keys=None if self.keys is None else self.keys.shifted(offset))

    @property
    def of_keys(self) -> "Layout":
        """The layout of the keys; this layout, unless there are earlier tokens."""
        return self if self.keys is None else self.keys

    def after(self, earlier: "Layout | None") -> "Layout":
        """Return this layout with earlier tokens as keys too; None: there are no earlier tokens."""
        keys = self if earlier is None else earlier.joined(self)
        layout = replace(self, keys=keys)
        if self.origin is None or keys.origin is None:
            return layout
        return layout.with_source(replace(self.origin.layout, keys=keys.origin.layout))

    def joined(self, later: "Layout") -> "Layout":
        """Return the layout of these tokens followed by later ones."""
        structure, next_known = self.structure, later.structure
        if structure is not None and next_known is not None and next_known.continues(structure):
            length = self.segment.shape[1] + later.segment.shape[1]
            batch, device = len(self.segment), self.pos.device
            run = Layout.whole(batch, length, self.causal, start=structure.pos_range[0], device=device)
            return replace(
                self, pos=run.pos, segment=run.segment, marks=self._joined_marks(later), structure=run.structure
            )
        rows = max(len(self.pos), len(later.pos))
        pos = torch.cat([x.expand(rows, *x.shape[1:]) for x in (self.pos, later.pos)], 1)
        segment = torch.cat((self.segment, later.segment), 1)
        joined = replace(self, pos=pos, segment=segment, marks=self._joined_marks(later))
        if self.origin is None or later.origin is None:
            return joined
        return joined.with_source(self.origin.layout.joined(later.origin.layout))

    def _joined_marks(self, later: "Layout") -> Tensor | None:
        if self.marks is None or later.marks is None:
            return None
        return torch.cat((self.marks, later.marks), 1)

    def following(self, count: int, grid_width: int | None = None, marks: Tensor | None = None) -> "Layout":
        """Return the layout of the next tokens of every sequence: in its last document, at the next positions.

        With three axes, the next tokens are text: on all axes they follow the largest position of the document, as in
        Qwen2-VL.

        Args:
            grid_width: the number of columns, where positions are (row, column), which are read row by row.
            marks: [B, count] marks of the next tokens, which do not follow from those before; None: the tokens have
                none.

        Raises:
            ValueError: positions on a grid, and no grid_width.
        """
        structure = self.structure
        if structure is not None and structure.whole and structure.runs_on:
            start, device = structure.pos_range[1] + 1, self.pos.device
            run = Layout.whole(len(self.segment), count, self.causal, start=start, device=device)
            return replace(run, seed=self.seed, marks=marks)
        segment, pos = self.segment[:, -1:], self.pos[:, -1:]
        axes = pos.shape[2:]
        if axes not in ((), (2,)):
            same_segment = (self.segment == segment)[..., None]
            pos = self.pos.where(same_segment, -(2**62)).amax((1, 2))[:, None]
        on_grid, columns = axes == (2,), grid_width or 1
        if on_grid and grid_width is None:
            raise ValueError("positions on a grid need a grid_width to be continued, got None")
        index = pos[..., 0] * columns + pos[..., 1] if on_grid else pos
        pos = index.where(segment != PADDING, -1) + torch.arange(1, count + 1, device=pos.device)
        if on_grid:
            pos = torch.stack((pos // columns, pos % columns), -1)
        elif axes:
            pos = pos[..., None].expand(-1, -1, *axes)
        segment = segment.clamp(min=0).expand(-1, count)
        return replace(self, pos=pos, segment=segment, marks=marks, keys=None, memory=None)

    def last(self, count: int) -> "Layout":
        """Return the layout of the last tokens alone."""
        return self.part(self.segment.shape[1] - count, self.segment.shape[1])

    def part(self, start: int, end: int) -> "Layout":
        """Return the layout of the tokens start ... end - 1 alone."""
        marks = None if self.marks is None else self.marks[:, start:end]
        return replace(self, pos=self.pos[:, start:end], segment=self.segment[:, start:end], marks=marks)

    def block(self, start: int, end: int) -> "Layout":
        """Return the layout of the queries start ... end - 1 with the keys that they may see: no later ones if causal.

        A term computed for it is that of these queries; `Layout.start` tells it from the layout of a step of decoding.
        """
        first, keys = self.earlier + start, self.of_keys
        if self.causal:
            keys = keys.part(0, self.earlier + end)
        return replace(self.part(start, end), keys=keys, start=first, memory=None)

    def rows(self, index: Tensor) -> "Layout":
        """Return the layout of the sequences with these indices [N]."""
        pos = self.pos if len(self.pos) == 1 else self.pos[index]
        marks = None if self.marks is None else self.marks[index]
        return replace(self, pos=pos, segment=self.segment[index], marks=marks)

    def remembering(self, memory: Memory | None) -> "Layout":
        """Return this layout with the memory of a layer; known facts are kept."""
        layout = copy(self)
        object.__setattr__(layout, "memory", memory)
        return layout

    def carrying(self, carried: Carried) -> "Layout":
        """Return this layout with what the layer before carries; known facts are kept."""
        layout = copy(self)
        object.__setattr__(layout, "carried", carried)
        return layout

    def with_earlier(self, name: str, x: Tensor) -> Tensor:
        """Store x [B, T, ...] for later tokens, and return it after that of earlier ones, [B, S, ...].

        An encoding calls it for what it needs of other tokens. Without earlier tokens it returns x.

        Args:
            name: the name under which x is stored, one for each thing that a layer stores.

        Raises:
            ValueError: there are earlier tokens and nothing was kept of them.
        """
        if self.memory is not None:
            return self.memory.extend(name, x, 1, self.of_keys.segment.shape[1])
        if self.earlier:
            raise ValueError(
                f"{name} of {self.earlier} earlier tokens is needed, got a layout without a memory of them"
            )
        return x


def _require_marks(marks: Tensor, segment: Tensor) -> None:
    """Raise ValueError unless there is an integer for each token."""
    if marks.dtype == torch.bool or marks.is_floating_point() or marks.is_complex():
        raise ValueError(f"marks must be integers, got {marks.dtype}")
    if marks.shape != segment.shape:
        raise ValueError(f"marks must be one for each token, {list(segment.shape)}, got {list(marks.shape)}")


_FIELDS = tuple(part.name for part in fields(Layout))  # read here, as torch.compile cannot read them
