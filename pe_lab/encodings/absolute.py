"""Encodings that are a vector per position, put on the token embedding or on the attention's input."""

import math

import torch
from torch import Tensor, nn

from pe_lab.config import require
from pe_lab.encodings.base import Layout, PositionalEncoding, Sizes, at_least_float32


class Absolute(PositionalEncoding):
    """What a vector of width D per position has in common: where it enters, and how.

    Args:
        at: "input": on the token embedding, once. "every_layer": on the attention's input of every layer, not on the
            residual stream. "query_key": the same, but not on what goes to the values.
        combine: "add", or "concat": Linear(2D -> D) of both side by side.

    Raises:
        ValueError: at or combine out of range.
    """

    neutral = {"at": "input", "combine": "add"}

    def __init__(self, sizes: Sizes, name: str, at: str = "input", combine: str = "add") -> None:
        super().__init__(sizes, name)
        self.at = require("pe.at", at)
        concat = require("pe.combine", combine) == "concat"
        self.merge = nn.Linear(2 * sizes.width, sizes.width) if concat else None

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """[B|1, T, D] one vector per position; formed in dtype, or in the parameters' own."""
        raise NotImplementedError

    def join(self, x: Tensor, layout: Layout) -> Tensor:
        """x [B, T, D] with the vectors."""
        with torch.autocast(x.device.type, enabled=False):
            vectors = self.vectors(layout, at_least_float32(x)).to(x.dtype)
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

    Nothing is learned; any position has a value. Its lanes are of size 1: on embeddings much smaller than that it
    drowns the token. `sinusoidal_qk` is the same, given to queries and keys of every layer.

    Args:
        theta: > 0; wavelengths run from 2 pi to 2 pi theta.
        at, combine: as Absolute.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sinusoidal",
        theta: float = 10_000.0,
        at: str = "input",
        combine: str = "add",
    ) -> None:
        super().__init__(sizes, name, at, combine)
        self.theta = require("pe.theta", theta)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return sinusoid(layout.pos, self.sizes.width, self.theta, dtype)


class Table(Absolute):
    """What tables with a row per position have in common: they end, and say so instead of inventing a value.

    Args:
        max_len: rows, >= the training length.
        at, combine: as Absolute.
        share: "layers": one table for all layers; "none": a table per layer, which `at` must then name.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    neutral = {**Absolute.neutral, "share": "layers"}
    table: Tensor

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        max_len: int = 512,
        at: str = "input",
        combine: str = "add",
        share: str = "layers",
    ) -> None:
        super().__init__(sizes, name, at, combine)
        require_rows(max_len, sizes.length)
        if share not in ("layers", "none"):
            raise ValueError(f"pe.share must be one of layers, none for pe={name}, got {share!r}")
        self.per_layer = share == "none"
        if self.per_layer and at == "input":
            raise ValueError("pe.share=none needs pe.at=every_layer or query_key, got pe.at=input: it is added once")
        self.make(torch.empty(max_len, sizes.width))
        self.reset_parameters()

    def make(self, table: Tensor) -> None:
        """Keep the table [max_len, D] as a parameter."""
        self.table = nn.Parameter(table)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        require_in_table(self.name, layout, len(self.table))
        # padding may stand at any position: it never counts, but must not index outside
        return self.rows(layout.pos.clamp(0, len(self.table) - 1))

    def rows(self, pos: Tensor) -> Tensor:
        """[B|1, T, D] the rows of positions that the table has."""
        return nn.functional.embedding(pos, self.table)


def require_rows(max_len: int, length: int) -> None:
    """Raises ValueError if there are fewer positions than training needs."""
    if require("pe.max_len", max_len) < length:
        raise ValueError(
            f"pe.max_len must be at least the length of the sequences, got pe.max_len={max_len}, length={length}"
        )


def require_in_table(name: str, layout: Layout, max_len: int) -> None:
    """Raises ValueError if a token stands outside of 0 ... max_len - 1."""
    low, high = layout.pos_range
    if low < 0 or high >= max_len:
        raise ValueError(
            f"{name} has positions 0 to {max_len - 1}: position {low if low < 0 else high} is beyond "
            f"its table (raise pe.max_len and train again)"
        )


class Learnable(Table):
    """A trainable vector per position (Devlin et al. 2019, arXiv:1810.04805).

    Starts as N(0, 0.02^2). It has no value beyond its table. `learnable_per_layer` is the same with a table in every
    layer, given to queries, keys and values.

    Args:
        max_len, at, combine, share: as Table.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    std = 0.02

    def __init__(
        self,
        sizes: Sizes,
        name: str = "learnable",
        max_len: int = 512,
        at: str = "input",
        combine: str = "add",
        share: str = "layers",
    ) -> None:
        super().__init__(sizes, name, max_len, at, combine, share)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)


class SinInit(Table):
    """A trainable table that starts as `sinusoidal`.

    Args:
        theta: > 0, of the sinusoids at the start.
        max_len, at, combine, share: as Table.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sininit",
        theta: float = 10_000.0,
        max_len: int = 512,
        at: str = "input",
        combine: str = "add",
        share: str = "layers",
    ) -> None:
        self.theta = require("pe.theta", theta)
        super().__init__(sizes, name, max_len, at, combine, share)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            pos = torch.arange(len(self.table))
            self.table.copy_(sinusoid(pos, self.sizes.width, self.theta, torch.float32))


class Random(Table):
    """A fixed random vector per position, U(-1, 1), drawn with the initial weights and never trained: a baseline.

    It tells positions apart and nothing else about them: near ones are no more alike than far ones.

    Args:
        max_len, at, combine: as Table.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    neutral = Absolute.neutral

    def __init__(
        self, sizes: Sizes, name: str = "random", max_len: int = 512, at: str = "input", combine: str = "add"
    ) -> None:
        super().__init__(sizes, name, max_len, at, combine)

    def make(self, table: Tensor) -> None:
        self.register_buffer("table", table)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.table, -1, 1)


class Integer(Absolute):
    """Every lane is the position, trained on nothing: the naive baseline that outgrows the token.

    A LayerNorm takes away what all lanes share: at the input of a pre-norm model nothing is left of it, and the model
    is that of `none`. It is seen with model.norm=post, pe.at=every_layer or pe.combine=concat.

    Args:
        at, combine: as Absolute.
    """

    def __init__(self, sizes: Sizes, name: str = "integer", at: str = "input", combine: str = "add") -> None:
        super().__init__(sizes, name, at, combine)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return layout.pos[..., None].to(dtype).expand(*layout.pos.shape, self.sizes.width)


class Normalized(Absolute):
    """Every lane is pos / (L - 1), L the tokens of this sequence, trained on nothing: a naive baseline.

    One position has another value in a sequence of another length; and a causal task learns from it how long the
    sequence will be. A sequence of one token has 0. Where `integer` is not seen, neither is this.

    Args:
        at, combine: as Absolute.
    """

    def __init__(self, sizes: Sizes, name: str = "normalized", at: str = "input", combine: str = "add") -> None:
        super().__init__(sizes, name, at, combine)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        last = (layout.document_length - 1).clamp(min=1)
        return (layout.pos.to(dtype) / last)[..., None].expand(*last.shape, self.sizes.width)


class Continuous(Absolute):
    """An MLP of the position, trained: Linear(1 -> h), ReLU, Linear(h -> h), ReLU, Linear(h -> D) of pos / scale.

    Any position has a value; beyond training it is whatever the MLP extrapolates.

    Args:
        hidden: h >= 1.
        scale: > 0, the position that is taken as 1; None: the training length.
        at, combine: as Absolute.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "continuous",
        hidden: int = 128,
        scale: float | None = None,
        at: str = "input",
        combine: str = "add",
    ) -> None:
        super().__init__(sizes, name, at, combine)
        self.scale = require("pe.scale", scale) or sizes.length
        self.mlp = nn.Sequential(
            nn.Linear(1, require("pe.hidden", hidden)),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, sizes.width),
        )

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return self.mlp(layout.pos[..., None].to(self.mlp[0].weight.dtype) / self.scale)


class Fourier(Absolute):
    """Learned Fourier features (Li et al. 2021, arXiv:2106.02795, algorithm 1).

    F = [cos x W_r, sin x W_r] / sqrt(|F|), then Linear, GELU, Linear, with x = 2 pi pos / training length and W_r
    trained from N(0, gamma^-2).

    Args:
        features: |F|, even.
        hidden: >= 1, between the two linear layers.
        gamma: > 0, the standard deviation of W_r at the start is 1 / gamma.
        at, combine: as Absolute.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "fourier",
        features: int = 384,
        hidden: int = 32,
        gamma: float = 1.0,
        at: str = "input",
        combine: str = "add",
    ) -> None:
        super().__init__(sizes, name, at, combine)
        self.gamma = require("pe.gamma", gamma)
        self.frequency = nn.Parameter(torch.empty(require("pe.features", features) // 2))
        self.mlp = nn.Sequential(
            nn.Linear(features, require("pe.hidden", hidden)), nn.GELU(), nn.Linear(hidden, sizes.width)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequency, std=1 / self.gamma)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        x = layout.pos[..., None].to(self.frequency.dtype) * (2 * math.pi / self.sizes.length)
        angle = x * self.frequency
        return self.mlp(torch.cat((angle.cos(), angle.sin()), -1) / math.sqrt(2 * len(self.frequency)))
