"""Encodings with stick-breaking weights in place of a softmax."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.distance_table import table_distances
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Stick, Terms


def inverse_softplus(x: float) -> float:
    """Return the inverse softplus of x > 0; accurate for small and large x."""
    return x + math.log(-math.expm1(-x))


class StickBreaking(PositionalEncoding):
    """Stick-breaking attention (Tan et al. 2024, arXiv:2410.17980, eq. 1 and 2).

    A_ij = beta_ij * product of (1 - beta_ik) over the keys k between j and i, beta = sigmoid of the logit: the nearest
    key takes its share first. A query does not attend to its own key, but its own value gets the remainder, so that
    rows sum to one. Nothing is learned. Only the order of the tokens matters, not their positions.
    """

    revision = 2
    reads_positions = False

    def __init__(self, sizes: Sizes, name: str = "stick_breaking") -> None:
        super().__init__(sizes, name)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(normalizer=Stick(order="nearest", include_self=False, remainder="own"))


class RotaryStickBreaking(RoPE):
    """Rotary stick-breaking (RSE): RoPE logits minus lambda |i - j|, weights by stick-breaking, nearest key first.

    beta_ij = sigmoid(z_ij), A_ij = beta_ij * product of (1 - beta_ik) over the keys k nearer to i than j; a query
    attends to its own key too and the remainder is dropped, so that rows sum to less than one. Stick-breaking as in Tan
    et al. 2024 (arXiv:2410.17980, eq. 1 and 2); rotation and decay as in the seed report.

    Args:
        theta, pairing: the options of `RoPE`.
        decay: the initial lambda, > 0; one per layer, trained as softplus(raw).
        order: the order of the keys. "nearest": from the query outwards; "first": from key 0 on, as in the report's
            text.

    Raises:
        ValueError: the cases of `RoPE`; decay or order out of range.
    """

    revision = RoPE.revision + 1
    neutral = {"order": "nearest"}
    per_layer = True
    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rse",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        decay: Positive = 0.01,
        order: Literal["nearest", "first"] = "nearest",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.decay = decay
        self.order = order
        self.raw = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.raw, inverse_softplus(self.decay))

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        rate = nn.functional.softplus(self.raw.to(dtype))
        bias = -rate[:, None] * table_distances(layout.max_distance, h.device).abs().to(dtype)
        return replace(
            super().terms(h, layout),
            distance_bias=bias,
            normalizer=Stick(self.order, include_self=True, remainder="drop"),
        )
