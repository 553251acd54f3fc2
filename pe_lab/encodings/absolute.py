"""Encodings that are a vector per position, put on the token embedding or on the attention's input."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, Sizes, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive

Place = Literal["input", "every_layer", "query_key"]
Combination = Literal["add", "concat"]


class Absolute(PositionalEncoding, ABC):
    """What a vector of width D per position has in common: where it enters, and how.

    Args:
        at: "input": on the token embedding, once. "every_layer": on the attention's input of every layer, not on the
            residual stream. "query_key": the same, but not on what goes to the values.
        combine: "add", or "concat": Linear(2D -> D) of both side by side.
        size: > 0, factor on the vectors.

    Raises:
        ValueError: at, combine or size out of range.
    """

    neutral = {"at": "input", "combine": "add", "size": 1.0}

    def __init__(
        self, sizes: Sizes, name: str, at: Place = "input", combine: Combination = "add", size: Positive = 1.0
    ) -> None:
        super().__init__(sizes, name)
        self.at = at
        self.size = size
        self.merge = nn.Linear(2 * sizes.width, sizes.width) if combine == "concat" else None

    @abstractmethod
    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """[B|1, T, D] one vector per position, before `size`; formed in dtype, or in the parameters' own."""

    def join(self, x: Tensor, layout: Layout) -> Tensor:
        """x [B, T, D] with the vectors."""
        with torch.autocast(x.device.type, enabled=False):
            vectors = self.vectors(layout, at_least_float32(x))
            if self.size != 1:
                vectors = self.size * vectors
            vectors = vectors.to(x.dtype)
        if self.merge is None:
            return x + vectors
        both = torch.cat((x, vectors.expand_as(x)), -1)
        return self.merge(both.to(self.merge.weight.dtype)).to(x.dtype)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return self.join(x, layout) if self.at == "input" else x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        if self.at == "input":
            return h, h
        joined = self.join(h, layout)
        return joined, h if self.at == "query_key" else joined


def sinusoid(pos: Tensor, width: int, theta: float, dtype: torch.dtype) -> Tensor:
    """Sinusoids of integer positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    Lane 2c is sin(pos * theta ** (-2c / width)), lane 2c + 1 the cosine.

    Args:
        pos: [...] integers.
        width: D, lanes; the last cosine is dropped when it is odd.
        theta: > 0.
        dtype: of the angles, float32 or float64.

    Returns:
        [..., D]
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=pos.device) / width
    angle = pos[..., None].to(dtype) * (theta**-exponent).to(dtype)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :width]


class Sinusoidal(Absolute):
    """Fixed sinusoids (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    Nothing is learned; any position has a value. Its lanes are sines of amplitude `size`: on embeddings much smaller
    than that it drowns the token. `sinusoidal_qk` is the same, given to queries and keys of every layer.

    Args:
        theta: > 0; wavelengths run from 2 pi to 2 pi theta.
        at, combine, size: as Absolute.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sinusoidal",
        theta: Positive = 10_000.0,
        at: Place = "input",
        combine: Combination = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)
        self.theta = theta

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return sinusoid(layout.pos, self.sizes.width, self.theta, dtype)


class Integer(Absolute):
    """Every lane is the position, trained on nothing: the naive baseline that outgrows the token.

    A LayerNorm takes away what all lanes share: at the input of a pre-norm model nothing is left of it, and the model
    is that of `none`. It is seen with model.norm=post, pe.at=every_layer or pe.combine=concat.

    Args:
        at, combine, size: as Absolute.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "integer",
        at: Place = "input",
        combine: Combination = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return layout.pos[..., None].to(dtype).expand(*layout.pos.shape, self.sizes.width)


class Normalized(Absolute):
    """Every lane is pos / (L - 1), L the tokens of this sequence, trained on nothing: a naive baseline.

    One position has another value in a sequence of another length; and a causal task learns from it how long the
    sequence will be. A sequence of one token has 0. Where `integer` is not seen, neither is this.

    Args:
        at, combine, size: as Absolute.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "normalized",
        at: Place = "input",
        combine: Combination = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        last = (layout.document_length - 1).clamp(min=1)
        return (layout.pos.to(dtype) / last)[..., None].expand(*last.shape, self.sizes.width)
