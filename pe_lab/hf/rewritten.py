"""Attention through `AttentionInterface`, for models that compute it themselves; all else is theirs."""

from typing import Any

from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
from transformers.models.mpt.modeling_mpt import MptAttention

from pe_lab.hf.attention import ATTENTION_NAME, attention

Result = tuple[Tensor, None]


class Bloom(BloomAttention):
    """Attention of BLOOM, whose queries, keys and values are next to each other in every head."""

    def forward(self, hidden_states: Tensor, residual: Tensor, *args: Any, **kwargs: Any) -> Result:
        q, k, v = self.query_key_value(hidden_states).unflatten(-1, (self.num_heads, 3, -1)).unbind(-2)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if (cache := kwargs.get("layer_past")) is not None:
            k, v = cache.update(k, v, self.layer_idx)
        dropout = self.attention_dropout.p if self.training else 0.0
        out = attend(self, q, k, v, self.inv_norm_factor, dropout, kwargs)
        dropped = nn.functional.dropout(self.dense(out), p=self.hidden_dropout, training=self.training)
        return residual + dropped, None


class Mpt(MptAttention):
    """Attention of MPT, which may limit queries, keys and values to a range."""

    def forward(self, hidden_states: Tensor, cache: Any = None, **kwargs: Any) -> Result:
        projected = self.Wqkv(hidden_states)
        if self.clip_qkv:
            projected = projected.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        q, k, v = (x.transpose(1, 2) for x in projected.unflatten(-1, (3, self.n_heads, -1)).unbind(-3))
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        assert self.softmax_scale is not None  # as MptAttention sets it
        dropout = self.attn_dropout_p if self.training else 0.0
        return self.out_proj(attend(self, q, k, v, self.softmax_scale, dropout, kwargs)), None


class DebertaContent(DisentangledSelfAttention):
    """Attention of DeBERTa-v2 by content alone, scaled by 1 / sqrt(d), as where relative_attention is off."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any) -> Result:
        projections = self.query_proj, self.key_proj, self.value_proj
        q, k, v = (
            project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for project in projections
        )
        dropout = self.dropout.p if self.training else 0.0
        return attend(self, q, k, v, self.attention_head_size**-0.5, dropout, kwargs), None


def attend(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scaling: float, dropout: float, kwargs: dict[str, Any]
) -> Tensor:
    """Return attention [B, T, H d] of queries [B, H, T, d], by the function that the interface has."""
    out, _ = attention(
        module, q, k, v, None, scaling=scaling, dropout=dropout, **{ATTENTION_NAME: kwargs.get(ATTENTION_NAME)}
    )
    return out.flatten(2)
