"""Encodings that scale the logits of a query by the number of its keys, or by its position."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative, PositionCount, Positive, integers
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


@dataclass(frozen=True)
class ScaledQueries:
    """Multiplies queries by a factor of their own; keys stay as they are.

    Args:
        factor: [B|1, H|1, T, 1] factors on the queries, float32 or float64.
        head_dim: the dimension of a head, d.
    """

    factor: Tensor
    head_dim: int

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * self.factor, k


class SSMax(PositionalEncoding):
    """Scalable softmax (Nakanishi 2025, arXiv:2501.19399, eq. 2): weights do not flatten as sequences grow.

    The scaled logits of query i are multiplied by s_h ln n_i, n_i being the number of keys that the query may attend
    to: i + 1 in causal attention, the length of the document in bidirectional attention. s_h is trained, one number per
    head and layer, without weight decay, which would pull all weights of a row to the same number. It tells no order,
    and combines with an encoding that does, pe=sum 'pe.parts=[ssmax,rope]': the factor is on q . k alone, so that a
    bias is not multiplied. Keys outside of a window of another part are counted too.

    Args:
        start: the initial s, > 0; None: 1 / mean of ln n_i over a sequence of the training length, so that the mean
            factor is 1; 0.168 for 1,024 tokens, as in the source. 1 for sequences of one token.

    Raises:
        ValueError: start out of range.
    """

    per_layer = True
    reads_positions = False
    weight_decay = False

    def __init__(self, sizes: Sizes, name: str = "ssmax", start: Positive | None = None) -> None:
        super().__init__(sizes, name)
        self.start = _inverse_of_mean(sizes) if start is None else start
        self.s = nn.Parameter(torch.empty(sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.s, self.start)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        factor = self.s.to(dtype)[:, None] * layout.key_count[:, None].to(dtype).log()
        return Terms(lift=ScaledQueries(factor[..., None], self.sizes.head_dim))


class Temperature(PositionalEncoding):
    """Temperature of attention by position, as Llama 4 and Ministral 3 have it in transformers' code.

    With the original length L, the scaled logits of the query at position p are multiplied by
    1 + beta ln(1 + floor((p + first) / L)), which is 1 up to L and grows beyond it. Nothing is learned. It hardly tells
    order, and combines with an encoding that does: Ministral 3 is pe=sum 'pe.parts=[yarn,temperature]'; Llama 4 has it
    in layers without rotations, pe=interleave 'pe.parts=[rope,temperature]' 'pe.layers=[3,1]', with first = 1. The
    factor is on q . k alone, so that a bias is not multiplied.

    Args:
        beta: the strength of the growth, >= 0; `attn_scale` of Llama 4, `llama_4_scaling_beta` of Ministral 3. 0 is no
            encoding.
        original_length: the number of positions over which the factor stays the same; `floor_scale` of Llama 4,
            `original_max_position_embeddings` of Ministral 3. None: the training length.
        first: the number that the first position counts as; 0 in Ministral 3, 1 in Llama 4.

    Raises:
        ValueError: an option out of range.
    """

    absolute = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "temperature",
        beta: NonNegative = 0.1,
        original_length: PositionCount | None = None,
        first: Annotated[int, integers(0, 1)] = 0,
    ) -> None:
        super().__init__(sizes, name)
        self.beta, self.first = beta, first
        self.original_length = sizes.length if original_length is None else original_length

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        steps = (layout.pos.clamp(min=0) + self.first).div(self.original_length, rounding_mode="floor")
        factor = 1 + self.beta * steps.to(at_least_float32(h)).log1p()
        return Terms(lift=ScaledQueries(factor[:, None, :, None], self.sizes.head_dim))


def _inverse_of_mean(sizes: Sizes) -> float:
    """Return 1 / mean of ln n_i over a sequence of the training length; 1 if that is a token."""
    length = sizes.length
    if length == 1:
        return 1.0
    # the sum of ln 1 ... ln T is ln T!
    return length / math.lgamma(length + 1) if sizes.causal else 1 / math.log(length)
