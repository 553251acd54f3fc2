"""GRAPE: rotations and biases by distance whose size depends on the content."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.families.bias import alibi_slopes
from pe_lab.encodings.families.rotary import RoPE, frequencies
from pe_lab.encodings.families.rotary_content import cumulative_sums, rotation
from pe_lab.encodings.families.rotary_scaled import on_device
from pe_lab.encodings.families.stick import inverse_softplus
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Terms

INITIAL_STEP = 1e-3  # whose inverse softplus is the bias of the steps at the start, as released


class GrapeM(RoPE):
    """Contextual multiplicative GRAPE, GRAPE-M (Zhang et al. 2025, arXiv:2512.07805, as its released code).

    Pair c is rotated by omega_c times the sum over the tokens before it in its document of
    sigmoid((w . h + b) / scale): every token is a step whose length its content sets, and its own step is not among
    those of its angle. omega starts as RoPE's frequencies and is trained, as ln omega, for all heads; so are w and b,
    of one step for all heads or one for each. h is the layer's attention input. D + 1 + d/2 parameters in each layer.

    w starts at 0 and b at ln(e^0.001 - 1), so that every step is 0.39 at the start: RoPE with lower frequencies. No
    weight decay: it would pull every frequency towards 1. GRAPE-M whose steps are 1 is `lrope`.

    Causal only. Of positions, only the order of tokens matters.

    Args:
        theta: the base of the frequencies at the start, > 0.
        scale: the divisor of w . h + b, > 0.
        per_head: whether every head has steps of its own.
        pairing: the pairing of dimensions, see `RoPE`.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range; bidirectional attention.
    """

    revision = RoPE.revision - 1
    matrices = ("weight",)
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    weight_decay = False
    fallback = "rope"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "grape_m",
        theta: Positive = 10_000.0,
        scale: Positive = 16.0,
        per_head: bool = False,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.scale = scale
        self.beta = nn.Parameter(torch.empty(sizes.head_dim // 2))
        steps = sizes.num_heads if per_head else 1
        self.weight = nn.Parameter(torch.empty(steps, sizes.width))
        self.bias = nn.Parameter(torch.empty(steps))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.beta.copy_(frequencies(self.sizes.head_dim, self.theta).log())
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, inverse_softplus(INITIAL_STEP))

    def omega(self, device: torch.device) -> Tensor:
        return self.beta.double().exp()

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        x = h.to(at_least_float32(h))
        step = (project(x, self.weight, self.bias) / self.scale).sigmoid()[..., None]  # [B, T, steps, 1]
        before = cumulative_sums(layout.with_earlier("step", step), layout) - step.double()
        rotary = rotation(before * self.omega(h.device), x.dtype, self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class GrapeA(PositionalEncoding):
    """Additive GRAPE with gates, GRAPE-A (Zhang et al. 2025, arXiv:2512.07805, as its released code).

    Adds -(pos_i - pos_j) m_h softplus(a_h) (softplus(v_h . q_i / sqrt(d)) + softplus(u_h . k_j / sqrt(d))) to the
    scaled logits: `alibi`, whose slopes m are multiplied by a trained number of the head and by gates that queries and
    keys set. u and v are trained and count as unit vectors. Each layer has its own: (2 d + 1) H parameters, with one
    gate (d + 1) H.

    softplus(a) starts as 1, u and v as N(0, 1/d). No weight decay: it would pull the slopes to a number that means
    nothing. Causal only, as in the source.

    Args:
        gates: which gates there are: "both", or only the one of the "query" or of the "key".

    Raises:
        ValueError: gates out of range; bidirectional attention.
    """

    per_layer = True
    causal_only = True
    weight_decay = False
    fallback = "alibi"

    def __init__(self, sizes: Sizes, name: str = "grape_a", gates: Literal["both", "query", "key"] = "both") -> None:
        super().__init__(sizes, name)
        shape = (sizes.num_heads, sizes.head_dim)
        self.rate = nn.Parameter(torch.empty(sizes.num_heads))
        self.query = None if gates == "key" else nn.Parameter(torch.empty(shape))
        self.key = None if gates == "query" else nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.rate, inverse_softplus(1))
        for vector in (self.query, self.key):
            if vector is not None:
                nn.init.normal_(vector, std=self.sizes.head_dim**-0.5)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(content_bias=self)

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        """Return the bias of all pairs, [B, H, T, S]."""
        dtype = z.dtype
        gates = [
            gate
            for gate in (
                None if self.query is None else self._gate(q.to(dtype), self.query)[..., :, None],
                None if self.key is None else self._gate(k.to(dtype), self.key)[..., None, :],
            )
            if gate is not None
        ]
        slopes = on_device(alibi_slopes(self.sizes.num_heads), q.device).to(dtype)
        rate = slopes * softplus(self.rate.to(dtype))
        slope: Tensor = rate[:, None, None] * sum(gates[1:], gates[0])
        return -layout.distance[:, None].to(dtype) * slope

    def _gate(self, x: Tensor, vector: Tensor) -> Tensor:
        """Return a gate of every token, [B, H, T], from x [B, H, T, d]."""
        along = (x * normalize(vector.to(x.dtype), dim=-1, eps=1e-6)[:, None]).sum(-1)
        return softplus(along * self.sizes.head_dim**-0.5)
