"""Encodings that rotate queries and keys."""

import torch
from torch import Tensor, nn

from pe_lab.config import require, require_pairs
from pe_lab.encodings.base import Layout, PositionalEncoding, Rotary, Sizes, Terms, at_least_float32


def frequencies(head_dim: int, theta: float, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """[d/2] angular frequencies theta ** (-2c / d), c = 0 ... d/2 - 1 (arXiv:2104.09864, eq. 15)."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return (theta**-exponent).to(dtype)


def tables(pos: Tensor, omega: Tensor, pairing: str) -> Rotary:
    """Cosine and sine of pos * omega.

    Args:
        pos: [B|1, T] integers.
        omega: [H|1, d/2] angular frequencies, float32 or float64; the tables have its dtype.
    """
    angle = pos[:, None, :, None].to(omega.dtype) * omega[None, :, None, :]
    return Rotary(angle.cos(), angle.sin(), pairing)


class RoPE(PositionalEncoding):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 34 and section 3.4.2).

    Pair c of every query and key is turned by pos * theta ** (-2c / d), so that q . k depends on position through
    pos_i - pos_j alone. Nothing is learned. It has no absolute position: a pooled bag of equal tokens stays equal.

    Args:
        theta: > 0, base of the frequencies.
        pairing: "interleaved" turns lanes (2c, 2c+1), as the paper; "half" turns (c, c + d/2), as most code does.
            Equal up to a fixed permutation of lanes.

    Raises:
        ValueError: head_dim is odd; theta or pairing out of range.
    """

    def __init__(self, sizes: Sizes, name: str = "rope", theta: float = 10_000.0, pairing: str = "interleaved") -> None:
        super().__init__(sizes, name)
        require_pairs(name, sizes.width, sizes.num_heads)
        self.theta = require("pe.theta", theta)
        self.pairing = require("pe.pairing", pairing)

    def omega(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[H|1, d/2] angular frequencies."""
        return frequencies(self.sizes.head_dim, self.theta, dtype, device)[None]

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary = tables(layout.pos, self.omega(at_least_float32(h), h.device), self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class LRoPE(RoPE):
    """Learnable RoPE: the logarithms of the angular frequencies are trained, starting at RoPE's.

    beta = ln omega is the parameter, omega = exp(beta) turns the pairs; no weight decay, since decay would pull every
    frequency towards 1.

    Args:
        theta: > 0, base of the frequencies at the start.
        pairing: as RoPE.
        share: "none": own frequencies per layer and head; "heads": heads of a layer share; "layers": layers share;
            "all": one set.
        lr: learning rate of beta, > 0; None: the optimizer's.

    Raises:
        ValueError: as RoPE; share or lr out of range.
    """

    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "lrope",
        theta: float = 10_000.0,
        pairing: str = "interleaved",
        share: str = "none",
        lr: float | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.per_layer = require("pe.share", share) in ("none", "heads")
        self.lr = require("pe.lr", lr)
        heads = 1 if share in ("heads", "all") else sizes.num_heads
        self.beta = nn.Parameter(torch.empty(heads, sizes.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.beta.copy_(frequencies(self.sizes.head_dim, self.theta, torch.float64).log())

    def omega(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.beta.to(dtype).exp()
