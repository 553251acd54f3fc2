"""Attention in blocks of queries, for long sequences: T x T numbers are never stored, nor in the backward pass.

All terms are taken. Where logits only get functions of i - j and a decay, PyTorch's fused kernel computes each block of
queries with the keys that they may see; otherwise the reference does, and again for the gradients. It runs uncompiled.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from pe_lab.attention import gradients, reference
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.shapes import fields_without, first_present
from pe_lab.encodings.distance_table import table_index, table_lookup
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Stick, StoredPairTerm, Terms

revision = 2  # increased when the numbers change; part of the identity of a result
low_precision_revision = revision
FUSED_TERMS = (
    "scale",
    "window",
    "distance_bias",
    "clip",
    "decay",
    "normalizer",
)  # fields of terms that the fused kernel takes
UNSUPPORTED_TERMS = fields_without(FUSED_TERMS)
MAX_BLOCK_LOGITS = 2**18  # most logits of a block, over all sequences and heads
MIN_BLOCK_QUERIES = 8  # queries of a block
BLOCKS_PER_TRIM = 8  # blocks after which freed memory is returned to the system


@contextmanager
def limit_block_size(logits: int) -> Iterator[None]:
    """Compute blocks of so many logits at most, for tests with short sequences."""
    global MAX_BLOCK_LOGITS
    before, MAX_BLOCK_LOGITS = MAX_BLOCK_LOGITS, logits
    try:
        yield
    finally:
        MAX_BLOCK_LOGITS = before


def refusal_reason(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return the reason why these terms cannot be computed here, or None."""
    return "blocked runs uncompiled" if torch.compiler.is_compiling() else None


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, remaining_terms = reference.transform_qkv(q, k, v, terms)
        remaining_terms = replace(remaining_terms, rotary_out=None)
        if dropout is None and _is_plain(q, remaining_terms, layout):
            out = _plain(q, k, v, remaining_terms, layout)
        else:
            out = _attend_by_definition(q, k, v, remaining_terms, layout, dropout)
        return reference.rotated_out(out, terms)


def _return_freed_memory() -> None:
    """Return freed memory to the system, where the C library is glibc."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None:
        trim(0)


def _rows(q: Tensor, layout: Layout) -> Iterator[slice]:
    """Yield the queries of each block: MAX_BLOCK_LOGITS logits with the keys that they may see, at most.

    Blocks are of equal size, so that the memory of one is used again by the next.
    """
    B, H, T, _ = q.shape
    most, keys, start = MAX_BLOCK_LOGITS // (B * H), layout.of_keys.segment.shape[1], 0
    while start < T:
        before = layout.earlier + start
        size = (isqrt(before**2 + 4 * most) - before) // 2 if layout.causal else most // keys
        end = min(start + max(MIN_BLOCK_QUERIES, size), T)
        yield slice(start, end)
        start = end


# -- any terms: the reference, computed again for the gradients --------------------------------------------------------


def _attend_by_definition(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None
) -> Tensor:
    if isinstance(terms.pair_bias, Tensor):
        terms = replace(terms, pair_bias=StoredPairTerm(terms.pair_bias, layout))

    def block(index: int, rows: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if index % BLOCKS_PER_TRIM == BLOCKS_PER_TRIM - 1:
            _return_freed_memory()  # blocks differ in size: the memory of one does not fit the next
        part = layout.block(rows.start, rows.stop)
        keys = part.of_keys.segment.shape[1]
        block_terms = terms if terms.decay is None else replace(terms, decay=terms.decay[..., :keys])
        return _attend(q[:, :, rows], k[:, :, :keys], v[:, :, :keys], block_terms, part, dropout)

    parts = []
    for index, rows in enumerate(_rows(q, layout)):
        if torch.is_grad_enabled():
            part = checkpoint(block, index, rows, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            part = block(index, rows, q, k, v)
        parts.append(part)
    return torch.cat(parts, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> Tensor:
    """Return attention of the queries of a block."""
    weight = reference.attention_weights(q, k, terms, layout)
    if dropout is not None:
        weight = dropout.apply(weight, layout.earlier)
    out = weight.to(v.dtype) @ v
    if terms.relative_values is not None:
        out = out + _relative(weight, terms.relative_values, layout).to(out.dtype)
    return out


def _relative(weight: Tensor, table: Tensor, layout: Layout) -> Tensor:
    """Return the sum of the relative vectors by their weights, with no vector for every pair.

    Args:
        weight: attention weights [B, H, N, S].
        table: relative vectors by distance, [1|H, 2R+1, e] or [B|1, 1|H, 2R+1, e].
    """
    index = table_index(layout.distance, table.shape[-2] // 2)[:, None].expand_as(weight)
    by_distance = weight.new_zeros(*weight.shape[:3], table.shape[-2]).scatter_add(-1, index, weight)
    return by_distance @ table


# -- a softmax of logits to which functions of i - j and a decay are added: the fused kernel ---------------------------


def _is_plain(q: Tensor, terms: Terms, layout: Layout) -> bool:
    """Return whether the fused kernel takes the terms, and what is added is a function of i - j but for the decay."""
    if isinstance(terms.normalizer, Stick) or q.dtype not in (torch.float32, torch.float64):
        return False
    if first_present(UNSUPPORTED_TERMS, terms):
        return False
    if terms.distance_bias is not None and terms.distance_bias.dim() == 3:
        return False
    keys = layout.of_keys
    return bool(keys.runs_on and (keys.right_padded if layout.causal else keys.one_segment))


def _plain(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout) -> Tensor:
    size = k.shape[2]
    distance = torch.arange(size - 1, -size, -1, device=q.device)  # keys are at consecutive positions
    table = q.new_zeros(1, len(distance))
    if terms.distance_bias is not None:
        table = table_lookup(terms.distance_bias, distance[None, None])[0, :, 0].to(q.dtype)
    if layout.causal:
        table = table.masked_fill(distance < 0, -torch.inf)
    if terms.window is not None:
        limit = reference.window_limits(terms.window, q.device)
        table = table.masked_fill(distance.abs() >= limit[:, None], -torch.inf)
    sizes = [window or size for window in terms.window or (None,)]
    decay = None if terms.decay is None else terms.decay.to(q.dtype)
    blocks = [_QueryBlock(rows, layout.earlier, size, max(sizes), layout.causal) for rows in _rows(q, layout)]
    scale = reference.logit_scale(q, terms)
    out: Tensor = _Fused.apply(q, k, v, table, decay, scale, blocks)  # type: ignore[no-untyped-call]
    return out


class _QueryBlock:
    """Some queries, and the keys that one of them may see.

    Args:
        rows: the slice of the queries.
        earlier: the number of keys before the first of all queries.
        total: S, the number of keys.
        window: the largest window of all heads; no less than S if a head has none.
    """

    def __init__(self, rows: slice, earlier: int, total: int, window: int, causal: bool) -> None:
        self.rows, self.total = rows, total
        self.first, self.last = earlier + rows.start, earlier + rows.stop - 1  # indices among the keys
        self.keys = slice(max(0, self.first - window + 1), self.last + 1 if causal else min(total, self.last + window))

    def distance_bias(self, table: Tensor, decay: Tensor | None) -> Tensor:
        """Return what is added to the logits, [B|1, H|1, N, keys], by a table of distances S - 1 ... 1 - S."""
        added = table[:, self._part].unfold(-1, self.keys.stop - self.keys.start, 1).flip(-2)[None]
        if decay is None:
            return added
        return added + (decay[..., self.first : self.last + 1, None] - decay[..., None, self.keys])

    @property
    def _part(self) -> slice:
        """The entries of the table for these pairs: that of query i and key j is at S - 1 - i + j."""
        start = self.total - 1 - self.last + self.keys.start
        return slice(start, start + self.last - self.first + self.keys.stop - self.keys.start)

    def add_to_table(self, total: Tensor, of_added: Tensor) -> None:
        """Add the gradient of what was added, [B, H, N, keys], to that of the table [1|H, 2S-1]."""
        rows, keys = of_added.shape[2:]
        skewed = pad(of_added.sum(0).flip(-2), (0, rows)).flatten(1)[:, : rows * (rows + keys - 1)]
        summed = skewed.view(-1, rows, rows + keys - 1).sum(1)  # rows are shifted: a column has one distance
        total[:, self._part] += summed.sum_to_size(len(total), summed.shape[1])

    def add_to_decay(self, total: Tensor, of_added: Tensor) -> None:
        """Add the gradient of what was added to that of the decay [B|1, H|1, S]."""
        total[..., self.first : self.last + 1] += of_added.sum(-1).sum_to_size(*total.shape[:2], of_added.shape[2])
        total[..., self.keys] -= of_added.sum(-2).sum_to_size(*total.shape[:2], of_added.shape[3])


class _Fused(torch.autograd.Function):
    """Attention by the fused kernel, block by block, and its gradients by products.

    Args:
        q, k, v: queries [B, H, T, d], keys [B, H, S, d] and values [B, H, S, e].
        table: [1|H, 2S-1] numbers added to the logits by distance, S - 1 first; -inf where a key does not count.
        decay: [B|1, H|1, S] numbers whose difference between query and key is added to the logits; None: no decay.
        scale: the factor on the logits, before anything is added.
        blocks: the blocks into which the queries are divided.
    """

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, decay: Tensor | None, scale: float, blocks: list[_QueryBlock]
    ) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        for block in blocks:
            rows, keys = block.rows, block.keys
            added = block.distance_bias(table, decay)
            out[:, :, rows] = scaled_dot_product_attention(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], added, scale=scale
            )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.scale, ctx.blocks = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, table, decay, out = ctx.saved_tensors
        of_table = torch.zeros_like(table) if ctx.needs_input_grad[3] else None
        of_decay = torch.zeros_like(decay) if ctx.needs_input_grad[4] else None

        def collect(number: int, gradient: Tensor) -> None:
            if of_table is not None:
                ctx.blocks[number].add_to_table(of_table, gradient)
            if of_decay is not None:
                ctx.blocks[number].add_to_decay(of_decay, gradient)

        blocks = ((block.rows, block.keys, block.distance_bias(table, decay)) for block in ctx.blocks)
        of_inputs = gradients.blockwise_gradients(q, k, v, out, of_out, ctx.scale, blocks, collect)
        return *of_inputs, of_table, of_decay, None, None
