"""Encodings that add a fixed function of distance to the logits."""

import torch
from torch import Tensor

from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.rotary import frequencies


def distances(reach: int, device: torch.device) -> Tensor:
    """Return the distances pos_i - pos_j that a table of reach R covers, -R ... R, [2R+1]."""
    return torch.arange(-reach, reach + 1, device=device)


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope m_h of every head (arXiv:2108.12409, section 3; other numbers of heads as in its code).

    2 ** (-8 (h+1) / H) if H is a power of two; otherwise the slopes of the next lower power of two, then every second
    slope of the next higher one.
    """
    power = 1 << (num_heads.bit_length() - 1)

    def geometric(n: int) -> list[float]:
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]

    return geometric(power) + geometric(2 * power)[::2][: num_heads - power]


class Alibi(PositionalEncoding):
    """Attention with linear biases (Press et al. 2022, arXiv:2108.12409, section 3).

    Adds -m_h |i - j| to the scaled logits, symmetric if bidirectional. Nothing is learned; m falls geometrically
    over heads. It has no absolute position.
    """

    slope_bits: Tensor

    def __init__(self, sizes: Sizes, name: str = "alibi") -> None:
        super().__init__(sizes, name)
        slopes = torch.tensor(alibi_slopes(sizes.num_heads), dtype=torch.float64)
        # on the model's device, as integers: a model that is cast to another dtype would round floating point
        self.register_buffer("slope_bits", slopes.view(torch.int64), persistent=False)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        if torch.compiler.is_exporting():  # ONNX cannot read integers as floating point
            slopes = torch.tensor(alibi_slopes(self.sizes.num_heads), dtype=torch.float64, device=h.device).to(dtype)
        else:
            slopes = self.slope_bits.to(h.device).view(torch.float64).to(dtype)
        return Terms(bias=-slopes[:, None] * distances(layout.max_distance, h.device).abs().to(dtype))


class Sandwich(PositionalEncoding):
    """Sandwich: the inner products of sinusoids as a bias (Chi et al. 2023, arXiv:2212.10356, the listing).

    Adds the inner product of two sinusoidal position vectors of 128 dimensions, sum over c < 64 of
    cos((i - j) 10000 ** (-2c / 128)), times H / (8 (h + 1)): a bias that falls like a logarithm of the distance, with
    small oscillations. Nothing is learned; symmetric if bidirectional.
    """

    dims = 128

    def __init__(self, sizes: Sizes, name: str = "sandwich") -> None:
        super().__init__(sizes, name)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        omega = frequencies(self.dims, 10_000.0, torch.float64, h.device)
        product = (distances(layout.max_distance, h.device)[:, None] * omega).cos().sum(-1)
        ratio = (
            torch.arange(1, self.sizes.num_heads + 1, dtype=torch.float64, device=h.device) * 8 / self.sizes.num_heads
        )
        return Terms(bias=(product / ratio[:, None]).to(at_least_float32(h)))
