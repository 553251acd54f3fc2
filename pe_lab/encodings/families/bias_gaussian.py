"""Encodings that add the logarithm of a trained density of distance to the logits."""

import math

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.distance_table import table_distances
from pe_lab.encodings.families.bias import alibi_slopes
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


class BAM(PositionalEncoding):
    """Bayesian attention, a generalized Gaussian over positions (Bianchessi et al. 2025, arXiv:2505.22842; its code).

    Adds -exp(s) (|pos_j - pos_i - mu| + 1e-5) ** beta to the scaled logits of query i and key j, with three trained
    numbers per head, shared by all layers: beta, which may be negative, so that near keys are shut out; s; and m, of
    which mu = 2 sinh(m) is a position before the query where it is negative. It starts as ALiBi: beta = 1, s the
    logarithm of its slope, m = 0. No weight decay, as in its runs.

    The magnitude is at most 1e30, so that a head which shuts out all that a query sees has weights still.

    Args:
        location: whether m is trained, which is the default of its training script and not of its model's class; false:
            mu is 0.

    Raises:
        ValueError: location out of range.
    """

    revision = 2
    weight_decay = False
    eps = 1e-5
    largest = 1e30

    def __init__(self, sizes: Sizes, name: str = "bam", location: bool = True) -> None:
        super().__init__(sizes, name)
        self.beta = nn.Parameter(torch.empty(sizes.num_heads))
        self.log_scale = nn.Parameter(torch.empty(sizes.num_heads))
        self.location = nn.Parameter(torch.empty(sizes.num_heads)) if location else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.beta)
        with torch.no_grad():
            self.log_scale.copy_(torch.tensor(alibi_slopes(self.sizes.num_heads), dtype=torch.float64).log())
        if self.location is not None:
            nn.init.zeros_(self.location)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        ahead = -table_distances(layout.max_distance, h.device).to(dtype)  # pos_j - pos_i
        if self.location is not None:
            ahead = ahead - 2 * self.location.to(dtype)[:, None].sinh()
        beta, log_scale = (x.to(dtype)[:, None] for x in (self.beta, self.log_scale))
        magnitude = beta * (ahead.abs() + self.eps).log() + log_scale
        return Terms(distance_bias=-magnitude.clamp(max=math.log(self.largest)).exp())
