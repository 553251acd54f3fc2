"""Encodings with a vector per distance, which is multiplied with queries and keys or added to values."""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.distance_table import table_distances, table_index, table_lookup
from pe_lab.encodings.families.absolute import sinusoid
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Distance, NonNegative, OptionError, Positive
from pe_lab.encodings.projection import project
from pe_lab.encodings.recomputed import recompute
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

TILE_KEYS = 256  # keys whose products with rows of distances are computed at once, in a block of queries


def products_by_distance(x: Tensor, rows: Tensor, distance: Tensor, narrow: bool = False) -> Tensor:
    """Return the inner products of x_i with the row of its distance from j, [B, H, N, M].

    Args:
        x: [B, H, N, d] queries or keys.
        rows: [H|1, 2R+1, d] vectors of the distances -R ... R; R covers all tokens that attend to each other.
        distance: [B|1, N, M] integer distances.
        narrow: whether to leave out the rows of distances that do not occur, on either side.
    """
    index = table_index(distance[:, None], rows.shape[1] // 2)
    if narrow:
        low, high = (int(end) for end in index.aminmax())
        index, rows = index - low, rows[:, low : high + 1]
    products = x @ rows.mT
    return products.gather(-1, index.expand(*products.shape[:-1], -1))


def _tiled_products(k: Tensor, rows: Tensor, distance: Tensor) -> Tensor:
    """Return the inner products of k_j with the row of minus its distance from i, [B, H, N, S], for a few queries.

    Only distances within a tile of keys are near each other.

    Args:
        k: [B, H, S, d] keys.
        rows: [H, 2R+1, d] vectors of the distances -R ... R.
        distance: [B|1, N, S] integer distances.
    """
    tiles = zip(k.split(TILE_KEYS, 2), distance.split(TILE_KEYS, 2), strict=True)
    return torch.cat([products_by_distance(keys, rows, -between.mT, narrow=True).mT for keys, between in tiles], -1)


class Shaw(PositionalEncoding):
    """Relative position representations (Shaw et al. 2018, arXiv:1803.02155, eq. 3 and 4).

    Logits q_i . (k_j + a^K) / sqrt(d), outputs sum of alpha_ij (v_j + a^V); a^K and a^V are trained vectors of the
    distance clipped to +-k, shared by the heads of a layer. Row r of both tables belongs to pos_i - pos_j = r - k, as
    in all tables here; this is the paper's w_(k-r), which counts from the query to the key.

    Args:
        max_distance: the largest distance with vectors of its own, k; longer distances count as k, tables have 2k + 1
            rows.
        std: the initial standard deviation, >= 0: both tables start as N(0, std^2); None: Glorot-uniform, as in the
            authors' tensor2tensor, whose standard deviation is (2 / (2k + 1 + d)) ** 0.5.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2
    neutral = {"std": None}
    per_layer = True

    def __init__(
        self, sizes: Sizes, name: str = "shaw", max_distance: Distance = 16, std: NonNegative | None = None
    ) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, sizes.head_dim))
        self.values = nn.Parameter(torch.empty_like(self.keys))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.keys, self.values):
            if self.std is None:
                nn.init.xavier_uniform_(table)
            else:
                nn.init.normal_(table, std=self.std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(content_bias=self, relative_values=self.values.to(at_least_float32(h))[None], clip=True)

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        """Return q_i . a^K / sqrt(d), [B, H, T, T]."""
        keys = self.keys.to(at_least_float32(q))[None]
        with torch.autocast(q.device.type, enabled=False):
            if layout.start is not None:  # a block of queries: no vector is made for every pair
                products = products_by_distance(q.to(keys.dtype), keys, layout.distance)
            else:
                rows = table_lookup(keys, layout.distance, trailing=1)[:, 0]
                products = torch.einsum("bhid,bijd->bhij", q.to(keys.dtype), rows)
        scale: float = self.sizes.head_dim**-0.5
        return products * scale


class TransformerXL(PositionalEncoding):
    """Relative attention of Transformer-XL (Dai et al. 2019, arXiv:1901.02860, section 3.3).

    Logits ((q_i + u) . k_j + (q_i + v) . W_r s_(i-j)) / sqrt(d); s are sinusoids of the distance, of width D; u and v,
    a vector per head, and W_r (D to D, no bias) are trained. Without the paper's recurrence over segments. Every layer
    has its own u and v, as with the authors' `untie_r` and in XLNet.

    Args:
        theta: the base of the sinusoids' frequencies, > 0.
        std: the initial standard deviation, >= 0: u and v start as N(0, std^2); 0.02 as in the authors' code.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2
    neutral = {"std": 0.02}
    per_layer = True

    def __init__(
        self, sizes: Sizes, name: str = "transformer_xl", theta: Positive = 10_000.0, std: NonNegative = 0.02
    ) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.theta = theta
        self.u = nn.Parameter(torch.empty(sizes.num_heads, sizes.head_dim))
        self.v = nn.Parameter(torch.empty_like(self.u))
        self.project = nn.Linear(sizes.width, sizes.heads_width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.u, std=self.std)
        nn.init.normal_(self.v, std=self.std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        s = sinusoid(table_distances(layout.max_distance, h.device), self.sizes.width, self.theta, dtype)
        rows = project(s, self.project.weight).unflatten(-1, self.u.shape).transpose(0, 1)
        return Terms(content_bias=partial(self, rows=rows))

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout, rows: Tensor) -> Tensor:
        """Return (u . k_j + (q_i + v) . W_r s_(i-j)) / sqrt(d), [B, H, T, T], for the rows W_r s, [H, 2R+1, d]."""
        dtype = rows.dtype
        with torch.autocast(q.device.type, enabled=False):
            content = self.u.to(dtype)[:, None] @ k.to(dtype).mT
            vectors = q.to(dtype) + self.v.to(dtype)[:, None]
            position = products_by_distance(vectors, rows, layout.distance, narrow=layout.start is not None)
        scale: float = self.sizes.head_dim**-0.5
        return (content + position) * scale


def log_bucket(distance: Tensor, size: int) -> Tensor:
    """Return the buckets of integer distances, with their sign, in the second version of DeBERTa.

    Exact up to size / 2, logarithmic to 2 size - 1, whose bucket is size - 1; beyond, at most size.

    Args:
        size: the number of buckets to each side, even.
    """
    middle, magnitude = size // 2, distance.abs()
    part = (magnitude.clamp(min=middle).double() / middle).log() / math.log((2 * size - 1) / middle)
    # 1e-9: an integer with a rounding error must not be rounded up
    bucket = (part * (middle - 1) - 1e-9).ceil().long() + middle
    return distance.where(magnitude <= middle, distance.sign() * bucket.clamp(max=size))


class Deberta(PositionalEncoding):
    """Disentangled attention (He et al. 2020, arXiv:2006.03654, eq. 3 and 4).

    Logits (q_i . k_j + q_i . W_k,r P[delta(i, j)] + k_j . W_q,r P[delta(j, i)]) / sqrt(3d), delta(i, j) being
    i - j + k clipped to 0 ... 2k - 1. All layers share the table P, 2k vectors of width D; each has its own W_q,r and
    W_k,r (D to D, no bias). The authors' code, and transformers after it, uses delta(i, j) in the third product too.

    Args:
        max_distance: the number of rows per side, k.
        buckets: the rows of distances. "clip", the paper: a row per distance, up to k; "log", the second version's
            code: a row per distance up to k/2, logarithmic from there to 2k (k = 256 as released).
        std: the initial standard deviation, >= 0: the table starts as N(0, std^2); 0.02 as for all weights in the
            authors' code.

    Raises:
        ValueError: an option out of range; an odd max_distance with buckets=log.
    """

    neutral = {"std": 0.02}
    per_layer = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "deberta",
        max_distance: Distance = 512,
        buckets: Literal["clip", "log"] = "clip",
        std: NonNegative = 0.02,
    ) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.max_distance = max_distance
        self.buckets = buckets
        if buckets == "log" and max_distance % 2:
            raise OptionError(f"max_distance must be even with buckets=log, got {max_distance}")
        self.table = nn.Parameter(torch.empty(2 * max_distance, sizes.width))
        self.owner: tuple[Deberta, ...] = ()
        self.project_q = nn.Linear(sizes.width, sizes.heads_width, bias=False)
        self.project_k = nn.Linear(sizes.width, sizes.heads_width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.owner:
            nn.init.normal_(self.table, std=self.std)

    def share_parameters(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Deberta)
        del self.table
        self.owner = (first,)  # a module in a tuple is not registered: the state dict holds one table

    def row(self, distance: Tensor) -> Tensor:
        """Return delta: the row of the table for integer distances."""
        k = self.max_distance
        bucket = distance if self.buckets == "clip" else log_bucket(distance, k)
        return bucket.clamp(-k, k - 1) + k

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype, heads = at_least_float32(h), (self.sizes.num_heads, self.sizes.head_dim)
        table = (self.owner[0] if self.owner else self).table
        rows = table.to(dtype)[self.row(table_distances(layout.max_distance, h.device))]
        position_q, position_k = (
            project(rows, layer.weight).unflatten(-1, heads).transpose(0, 1)
            for layer in (self.project_q, self.project_k)
        )
        score = partial(self, position_q=position_q, position_k=position_k)
        return Terms(content_bias=score, scale=(3 * self.sizes.head_dim) ** -0.5)

    def forward(
        self, q: Tensor, k: Tensor, z: Tensor, layout: Layout, position_q: Tensor, position_k: Tensor
    ) -> Tensor:
        """Return (content to position + position to content) / sqrt(3d), [B, H, T, T].

        Args:
            position_q, position_k: [H, 2R+1, d] products W_q,r P and W_k,r P of each distance.
        """
        dtype, narrow, distance = position_q.dtype, layout.start is not None, layout.distance
        with torch.autocast(q.device.type, enabled=False):
            to_position = products_by_distance(q.to(dtype), position_k, distance, narrow)
            if narrow:  # a block of queries: there are some ten nodes for each tile of keys
                to_content = recompute(_tiled_products, k.to(dtype), position_q, distance)
            else:
                to_content = products_by_distance(k.to(dtype), position_q, -distance.mT).mT
        scale: float = (3 * self.sizes.head_dim) ** -0.5
        return (to_position + to_content) * scale
