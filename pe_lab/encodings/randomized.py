"""Random increasing positions, for any encoding that depends on positions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positions, within
from pe_lab.encodings.table import require_in_table, require_rows


@dataclass(frozen=True)
class RandomizedLayout(Layout):
    """A layout whose positions were drawn by `Randomized.locate`."""


class Randomized(PositionalEncoding):
    """Another encoding at random increasing positions (Ruoss et al. 2023, arXiv:2305.16843, section 3).

    Position p becomes the p-th smallest of a sample without replacement from 0 ... max_len - 1. `locate` draws it once
    per batch, in training and in evaluation: from the layout's seed, the same on every device, or without a seed from
    torch's global generator. Positions and distances of longer sequences thus occur in training, but a distance no
    longer tells how many tokens lie between.

    Args:
        encoding: makes the other encoding from sizes whose length is max_len.
        max_len: positions to draw from, >= the length of the sequences.

    Raises:
        ValueError: an option out of range; an encoding that does not depend on positions; later, a position beyond
            max_len, or a layout that was not returned by `locate`.
    """

    revision = 2
    draws_positions = True
    whole_sequence = "it draws positions for the whole sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        max_len: Positions = 2048,
    ) -> None:
        super().__init__(sizes, name)
        require_rows(max_len, sizes.length)
        self.max_len = max_len
        with within("encoding"):
            self.encoding = encoding(replace(sizes, length=max_len, grid_width=None))
        blind = not self.encoding.reads_positions or type(self.encoding) is PositionalEncoding
        if blind or isinstance(self.encoding, Randomized):
            raise ValueError(f"{name} needs an encoding of positions on a line, got {self.encoding.name}")
        for nature in ("reads_content", "per_layer", "period", "causal_only"):
            setattr(self, nature, getattr(self.encoding, nature))

    @property
    def embeds(self) -> bool:
        return self.encoding.embeds

    @property
    def mixes(self) -> bool:
        return self.encoding.mixes

    def draw(self, count: int, seed: int | None = None) -> Tensor:
        """Draw increasing positions [count] from the seed; None: from torch's global generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return torch.randperm(self.max_len, generator=generator)[:count].sort().values

    def constrain(self) -> None:
        self.encoding.constrain()

    def follow(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Randomized)
        self.encoding.follow(first.encoding)

    def locate(self, layout: Layout) -> Layout:
        layout = super().locate(layout)
        require_in_table(self.name, layout, self.max_len)
        drawn = self.draw(layout.pos_range[1] + 1, layout.seed)
        moved = layout.moved(lambda pos: drawn.to(pos.device)[pos.clamp(0, drawn.shape[0] - 1)])
        if layout.known is not None:
            known = layout.known.at(moved.pos, moved.segment, (0, self.max_len - 1))
            moved = replace(moved, known=known)
        located = self.encoding.locate(moved)
        return RandomizedLayout(
            located.pos, located.segment, located.causal, located.seed, origin=located.origin, known=located.known
        )

    def _require_located(self, layout: Layout) -> None:
        if not isinstance(layout, RandomizedLayout):
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
