"""Encodings whose distances depend on the content of the tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import Distance, NonNegative
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


def summed_from_right(x: Tensor) -> Tensor:
    """Return the sums of x [..., N] from each index to the end."""
    if torch.compiler.is_compiling():
        return x.flip(-1).cumsum(-1).flip(-1)
    summed: Tensor = _SummedFromRight.apply(x)  # type: ignore[no-untyped-call]
    return summed


class _SummedFromRight(torch.autograd.Function):
    """Sums from the right, whose gradient, of the same bits, is found without the four copies in reverse."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.cumsum(-1)


class CountTerm(nn.Module):
    """The term that CoPE adds to the logits z: q . e[p], where p is the sum of sigmoid(z) over the keys j ... i.

    Args:
        head_dim: the dimension of a head, d.
        max_position: the largest position, p_max.
        std: the initial standard deviation: e starts as N(0, std^2).
    """

    def __init__(self, head_dim: int, max_position: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.table = nn.Parameter(torch.empty(max_position + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        gate = z.sigmoid().masked_fill(~layout.allowed, 0)
        p = summed_from_right(gate).clamp(max=len(self.table) - 1)
        with torch.autocast(z.device.type, enabled=False):
            at_integers = q.to(z.dtype) @ self.table.to(z.dtype).T  # [B, H, T, p_max + 1]
        below, above = p.detach().floor(), p.detach().ceil()
        return torch.lerp(at_integers.gather(-1, below.long()), at_integers.gather(-1, above.long()), p - below)


class CoPE(PositionalEncoding):
    """Contextual position encoding (Golovneva et al. 2024, arXiv:2405.18719, the listing).

    Gates g_ij = sigmoid(z_ij) of the scaled logits decide which keys count; their sum from j to i, p_ij <= p_max, is
    the position of key j, in general not an integer. q_i . e[p_ij] is added to the scaled logits, interpolated between
    the two nearest of p_max + 1 trained vectors, which heads share and layers do not. As in the paper's listing q . e
    is not divided by sqrt(d) (the released program does so by default).

    Causal only: keys are counted from the query backwards. Of positions, only the order of tokens matters.

    Args:
        max_position: the largest position, p_max >= 1.
        std: the initial standard deviation, >= 0: the vectors start as N(0, std^2); 0, the listing's, starts them at
            zero.

    Raises:
        ValueError: an option out of range; bidirectional attention.
    """

    neutral = {"std": 0.0}
    per_layer = True
    causal_only = True
    reads_positions = False
    fallback = "relative_bias"

    def __init__(self, sizes: Sizes, name: str = "cope", max_position: Distance = 64, std: NonNegative = 0.0) -> None:
        super().__init__(sizes, name)
        self.score = CountTerm(sizes.head_dim, max_position, std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(content_bias=self.score)


class Forgetting(PositionalEncoding):
    """Forgetting attention (Lin et al. 2025, arXiv:2503.02130, without its other changes).

    Every token has a gate f = sigmoid(w . x + b) per head; the sum of ln f_k over k = j + 1 ... i is added to the
    scaled logit of query i and key j, so that keys before a closed gate get no weight. (D + 1) H trained parameters per
    layer.

    Causal only: gates are those between a key and a later query. Of positions, only the order of tokens matters.

    Raises:
        ValueError: bidirectional attention.
    """

    revision = 2
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    fallback = "alibi"

    def __init__(self, sizes: Sizes, name: str = "forgetting") -> None:
        super().__init__(sizes, name)
        self.gate = nn.Linear(sizes.width, sizes.num_heads)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        logits = project(h.to(at_least_float32(h)), self.gate.weight, self.gate.bias)
        log_f = nn.functional.logsigmoid(logits)  # [B, T, H]
        log_f = log_f.masked_fill((layout.segment == PADDING)[..., None], 0)
        log_f = layout.with_earlier("log_f", log_f)
        # summed in float64 and rounded once: c_i - c_j is then as exact as c
        return Terms(decay=log_f.double().cumsum(1).to(log_f.dtype).transpose(1, 2))
