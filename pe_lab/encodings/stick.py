"""Encodings that break a stick instead of taking a softmax."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from pe_lab.config import require
from pe_lab.encodings.base import Layout, Sizes, Stick, Terms, at_least_float32
from pe_lab.encodings.bias import distances
from pe_lab.encodings.rotary import RoPE


class RotaryStickBreaking(RoPE):
    """Rotary stick-breaking (RSE): RoPE logits minus lambda |i - j|, weights by stick-breaking, nearest key first.

    beta_ij = sigmoid(z_ij), A_ij = beta_ij * product of (1 - beta_ik) over the keys k nearer to i than j; the query's
    own key takes part and the remainder is dropped, so rows sum to less than one. The stick is Tan et al. 2024
    (arXiv:2410.17980, eq. 1 and 2); rotation and decay are the seed report's.

    Args:
        theta, pairing: as RoPE.
        decay: lambda at the start, > 0; one per layer, trained as softplus(raw).

    Raises:
        ValueError: as RoPE; decay out of range.
    """

    per_layer = True
    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rse",
        theta: float = 10_000.0,
        pairing: str = "interleaved",
        decay: float = 0.01,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.decay = require("pe.decay", decay)
        self.raw = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.raw, self.decay + math.log(-math.expm1(-self.decay)))  # softplus, inverted

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        rate = nn.functional.softplus(self.raw.to(dtype))
        bias = -rate[:, None] * distances(layout.max_distance, h.device).abs().to(dtype)
        return replace(
            super().terms(h, layout),
            bias=bias,
            weights=Stick(order="nearest", include_self=True, remainder="drop"),
        )
