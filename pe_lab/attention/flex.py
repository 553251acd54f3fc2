"""Attention through PyTorch's FlexAttention: a kernel compiled from functions of a logit and its two positions.

A second opinion on a GPU: kernels that PyTorch maintains. There it is compiled, and holds no T x T numbers. On a CPU
PyTorch has no backward pass, so that training is refused, and it runs uncompiled: compiling takes a minute there, and
fails for the second length (torch 2.13).
"""

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import logit_scale, queries_and_keys, rotated_out, rotated_values, window_limits
from pe_lab.attention.shapes import fields_without, first_present
from pe_lab.encodings.distance_table import table_index
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Stick, Terms

revision = 2  # increased when the numbers change; part of the identity of a result
low_precision_revision = revision
SUPPORTED_TERMS = (
    *("lift", "rotary_q", "rotary_k", "gain", "scale", "window", "distance_bias", "logit_factors", "clip", "decay"),
    *("normalizer", "rotary_v", "rotary_out", "carried"),
)
UNSUPPORTED_TERMS = fields_without(SUPPORTED_TERMS)
TILE_TOKENS = 128  # tokens of a tile of the mask
MIN_HEAD_DIM = 16  # head dimensions of the compiled kernels
MAX_VARIANTS = 256  # compiled in a process: terms, dtypes, head dimensions; PyTorch allows 8
TABLE_TERMS = ("distance_bias", "logit_factors", "decay")


def refusal_reason(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return the reason why these terms cannot be computed here, or None."""
    if layout.keys is not None:
        return "flex takes as many queries as keys, these have keys of earlier tokens"
    if dropout is not None:
        return "flex drops no weights"
    if isinstance(terms.normalizer, Stick):
        return "flex takes a softmax, this encoding breaks a stick"
    if name := first_present(UNSUPPORTED_TERMS, terms):
        return f"flex has no place for {name}, which needs T x T numbers"
    for name in ("distance_bias", "logit_factors"):
        table = getattr(terms, name)
        if table is not None and table.dim() == 3:
            return f"flex takes one {name} for all sequences"
    device = q.device.type
    if device == "cpu":
        return "flex computes no gradients on a CPU" if _needs_gradient(q, terms) else None
    if device != "cuda":
        return f"flex needs a CPU or a CUDA device, these tensors are on {device}"
    if q.dtype == torch.float64:
        return "flex takes float32, bfloat16 and float16 on a GPU, got float64"
    if q.shape[-1] < MIN_HEAD_DIM:
        return f"flex takes a head_dim of at least {MIN_HEAD_DIM} on a GPU, got {q.shape[-1]}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed, which flex needs on a GPU"
    if torch.are_deterministic_algorithms_enabled() and (names := summed_in_any_order(q, terms)):
        return f"flex sums the gradient of {names[0]} in no fixed order, and torch.use_deterministic_algorithms is on"
    return None


def summed_in_any_order(q: Tensor, terms: Terms) -> list[str]:
    """Return the terms whose gradients differ in their last bits between runs: they are summed by atomics on a GPU."""
    if q.device.type != "cuda" or not torch.is_grad_enabled():
        return []
    tables = {name: getattr(terms, name) for name in TABLE_TERMS}
    return [name for name, table in tables.items() if table is not None and table.requires_grad]


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    with torch.autocast(q.device.type, enabled=False):
        scale = terms.scale if terms.lift is None else logit_scale(q, terms)
        q, k = queries_and_keys(q, k, terms)
        v = rotated_values(v, terms)
        limit = None if terms.window is None else window_limits(terms.window, q.device)
        score, mask = score_function(q, terms, layout), block_mask(layout, len(q), q.shape[1], limit)
        if q.device.type != "cpu":
            return rotated_out(_attend_compiled(q, k, v, score, mask, scale), terms)
        dtype = torch.promote_types(q.dtype, torch.float32)  # uncompiled, it would round the logits to q's precision
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
            out: Tensor = flex_attention(q.to(dtype), k.to(dtype), v.to(dtype), score, mask, scale)
        return rotated_out(out.to(v.dtype), terms)


def _attend_compiled(*inputs: Any) -> Tensor:
    """Call the compiled flex_attention; too many variants are an error, where PyTorch would compute T x T numbers."""
    with torch._dynamo.config.patch(recompile_limit=MAX_VARIANTS):
        out: Tensor = _compile()(*inputs)
        return out


@cache  # one function for the process; PyTorch keeps its compiled variants
def _compile() -> Callable[..., Any]:
    return torch.compile(flex_attention, fullgraph=True)


def score_function(q: Tensor, terms: Terms, layout: Layout) -> Callable[..., Tensor] | None:
    """Return the function that changes the logit z of batch b, head h, query i and key j; None: no change.

    FlexAttention differentiates a tensor that is indexed once, so that the decay comes as two.
    """
    B, H, T, _ = q.shape
    gate, bias = (
        None if x is None else x.expand(H, -1).contiguous() for x in (terms.logit_factors, terms.distance_bias)
    )
    rows = None if terms.decay is None else terms.decay.expand(B, H, T).contiguous()
    columns = None if rows is None else -rows
    if gate is None and bias is None and rows is None:
        return None
    pos = layout.pos.expand(B, T).contiguous()

    def entry(table: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[h, table_index(pos[b, i] - pos[b, j], table.shape[1] // 2)]

    def score(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if gate is not None:
            z = z * entry(gate, b, h, i, j)
        if bias is not None:
            z = z + entry(bias, b, h, i, j)
        if rows is not None and columns is not None:
            z = z + (rows[b, h, i] + columns[b, h, j])
        return z

    return score


def block_mask(layout: Layout, batch: int, heads: int = 1, limit: Tensor | None = None) -> BlockMask:
    """Return the mask of tiles to compute, and of pairs within them.

    From the smallest and the largest segment and position of every tile, so that no T x T numbers are made. Tiles that
    only seem to meet cost time and change no result.

    Args:
        limit: [1|H] windows: queries and keys meet if their positions are less apart; None: at any distance.
    """
    segment = layout.segment.expand(batch, -1).contiguous()
    T, causal = segment.shape[1], layout.causal
    low, high = _bounds(segment)
    is_used = (low[..., :, None] <= high[..., None, :]) & (high[..., :, None] >= low[..., None, :])
    is_full = (low[..., :, None] == high[..., None, :]) & (high[..., :, None] == low[..., None, :])
    if limit is not None:
        low, high = _bounds(layout.pos)
        apart = (low[..., :, None] - high[..., None, :]).maximum(low[..., None, :] - high[..., :, None])
        farthest = (high[..., :, None] - low[..., None, :]).maximum(high[..., None, :] - low[..., :, None])
        is_used, is_full = (x & (gap < limit[:, None, None]) for x, gap in ((is_used, apart), (is_full, farthest)))
    if T % TILE_TOKENS:  # what is beyond the end must be cut
        is_full[..., -1, :] = is_full[..., :, -1] = False
    if causal:
        is_used, is_full = is_used.tril(), is_full.tril(-1)
    partial, full = (
        (tiles.sum(-1, dtype=torch.int32), tiles.byte().argsort(dim=-1, descending=True, stable=True).int())
        for tiles in (is_used & ~is_full, is_full)
    )
    return BlockMask.from_kv_blocks(*partial, *full, TILE_TOKENS, _pairs(layout, batch, heads, limit), (T, T))


def _bounds(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest of numbers [B|1, T] in every tile, [B|1, 1, tiles]."""
    T = numbers.shape[1]
    index = torch.arange(T + -T % TILE_TOKENS, device=numbers.device).clamp(max=T - 1)
    tiles = numbers[:, None, index].unflatten(-1, (-1, TILE_TOKENS))
    return tiles.amin(-1), tiles.amax(-1)


def _pairs(layout: Layout, batch: int, heads: int, limit: Tensor | None) -> Callable[..., Tensor]:
    """Return whether key j counts for query i, as a function of batch b, head h, i and j."""
    causal, segment = layout.causal, layout.segment.expand(batch, -1).contiguous()
    pos = None if limit is None else layout.pos.expand(batch, -1).contiguous()
    sizes = None if limit is None else limit.expand(heads).contiguous()

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        is_visible = segment[b, i] == segment[b, j]
        if causal:
            is_visible = is_visible & (i >= j)
        if pos is not None and sizes is not None:
            is_visible = is_visible & ((pos[b, i] - pos[b, j]).abs() < sizes[h])
        return is_visible

    return allowed


def _needs_gradient(q: Tensor, terms: Terms) -> bool:
    """Return whether attention of queries like q is differentiated."""
    tables = (getattr(terms, name) for name in TABLE_TERMS)
    has_trained_input = q.requires_grad or any(table is not None and table.requires_grad for table in tables)
    return torch.is_grad_enabled() and has_trained_input
