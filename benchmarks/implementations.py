"""Attention with one encoding's terms by each implementation that can compute it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.subject import AttentionInputs, AttentionSizes
from pe_lab.attention import attend
from pe_lab.attention.flex import block_mask
from pe_lab.attention.reference import added_to_logits, attended_keys, window_limits
from pe_lab.encodings.families.bias import alibi_slopes
from pe_lab.encodings.terms import Rotary, Stick

MAX_SQUARE_LENGTH = 4096  # the longest sequence for implementations that build T x T matrices
BACK_ENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def implementations(subject: AttentionInputs, setting: AttentionSizes) -> dict[str, Callable[[], Tensor]]:
    """Return calls that compute the same attention, by the name of the implementation."""
    terms, layout = subject.terms, subject.layout
    on_gpu, short = setting.device.type == "cuda", subject.length <= MAX_SQUARE_LENGTH
    calls: dict[str, Callable[[], Tensor]] = {}
    calls["triton"] = partial(attend, subject.q, subject.k, subject.v, terms, layout, "triton")
    if short:
        calls["reference"] = partial(attend, subject.q, subject.k, subject.v, terms, layout, "reference")
    if isinstance(terms.normalizer, Stick):
        return calls  # no other implementation has stick-breaking
    compiled = torch.compile if on_gpu else lambda function: function
    apply = compiled(_apply) if terms.rotary_q is not None else _apply
    masked = any(term is not None for term in (terms.distance_bias, terms.decay, terms.window))
    if terms.logit_factors is None and on_gpu and (short or not masked):
        for name, back_end in BACK_ENDS.items():
            calls[f"sdpa {name}"] = partial(_fused, subject, apply, back_end, masked)
    flex = partial(
        compiled(flex_attention), score_mod=_score_function(subject), block_mask=_blocks(subject), scale=terms.scale
    )
    calls["flex"] = lambda: flex(*_queries_and_keys(subject, apply), subject.v)
    return calls


def _blocks(subject: AttentionInputs) -> BlockMask:
    """Return FlexAttention's mask: causal, with the window if there is one."""
    length, device, window = subject.length, subject.q.device, subject.terms.window
    if window is None:
        return create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device)
    batch, heads = subject.q.shape[:2]  # PyTorch would make numbers of all pairs for every head
    return block_mask(subject.layout, batch, heads, window_limits(window, device))


def _queries_and_keys(subject: AttentionInputs, apply: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return queries and keys after rotation and gain."""
    terms = subject.terms
    return apply(subject.q, terms.rotary_q, terms.gain), apply(subject.k, terms.rotary_k, terms.gain)


def _fused(subject: AttentionInputs, apply: Callable[..., Tensor], back_end: SDPBackend, masked: bool) -> Tensor:
    """Return attention by one of PyTorch's fused back ends; bias, decay and window go into a mask."""
    terms, layout, q = subject.terms, subject.layout, subject.q
    with sdpa_kernel(back_end):
        mask = None
        if masked:
            added, seen = added_to_logits(terms, layout), attended_keys(terms, layout)
            mask = seen if added is None else added.masked_fill(~seen, -torch.inf).to(q.dtype)
            mask = mask.expand(len(q), -1, -1, -1)
        queries, keys = _queries_and_keys(subject, apply)
        return scaled_dot_product_attention(queries, keys, subject.v, mask, is_causal=not masked, scale=terms.scale)


def _score_function(subject: AttentionInputs) -> Callable[..., Tensor] | None:
    """Return FlexAttention's score_mod for these terms."""
    bias, gate, decay = subject.terms.distance_bias, subject.terms.logit_factors, subject.terms.decay
    if subject.name == "alibi":  # as one would write it by hand, without a table
        slopes = torch.tensor(alibi_slopes(subject.q.shape[1]), device=subject.q.device)
        return lambda z, b, h, i, j: z - slopes[h] * (i - j).abs()
    if bias is None and gate is None and decay is None:
        return None

    def entry(table: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        reach = (table.shape[1] - 1) // 2
        return table[h if table.shape[0] > 1 else 0, (i - j).clamp(-reach, reach) + reach]

    def score(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if gate is not None:
            z = z * entry(gate, h, i, j)
        if bias is not None:
            z = z + entry(bias, h, i, j)
        if decay is not None:
            z = z + (decay[b, h, i] - decay[b, h, j])
        return z

    return score


def _apply(x: Tensor, rotary: Rotary | None, gain: Tensor | None) -> Tensor:
    """Return queries or keys after rotation and gain, in real arithmetic, which torch.compile fuses."""
    dtype = x.dtype
    if rotary is not None:
        half = rotary.pairing == "half"
        a, b = x.chunk(2, -1) if half else x.unflatten(-1, (-1, 2)).unbind(-1)
        rotated = a * rotary.cos - b * rotary.sin, a * rotary.sin + b * rotary.cos
        x = torch.cat(rotated, -1) if half else torch.stack(rotated, -1).flatten(-2)
    return (x if gain is None else x * gain[:, None]).to(dtype)
