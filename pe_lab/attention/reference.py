"""The definition of attention with position, written to match the papers: O(T^2), any device and dtype.

All other implementations are compared with it. Shapes: B batch, H heads, T queries, S keys (T, or
more where queries are the last of them), d head_dim, R a table's reach.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.distance_table import table_lookup
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms, pair_tensor

revision = 2  # increased when the numbers change; part of the identity of a result
low_precision_revision = revision


def refusal_reason(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return None: the reference computes all terms."""
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    with torch.autocast(q.device.type, enabled=False):
        return _attend(q, k, v, terms, layout, dropout)


def _attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> Tensor:
    weight = attention_weights(q, k, terms, layout)
    if dropout is not None:
        weight = dropout.apply(weight)
    v = rotated_values(v, terms)
    out = weight.to(v.dtype) @ v
    if terms.relative_values is not None:
        relative = table_lookup(terms.relative_values, layout.distance, trailing=1)  # [B|1, H|1, T, S, e]
        out = out + torch.einsum("bhij,bhijd->bhid", weight, relative).to(out.dtype)
    return rotated_out(out, terms)


def attention_weights(q: Tensor, k: Tensor, terms: Terms, layout: Layout) -> Tensor:
    """Return the attention weights [B, H, T, S], zero where the layout forbids attention.

    With stick-breaking, a remainder that is given to the query's own value is included.
    """
    z, allowed = logits(q, k, terms, layout), attended_keys(terms, layout)
    if isinstance(terms.normalizer, Stick):
        weight = stick_weights(z, terms.normalizer, layout, allowed)
    else:
        weight = z.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weight if terms.weight_factors is None else weight * table_lookup(terms.weight_factors, layout.distance)


def attended_keys(terms: Terms, layout: Layout) -> Tensor:
    """Return which keys each query attends to, within the window, bool [B, 1|H, T, S]."""
    if terms.window is None:
        return layout.allowed
    limit = window_limits(terms.window, layout.pos.device)
    return layout.allowed & (layout.distance[:, None].abs() < limit[:, None, None])


def window_limits(window: tuple[int | None, ...], device: torch.device) -> Tensor:
    """Return the windows, [1|H]; for None, the largest integer."""
    sizes = [torch.iinfo(torch.long).max if size is None else size for size in window]
    return torch.cat([torch.full((1,), size, device=device) for size in sizes])  # filled there: nothing is copied


def logits(q: Tensor, k: Tensor, terms: Terms, layout: Layout) -> Tensor:
    """Return the logits [B, H, T, S] before masking, in float32 or float64."""
    scale = logit_scale(q, terms)
    q, k = queries_and_keys(q, k, terms)
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    z = (q.to(compute_dtype) @ k.to(compute_dtype).transpose(-2, -1)) * scale
    if terms.content_bias is not None:
        scored = terms.content_bias(q, k, z, layout)
        if scored.shape != z.shape:
            letters = "T, T" if layout.keys is None else "T, S"
            raise ValueError(f"content_bias must return [B, H, {letters}] = {list(z.shape)}, got {list(scored.shape)}")
        z = z + scored
    if terms.logit_factors is not None:
        z = z * table_lookup(terms.logit_factors, layout.distance)
    added = added_to_logits(terms, layout)
    return z if added is None else z + added


def logit_scale(q: Tensor, terms: Terms) -> float:
    """Return the scale of the logits, for queries before the lift."""
    return q.shape[-1] ** -0.5 if terms.scale is None else terms.scale


def queries_and_keys(q: Tensor, k: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Return q and k, lifted, rotated, then scaled by the gain; in their own dtype."""
    dtype = q.dtype
    if terms.lift is not None:
        q, k = terms.lift(q, k)
    if terms.rotary_q is not None:
        q = rotate(q, terms.rotary_q)
    if terms.rotary_k is not None:
        k = rotate(k, terms.rotary_k)
    if terms.gain is not None:
        gain = terms.gain.unsqueeze(-2)
        q, k = q * gain, k * gain
    return q.to(dtype), k.to(dtype)


def transform_qkv(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> tuple[Tensor, Tensor, Tensor, Terms]:
    """Return transformed queries, keys and values, as a cache stores them, and the terms still to apply."""
    rest = replace(
        terms, lift=None, rotary_q=None, rotary_k=None, gain=None, rotary_v=None, scale=logit_scale(q, terms)
    )
    return *queries_and_keys(q, k, terms), rotated_values(v, terms), rest


def rotated_values(v: Tensor, terms: Terms) -> Tensor:
    """Return the values, rotated; in their own dtype."""
    return v if terms.rotary_v is None else rotate(v, terms.rotary_v).to(v.dtype)


def rotated_out(out: Tensor, terms: Terms) -> Tensor:
    """Return the result of attention, rotated; in its own dtype."""
    return out if terms.rotary_out is None else rotate(out, terms.rotary_out).to(out.dtype)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Return x [B, H, T, d] with pairs of its first dimensions rotated as complex numbers, in the wider of both dtypes.

    (a + ib)(cos + i sin): arXiv:2104.09864, eq. 12. Complex numbers are the faster way for neighbouring dimensions; a
    compiled or exported model has none.
    """
    x = x.to(torch.promote_types(x.dtype, rotary.cos.dtype))
    rotated = 2 * rotary.cos.shape[-1]
    if rotated < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotated], rotary), x[..., rotated:]), -1)
    if rotary.pairing == "half" or torch.compiler.is_compiling():
        return _rotate_real(x, rotary)
    pairs = x.unflatten(-1, (-1, 2))
    if any(stride % 2 for stride in pairs.stride()[:-1]) or pairs.stride(-1) != 1 or pairs.storage_offset() % 2:
        pairs = pairs.contiguous()  # complex numbers start at even offsets
    return torch.view_as_real(torch.view_as_complex(pairs) * rotary.rotation).flatten(-2)


def _rotate_real(x: Tensor, rotary: Rotary) -> Tensor:
    """Return (a cos - b sin, a sin + b cos) for every pair (a, b): equal to the product up to one rounding."""
    a, b = x.chunk(2, -1) if rotary.pairing == "half" else x.unflatten(-1, (-1, 2)).unbind(-1)
    rotated = a * rotary.cos - b * rotary.sin, a * rotary.sin + b * rotary.cos
    return torch.cat(rotated, -1) if rotary.pairing == "half" else torch.stack(rotated, -1).flatten(-2)


def added_to_logits(terms: Terms, layout: Layout) -> Tensor | None:
    """Return the sum of all terms added to the logits that do not depend on q and k, [B|1, H|1, T, S], or None."""
    parts = []
    if terms.distance_bias is not None:
        parts.append(table_lookup(terms.distance_bias, layout.distance))
    if terms.decay is not None:
        first, (queries, keys) = layout.earlier, (x.segment.shape[1] for x in (layout, layout.of_keys))
        parts.append(terms.decay[..., first : first + queries, None] - terms.decay[..., None, :keys])
    if terms.pair_bias is not None:
        parts.append(pair_tensor(terms.pair_bias, layout))
    return sum(parts[1:], parts[0]) if parts else None


def stick_weights(z: Tensor, stick: Stick, layout: Layout, allowed: Tensor | None = None) -> Tensor:
    """Return stick-breaking weights [B, H, T, S] of logits z, in log space (Tan et al. 2024, arXiv:2410.17980, eq. 1).

    ln A_ij = ln sigmoid(z_ij) + sum of ln sigmoid(-z_ik) over the keys k before j in the stick's order. In
    bidirectional attention with order "nearest" each side of the query is a stick of mass 1/2, the query's own key
    belonging to the left one; with order "first" there is one stick.

    Args:
        allowed: the mask of the keys that count, bool [B, 1|H, T, S]; None: the keys that the layout allows.
    """
    first, (queries, keys) = layout.earlier, z.shape[-2:]
    self_key = torch.eye(keys, dtype=torch.bool, device=z.device)[first : first + queries]
    allowed = layout.allowed if allowed is None else allowed
    allowed = allowed if stick.include_self else allowed & ~self_key
    if layout.causal or stick.order == "first":
        weight, left_over = _break_stick(z, allowed, from_right=stick.order == "nearest")
    else:
        left_keys = self_key.logical_not().triu(first).logical_not()
        on_left, left_over_left = _break_stick(z, allowed & left_keys, from_right=True)
        on_right, left_over_right = _break_stick(z, allowed & ~left_keys, from_right=False)
        weight, left_over = (on_left + on_right) / 2, (left_over_left + left_over_right) / 2
    if stick.remainder == "own":
        weight = weight + left_over[..., None] * self_key
    return weight


def _break_stick(z: Tensor, allowed: Tensor, from_right: bool) -> tuple[Tensor, Tensor]:
    """Return the weights [..., T, S] of one stick over the allowed keys, and its remainder [..., T]."""
    z = z.expand(torch.broadcast_shapes(z.shape, allowed.shape))
    if torch.compiler.is_compiling():
        return _stick_shares(z, allowed, from_right)
    weight, remainder = _StickShares.apply(z, allowed, from_right)  # type: ignore[no-untyped-call]
    return weight, remainder


def _stick_shares(z: Tensor, allowed: Tensor, from_right: bool) -> tuple[Tensor, Tensor]:
    keep = logsigmoid(-z).masked_fill(~allowed, 0)  # ln of the share that a key leaves
    if from_right:
        keep = keep.flip(-1)
    total = keep.cumsum(-1)
    before = torch.nn.functional.pad(total[..., :-1], (1, 0))
    if from_right:
        before = before.flip(-1)
    weight = (logsigmoid(z) + before).exp().masked_fill(~allowed, 0)
    return weight, total[..., -1].exp()


class _StickShares(torch.autograd.Function):
    """Stick-breaking weights as of `_stick_shares`, whose gradient takes one sum along the stick.

    With s = sigmoid(z): the gradient of z_j is g_j A_j - s_j times the sum of g_k A_k over the keys k that are not
    before j in the stick's order, and of the remainder times its gradient.
    """

    @staticmethod
    def forward(z: Tensor, allowed: Tensor, from_right: bool) -> tuple[Tensor, Tensor]:
        return _stick_shares(z, allowed, from_right)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, allowed, ctx.from_right = inputs
        ctx.save_for_backward(z, allowed, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_weight: Tensor, of_remainder: Tensor) -> tuple[Tensor | None, ...]:
        z, allowed, weight, remainder = ctx.saved_tensors
        part = of_weight * weight
        later = part.cumsum(-1) if ctx.from_right else part.flip(-1).cumsum(-1).flip(-1)
        later += (of_remainder * remainder)[..., None]
        return (part - z.sigmoid().mul_(later)).masked_fill_(~allowed, 0), None, None
