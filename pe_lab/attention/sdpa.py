"""Attention through PyTorch's fused scaled_dot_product_attention, where the terms allow it.

Queries and keys are rotated first; everything that is added to the logits is passed as a mask of T x T numbers. On a
CPU short sequences take matrix products instead, which are faster there.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from pe_lab.attention import gradients
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import (
    added_to_logits,
    attended_keys,
    logit_scale,
    queries_and_keys,
    rotated_out,
    rotated_values,
)
from pe_lab.attention.shapes import fields_without, first_present
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.layout_properties import LONG_SEQUENCE
from pe_lab.encodings.terms import Stick, Terms

revision = 2  # increased when the numbers change; part of the identity of a result
low_precision_revision = 3  # the same, in low precision
SUPPORTED_TERMS = (
    *("lift", "rotary_q", "rotary_k", "gain", "scale", "window", "distance_bias", "clip", "decay", "pair_bias"),
    *("normalizer", "rotary_v", "rotary_out", "carried"),
)
UNSUPPORTED_TERMS = fields_without(SUPPORTED_TERMS)
BLOCK_QUERIES = 64  # queries whose weights are computed at once for the gradient of a mask
MAX_SHORT_LENGTH = 48  # tokens, up to which matrix products take less time on a CPU than the fused kernel


def refusal_reason(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return the reason why these terms cannot be computed here, or None."""
    if dropout is not None:
        return "sdpa draws a dropout mask of its own, which is not that of the other implementations"
    if isinstance(terms.normalizer, Stick):
        return "sdpa takes a softmax, this encoding breaks a stick"
    name = first_present(UNSUPPORTED_TERMS, terms)
    return None if name is None else f"sdpa has no place for {name}"


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    scale = terms.scale if terms.lift is None else logit_scale(q, terms)
    q, k = queries_and_keys(q, k, terms)
    v = rotated_values(v, terms)
    if _is_short(q, layout):
        return rotated_out(_attend_by_products(q, k, v, scale, terms, layout), terms)
    mask = _mask(q, terms, layout)
    out = rotated_out(_attend_fused(q, k, v, scale, mask, layout), terms)
    if torch.compiler.is_exporting() and "is_causal" not in mask:
        # strides depend on the kernel, and with a mask another kernel may run where the exported program does
        return out.clone(memory_format=torch.contiguous_format)
    return out


def needs_mask(q: Tensor, terms: Terms, layout: Layout) -> bool:
    """Return whether attention of queries like q takes T x S numbers: a mask, or no fused kernel."""
    if terms.carried is not None or (terms.lift is not None and terms.lift.head_dim != q.shape[-1]):
        return True  # values have another head_dim
    if first_present(("window", "distance_bias", "decay", "pair_bias"), terms):
        return True
    return layout.keys is not None or not (layout.right_padded if layout.causal else layout.one_segment)


def _mask(q: Tensor, terms: Terms, layout: Layout) -> dict[str, Any]:
    """Return the arguments that mask logits and add to them."""
    added, unlimited = added_to_logits(terms, layout), terms.window is None
    if unlimited and layout.keys is None and added is None and layout.causal and layout.right_padded:
        return {"is_causal": True}
    every_key = unlimited and layout.keys is not None and layout.all_allowed
    if not layout.causal and unlimited and q.device.type == "cpu" and q.shape[2] > LONG_SEQUENCE:
        every_key = layout.one_segment
    if added is None:
        return {"attn_mask": None if every_key else attended_keys(terms, layout)}
    if not every_key:
        added = added.masked_fill(~(_once(q, layout) if unlimited else attended_keys(terms, layout)), -torch.inf)
    return {"attn_mask": _round_bias(added, q.dtype)}


def _once(q: Tensor, layout: Layout) -> Tensor:
    """Return `layout.allowed`, but for all sequences at once where they differ in the rows of padding alone."""
    if q.device.type != "cpu" or torch.compiler.is_compiling() or layout.keys is not None or not layout.causal:
        return layout.allowed
    T = q.shape[2]
    return torch.ones(1, 1, T, T, dtype=torch.bool).tril_() if layout.right_padded else layout.allowed


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, scale: float | None, mask: dict[str, Any], layout: Layout) -> Tensor:
    """Return scaled_dot_product_attention, with a gradient of the mask where it is trained.

    PyTorch's fused kernels have none, and it takes another one instead, which on a CPU needs twice the time.
    """
    added = mask.get("attn_mask")
    trained = added is not None and added.requires_grad and torch.is_grad_enabled()
    exact = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    if not (trained and exact) or torch.compiler.is_compiling():
        return scaled_dot_product_attention(q, k, v, scale=scale, **mask)
    causal = layout.causal and layout.keys is None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out: Tensor = _TrainedMask.apply(q, k, v, added, scale, causal)  # type: ignore[no-untyped-call]
    return out


class _TrainedMask(torch.autograd.Function):
    """Attention by the fused kernel; gradients, also of the mask, by matrix products over blocks of queries.

    Args:
        q, k, v: queries [B, H, T, d], keys [B, H, S, d] and values [B, H, S, e].
        added: [B|1, H|1, T, S] numbers added to the logits; -inf where a key does not count.
        scale: the factor on the logits, before anything is added.
        causal: whether keys after the query do not count.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, added: Tensor, scale: float, causal: bool) -> Tensor:
        return scaled_dot_product_attention(q, k, v, added.detach(), scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.scale, ctx.causal = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, added, out = ctx.saved_tensors
        T, S = q.shape[2], k.shape[2]
        of_added = added.new_zeros(added.shape)
        pairs = [
            (slice(n, n + BLOCK_QUERIES), slice(0, n + BLOCK_QUERIES if ctx.causal else S))
            for n in range(0, T, BLOCK_QUERIES)
        ]

        def collect(number: int, gradient: Tensor) -> None:
            place = of_added[(..., *pairs[number])]
            place.copy_(gradient.sum_to_size(place.shape))

        blocks = ((rows, keys, added[:, :, rows, keys]) for rows, keys in pairs)
        of_inputs = gradients.blockwise_gradients(q, k, v, out, of_out, ctx.scale, blocks, collect)
        return *of_inputs, of_added, None, None


def _round_bias(added: Tensor, dtype: torch.dtype) -> Tensor:
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
    return q.dtype in (torch.float32, torch.float64) and layout.keys is None and q.shape[2] <= MAX_SHORT_LENGTH


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, scale: float | None, terms: Terms, layout: Layout) -> Tensor:
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
