"""Encodings added to the token embedding."""

import torch
from torch import Tensor, nn

from pe_lab.config import require
from pe_lab.encodings.base import Layout, PositionalEncoding, Sizes, at_least_float32


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


class Sinusoidal(PositionalEncoding):
    """Fixed sinusoids added to the token embedding (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    Nothing is learned; any position has a value. Its lanes are of size 1: on embeddings much smaller than that it
    drowns the token.

    Args:
        theta: > 0; wavelengths run from 2 pi to 2 pi theta.

    Raises:
        ValueError: theta out of range.
    """

    def __init__(self, sizes: Sizes, name: str = "sinusoidal", theta: float = 10_000.0) -> None:
        super().__init__(sizes, name)
        self.theta = require("pe.theta", theta)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + sinusoid(layout.pos, self.sizes.width, self.theta, at_least_float32(x)).to(x.dtype)


class Learnable(PositionalEncoding):
    """A trainable vector per position, added to the token embedding (Devlin et al. 2019, arXiv:1810.04805).

    Starts as N(0, 0.02^2). It has no value beyond its table, and says so instead of inventing one.

    Args:
        max_len: rows of the table, >= 1.

    Raises:
        ValueError: max_len out of range or below the training length; later, a position < 0 or >= max_len.
    """

    std = 0.02

    def __init__(self, sizes: Sizes, name: str = "learnable", max_len: int = 512) -> None:
        super().__init__(sizes, name)
        if require("pe.max_len", max_len) < sizes.length:
            raise ValueError(
                f"pe.max_len must be at least the length of the sequences, got pe.max_len={max_len}, "
                f"length={sizes.length}"
            )
        self.table = nn.Parameter(torch.empty(max_len, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        low, high = layout.pos_range
        if low < 0 or high >= len(self.table):
            raise ValueError(
                f"{self.name} has positions 0 to {len(self.table) - 1}: position {low if low < 0 else high} is beyond "
                f"its table (raise pe.max_len and train again)"
            )
        # padding may stand at any position: it never counts, but must not index outside
        return x + nn.functional.embedding(layout.pos.clamp(0, len(self.table) - 1), self.table).to(x.dtype)


class SinInit(Learnable):
    """A trainable table that starts as `sinusoidal`, added to the token embedding.

    Args:
        theta: > 0, of the sinusoids at the start.
        max_len: rows of the table, >= 1.

    Raises:
        ValueError: as Learnable; theta out of range.
    """

    def __init__(self, sizes: Sizes, name: str = "sininit", theta: float = 10_000.0, max_len: int = 512) -> None:
        self.theta = require("pe.theta", theta)
        super().__init__(sizes, name, max_len)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            pos = torch.arange(len(self.table))
            self.table.copy_(sinusoid(pos, self.sizes.width, self.theta, torch.float32))
