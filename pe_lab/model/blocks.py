"""The parts of the transformer: token embeddings, attention and a layer."""

import torch
from torch import Tensor, nn

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.stack import Positions
from pe_lab.encodings.terms import Terms
from pe_lab.model.rows import ALL, Rows


class Tokens(nn.Embedding):
    """Token embeddings N(0, std^2)."""

    def __init__(self, vocabulary: int, width: int, std: float) -> None:
        self.std = std
        super().__init__(vocabulary, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Attention(nn.Module):
    """Multi-head attention. Everything positional is an argument of `forward`.

    Args:
        width: D; num_heads: H, divides it.
        query_factor: on queries.
    """

    def __init__(self, width: int, num_heads: int, query_factor: float = 1.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_factor = query_factor
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def project(self, h_qk: Tensor, h_v: Tensor, rows: Rows = ALL) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of h_qk and values of h_v, each [B, H, T, d].

        Args:
            h_qk, h_v: the states of rows, [B, T, D] or [N, D].
        """
        D = h_qk.shape[-1]
        if h_qk is h_v:
            qkv = self.qkv(h_qk)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            query_key = nn.functional.linear(h_qk, weight[: 2 * D], bias[: 2 * D])
            qkv = torch.cat((query_key, nn.functional.linear(h_v, weight[2 * D :], bias[2 * D :])), -1)
        q, k, v = rows.split(qkv, self.num_heads)
        return q if self.query_factor == 1.0 else q * self.query_factor, k, v

    def forward(
        self,
        h_qk: Tensor,
        h_v: Tensor,
        terms: Terms,
        layout: Layout,
        implementation: str,
        dropout: Dropout | None = None,
        rows: Rows = ALL,
        kept: Rows = ALL,
    ) -> Tensor:
        """Return the states of the rows `kept`, for those of `rows`."""
        out = attend(*self.project(h_qk, h_v, rows), terms, layout, implementation, dropout)
        return self.out(kept.join(out))


class Layer(nn.Module):
    """Attention and a GELU MLP, each with a residual connection, and a norm before (pre) or after (post) each."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_ratio: int,
        norm: str,
        dropout: float,
        attention_dropout: float,
        query_factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout
        self.pre_norm = norm == "pre"
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, query_factor)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        index: int,
        positions: Positions,
        implementation: str,
        rows: Rows = ALL,
        kept: Rows = ALL,
    ) -> Tensor:
        """Return the states after the layer.

        Args:
            x: [B, T, D] states before it; [N, D] for N rows.
            index: of the layer.
            positions: of this pass through the model.
            rows: the slots of x.
            kept: the slots of the result, of those of x.

        Raises:
            ValueError: the encoding changes its input in place, or returns another shape.
        """
        h = self.norm_attention(x) if self.pre_norm else x
        padded = rows.pad(h)
        version = _version(padded)
        h_qk, h_v, terms, layout = positions.layer(index, padded)
        if _version(padded) != version:
            raise ValueError("mix and terms must return new tensors, got h changed in place")
        if h_qk is padded and h_v is padded:
            h_qk = h_v = h
        else:
            h_qk, h_v = rows.drop(h_qk), rows.drop(h_v)
        dropout = self._weights_dropout(h.device)
        out = self.attention(h_qk, h_v, terms, layout, implementation, dropout, rows, kept)
        x = kept.within(x, rows) + self.dropout(out)
        if not self.pre_norm:
            x = self.norm_attention(x)
        x = x + self.dropout(self.mlp(self.norm_mlp(x) if self.pre_norm else x))
        return x if self.pre_norm else self.norm_mlp(x)

    def _weights_dropout(self, device: torch.device) -> Dropout | None:
        """Draw a seed for the dropout of attention weights; None where there is none."""
        if not self.training or not self.attention_dropout:
            return None
        return Dropout(self.attention_dropout, torch.randint(2**32, (), device=device))


def _version(x: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 where PyTorch does not count."""
    return 0 if torch.compiler.is_compiling() or x.is_inference() else x._version


def mean_over_tokens(x: Tensor, layout: Layout) -> Tensor:
    """Return [B, 1, D], the mean of x [B, T, D] over the tokens that are not padding."""
    real = (layout.segment != PADDING)[..., None].to(x.dtype)
    return (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
