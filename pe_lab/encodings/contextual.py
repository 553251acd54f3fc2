"""Encodings whose sense of distance is made by the content."""

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms, at_least_float32
from pe_lab.encodings.bias_learned import in_its_dtype
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import Distance, NonNegative


class Counted(nn.Module):
    """What CoPE adds to the logits z: q . e[p], with p the sum of sigmoid(z) over the keys from j to i.

    Args:
        head_dim: d.
        max_position: p_max, where counting ends.
        std: the table e starts as N(0, std^2).
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
        p = gate.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.table) - 1)
        with torch.autocast(z.device.type, enabled=False):
            at_integers = q.to(z.dtype) @ self.table.to(z.dtype).T  # [B, H, T, p_max + 1]
        below, above = p.floor(), p.ceil()
        return torch.lerp(at_integers.gather(-1, below.long()), at_integers.gather(-1, above.long()), p - below)


class CoPE(PositionalEncoding):
    """Contextual position encoding (Golovneva et al. 2024, arXiv:2405.18719, the listing).

    Gates g_ij = sigmoid(z_ij) of the scaled logits say which keys count; their sum from j to i, p_ij <= p_max, is the
    position of key j, a fraction. Added to the scaled logits is q_i . e[p_ij], interpolated between the two nearest
    of p_max + 1 trained vectors, which are shared by heads and differ between layers. As in the paper's listing q . e
    is not divided by sqrt(d) (the released program divides unless told not to).

    Causal only: a key is counted from the query backwards. The order of tokens is all that it sees of positions.

    Args:
        max_position: p_max >= 1; counting ends there.
        std: >= 0, the vectors start as N(0, std^2); 0, the listing's, starts them at zero.

    Raises:
        ValueError: an option out of range; bidirectional attention.
    """

    neutral = {"std": 0.0}
    per_layer = True
    causal_only = True
    reads_positions = False
    instead = "relative_bias"

    def __init__(self, sizes: Sizes, name: str = "cope", max_position: Distance = 64, std: NonNegative = 0.0) -> None:
        super().__init__(sizes, name)
        self.score = Counted(sizes.head_dim, max_position, std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(score=self.score)


class Forgetting(PositionalEncoding):
    """Forgetting attention (Lin et al. 2025, arXiv:2503.02130, without its other changes).

    Every token sets a gate f = sigmoid(w . x + b) per head; the sum of ln f_k over k = j + 1 ... i is added to the
    scaled logit of query i and key j, so that what lies behind a shut gate is forgotten. (D + 1) H trained parameters
    a layer.

    Causal only: gates lie between a key and a later query. The order of tokens is all that it sees of positions.

    Raises:
        ValueError: bidirectional attention.
    """

    per_layer = True
    causal_only = True
    reads_content = True
    reads_positions = False
    instead = "alibi"

    def __init__(self, sizes: Sizes, name: str = "forgetting") -> None:
        super().__init__(sizes, name)
        self.gate = nn.Linear(sizes.width, sizes.num_heads)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        log_f = nn.functional.logsigmoid(in_its_dtype(self.gate, h.to(at_least_float32(h))))  # [B, T, H]
        log_f = log_f.masked_fill((layout.segment == PADDING)[..., None], 0)
        # a sum over thousands of tokens, rounded once: c_i - c_j is as good as c
        return Terms(decay=log_f.double().cumsum(1).to(log_f.dtype).transpose(1, 2))
