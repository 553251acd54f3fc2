"""Combinations of encodings: summed, by head, or by layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.merge import CannotCombineError, PartTerms, add_terms, terms_by_head
from pe_lab.encodings.options import NOT_EMPTY, POSITIVE_NUMBERS, WHOLE_NUMBERS, OptionError, prefix_errors
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

Make = Callable[[Sizes], PositionalEncoding]
Parts = Annotated["Sequence[Make]", NOT_EMPTY]
Counts = Annotated["Sequence[int]", WHOLE_NUMBERS]
Shares = Annotated["Sequence[float]", POSITIVE_NUMBERS]


class Combination(PositionalEncoding):
    """Base of encodings that are made of other encodings, its parts."""

    parts: nn.ModuleList

    def set_parts(self, parts: Sequence[PositionalEncoding]) -> None:
        """Register the parts and combine their properties.

        Raises:
            CannotCombineError: a part draws positions of its own; some parts read positions on a grid, others do not.
        """
        self.parts = nn.ModuleList(parts)
        self.lent: dict[int, tuple[PositionalEncoding]] = {}
        for part in parts:
            if part.draws_positions:
                raise CannotCombineError(
                    f"parts must take positions as they are, {part.name} draws its own: use pe={part.name} with "
                    f"pe.encoding={self.name}"
                )
        self.inherit(parts)
        if self.sizes.grid_width is not None:
            self._require_one_way_to_read_a_grid()

    def _require_one_way_to_read_a_grid(self) -> None:
        sizes, parts = self.sizes, self.members()
        with torch.device("cpu"):  # also where the parts are made without memory, on the meta device
            grid = Layout.whole(1, sizes.length, sizes.causal, sizes.grid_width)
            axes = [part.locate(grid).pos.dim() for part in parts]
        for part, axis in zip(parts, axes, strict=True):
            if axis != axes[0]:
                raise CannotCombineError(
                    f"parts must all take positions on a grid, or all read it row by row, got {parts[0].name} and "
                    f"{part.name}"
                )

    def members(self) -> list[PositionalEncoding]:
        """Return the parts."""
        members = [self.lent.get(i, (part,))[0] for i, part in enumerate(self.parts)]
        return [part for part in members if isinstance(part, PositionalEncoding)]

    def _share(self, index: int, part: PositionalEncoding) -> None:
        """Take a part of another layer, where its parameters are registered: a state dict has them once."""
        self.lent[index] = (part,)
        self.parts[index] = nn.Module()

    def constrain(self) -> None:
        for part in self.members():
            part.constrain()

    def share_parameters(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Combination)
        for index, (part, other) in enumerate(zip(self.members(), first.members(), strict=True)):
            if part.per_layer:
                part.share_parameters(other)
            else:
                self._share(index, other)

    def locate(self, layout: Layout) -> Layout:
        return self.located(self.members(), layout)

    @staticmethod
    def located(parts: Sequence[PositionalEncoding], layout: Layout) -> Layout:
        """Return the layout for the parts, after each part has checked it."""
        first, *_ = [part.locate(layout) for part in parts]
        return first

    def layouts(self, layout: Layout) -> list[tuple[PositionalEncoding, Layout]]:
        """Return each part with its layout, in which its stored tensors have separate names."""
        if layout.memory is None:
            return [(part, layout) for part in self.members()]
        return [(part, layout.remembering(layout.memory.part(str(i)))) for i, part in enumerate(self.members())]


class Sum(Combination):
    """Sum the terms of several encodings, such as a rotation and a bias, a decay or a window.

    `rope` with `alibi`, say, or with the gates of forgetting attention (arXiv:2503.02130).

    Vectors at the input are added one after the other. Biases, decays and relative values of attention are
    added; of two windows the smaller one holds. Of rotations, gains, gates, scales and other ways to weights than a
    softmax there is one at most, and one part at most changes the input of attention.

    Args:
        parts: callables that make the encodings; on the command line names, pe.parts=[rope,forgetting].

    Raises:
        ValueError: parts that cannot be added, both named.
    """

    def __init__(self, sizes: Sizes, name: str = "sum", *, parts: Parts) -> None:
        super().__init__(sizes, name)
        self.set_parts(_make_parts(parts, [sizes] * len(parts)))
        mixing = [part.name for part in self.members() if part.mixes]
        if len(mixing) > 1:
            raise CannotCombineError(
                f"parts must have at most one that changes the input of attention, got {mixing[0]} and {mixing[1]}"
            )

    @property
    def embeds(self) -> bool:
        return any(part.embeds for part in self.members())

    @property
    def mixes(self) -> bool:
        return any(part.mixes for part in self.members())

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        for part, part_layout in self.layouts(layout):
            x = part.embed(x, part_layout)
        return x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        for part, part_layout in self.layouts(layout):
            if part.mixes:
                return part.mix(h, part_layout)
        return h, h

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        heads = self.sizes.num_heads
        return add_terms(
            [PartTerms(part.name, heads, part.terms(h, part_layout)) for part, part_layout in self.layouts(layout)],
            layout,
        )


class Heads(Combination):
    """Give each of several encodings some heads of every layer (NAPE, arXiv:2506.16640: half `alibi`, half `none`).

    A part is made for its own number of heads: the slopes of `alibi` are those of a model with so many.

    Args:
        parts: callables that make the encodings; on the command line names, pe.parts=[alibi,none].
        shares: positive numbers, the relative shares of the heads that the parts get; null: equal shares.

    Raises:
        ValueError: shares that do not make whole heads; a part that changes more than attention; parts whose heads
            cannot stand side by side, both named.
    """

    def __init__(self, sizes: Sizes, name: str = "heads", *, parts: Parts, shares: Shares | None = None) -> None:
        super().__init__(sizes, name)
        self.counts = _whole_heads(sizes.num_heads, [1.0] * len(parts) if shares is None else list(shares), len(parts))
        model_heads = sizes.heads_in_model
        part_sizes = [replace(sizes, num_heads=count, model_heads=model_heads) for count in self.counts]
        self.set_parts(_make_parts(parts, part_sizes))
        _require_none_embeds(self.members(), "all heads see")
        for part in self.members():
            if part.mixes:
                raise CannotCombineError(
                    f"parts must leave the input of attention alone, which all heads see, got {part.name}"
                )

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        layouts = zip(self.layouts(layout), self.counts, strict=True)
        parts = [PartTerms(part.name, count, part.terms(h, part_layout)) for (part, part_layout), count in layouts]
        return terms_by_head(parts, self.sizes.head_dim, layout)


class Interleave(Combination):
    """Alternate encodings by layer, such as three layers with rotations and one without (arXiv:2501.18795).

    Args:
        parts: callables that make the encodings; on the command line names, pe.parts=[rope,none].
        layers: how many layers in a row each part has, repeated over the layers of the model; null: one.

    Raises:
        ValueError: as many numbers of layers as parts are needed; a part that changes more than attention; later, a
            model with fewer layers than one round has, or than one round of this and of its parts has together.
    """

    per_layer = True

    def __init__(self, sizes: Sizes, name: str = "interleave", *, parts: Parts, layers: Counts | None = None) -> None:
        super().__init__(sizes, name)
        counts = [1] * len(parts) if layers is None else list(layers)
        if len(counts) != len(parts):
            raise OptionError(f"layers must be a number for each of {len(parts)} parts, got {counts}")
        pattern = [part for part, count in enumerate(counts) for _ in range(count)]
        self.index = pattern[sizes.layer % len(pattern)]
        self.is_first = sizes.layer == pattern.index(self.index)  # whether no earlier layer has this part
        if sizes.layer == 0:
            layers_of = [replace(sizes, layer=min(pattern.index(part), sizes.depth - 1)) for part in range(len(parts))]
            members = _make_parts(parts, layers_of)
        else:
            members = _make_parts([parts[self.index]], [sizes])
        _require_none_embeds(members, "all layers see")
        self.set_parts(members)
        self.period = lcm(len(pattern), self.period)
        self.originals = tuple(members) if sizes.layer == 0 else ()  # not registered here: other layers take them
        self.parts = nn.ModuleList(members[:1])

    @property
    def mixes(self) -> bool:
        return self.members()[0].mixes

    def constrain(self) -> None:
        self.members()[0].constrain()

    def share_parameters(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Interleave)
        original = first.originals[self.index]
        if self.is_first:
            self.parts[0] = original
        elif original.per_layer:
            self.members()[0].share_parameters(original)
        else:
            self._share(0, original)

    def locate(self, layout: Layout) -> Layout:
        return self.located(self.originals or self.members(), layout)

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return self.members()[0].mix(h, layout)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return self.members()[0].terms(h, layout)


def _make_parts(parts: Sequence[Make], sizes: Sequence[Sizes]) -> list[PositionalEncoding]:
    """Make the parts; errors name the part."""
    members = []
    for index, (make, part_sizes) in enumerate(zip(parts, sizes, strict=True)):
        with prefix_errors(f"parts[{index}]"):
            members.append(make(part_sizes))
    return members


def _require_none_embeds(parts: Sequence[PositionalEncoding], who: str) -> None:
    for part in parts:
        if part.embeds:
            raise CannotCombineError(
                f"parts must leave token embeddings alone, which {who}, got {part.name}: add it with pe=sum"
            )


def _whole_heads(num_heads: int, shares: list[float], parts: int) -> list[int]:
    """Return how many heads each part has.

    Raises:
        OptionError: there is not a share for each part, or the shares do not make whole heads.
    """
    if len(shares) != parts:
        raise OptionError(f"shares must be a number for each of {parts} parts, got {shares}")
    heads = [num_heads * share / sum(shares) for share in shares]
    counts = [round(count) for count in heads]
    if min(counts) < 1 or any(abs(count - exact) > 1e-6 for count, exact in zip(counts, heads, strict=True)):
        raise OptionError(
            f"shares must make whole heads of {num_heads}, got {', '.join(f'{n:g}' for n in heads)} heads"
        )
    return counts
