"""ExpoSB: RoPE with an amplitude over position, a gain per head dimension and a decay over distance."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.distance_table import table_distances
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.families.stick import inverse_softplus
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary, Terms


class ExpoSB(RoPE):
    """RoPE with an amplitude over position, a gain per head dimension and a decay over distance (seed report).

    Queries and keys are rotated as by RoPE and multiplied by 1 + 0.2 exp(-r pos), r = softplus(raw) per head, initially
    0.001; then by w (0.8 + 0.4 G), w per head, initially 1, G a Gaussian over head dimensions with centre d/4 and width
    d/8. Weights are a softmax, in spite of the name. The amplitude depends on absolute position; positions below 0 have
    that of 0. No weight decay: w acts as a temperature, and raw = 0 is no neutral rate.

    Args:
        theta, pairing: the options of `RoPE`.
        form: the form of amplitude and decay. "stable": both dimensions of pair c have the G of dimension 2c, and
            ln(0.7 + 0.3 exp(-0.005 |i - j|)) is added to the logits; "literal", as in the report's text: each dimension
            has its own G, and the logits are multiplied by 0.7 + 0.3 exp(-0.005 |i - j|), which raises negative ones.

    Raises:
        ValueError: the cases of `RoPE`; form out of range.
    """

    absolute = True
    per_layer = True
    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "exposb",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        form: Literal["stable", "literal"] = "stable",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.form = form
        self.raw = nn.Parameter(torch.empty(sizes.num_heads))
        self.weight = nn.Parameter(torch.empty(sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.raw, inverse_softplus(0.001))
        nn.init.ones_(self.weight)

    def band(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return 0.8 + 0.4 G of every head dimension, [d]."""
        d = self.sizes.head_dim
        dim = torch.arange(d, device=device)
        if self.form == "stable":
            dim = dim // 2 * 2 if self.pairing == "interleaved" else dim % (d // 2) * 2
        return 0.8 + 0.4 * (-(((dim.to(dtype) - d / 4) / (d / 8)) ** 2) / 2).exp()

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        rope = self.rotation(h, layout)
        pos = layout.pos.clamp(min=0)[:, None, :, None].to(dtype)
        amplitude = 1 + 0.2 * (-softplus(self.raw.to(dtype))[:, None, None] * pos).exp()
        rotary = Rotary(rope.cos * amplitude, rope.sin * amplitude, self.pairing)
        gain = self.weight.to(dtype)[:, None] * self.band(dtype, h.device)
        fade = 0.7 + 0.3 * (-0.005 * table_distances(layout.max_distance, h.device).abs().to(dtype)).exp()[None]
        terms = Terms(rotary_q=rotary, rotary_k=rotary, gain=gain)
        return (
            replace(terms, logit_factors=fade) if self.form == "literal" else replace(terms, distance_bias=fade.log())
        )
