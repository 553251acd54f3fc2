"""The transformer that all encodings share: the only caller of their contract."""

from collections.abc import Callable
from fractions import Fraction
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms
from pe_lab.encodings.layout import PADDING, Layout

COUNTED = 1024  # tokens up to which operations are counted one by one


class Tokens(nn.Embedding):
    """Token embeddings N(0, std^2)."""

    def __init__(self, vocabulary: int, width: int, std: float) -> None:
        self.std = std
        super().__init__(vocabulary, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Attention(nn.Module):
    """Multi-head attention; all that is positional comes from outside."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def project(self, h_qk: Tensor, h_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d] of inputs [B, T, D]."""
        B, T, D = h_qk.shape
        if h_qk is h_v:
            qkv = self.qkv(h_qk)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            query_key = nn.functional.linear(h_qk, weight[: 2 * D], bias[: 2 * D])
            qkv = torch.cat((query_key, nn.functional.linear(h_v, weight[2 * D :], bias[2 * D :])), -1)
        q, k, v = qkv.view(B, T, 3, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(
        self,
        h_qk: Tensor,
        h_v: Tensor,
        terms: Terms,
        layout: Layout,
        implementation: str,
        dropout: Dropout | None = None,
    ) -> Tensor:
        out = attend(*self.project(h_qk, h_v), terms, layout, implementation, dropout)
        return self.out(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a GELU MLP, each with a residual connection; the norm before (pre) or after (post) them."""

    def __init__(
        self, width: int, num_heads: int, mlp_ratio: int, norm: str, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout
        self.pre_norm = norm == "pre"
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, encoding: PositionalEncoding, terms: Terms | None, layout: Layout, implementation: str
    ) -> Tensor:
        h = self.norm_attention(x) if self.pre_norm else x
        h_qk, h_v = encoding.mix(h, layout)
        terms = encoding.terms(h, layout) if terms is None else terms
        weights_dropout = self._weights_dropout(h.device)
        x = x + self.dropout(self.attention(h_qk, h_v, terms, layout, implementation, weights_dropout))
        if not self.pre_norm:
            x = self.norm_attention(x)
        x = x + self.dropout(self.mlp(self.norm_mlp(x) if self.pre_norm else x))
        return x if self.pre_norm else self.norm_mlp(x)

    def _weights_dropout(self, device: torch.device) -> Dropout | None:
        if not self.training or not self.attention_dropout:
            return None
        return Dropout(self.attention_dropout, torch.randint(2**32, (), device=device))


class Transformer(nn.Module):
    """Token embeddings, `depth` layers, a head that scores every answer of the task.

    Args:
        config: depth, width, num_heads, mlp_ratio, norm, dropout, attention_dropout, embedding_std, scale_tokens.
        encoding: makes an encoding for the sizes it is given; called once, or once per layer if the encoding says so.
        task: tokens, answers, length and shape of the sequences.
        implementation: of attention; "auto" is resolved when the model runs.

    Raises:
        ValueError: sizes that do not fit each other or the encoding.
    """

    revision = 1
    neutral: dict[str, object] = {"attention_dropout": 0.0}

    def __init__(
        self,
        config: Model,
        encoding: Callable[[Sizes], PositionalEncoding],
        task: Task,
        implementation: str = "auto",
    ) -> None:
        super().__init__()
        sizes = task.sizes(config.width, config.num_heads)
        self.task = task
        self.implementation = implementation
        self.tokens = Tokens(task.vocabulary, config.width, config.embedding_std)
        self.token_scale = config.width**0.5 if config.scale_tokens else 1.0
        self.dropout = nn.Dropout(config.dropout)
        self.encodings = nn.ModuleList([encoding(sizes)])
        if self.encodings[0].per_layer:
            self.encodings.extend(encoding(sizes) for _ in range(config.depth - 1))
        for other in self.encodings[1:]:
            other.follow(self.encodings[0])
        sizes_of_layer = (config.width, config.num_heads, config.mlp_ratio, config.norm)
        self.layers = nn.ModuleList(
            Layer(*sizes_of_layer, config.dropout, config.attention_dropout) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(config.width, task.outputs)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Logits [B, S, outputs] of tokens [B, T]: S = T, or 1 where the task is pooled."""
        x = self.tokens(tokens)
        if self.token_scale != 1.0:
            x = x * self.token_scale
        first = self.encodings[0]
        layout = first.locate(layout)
        x = self.dropout(first.embed(x, layout))
        shared = None if first.per_layer or first.reads_content else first.terms(x, layout)
        for index, layer in enumerate(self.layers):
            encoding = self.encodings[index] if first.per_layer else first
            x = layer(x, encoding, shared, layout, self.implementation)
        x = self.norm(x)
        return self.head(mean_over_tokens(x, layout) if self.task.pooled else x)

    def positional_parameters(self) -> int:
        """Parameters that the encoding brought."""
        return sum(p.numel() for p in self.encodings.parameters())

    def flops_per_token(self, length: int | None = None) -> float:
        """Floating-point operations of the matrix products of one forward pass, per token.

        Counted on the reference implementation, so that encodings compare whatever runs them; of more than COUNTED
        tokens, for whose pairs there may be no memory, by that up to there.

        Args:
            length: of the sequence; None: the training length.
        """
        length = length or self.task.length
        if length <= COUNTED:
            return self._flops(length) / length
        # what is done once, per token and per pair: a polynomial, known by three of its values
        at = (COUNTED // 2, 3 * COUNTED // 4, COUNTED)
        total = sum(
            self._flops(here) * prod(Fraction(length - other, here - other) for other in at if other != here)
            for here in at
        )
        return float(total / length)

    def _flops(self, length: int) -> int:
        device = self.tokens.weight.device
        layout = self.task.layout(torch.tensor([length], device=device), length)
        asked, self.implementation = self.implementation, "reference"
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self(torch.zeros(1, length, dtype=torch.long, device=device), layout)
        finally:
            self.implementation = asked
        return counter.get_total_flops()


def mean_over_tokens(x: Tensor, layout: Layout) -> Tensor:
    """[B, 1, D] the mean of x [B, T, D] over the tokens that count."""
    real = (layout.segment != PADDING)[..., None].to(x.dtype)
    return (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
