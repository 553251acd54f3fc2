"""Rotations in which content changes only lengths, not angles."""

from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import FULL_TURN, round_angles
from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.families.bias_learned import clamp_with_gradient
from pe_lab.encodings.families.rotary import frequencies
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Rotary, Terms


class Lengths:
    """Turns every dimension x into a pair at angle zero, (softplus(x), 0); all first members, then all second ones.

    Args:
        d: the number of dimensions of queries and keys before the change.

    Attributes:
        head_dim: the number of dimensions of the result, 2d.
    """

    def __init__(self, d: int) -> None:
        self.head_dim = 2 * d

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _lengths(q), _lengths(k)


def _lengths(x: Tensor) -> Tensor:
    # softplus(x): torch's own cannot be compiled with gradients where queries are no contiguous memory
    x32 = x.to(at_least_float32(x))
    length = -nn.functional.logsigmoid(-x32).to(x.dtype)
    return torch.cat((length, torch.zeros_like(length)), -1)


class PoPE(PositionalEncoding):
    """Polar coordinate position embedding (Gopalakrishnan et al. 2025, arXiv:2509.10534, section 3, eqs. 6 to 10).

    The logit of query i and key j is the sum over all d dimensions of
    softplus(q_c) softplus(k_c) cos((pos_j - pos_i) theta ** (-c / d) + delta_c), divided by sqrt(d): content sets the
    lengths of d pairs, position and delta their angles. Queries and keys have 2d dimensions when they meet.

    delta is trained, for each layer and head, within [-2 pi, 0]: `constrain` clamps it after a step, and `terms` uses
    the nearer end for one beyond, whose gradient is kept. No weight decay, since nothing of the kind is published. Nor
    is the scale of the logits; here it is that of the d dimensions before. (The paper prints its frequencies without
    the minus.)

    Args:
        theta: the base of the frequencies, > 0.
        start: the initial delta: "zero", for longer sequences than those trained on, or "uniform" in [-2 pi, 0], which
            the paper finds slightly better at the trained length.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2
    per_layer = True
    weight_decay = False

    def __init__(
        self, sizes: Sizes, name: str = "pope", theta: Positive = 10_000.0, start: Literal["zero", "uniform"] = "zero"
    ) -> None:
        super().__init__(sizes, name)
        self.theta, self.start = theta, start
        self.delta = nn.Parameter(torch.empty(sizes.num_heads, sizes.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.start == "zero":
            nn.init.zeros_(self.delta)
        else:
            nn.init.uniform_(self.delta, -FULL_TURN, 0)

    @torch.no_grad()
    def constrain(self) -> None:
        self.delta.clamp_(-FULL_TURN, 0)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        d, dtype = self.sizes.head_dim, at_least_float32(h)
        angle = layout.pos[:, None, :, None].double() * frequencies(2 * d, self.theta, h.device)
        shifted = angle + clamp_with_gradient(self.delta, -FULL_TURN, 0.0).double()[:, None]
        q, k = (Rotary(x.cos(), x.sin(), "half") for x in (round_angles(angle, dtype), round_angles(shifted, dtype)))
        return Terms(lift=Lengths(d), rotary_q=q, rotary_k=k)
