"""Encodings whose position logits are separate from those of the tokens."""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.families.bias_learned import bucket_index, bucket_tables
from pe_lab.encodings.families.table import require_enough_rows, require_in_table
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Distance, PositionCount, even_integers
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms, prepare_pair_term


class Tupe(PositionalEncoding):
    """Transformer with untied positional encoding (Ke et al. 2021, arXiv:2006.15595, as in the authors' code).

    Logits q_i . k_j / sqrt(2d) + U_q p_i . U_k p_j / sqrt(2d) + b; p is a trained table of width D behind a LayerNorm,
    U_q and U_k are linear layers with biases, and b is a trained scalar per head and bucket of distances, as in `t5`.
    All layers share them. The first token of a document, the source's [CLS], is untied: its own row of logits has one
    trained position term and one b for all keys, and its column another for all other queries. The source is
    bidirectional; causal attention has the buckets of a causal `t5` and only the column, since the first query has one
    key. The table, b and the weights start as N(0, 0.02^2), biases at 0.

    Args:
        max_len: the number of positions that have a vector, >= the training length.
        untied_first: whether the first token is untied.
        relative: whether there is a b (TUPE-R); without it (TUPE-A) the terms are those of positions alone.
        num_buckets, max_distance: the options of b, see `T5`.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    revision = 2
    absolute = True
    matrices = ("weight",)
    fallback = "t5"
    STD = 0.02
    buckets: Tensor

    def __init__(
        self,
        sizes: Sizes,
        name: str = "tupe",
        max_len: PositionCount = 512,
        untied_first: bool = True,
        relative: bool = True,
        num_buckets: Annotated[int, even_integers(most=512)] = 32,
        max_distance: Distance = 128,
    ) -> None:
        super().__init__(sizes, name)
        require_enough_rows(max_len, sizes.length)
        self.max_len, self.untied_first = max_len, untied_first
        self.relative, self.num_buckets, self.max_distance = relative, num_buckets, max_distance
        buckets = bucket_tables(num_buckets, max_distance, sizes.causal)
        self.table = nn.Parameter(torch.empty(max_len + untied_first, sizes.width))
        self.norm_gain, self.norm_bias = (nn.Parameter(torch.empty(sizes.width)) for _ in range(2))
        self.weight = nn.Parameter(torch.empty(2, sizes.heads_width, sizes.width))  # weights of U_q and U_k
        self.bias = nn.Parameter(torch.empty(2, sizes.heads_width))
        if relative:
            self.register_buffer("buckets", buckets, persistent=False)
            self.distance_bias = nn.Parameter(torch.empty(num_buckets + untied_first, sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.STD)
        nn.init.normal_(self.weight, std=self.STD)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.norm_gain)
        nn.init.zeros_(self.norm_bias)
        if self.relative:
            nn.init.normal_(self.distance_bias, std=self.STD)

    def locate(self, layout: Layout) -> Layout:
        layout = super().locate(layout)
        require_in_table(self.name, layout, self.max_len)
        return layout

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(
            pair_bias=prepare_pair_term(partial(self._pair_bias, at_least_float32(h)), layout), scale=self._scale
        )

    def _pair_bias(self, dtype: torch.dtype, layout: Layout) -> Tensor:
        """Return what is added to the logits of a layout, [B|1, H, T, S]."""
        with torch.autocast(self.table.device.type, enabled=False):
            added = self._position_terms(layout, dtype)
        if self.relative:
            added = added + self._distance_terms(layout, dtype)
        if self.untied_first:
            first_query, first_key = self._first_token_terms(dtype)
            first = _is_first(layout.of_keys)
            added = torch.where(first[:, None, None, :], first_key[:, None, None], added)
            if not layout.causal:
                first = first[:, layout.earlier : layout.earlier + added.shape[2]]
                added = torch.where(first[:, None, :, None], first_query[:, None, None], added)
        return added

    @property
    def _scale(self) -> float:
        return float((2 * self.sizes.head_dim) ** -0.5)

    def _project(self, row: Tensor, dtype: torch.dtype, projection: int) -> Tensor:
        """Return U_q p (0) or U_k p (1) of rows of the table, [..., H, d]."""
        gain, bias = self.norm_gain.to(dtype), self.norm_bias.to(dtype)
        p = layer_norm(self.table.to(dtype)[row], (self.sizes.width,), gain, bias)
        projected = project(p, self.weight[projection], self.bias[projection])
        heads: Tensor = projected.unflatten(-1, (self.sizes.num_heads, self.sizes.head_dim))
        return heads

    def _position_terms(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """Return U_q p_i . U_k p_j / sqrt(2d), [B|1, H, T, S]."""
        # padding may have any position: its rows are not used, but must exist
        row_q, row_k = (
            pos.clamp(0, self.max_len - 1) + int(self.untied_first) for pos in (layout.pos, layout.of_keys.pos)
        )
        q, k = self._project(row_q, dtype, 0), self._project(row_k, dtype, 1)
        return (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * self._scale

    def _distance_terms(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """Return b for all pairs, [B|1, H, T, S]."""
        bucket = bucket_index(layout.distance, self.buckets, self.num_buckets, layout.causal)
        return self.distance_bias.to(dtype)[bucket].permute(0, 3, 1, 2)

    def _first_token_terms(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what the first token's row of logits has in place of its terms, and its column, each [H]."""
        with torch.autocast(self.table.device.type, enabled=False):
            row = torch.arange(2, device=self.table.device)
            logits = (self._project(row, dtype, 0) * self._project(row, dtype, 1)).sum(-1) * self._scale
        if self.relative:
            # distance 0 is no distance to the right: its bucket on that side is free
            free = torch.arange(1, 3, device=logits.device) * (self.num_buckets // 2)
            logits = logits + self.distance_bias.to(dtype)[free]
        return logits[0], logits[1]


def _is_first(layout: Layout) -> Tensor:
    """Return which tokens are the first of their documents, [B|1, T]."""
    if layout.right_padded:
        return (torch.arange(layout.segment.shape[1], device=layout.segment.device) == 0)[None]
    return layout.rank == 0
