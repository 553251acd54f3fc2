"""Encodings that rotate queries and keys by angles summed over the content of the tokens so far."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import round_angles
from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.families.convolution import convolve_documents
from pe_lab.encodings.families.rotary import RoPE, require_pairs
from pe_lab.encodings.families.stick import inverse_softplus
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import Positive, Range, Units, is_number
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary, Terms

AboveOne = Annotated[float, Range("a number above 1", lambda x: is_number(x) and x > 1)]


def cumulative_sums(x: Tensor, layout: Layout) -> Tensor:
    """Return the sums of x over the tokens of a document, up to and including each token: [B, T, H, n] in float64.

    Padding counts as zero, and the sums begin anew in every document.

    Args:
        x: [B, S, H, n] numbers of all tokens, including earlier ones.
    """
    segment = layout.of_keys.segment
    x = x.double().masked_fill((segment == PADDING)[..., None, None], 0)
    total = x.cumsum(1)
    if layout.packed:
        ordered, order = torch.sort(segment, stable=True)
        first = order.gather(1, torch.searchsorted(ordered, segment.contiguous()))  # first token of the document
        total = total - (total - x).gather(1, first[..., None, None].expand_as(x))
    return total[:, layout.earlier :]


def rotation(angle: Tensor, dtype: torch.dtype, pairing: Pairing) -> Rotary:
    """Return tables that rotate by angles [B, T, H, d/2].

    Args:
        angle: [B, T, H, d/2] angles in float64.
        dtype: the dtype of the tables, float32 or float64.
    """
    rounded_angle = round_angles(angle, dtype).transpose(1, 2)
    return Rotary(rounded_angle.cos(), rounded_angle.sin(), pairing)


class CARoPE(RoPE):
    """Context-aware rotary position embedding, CARoPE (arXiv:2507.23083, section 2).

    Pair c of a head is rotated by the sum of f(x_u) ** c over the tokens u of the document so far, with
    f(x) = 1 / (softplus(x W) + 1) in (0, 1): as RoPE, whose base frequency every token sets for each head. x is the
    layer's attention input; W, D x H, is trained in every layer. Pair 0 is rotated by 1 per token whatever the content.
    Of positions, only the order of tokens matters.

    c is 0 ... d/2 - 1, as RoPE counts. Counted from 1, in a formula of the paper that raises a base frequency to the
    number of the pair, no pair would turn by 1 per token, and the start would be RoPE without its fastest pair.

    The paper starts as RoPE and does not say how; here W starts at 0, and x W has a constant added, which is not
    trained, with f = theta ** (-2 / d).

    Causal only: angles are those between a key and a later query.

    Args:
        theta: the base of the frequencies at the start, > 1.
        pairing: the pairing of dimensions, see `RoPE`.

    Raises:
        ValueError: the cases of `RoPE`; theta out of range; bidirectional attention.
    """

    revision = RoPE.revision - 1
    matrices = ("weight",)
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    fallback = "rope"

    def __init__(
        self, sizes: Sizes, name: str = "carope", theta: AboveOne = 10_000.0, pairing: Pairing = "interleaved"
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.weight = nn.Parameter(torch.empty(sizes.num_heads, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    @property
    def shift(self) -> float:
        """The number whose softplus is theta ** (2 / d) - 1."""
        return inverse_softplus(math.expm1(2 * math.log(self.theta) / self.sizes.head_dim))

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        z = project(h.to(at_least_float32(h)), self.weight) + self.shift
        log_f = layout.with_earlier("log_f", -nn.functional.softplus(z).log1p())  # [B, S, H]
        power = torch.arange(self.sizes.head_dim // 2, device=h.device)
        angle = cumulative_sums((log_f[..., None] * power).exp(), layout)
        rotary = rotation(angle, log_f.dtype, self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class MapFormer(PositionalEncoding):
    """The rotation of MapFormer, working-memory variant (Rambaud et al. 2025, arXiv:2511.19279v4, section 3.2, eq. 2).

    Every token is a step, forwards or backwards, on d/2 circles of each head: pair c is rotated by
    omega_c * sum of (W_out W_in x_u)_c over the tokens u of the document so far, without biases. W_in: D -> rank,
    W_out: rank -> d/2 and omega are trained, each for its own layer and head. Of positions, only the order of tokens
    matters.

    omega starts at omega_max * base ** (-c / (d/2)), c = 1 ... d/2, so that the slowest is omega_max / base (eq. 18 has
    the sign of the exponent reversed). The start of W_in and W_out is not published; here it is that of torch's linear
    layers. x is the layer's attention input: the source projects the same X to queries, keys, values and steps
    (section 3.2, figure 2b, appendix A.7). A reproduction by others computes the angles from token embeddings, once for
    all layers; with one layer that is the same up to the normalization before attention. Weight decay applies to all
    parameters; nothing else is published.

    Args:
        rank: the rank of the projections of a head, >= 1.
        omega_max: the scale of the initial frequencies in radians, > 0; above 1 and up to 2 pi in the paper.
        base: the ratio of omega_max to the lowest frequency at the start, > 1; None: the training length (the longest
            distance in the paper), 2 if that is 1.
        pairing: the pairing of dimensions, see `RoPE`.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range.
    """

    per_layer = True
    reads_content = True
    reads_positions = False
    contiguous_only = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "mapformer",
        rank: Units = 4,
        omega_max: Positive = 2 * math.pi,
        base: AboveOne | None = None,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(sizes, name)
        require_pairs(name, sizes)
        self.omega_max, self.pairing = omega_max, pairing
        self.base = float(max(sizes.length, 2)) if base is None else base
        heads, circles = sizes.num_heads, sizes.head_dim // 2
        self.step = nn.Linear(sizes.width, heads * rank, bias=False)
        self.spread = nn.Parameter(torch.empty(heads, circles, rank))
        self.omega = nn.Parameter(torch.empty(heads, circles))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _, circles, rank = self.spread.shape
        nn.init.uniform_(self.spread, -(rank**-0.5), rank**-0.5)
        exponent = torch.arange(1, circles + 1, dtype=torch.float64) / circles
        with torch.no_grad():
            self.omega.copy_(self.omega_max * self.base**-exponent)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        step = project(h.to(dtype), self.step.weight).unflatten(-1, (self.sizes.num_heads, -1))
        steps = cumulative_sums(layout.with_earlier("step", step), layout)  # [B, T, H, rank]: sums commute with W_out
        angle = self.omega.double() * torch.einsum("bthr,hcr->bthc", steps, self.spread.double())
        rotary = rotation(angle, dtype, self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class SelectiveRoPE(RoPE):
    """Selective rotary position embedding (Movahedi et al. 2025, arXiv:2511.17388, section 4.1, as its released code).

    Pair c of a head is rotated by tau_c times the sum over the tokens u of the document so far of g_u (phi_u + e^b).
    phi is a causal depthwise convolution over time, of width 4, of W_2 W_1 x, with W_1: D -> rank, W_2: rank -> d/2 for
    each head, and x the layer's attention input, whose part of each head is divided by its norm. tau_c =
    theta ** (-2c / d) is not trained. No part but the gate has a bias. Of positions, only the order of tokens matters.

    W_1, W_2, the convolution and the gate start as N(0, 0.02^2), b and the gate's bias as 0: almost no rotation at the
    start, unless `bias`. (The paper's listing projects the queries in place of x, at full rank and with a gate.)

    Causal only: angles are those between a key and a later query.

    Args:
        rank: the rank of the projection, >= 1; 32 in the released configs.
        bias: whether e^b is added, b trained per head and pair: a rotation like RoPE's, whatever the content.
        gate: whether g = sigmoid of a linear function of x, per head and token; otherwise g = 1.
        theta: the base of tau, > 0.
        pairing: the pairing of dimensions, see `RoPE`.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range; bidirectional attention.
    """

    revision = RoPE.revision - 1
    matrices = ("down", "up", "gate_weight")
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    fallback = "rope"
    KERNEL = 4
    STD = 0.02

    def __init__(
        self,
        sizes: Sizes,
        name: str = "selective_rope",
        rank: Units = 32,
        bias: bool = False,
        gate: bool = False,
        theta: Positive = 500_000.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        heads, count = sizes.num_heads, sizes.head_dim // 2
        self.down = nn.Parameter(torch.empty(rank, sizes.width))
        self.up = nn.Parameter(torch.empty(heads * count, rank))
        self.kernel = nn.Parameter(torch.empty(self.KERNEL, heads, count))  # row s: s tokens before
        self.bias = nn.Parameter(torch.empty(heads, count)) if bias else None
        self.gate_weight = nn.Parameter(torch.empty(heads, sizes.width)) if gate else None
        self.gate_bias = nn.Parameter(torch.empty(heads)) if gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.down, self.up, self.kernel, self.gate_weight):
            if weight is not None:
                nn.init.normal_(weight, std=self.STD)
        for zero in (self.bias, self.gate_bias):
            if zero is not None:
                nn.init.zeros_(zero)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype, heads = at_least_float32(h), self.sizes.num_heads
        part = h.to(dtype).unflatten(-1, (self.sizes.heads_in_model, -1))
        x = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
        step = project(project(x, self.down), self.up).unflatten(-1, (heads, -1))
        steps = layout.with_earlier("step", step)
        step = convolve_documents(steps, self.kernel.to(dtype), layout.of_keys.segment)
        if self.bias is not None:
            step = step + self.bias.to(dtype).exp()
        if self.gate_weight is not None:
            gate = project(x, self.gate_weight, self.gate_bias).sigmoid()
            step = step * layout.with_earlier("gate", gate)[..., None]
        tau = self.omega(h.device)
        rotary = rotation(tau * cumulative_sums(step, layout), dtype, self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)
