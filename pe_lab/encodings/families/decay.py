"""Decay of each dimension of the products of queries and keys."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import Range, is_number
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

Number = Annotated[float, Range("a number", is_number)]

CHUNK_QUERIES = 16  # queries whose decay is measured from the first of them


def decayed_products(q: Tensor, k: Tensor, decay: Tensor, chunk: int = CHUNK_QUERIES) -> Tensor:
    """Return the sum over c of q_ic k_jc exp(P_ic - P_jc), 0 behind the query, for the last T of S tokens.

    Neither exp(P_i) nor exp(-P_j) need be a number that float32 holds. From the first query a of a chunk, both
    exp(P_i - P_a) and exp(P_a - P_j) are at most 1 for a query of the chunk and a key before it, and the few pairs
    within the chunk have exp(P_i - P_j) each.

    Args:
        q: [B, H, T, d] queries.
        k: [B, H, S, d] keys.
        decay: [B, H, S, d] cumulative log gates P in float64, nowhere increasing along S.

    Returns:
        The sums, [B, H, T, S].
    """
    length, total = q.shape[2], k.shape[2]
    earlier, rows = total - length, []
    # the number of chunks of an exported model must not depend on its length
    starts = [0] if torch.compiler.is_exporting() else list(range(0, length, chunk))
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        first, columns = earlier + start, slice(earlier + start, earlier + end)
        origin, queries = decay[:, :, first : first + 1], q[:, :, start:end]
        fallen = (decay[:, :, columns] - origin).exp().to(q.dtype)
        risen = (origin - decay[:, :, :first]).exp().to(q.dtype)
        before = (queries * fallen) @ (k[:, :, :first] * risen).mT
        between = decay[:, :, columns, None] - decay[:, :, None, columns]
        behind = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).triu(1)
        share = between.masked_fill(behind[..., None], -torch.inf).exp().to(q.dtype)
        within = torch.einsum("bhid,bhjd,bhijd->bhij", queries, k[:, :, columns], share)
        rows.append(torch.nn.functional.pad(torch.cat((before, within), -1), (0, total - earlier - end)))
    return torch.cat(rows, 2)


@dataclass(frozen=True)
class DecayedChannels:
    """Returns the difference from the logits z to those whose dimensions decay.

    Args:
        log_f: [B, H, S, d] logarithms of the gates of all keys; they are summed in float64.
        scale: a factor on the logits.
    """

    log_f: Tensor
    scale: float

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            decay = self.log_f[:, :, : k.shape[2]].double().cumsum(2)
            products = decayed_products(q.to(z.dtype), k.to(z.dtype), decay)
            return products * self.scale - z


class Wall(PositionalEncoding):
    """Wall attention (Averbuch and Pai of Tilde Research, 2026; no paper, as the layer of flash-linear-attention).

    Logit sum over c of q_ic k_jc exp(P_ic - P_jc) / sqrt(d), P the sum of ln f over the tokens so far: every dimension
    of every head has a gate f = sigmoid(W h + b) of its own at each token, and forgets at its own rate. (D + 1) H d
    trained parameters per layer. The gates are summed in float64. With the source's other gate, one per head, it is
    pe=sum 'pe.parts=[wall,forgetting]'.

    W starts as N(0, 0.02^2). Causal only: gates are those between a key and a later query. Of positions, only the order
    of tokens matters.

    Args:
        bias: the initial value of b; at 8, as released, a gate is 0.9997: almost no decay.

    Raises:
        ValueError: bias is no number; bidirectional attention.
    """

    matrices = ("weight",)
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    fallback = "alibi"
    STD = 0.02

    def __init__(self, sizes: Sizes, name: str = "wall", bias: Number = 8.0) -> None:
        super().__init__(sizes, name)
        self.start = bias
        self.weight = nn.Parameter(torch.empty(sizes.heads_width, sizes.width))
        self.bias = nn.Parameter(torch.empty(sizes.heads_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.STD)
        nn.init.constant_(self.bias, self.start)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        log_f = logsigmoid(project(h.to(at_least_float32(h)), self.weight, self.bias))  # [B, T, H d]
        log_f = layout.with_earlier("log_f", log_f.masked_fill((layout.segment == PADDING)[..., None], 0))
        log_f = log_f.unflatten(-1, (self.sizes.num_heads, -1)).transpose(1, 2)
        scale = float(self.sizes.head_dim**-0.5)
        return Terms(content_bias=DecayedChannels(log_f, scale), scale=scale)
