"""The attention function of replaced models, as `AttentionInterface` calls it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import transform_qkv
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.memory import Memory
from pe_lab.encodings.merge import add_limits
from pe_lab.encodings.terms import Terms

ATTENTION_NAME = "pe_lab"  # names the attention function, and the keyword argument that brings it positions
UNKNOWN_ATTENTION = (
    "pe_lab_load"  # stands in configurations of models with attention of their own, whose original class refuses it
)


@dataclass(frozen=True)
class SoftCap:
    """A limit of the products of queries and keys, cap * tanh(z / cap), as in Gemma 2; biases are added after it."""

    cap: float

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        return self.cap * torch.tanh(z / self.cap) - z  # it is added to z


class ReplacedLayerInput(NamedTuple):
    """What self-attention of one layer takes beside queries, keys and values.

    Attributes:
        terms: the changes that the encoding makes in attention.
        layout: the layout of the queries; the same object for all layers, which share what is computed from it.
        memory: the memory of earlier tokens; None: there is no cache.
        implementation: the name of the implementation, as in `attend`.
    """

    terms: Terms
    layout: Layout
    memory: Memory | None
    implementation: str


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention [B, T, H, d] of queries [B, H, T, d] over keys and values, which may have fewer heads.

    Self-attention brings what it is given by the encoding; cross-attention is left to sdpa. Padding and causality are
    those of the layout: the mask is not read. What a model has beside positions is kept: its scale, `sliding_window`,
    the distance in positions from which a key does not count, and `softcap`.

    Raises:
        ValueError: dropout while decoding with a cache; the model has no encoding.
    """
    positions = kwargs.pop(ATTENTION_NAME, None)
    if not isinstance(positions, ReplacedLayerInput):
        if not getattr(module, "pe_lab_replaced", False):
            raise ValueError("this model must have the encoding with which it was saved: use pe_lab.hf.load")
        sdpa = AttentionInterface()["sdpa"]
        out: tuple[Tensor, None] = sdpa(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return out
    head_dim = query.shape[-1]
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast a rotation in float32 has widened them
    if scaling is not None and scaling != head_dim**-0.5:
        query = query * (scaling * head_dim**0.5)  # encodings take logits to be q . k / sqrt(d)
    if dropout and positions.layout.earlier:
        raise ValueError(f"dropout of attention must be 0 with a cache, got {dropout}: call model.eval()")
    cap = kwargs.get("softcap")
    limits = add_limits(positions.terms, kwargs.get("sliding_window"), None if cap is None else SoftCap(cap))
    positions = positions._replace(terms=limits)
    seeded = Dropout(dropout, torch.randint(2**32, (), device=query.device)) if dropout else None
    return _attend(query, key, value, positions, seeded).transpose(1, 2), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, positions: ReplacedLayerInput, dropout: Dropout | None
) -> Tensor:
    terms, layout, heads = positions.terms, positions.layout, query.shape[1]
    if positions.memory is not None:
        if _differs_by_head(terms):
            key, value = _repeat_heads(key, heads), _repeat_heads(value, heads)
        query, key, value, terms = transform_qkv(query, key, value, terms)
        total = layout.of_keys.segment.shape[1]
        key, value = (positions.memory.extend(name, x, 2, total) for name, x in (("keys", key), ("values", value)))
        if not layout.earlier:
            layout = layout.of_keys  # the same tokens, for which causal attention needs no mask
    key, value = _repeat_heads(key, heads), _repeat_heads(value, heads)
    return attend(query, key, value, terms, layout, positions.implementation, dropout)


def _differs_by_head(terms: Terms) -> bool:
    """Return whether keys or values of different heads are rotated or scaled differently."""
    rotations = [rotary for rotary in (terms.rotary_k, terms.rotary_v) if rotary is not None]
    return any(rotary.cos.shape[1] > 1 for rotary in rotations) or (terms.gain is not None and terms.gain.shape[-2] > 1)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Return x [B, H / g, S, d] with every head g times, [B, H, S, d]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


AttentionInterface.register(ATTENTION_NAME, attention)
AttentionMaskInterface.register(ATTENTION_NAME, AttentionMaskInterface()["sdpa"])  # cross-attention reads its mask
AttentionMaskInterface.register(UNKNOWN_ATTENTION, AttentionMaskInterface()["eager"])
