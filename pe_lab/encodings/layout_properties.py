"""Facts of a layout: what is known without reading its tensors, and properties that are computed once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeVar, overload

import torch
from torch import Tensor

PADDING = -1  # the segment of padding, which attends to itself only
UNMARKED = -1  # the mark of a token outside of what a dataset marks
LONG_SEQUENCE = 512  # tokens above which a CPU computes terms of pairs for some queries at a time
PROPERTY_NAMES = ("pos_range", "max_distance", "packed", "contiguous", "right_padded", "one_segment", "runs_on")
Owner = TypeVar("Owner")
T = TypeVar("T")


class StoredProperty(Generic[Owner, T]):
    """A property that is computed once and stored with its object, as by functools.cached_property.

    That one has a lock in Python 3.11, which torch.compile cannot trace.
    """

    def __init__(self, compute: Callable[[Owner], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, holder: None, owner: type) -> Self: ...

    @overload
    def __get__(self, holder: Owner, owner: type) -> T: ...

    def __get__(self, holder: Owner | None, owner: type) -> Self | T:
        if holder is None:
            return self
        value = self.compute(holder)
        object.__setattr__(holder, self.name, value)
        return value


@dataclass(frozen=True)
class KnownLayout:
    """What is known of a layout without reading its tensors; each sequence is one document, padded on the right.

    Attributes:
        pos, segment: the positions and the segments of the layout.
        pos_range: the smallest and the largest position; if not `whole`, bounds of them.
        whole: whether there is no padding, and the other facts are exact.
        runs_on: whether pos_i - pos_j = i - j.
        max_distance: the largest distance from a key; if not `whole`, a bound of it.
        packed, contiguous, right_padded, one_segment: the properties of the layout; if not `whole`, one_segment is
            False.
    """

    pos: Tensor = field(repr=False)
    segment: Tensor = field(repr=False)
    pos_range: tuple[int, int]
    whole: bool
    runs_on: bool
    max_distance: int = 0
    packed: bool = False
    contiguous: bool = True
    right_padded: bool = True

    @property
    def one_segment(self) -> bool:
        return self.whole

    def at(self, pos: Tensor, segment: Tensor, bounds: tuple[int, int]) -> "KnownLayout":
        """Return the same facts for other positions within these bounds."""
        return replace(self, pos=pos, segment=segment, pos_range=bounds, whole=False, runs_on=False)

    def continues(self, earlier: "KnownLayout") -> bool:
        """Return whether these are the next tokens of the same sequences."""
        on_lines = self.whole and earlier.whole and self.runs_on and earlier.runs_on
        return on_lines and self.pos_range[0] == earlier.pos_range[1] + 1

    def before(self, keys: "KnownLayout") -> "KnownLayout":
        """Return these facts with the distances to earlier keys, whose positions are not larger."""
        return replace(self, max_distance=self.pos_range[1] - keys.pos_range[0])


def fact(compute: Callable[["LayoutProperties"], T]) -> "StoredProperty[LayoutProperties, T]":
    """Make a property that is computed once as a Python number: from known facts if possible, otherwise on the CPU.

    A compiled or exported model cannot read tensors: there, bounds that are known take the place of the numbers.
    """
    name = compute.__name__

    def find(layout: "LayoutProperties") -> T:
        if layout.source is not layout:
            value: T = getattr(layout.source, name)  # computed there, so that no device is waited for
            return value
        structure, of_keys = layout.structure, layout.of_keys.structure
        if structure is None or of_keys is None:
            if torch.compiler.is_exporting():
                raise ValueError(
                    f"{name} of a layout must be known when a model is exported, and its tensors cannot be read then: "
                    f"make the layout by Layout.whole or Layout.of_lengths"
                )
            return compute(layout)
        if not (structure.whole and of_keys.whole) and not torch.compiler.is_compiling():
            return compute(layout)
        bounds: T = getattr(structure.before(of_keys), name)
        return bounds

    find.__name__, find.__doc__ = name, compute.__doc__
    return StoredProperty(find)


class LayoutProperties:
    """Properties that follow from the positions, segments and keys of a layout."""

    pos: Tensor
    segment: Tensor
    causal: bool
    structure: KnownLayout | None
    marks: Tensor | None
    start: int | None

    @property
    def of_keys(self) -> "LayoutProperties":
        """The layout of the keys."""
        raise NotImplementedError

    @property
    def source(self) -> "LayoutProperties":
        """The layout that computes the facts."""
        raise NotImplementedError

    @property
    def earlier(self) -> int:
        """The number of keys before the first query's own: S - T, but in a block."""
        return self.of_keys.segment.shape[1] - self.segment.shape[1] if self.start is None else self.start

    @StoredProperty
    def allowed(self) -> Tensor:
        """Whether query i may attend to key j, bool [B, 1, T, S]."""
        same_document = self.segment[:, None, :, None] == self.of_keys.segment[:, None, None, :]
        return same_document.tril(self.earlier) if self.causal else same_document

    @property
    def distance(self) -> Tensor:
        """The distances pos_i - pos_j of query i and key j, [B|1, T, S], or [B|1, T, S, axes] on a grid."""
        return self.pos[:, :, None] - self.of_keys.pos[:, None, :]

    @property
    def all_allowed(self) -> bool:
        """Whether there is one query, which may attend to every key."""
        return self.segment.shape[1] == 1 and self.of_keys.one_segment

    @fact
    def pos_range(self) -> tuple[int, int]:
        """The smallest and the largest position, without padding; of real ones, integers around them."""
        pos = self.pos.expand(*self.segment.shape, *self.pos.shape[2:])[self.segment != PADDING]
        return (math.floor(pos.min().item()), math.ceil(pos.max().item())) if len(pos) else (0, 0)

    @fact
    def max_distance(self) -> int:
        """The largest |pos_i - pos_j| of tokens that may attend to each other, on any axis."""
        pos = self.flat_pos
        is_token = (self.segment != PADDING)[..., None]
        limit = torch.iinfo(pos.dtype).max // 2
        keys = self.of_keys.flat_pos
        is_key = (self.of_keys.segment != PADDING)[..., None]
        if not self.packed:
            ahead = pos.where(is_token, -limit).amax(1) - keys.where(is_key, limit).amin(1)
            # a key can be ahead of a later query: in a new row of a grid, columns begin again at 0
            behind = keys.where(is_key, -limit).amax(1) - pos.where(is_token, limit).amin(1)
            return max(0, int(ahead.max()), int(behind.max()))
        if self.of_keys is self and pos.shape[1] > LONG_SEQUENCE:
            return self._max_document_distance(pos)
        distance = (pos[:, :, None] - keys[:, None, :]).abs()
        return int(distance.where(self.allowed[:, 0, :, :, None] & is_token[:, :, None], 0).max())

    def _max_document_distance(self, pos: Tensor) -> int:
        """Return max_distance in O(T): the largest difference of positions [B, T, axes] in one document."""
        ids, document = self.segment.unique(return_inverse=True)
        document = document[..., None].expand_as(pos)
        empty = pos.new_zeros(len(pos), len(ids), pos.shape[2])
        low = empty.scatter_reduce(1, document, pos, "amin", include_self=False)
        high = empty.scatter_reduce(1, document, pos, "amax", include_self=False)
        return int((high - low)[:, ids != PADDING].max())

    @StoredProperty
    def largest_mark(self) -> int:
        """The largest mark of a token; without marks or tokens, UNMARKED."""
        if self.source is not self:
            return self.source.largest_mark
        return UNMARKED if self.marks is None or not self.marks.numel() else int(self.marks.max())

    @property
    def flat_pos(self) -> Tensor:
        """The positions of every sequence, [B, T, axes], one axis on a line."""
        return self.pos.expand(*self.segment.shape, *self.pos.shape[2:]).reshape(*self.segment.shape, -1)

    @StoredProperty
    def document_length(self) -> Tensor:
        """The number of tokens in the document of each token, [B, T]."""
        if torch.compiler.is_exporting():  # ONNX has no searchsorted
            return (self.segment[:, :, None] == self.segment[:, None, :]).sum(-1)
        ordered, segment = self.segment.sort(-1).values, self.segment.contiguous()
        after: Tensor = torch.searchsorted(ordered, segment, right=True)
        return after - torch.searchsorted(ordered, segment)

    @StoredProperty
    def rank(self) -> Tensor:
        """The number of tokens before each in its document, [B, T]; for padding, of padding before it."""
        if self.of_keys is not self:
            return self.of_keys.rank[:, self.earlier : self.earlier + self.segment.shape[1]]
        if torch.compiler.is_exporting():  # ONNX has no searchsorted
            return (self.segment[:, :, None] == self.segment[:, None, :]).tril(-1).sum(-1)
        ordered, slot = self.segment.sort(stable=True, dim=-1)
        first = torch.searchsorted(ordered, self.segment.contiguous())
        sorted_slot = torch.arange(slot.shape[1], device=slot.device).expand_as(slot)
        return torch.empty_like(slot).scatter_(1, slot, sorted_slot) - first

    @StoredProperty
    def key_count(self) -> Tensor:
        """The number of keys that each query may attend to, [B, T]; computed in O(T log T)."""
        if not self.causal:
            return self.document_length
        if self.segment.shape[1] == 1:  # nothing is sorted for the only token of a step of decoding
            return (self.of_keys.segment == self.segment).sum(-1, keepdim=True)
        return self.rank + 1

    @fact
    def packed(self) -> bool:
        """Whether a sequence has keys of more than one document."""
        if self.of_keys is not self:
            return self.of_keys.packed
        is_token = self.segment != PADDING
        first = self.segment.where(is_token, torch.iinfo(self.segment.dtype).min).amax(1, keepdim=True)
        return bool(((self.segment != first) & is_token).any())

    @fact
    def contiguous(self) -> bool:
        """Whether every document is in one piece, without padding or other documents in between."""
        if self.of_keys is not self:
            return self.of_keys.contiguous

        def runs(segment: Tensor) -> Tensor:
            begins = segment.diff(dim=1, prepend=segment[:, :1] - 1) != 0
            return (begins & (segment != PADDING)).sum(1)

        return bool((runs(self.segment) == runs(self.segment.sort(-1).values)).all())

    @fact
    def right_padded(self) -> bool:
        """Whether every sequence is one document with its padding, if any, at the end."""
        is_token = self.segment != PADDING
        return not self.packed and not bool((is_token[:, 1:] & ~is_token[:, :-1]).any())

    @fact
    def one_segment(self) -> bool:
        """Whether every sequence is one document without padding."""
        return bool((self.segment == self.segment[:, :1]).all())

    @fact
    def runs_on(self) -> bool:
        """Whether pos_i - pos_j = i - j for every two tokens of a document; earlier tokens of a cache do not count."""
        if self.pos.dim() == 3:
            return False
        start = (self.pos - torch.arange(self.pos.shape[1], device=self.pos.device)).expand_as(self.segment)
        ids, document = self.segment.unique(return_inverse=True)
        empty = start.new_zeros(len(document), len(ids))
        low = empty.scatter_reduce(1, document, start, "amin", include_self=False)
        high = empty.scatter_reduce(1, document, start, "amax", include_self=False)
        return bool(((low == high) | (ids == PADDING)).all())
