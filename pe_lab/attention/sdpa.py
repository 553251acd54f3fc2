"""Attention through PyTorch's fused scaled_dot_product_attention, where the terms allow it.

Queries and keys are rotated first; everything that is added to the logits is passed as a mask of T x T numbers. On a
CPU short sequences take matrix products instead, which are faster there.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import (
    added_to_logits,
    counting,
    queries_and_keys,
    rotated_out,
    rotated_values,
    scale_of,
)
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Stick, Terms

revision = 2  # increased when the numbers change; part of the identity of a result
low_revision = 3  # the same, in low precision
SHORT = 48  # tokens, up to which matrix products take less time on a CPU than the fused kernel


def refuses(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return the reason why these terms cannot be computed here, or None."""
    if dropout is not None:
        return "sdpa draws a dropout mask of its own, which is not that of the other implementations"
    if isinstance(terms.weights, Stick):
        return "sdpa takes a softmax, this encoding breaks a stick"
    for name in ("gate", "score", "after", "values"):
        if getattr(terms, name) is not None:
            return f"sdpa has no place for {name}"
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    scale = terms.scale if terms.lift is None else scale_of(q, terms)
    q, k = queries_and_keys(q, k, terms)
    v = rotated_values(v, terms)
    if _is_short(q, layout):
        return rotated_out(_by_products(q, k, v, scale, terms, layout), terms)
    mask = _mask(q, terms, layout)
    out = rotated_out(scaled_dot_product_attention(q, k, v, scale=scale, **mask), terms)
    if torch.compiler.is_exporting() and "is_causal" not in mask:
        # a mask decides which kernel runs, and so the strides, which are others where the program runs
        return out.clone(memory_format=torch.contiguous_format)
    return out


def _mask(q: Tensor, terms: Terms, layout: Layout) -> dict[str, Any]:
    """Return the arguments that mask logits and add to them."""
    added, unlimited = added_to_logits(terms, layout), terms.window is None
    if unlimited and layout.keys is None and added is None and layout.causal and layout.right_padded:
        return {"is_causal": True}
    every_key = unlimited and layout.keys is not None and layout.all_allowed
    if added is None:
        return {"attn_mask": None if every_key else counting(terms, layout)}
    if not every_key:
        added = added.masked_fill(~counting(terms, layout), -torch.inf)
    return {"attn_mask": _rounded(added, q.dtype)}


def _rounded(added: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to logits in the dtype of queries, which the fused kernels ask for.

    In low precision each query's largest number becomes 0, which changes no weight: a key that counts then has a small
    number, with a small rounding error.
    """
    if torch.finfo(dtype).bits < torch.finfo(added.dtype).bits:
        added = added - added.detach().amax(-1, keepdim=True)
    return added.to(dtype)


def _is_short(q: Tensor, layout: Layout) -> bool:
    """Return whether attention of queries like q takes less time as matrix products, and is as exact.

    In low precision the fused kernel is more exact: it keeps logits in float32.
    """
    if q.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return q.dtype in (torch.float32, torch.float64) and layout.keys is None and q.shape[2] <= SHORT


def _by_products(q: Tensor, k: Tensor, v: Tensor, scale: float | None, terms: Terms, layout: Layout) -> Tensor:
    """Return attention as a product, a softmax and a product; padding attends to itself, so no row is all masked."""
    B, H, T, d = q.shape
    added = _as_added(_mask(q, terms, layout), q, layout)
    q, k, v = (x.reshape(B * H, T, -1) for x in (q, k, v))
    logits = torch.baddbmm(added, q, k.transpose(1, 2), alpha=d**-0.5 if scale is None else scale)
    return torch.bmm(logits.softmax(-1), v).view(B, H, T, -1)


def _as_added(mask: dict[str, Any], q: Tensor, layout: Layout) -> Tensor:
    """Return what is added to the logits of all heads, [B H, T, T] or [1, T, T]."""
    B, H, T, _ = q.shape
    if "is_causal" in mask:
        return q.new_full((1, T, T), -torch.inf).triu_(1)
    added: Tensor = mask["attn_mask"]
    if added.dtype == torch.bool:
        added = torch.zeros_like(added, dtype=q.dtype).masked_fill(~added, -torch.inf)
    if added.shape[:2] == (1, 1):
        return added[0]
    return added.expand(B, H, T, T).reshape(B * H, T, T)
