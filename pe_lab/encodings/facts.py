"""Facts of a layout: what of it is known without reading its tensors, and properties that are computed once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeVar, overload

from torch import Tensor

Owner = TypeVar("Owner")
T = TypeVar("T")


class Stored(Generic[Owner, T]):
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
        found = self.compute(holder)
        object.__setattr__(holder, self.name, found)
        return found


@dataclass(frozen=True)
class Known:
    """What is known of a layout without reading its tensors: a sequence is one document, padded on the right if at all.

    Attributes:
        pos, segment: of the layout.
        pos_range: the smallest and the largest position; if not `whole`, bounds of them.
        whole: whether there is no padding, and the other facts are exact.
        runs_on: whether pos_i - pos_j = i - j.
        max_distance: the largest distance from a key; if not `whole`, a bound of it.
        packed, right_padded, one_segment: as of a layout; if not `whole`, one_segment is False.
    """

    pos: Tensor = field(repr=False)
    segment: Tensor = field(repr=False)
    pos_range: tuple[int, int]
    whole: bool
    runs_on: bool
    max_distance: int = 0
    packed: bool = False
    right_padded: bool = True

    @property
    def one_segment(self) -> bool:
        return self.whole

    def at(self, pos: Tensor, segment: Tensor, bounds: tuple[int, int]) -> "Known":
        """Return what is known where positions are others, within bounds."""
        return replace(self, pos=pos, segment=segment, pos_range=bounds, whole=False, runs_on=False)

    def continues(self, earlier: "Known") -> bool:
        """Return whether these are the next tokens of the same sequences."""
        on_lines = self.whole and earlier.whole and self.runs_on and earlier.runs_on
        return on_lines and self.pos_range[0] == earlier.pos_range[1] + 1

    def before(self, keys: "Known") -> "Known":
        """Return these with the distances from keys, whose positions are no larger."""
        return replace(self, max_distance=self.pos_range[1] - keys.pos_range[0])
