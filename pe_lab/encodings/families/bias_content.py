"""Biases by distance that every token chooses for itself."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Distance, NonNegative, Units
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms, prepare_pair_term


@dataclass(frozen=True)
class Mixture:
    """The bias of pairs of tokens from curves over the distance, mixed by the query.

    Args:
        shares: [B, H, T, K] weights of the curves for each query of `layout`.
        curves: [K, R] biases at the distances 0 ... R - 1; beyond them the bias is 0.
        layout: the layout of the queries.
    """

    shares: Tensor
    curves: Tensor
    layout: Layout

    def __call__(self, layout: Layout) -> Tensor:
        first, reach = layout.earlier - self.layout.earlier, self.curves.shape[1]
        distance = layout.distance[:, None]
        with torch.autocast(self.shares.device.type, enabled=False):
            curves = self.shares[:, :, first : first + layout.segment.shape[1]] @ self.curves
        index = distance.clamp(0, reach - 1).expand(*curves.shape[:3], -1)
        return curves.gather(-1, index).masked_fill((distance < 0) | (distance >= reach), 0)


class Inkling(PositionalEncoding):
    """A learned mixture of distance curves per token, as in the model Inkling of Thinking Machines, of 2026 (no paper;
    as the model code in transformers 5.24 and x-transformers have it).

    r_i . c_(i-j) is added to the scaled logit: every query mixes K trained curves c over the distance, which heads
    share, by K numbers of each head, r = W h, without a bias. Both are of each layer: D H K + K R parameters. From
    distance R on nothing is added. h is the layer's attention input. What the model has beside it is not here: norms of
    queries and keys, convolutions of keys and values, and a factor on the logits of long sequences.

    Causal only: there are no curves for later keys.

    Args:
        curves: the number of curves, K >= 1.
        extent: the number of distances that have a bias, R >= 1; 1,024 in the model.
        std: the initial standard deviation, >= 0: W and the curves start as N(0, std^2), 0.02 in the model.

    Raises:
        ValueError: an option out of range; bidirectional attention.
    """

    matrices = ("weight",)
    per_layer = True
    causal_only = True
    reads_content = True
    fallback = "relative_bias"

    def __init__(
        self, sizes: Sizes, name: str = "inkling", curves: Units = 16, extent: Distance = 1024, std: NonNegative = 0.02
    ) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.weight = nn.Parameter(torch.empty(sizes.num_heads * curves, sizes.width))
        self.curves = nn.Parameter(torch.empty(curves, extent))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.weight, self.curves):
            nn.init.normal_(parameter, std=self.std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        x = h.to(at_least_float32(h))
        shares = project(x, self.weight).unflatten(-1, (self.sizes.num_heads, -1)).transpose(1, 2)
        curves = self.curves[:, : layout.max_distance + 1].to(x.dtype)  # only for distances that occur
        return Terms(pair_bias=prepare_pair_term(Mixture(shares, curves, layout), layout))
