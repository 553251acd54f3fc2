"""Positions that are drawn at random, for any encoding that depends on positions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.table import require_enough_rows, require_in_table
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import Distance, OptionError, PositionCount, prefix_errors
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


@dataclass(frozen=True)
class RandomizedLayout(Layout):
    """A layout whose positions were drawn by `Randomized.locate`."""


@dataclass(frozen=True)
class ShiftedLayout(Layout):
    """A layout whose positions were shifted by `Shape.locate`.

    Attributes:
        drawn: whether the positions were shifted by random numbers, as in training.
        shift: the shift of all positions, if it was not drawn.
    """

    drawn: bool = field(default=False, kw_only=True)
    shift: int = field(default=0, kw_only=True)

    @property
    def unshifted(self) -> Layout:
        if self.drawn:
            return self
        return Layout(self.pos - self.shift, self.segment, self.causal, self.seed, marks=self.marks)


class AtDrawnPositions(PositionalEncoding):
    """Base of encodings that apply another encoding at positions drawn by `locate`.

    Args:
        encoding: a callable that makes the other encoding from sizes whose length is `positions`.
        positions: the number of positions that can be drawn.

    Attributes:
        located: the class of the layouts that `locate` returns.

    Raises:
        ValueError: an encoding that does not depend on positions, or draws them itself; later, a layout that was not
            returned by `locate`.
    """

    draws_positions = True
    located: ClassVar[type[Layout]]

    def __init__(
        self, sizes: Sizes, name: str, encoding: Callable[[Sizes], PositionalEncoding], positions: int
    ) -> None:
        super().__init__(sizes, name)
        with prefix_errors("encoding"):
            self.encoding = encoding(replace(sizes, length=positions, grid_width=None))
        blind = not self.encoding.reads_positions or type(self.encoding) is PositionalEncoding
        if blind or self.encoding.draws_positions:
            raise ValueError(f"{name} needs an encoding of positions on a line, got {self.encoding.name}")
        self.inherit([self.encoding])
        self.float_positions = False  # drawn positions are looked up by integers

    @property
    def embeds(self) -> bool:
        return self.encoding.embeds

    @property
    def mixes(self) -> bool:
        return self.encoding.mixes

    def constrain(self) -> None:
        self.encoding.constrain()

    def share_parameters(self, first: PositionalEncoding) -> None:
        assert isinstance(first, AtDrawnPositions)
        self.encoding.share_parameters(first.encoding)

    def _require_located(self, layout: Layout) -> None:
        if not isinstance(layout, self.located):
            raise ValueError(
                f"{self.name} draws positions in locate: call locate(layout) first and give the layout that it "
                f"returns to embed, mix and terms"
            )

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        self._require_located(layout)
        return self.encoding.embed(x, layout)

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        self._require_located(layout)
        return self.encoding.mix(h, layout)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        self._require_located(layout)
        return self.encoding.terms(h, layout)


class Randomized(AtDrawnPositions):
    """Another encoding at random increasing positions (Ruoss et al. 2023, arXiv:2305.16843, section 3).

    Position p becomes the p-th smallest of a sample without replacement from 0 ... max_len - 1. `locate` draws it once
    per batch, in training and in evaluation: from the layout's seed, the same on every device, or without a seed from
    torch's global generator. Positions and distances of longer sequences thus occur in training, but a distance no
    longer tells how many tokens lie between.

    Args:
        encoding: a callable that makes the other encoding from sizes whose length is max_len.
        max_len: the number of positions to draw from, >= the length of the sequences.

    Raises:
        ValueError: an option out of range; an encoding that does not depend on positions; later, a position beyond
            max_len, or a layout that was not returned by `locate`.
    """

    revision = 2
    located = RandomizedLayout
    whole_sequence = "it draws positions for the whole sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        max_len: PositionCount = 2048,
    ) -> None:
        require_enough_rows(max_len, sizes.length)
        super().__init__(sizes, name, encoding, max_len)
        self.max_len = max_len

    def fix_draws(self) -> None:
        """Take every third position, as far as there are so many."""
        draw = self.draw

        def fixed(count: int, seed: int | None = None) -> Tensor:
            return 3 * torch.arange(count) if 3 * count <= self.max_len else draw(count, seed)

        self.draw = fixed  # type: ignore[method-assign]

    def draw(self, count: int, seed: int | None = None) -> Tensor:
        """Draw increasing positions [count] from the seed; None: from torch's global generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return torch.randperm(self.max_len, generator=generator)[:count].sort().values

    def locate(self, layout: Layout) -> Layout:
        layout = super().locate(layout)
        require_in_table(self.name, layout, self.max_len)
        positions = self.draw(layout.pos_range[1] + 1, layout.seed)
        moved_layout = layout.moved(lambda pos: positions.to(pos.device)[pos.clamp(0, positions.shape[0] - 1)])
        if layout.structure is not None:
            structure = layout.structure.at(moved_layout.pos, moved_layout.segment, (0, self.max_len - 1))
            moved_layout = replace(moved_layout, structure=structure)
        return self.encoding.locate(moved_layout).as_kind(RandomizedLayout)


class Shape(AtDrawnPositions):
    """Another encoding at shifted positions (SHAPE, Kiyono et al. 2021, arXiv:2109.05644, and its released code).

    In training, k is added to all positions of a sequence, its documents included: k is drawn for each sequence of a
    batch from 0 ... max_shift - 1, from the layout's seed, the same on every device, or without a seed from torch's
    global generator. Nothing is added at random in evaluation: `locate` draws if the module is in training mode, as
    after `train()`, and shifts by the constant of `evaluate` otherwise, as after `eval()`; `drawn` of the layout that
    it returns says which. The paper shifts `sinusoidal`. An encoding that adds no vectors, which sees only distances,
    would see none of it and is refused.

    Args:
        encoding: a callable that makes the other encoding from sizes whose length is the training length + max_shift,
            or span.
        max_shift: the number of shifts to draw from, K >= 1; 10 to 500 in the released configurations. None: span is
            given.
        evaluate: the shift in evaluation: "max", K, as in the released code; "middle", K // 2; "zero".
        span: the number of positions in place of max_shift: shifts keep a sequence within 0 ... span - 1, so that short
            sequences have more of them (Huang et al. 2024, arXiv:2410.02140); `evaluate` is then "zero".

    Raises:
        ValueError: an option out of range; max_shift and span, or neither; an encoding that adds no vectors of
            positions; later, a layout that was not returned by `locate`, or a cache in training mode without a seed,
            where each pass would have other shifts.
    """

    located = ShiftedLayout
    neutral: ClassVar[dict[str, object]] = {"span": None}

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        max_shift: Distance | None = 500,
        evaluate: Literal["max", "middle", "zero"] = "max",
        span: PositionCount | None = None,
    ) -> None:
        if span is None:
            if max_shift is None:
                raise OptionError("max_shift must be given where span is null, got null")
            largest, positions = max_shift, sizes.length + max_shift
        else:
            if max_shift is not None:
                raise OptionError(f"max_shift must be null where span is given, {span}, got {max_shift}")
            if evaluate != "zero":
                raise OptionError(f"evaluate must be zero where span is given, {span}, got {evaluate}")
            if span < sizes.length:
                raise OptionError(f"span must be at least the length of the sequences, {sizes.length}, got {span}")
            largest, positions = span - 1, span
        super().__init__(sizes, name, encoding, positions)
        if not (self.embeds or self.mixes):
            raise ValueError(
                f"{name} needs an encoding that adds vectors of positions, got {self.encoding.name}: a shift of all "
                f"positions would not change it"
            )
        self.span = span
        self.max_shift = largest
        self.evaluated_at = {"max": largest, "middle": largest // 2, "zero": 0}[evaluate]

    def fix_draws(self) -> None:
        """Shift every sequence by 3, or by the largest shift if that is less."""
        shift = min(3, self.max_shift)
        self.draw = lambda count, seed=None: torch.full((count,), shift)  # type: ignore[method-assign]

    def draw(self, count: int, seed: int | None = None) -> Tensor:
        """Draw the shifts [count] of sequences from the seed; None: from torch's global generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        most = self.max_shift if self.span is None else 2**40  # `_within` reduces it to the room of each sequence
        return torch.randint(most, (count,), generator=generator)

    def locate(self, layout: Layout) -> Layout:
        if isinstance(layout, ShiftedLayout) and layout.drawn:  # these tokens follow ones with drawn shifts
            return layout
        layout = super().locate(layout)
        drawn = self.training
        count = len(layout.segment) if drawn else 1
        shift = self.draw(count, layout.seed) if drawn else torch.full((1,), self.evaluated_at)
        if drawn and self.span is not None:
            shift = self._within(shift, layout)
        most = self.span - 1 if drawn and self.span is not None else None  # only padding can be beyond
        shifted = layout.moved(lambda pos: pos + shift.to(pos.device)[:, None])
        if most is not None:
            shifted = shifted.moved(lambda pos: pos.clamp(max=most))
        if layout.structure is not None:
            low, high = layout.structure.pos_range
            bounds = (low, high + self.max_shift) if drawn else (low + self.evaluated_at, high + self.evaluated_at)
            if drawn and self.span is not None:
                bounds = (low, self.span - 1)
            shifted = replace(shifted, structure=layout.structure.at(shifted.pos, shifted.segment, bounds))
        shift_of_all = 0 if drawn else self.evaluated_at
        return self.encoding.locate(shifted).as_kind(ShiftedLayout, drawn=drawn, shift=shift_of_all)

    def _within(self, shift: Tensor, layout: Layout) -> Tensor:
        """Return shifts [B] for which the last token of each sequence is still in the span; `shift` is any number."""
        last = layout.pos.masked_fill(layout.segment == PADDING, 0).amax(-1)
        room: Tensor = (self.max_shift + 1 - last).clamp(min=1)
        return shift.to(last.device) % room

    def _require_located(self, layout: Layout) -> None:
        super()._require_located(layout)
        if layout.memory is not None and getattr(layout, "drawn", False) and layout.seed is None:
            raise ValueError(
                f"{self.name} draws other shifts in each pass of training: call eval() before decoding with a cache, "
                f"or give layouts a seed"
            )
