"""Encodings that give every position a vector and add it to token embeddings or to the input of attention."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import angles
from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.sizes import Sizes

Place = Literal["input", "every_layer", "query_key"]
CombineMethod = Literal["add", "concat"]


class Absolute(PositionalEncoding, ABC):
    """Base of encodings with a vector of width D per position: where and how it enters the model.

    Args:
        at: where the vectors enter. "input": the token embedding, once. "every_layer": the input of attention in every
            layer, not the residual stream. "query_key": the same, for queries and keys only.
        combine: how the vectors enter: "add", or "concat", Linear(2D -> D) of the concatenation.
        size: a factor on the vectors, > 0.

    Raises:
        ValueError: at, combine or size out of range.
    """

    absolute = True
    neutral = {"at": "input", "combine": "add", "size": 1.0}
    start_scale: ClassVar[str | None] = "size"

    def __init__(
        self, sizes: Sizes, name: str, at: Place = "input", combine: CombineMethod = "add", size: Positive = 1.0
    ) -> None:
        super().__init__(sizes, name)
        self.at = at
        self.size = size
        self.merge = nn.Linear(2 * sizes.width, sizes.width) if combine == "concat" else None

    @abstractmethod
    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """Return one vector per token, [B|1, T, D], before `size`; in `dtype` or in the dtype of the parameters."""

    def join(self, x: Tensor, layout: Layout) -> Tensor:
        """Combine x [B, T, D] with the vectors."""
        with torch.autocast(x.device.type, enabled=False):
            vectors = self.vectors(layout, at_least_float32(x))
            if self.size != 1:
                vectors = self.size * vectors
            vectors = vectors.to(x.dtype)
        if self.merge is None:
            return x + vectors
        concatenation = torch.cat((x, vectors.expand_as(x)), -1)
        merged: Tensor = self.merge(concatenation.to(self.merge.weight.dtype))
        return merged.to(x.dtype)

    @property
    def embeds(self) -> bool:
        return self.at == "input"

    @property
    def mixes(self) -> bool:
        return self.at != "input"

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return self.join(x, layout) if self.at == "input" else x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        if self.at == "input":
            return h, h
        joined = self.join(h, layout)
        return joined, h if self.at == "query_key" else joined


def sinusoid(pos: Tensor, width: int, theta: float, dtype: torch.dtype) -> Tensor:
    """Return sinusoids of integer positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    Dimension 2c is sin(pos * theta ** (-2c / width)), dimension 2c + 1 the cosine.

    Args:
        pos: integer positions, [...].
        width: the width D; if it is odd, the last cosine is left out.
        theta: the base of the frequencies, > 0.
        dtype: the dtype of the result, float32 or float64.

    Returns:
        The sinusoids, [..., D].
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=pos.device) / width
    angle = angles(pos[..., None], theta**-exponent, dtype)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :width]


class Sinusoidal(Absolute):
    """Fixed sinusoids (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    Nothing is learned; any position has a value. The amplitude is `size`: token embeddings that are much smaller than
    that hardly count. `sinusoidal_qk` adds the same vectors to the input of queries and keys in every layer.

    Args:
        theta: the base of the frequencies, > 0; wavelengths run from 2 pi to 2 pi theta.
        at, combine, size: the options of `Absolute`.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sinusoidal",
        theta: Positive = 10_000.0,
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)
        self.theta = theta

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return sinusoid(layout.pos, self.sizes.width, self.theta, dtype)


class Integer(Absolute):
    """Add the position to every dimension: a naive baseline that soon exceeds the token embedding.

    Nothing is trained. LayerNorm subtracts what all dimensions share: at the input of a pre-norm model nothing is left
    and the model equals one with `none`. It has an effect in a post-norm model, with at="every_layer" or
    combine="concat".

    Args:
        at, combine, size: the options of `Absolute`.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "integer",
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return layout.pos[..., None].to(dtype).expand(*layout.pos.shape, self.sizes.width)


class Normalized(Absolute):
    """Add pos / (L - 1) to every dimension, with the length L of the sequence: a naive baseline.

    Nothing is trained. A position has different values in sequences of different lengths, and a causal model can infer
    the length of the sequence from it. A sequence of one token has 0. Without effect where `integer` has none.

    Args:
        at, combine, size: the options of `Absolute`.
    """

    whole_sequence = "positions are divided by the length of the sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "normalized",
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        last = (layout.document_length - 1).clamp(min=1)
        return (layout.pos.to(dtype) / last)[..., None].expand(*last.shape, self.sizes.width)
