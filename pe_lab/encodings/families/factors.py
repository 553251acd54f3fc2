"""Encodings that multiply attention weights."""

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Distance
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


class URPE(PositionalEncoding):
    """Universal relative positional encoding: trained factors on weights (Luo et al. 2022, arXiv:2205.13401; its code).

    The weight of query i and key j after the softmax is multiplied by C_h(pos_i - pos_j), a trained scalar per head and
    distance, and rows are not normalized again: unlike with a bias alone, the result can tell positions whose tokens
    are all equal. The factors start at 1. One table for all layers; distances beyond `max_distance` count as
    `max_distance`, on either side (the code has a factor for each, or shares them in logarithmic buckets). It has
    (2 max_distance + 1) H parameters. No weight decay, as in its runs: it would pull all attention to zero.

    The source adds a trained bias before the softmax: pe=sum with the parts relative_bias and urpe.

    Args:
        max_distance: the largest distance with a factor, k >= 1; distances -k ... k have a factor each.

    Raises:
        ValueError: max_distance out of range.
    """

    weight_decay = False

    def __init__(self, sizes: Sizes, name: str = "urpe", max_distance: Distance = 128) -> None:
        super().__init__(sizes, name)
        self.factor = nn.Parameter(torch.empty(sizes.num_heads, 2 * max_distance + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.factor)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(weight_factors=self.factor.to(at_least_float32(h)), clip=True)
