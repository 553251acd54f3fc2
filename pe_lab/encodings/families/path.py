"""Encodings that reflect a key by all tokens between it and the query."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.families.convolution import causal_convolution
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative, Units
from pe_lab.encodings.projection import project
from pe_lab.encodings.recomputed import recompute
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

CHUNK_KEYS = 32  # keys whose reflections are multiplied at once


def reflected_products(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, chunk: int = CHUNK_KEYS) -> Tensor:
    """Return q_i . H_i ... H_(j+1) k_j with H_t = I - beta_t w_t w_t^T, for queries that are the last T of S tokens.

    The product of a chunk's matrices is I - W^T M W, M = (I + strictly lower part of diag(beta) W W^T)^-1 diag(beta),
    for the rows w_t of W. Chunks are taken from the last to the first, and queries behind one are multiplied by its
    product: O(T S d) in all. Entries of keys behind their query mean nothing.

    Args:
        q: [B, H, T, d] queries.
        k, w: [B, H, S, d] keys and vectors w_t.
        beta: [B, H, S] factors beta_t.

    Returns:
        The products, [B, H, T, S].
    """
    total, length = k.shape[2], q.shape[2]
    earlier = total - length
    slot = torch.arange(total, device=q.device)
    # the number of chunks of an exported model must not depend on its length
    count = 1 if torch.compiler.is_exporting() else -(-total // chunk)
    size = -(-total // count)  # the size of all chunks but the last
    starts = range(0, count * size, size) if count > 1 else [0]
    parts = [x.split(size, 2) if count > 1 else [x] for x in (k, w, beta)]
    rows, columns = q[:, :, length:], []  # rows: q_i H_i ... H_end of the queries behind a chunk; none as yet
    for start, keys, vectors, share in reversed([*zip(starts, *parts, strict=True)]):
        end = start + keys.shape[2]
        first = max(start, earlier) if start else earlier
        # queries within this chunk join those behind it; the first chunk takes all that are left
        rows = torch.cat((q[:, :, first - earlier : max(end - earlier, 0)], rows), 2)
        overlap = share[..., None] * (vectors @ vectors.mT).tril(-1)
        solved = torch.linalg.solve_triangular(overlap, share.diag_embed(), upper=False, unitriangular=True)
        # solved = M, vectors = W, onto = q W^T of the keys up to the query
        onto_keys = solved @ (vectors @ keys.mT).tril(-1)
        is_visible = slot[total - rows.shape[2] :, None] >= slot[start:end]
        onto = (rows @ vectors.mT) * is_visible
        column = rows @ keys.mT - onto @ onto_keys
        columns.append(pad(column, (0, 0, length - rows.shape[2], 0)))
        if start:  # there is a chunk before it
            rows = rows - onto @ solved @ vectors
    return torch.cat(columns[::-1], -1)


@dataclass(frozen=True)
class ReflectedKeys:
    """Returns the difference from the logits z to those of reflected keys.

    Args:
        w: [B, H, S, d] vectors w_t of all keys, of length 1 or less.
        beta: [B, H, S] factors beta_t, in (0, 2).
        scale: a factor on the logits.
    """

    w: Tensor
    beta: Tensor
    scale: float

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            keys = k.shape[2]
            q, k, w, beta = (x.to(z.dtype) for x in (q, k, self.w[:, :, :keys], self.beta[:, :, :keys]))
            # a block of queries: a graph has some 30 nodes for each chunk of keys
            products_of = partial(recompute, reflected_products) if q.shape[2] < keys else reflected_products
            products = products_of(q, k, w, beta)
            return products * self.scale - z


class PaTH(PositionalEncoding):
    """PaTH attention (Yang et al. 2025, arXiv:2505.16381, section 3, and the layer of flash-linear-attention).

    Logit q_i . H_i H_(i-1) ... H_(j+1) k_j / sqrt(d) with H_t = I - beta_t w_t w_t^T: every token between key and query
    reflects the key, or removes a part of it. beta = 2 sigmoid(u_h . h + b_h) is a number per head; w is h in a
    projection of low rank, convolved with the two tokens before it, in SiLU, and divided per head by
    (|w|^2 + 1e-6) ** 0.5. All is trained and of each layer: r (D + H d) + 3 H d + (D + 1) H parameters. w, beta and the
    products are formed in float32 or better. Of positions, only the order of tokens matters.

    A cache keeps w and beta of earlier tokens. Causal only: the tokens between are those behind the key.

    Args:
        rank: the rank of the projection, r >= 1; 32 as released.
        std: the initial standard deviation, >= 0: weights and taps start as N(0, std^2), b at 0; 0.02 as released. Then
            w is short for a small D, by the 1e-6, and so its reflections are weak.

    Raises:
        ValueError: an option out of range; bidirectional attention.
    """

    revision = 2
    matrices = ("down", "up", "beta_weight")
    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_content = True
    reads_positions = False
    fallback = "relative_bias"
    KERNEL = 3

    def __init__(self, sizes: Sizes, name: str = "path", rank: Units = 32, std: NonNegative = 0.02) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.down = nn.Parameter(torch.empty(rank, sizes.width))
        self.up = nn.Parameter(torch.empty(sizes.heads_width, rank))
        self.taps = nn.Parameter(torch.empty(self.KERNEL, sizes.heads_width))
        self.beta_weight = nn.Parameter(torch.empty(sizes.num_heads, sizes.width))
        self.beta_bias = nn.Parameter(torch.empty(sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.down, self.up, self.taps, self.beta_weight):
            nn.init.normal_(weight, std=self.std)
        nn.init.zeros_(self.beta_bias)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        sizes, dtype = self.sizes, at_least_float32(h)
        x = h.to(dtype)
        projected = project(project(x, self.down), self.up)
        w = silu(causal_convolution(projected, self.taps.to(dtype), layout, "projected"))
        beta = 2 * project(x, self.beta_weight, self.beta_bias).sigmoid()
        w = w.unflatten(-1, (sizes.num_heads, sizes.head_dim))
        w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        w, beta = layout.with_earlier("w", w), layout.with_earlier("beta", beta)
        scale = float(sizes.head_dim**-0.5)
        return Terms(content_bias=ReflectedKeys(w.transpose(1, 2), beta.transpose(1, 2), scale), scale=scale)
