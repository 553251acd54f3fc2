"""Encodings that add a fixed function of distance to the logits."""

from typing import Literal

import torch
from torch import Tensor

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.distance_table import table_distances
from pe_lab.encodings.families.rotary import frequencies
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope m_h of every head (arXiv:2108.12409, section 3; other numbers of heads as in its code).

    2 ** (-8 (h+1) / H) if H is a power of two; otherwise the slopes of the next lower power of two, then every second
    slope of the next higher one.
    """
    power = 1 << (num_heads.bit_length() - 1)

    def geometric(n: int) -> list[float]:
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]

    return geometric(power) + geometric(2 * power)[::2][: num_heads - power]


def harmonic_slopes(num_heads: int) -> list[float]:
    """Return the slope 1, 1/2, 1/3 ... of every head (arXiv:2506.16640, its code: slopes of type "linear")."""
    return [1 / h for h in range(1, num_heads + 1)]


class Alibi(PositionalEncoding):
    """Attention with linear biases (Press et al. 2022, arXiv:2108.12409, section 3).

    Adds -m_h |i - j| to the scaled logits, symmetric if bidirectional. Nothing is learned; m falls over heads. It has
    no absolute position.

    Args:
        slopes: the kind of slopes. "geometric": as in the paper; "harmonic": m_h = 1/h for heads 1, 2, ..., H, the
            slopes of NAPE's heads with a bias (arXiv:2506.16640, its code).

    Raises:
        ValueError: slopes out of range.
    """

    neutral = {"slopes": "geometric"}
    slope_bits: Tensor

    def __init__(
        self, sizes: Sizes, name: str = "alibi", slopes: Literal["geometric", "harmonic"] = "geometric"
    ) -> None:
        super().__init__(sizes, name)
        self.of_heads = (alibi_slopes if slopes == "geometric" else harmonic_slopes)(sizes.num_heads)
        # on the model's device, as integers: a model that is cast to another dtype would round floating point
        bits = torch.tensor(self.of_heads, dtype=torch.float64).view(torch.int64)
        self.register_buffer("slope_bits", bits, persistent=False)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        if torch.compiler.is_exporting():  # ONNX cannot read integers as floating point
            slopes = torch.tensor(self.of_heads, dtype=torch.float64, device=h.device).to(dtype)
        else:
            slopes = self.slope_bits.to(h.device).view(torch.float64).to(dtype)
        return Terms(distance_bias=-slopes[:, None] * table_distances(layout.max_distance, h.device).abs().to(dtype))


class Sandwich(PositionalEncoding):
    """Sandwich: inner products of sinusoids as a bias (Chi et al. 2023, arXiv:2212.10356, the listing).

    Adds the inner product of two sinusoidal position vectors of 128 dimensions, sum over c < 64 of
    cos((i - j) 10000 ** (-2c / 128)), times H / (8 (h + 1)): a bias that falls like a logarithm of the distance, with
    small oscillations. Nothing is learned; symmetric if bidirectional.
    """

    dims = 128

    def __init__(self, sizes: Sizes, name: str = "sandwich") -> None:
        super().__init__(sizes, name)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        omega = frequencies(self.dims, 10_000.0, h.device)
        product = (table_distances(layout.max_distance, h.device)[:, None] * omega).cos().sum(-1)
        ratio = (
            torch.arange(1, self.sizes.num_heads + 1, dtype=torch.float64, device=h.device) * 8 / self.sizes.num_heads
        )
        return Terms(distance_bias=(product / ratio[:, None]).to(at_least_float32(h)))
