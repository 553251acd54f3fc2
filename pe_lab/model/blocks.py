"""The parts of the transformer: token embeddings, attention and a layer."""

import torch
from torch import Tensor, nn

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.config import Model, head_dim, hidden_width
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.stack import PassPositions
from pe_lab.encodings.terms import Terms
from pe_lab.model.computed_rows import ALL_ROWS, Rows

NORM_EPSILON = 1e-5  # the epsilon of norms


class Tokens(nn.Embedding):
    """Token embeddings N(0, std^2)."""

    def __init__(self, vocabulary: int, width: int, std: float) -> None:
        self.std = std
        super().__init__(vocabulary, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Linear(nn.Linear):
    """A linear map.

    Args:
        inputs, outputs: the numbers of input and output dimensions.
        bias: whether the map has a bias.
        std: the standard deviation of the initial weights, N(0, std^2), while biases start as 0; None: both as PyTorch
            draws them, uniform within 1 / sqrt(inputs).
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, std: float | None = None) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        if self.std is None:
            super().reset_parameters()
            return
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def make_norm(kind: str, width: int, bias: bool = True) -> nn.Module:
    """Return a norm over the last dimension, of this width.

    Args:
        kind: the type: layer, LayerNorm; rms, RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4), which has no
            bias; rms_plain, the same without gains.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=NORM_EPSILON, bias=bias)
    return nn.RMSNorm(width, eps=NORM_EPSILON, elementwise_affine=kind == "rms")


def make_mlp(
    kind: str, width: int, hidden: int, bias: bool = True, std: float | None = None
) -> "SwiGLU | nn.Sequential":
    """Return the MLP of a layer.

    Args:
        kind: the type: gelu or relu2, two linear maps with a GELU or a `SquaredReLU` between; swiglu, see `SwiGLU`.
        bias, std: the bias and the initial weights of the linear maps, see `Linear`.
    """
    if kind == "swiglu":
        return SwiGLU(width, hidden, bias, std)
    between = SquaredReLU() if kind == "relu2" else nn.GELU()
    return nn.Sequential(Linear(width, hidden, bias, std), between, Linear(hidden, width, bias, std))


class SquaredReLU(nn.Module):
    """max(x, 0)^2 (So et al. 2021, arXiv:2109.08668, section 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x).square()


class SwiGLU(nn.Module):
    """A gated MLP: down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202, eq. 6).

    Args:
        width: D, the dimensions of input and output.
        hidden: the hidden dimensions; two thirds of those of a GELU MLP give as many parameters.
    """

    def __init__(self, width: int, hidden: int, bias: bool = True, std: float | None = None) -> None:
        super().__init__()
        self.gate = Linear(width, hidden, bias, std)
        self.up = Linear(width, hidden, bias, std)
        self.down = Linear(hidden, width, bias, std)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return out


class MultiHeadAttention(nn.Module):
    """Multi-head attention. Everything positional is an argument of `forward`.

    Queries of H / G heads share a head of keys and values (Ainslie et al. 2023, arXiv:2305.13245), which is repeated
    before attention: encodings and all implementations see H heads.

    Args:
        config: the model's config, with width, num_heads, head_dim, num_kv_heads, qk_norm, bias and weight_std.
        query_factor: the factor on queries.
    """

    def __init__(self, config: Model, query_factor: float = 1.0) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.query_factor = query_factor
        width, d = config.width, head_dim(config)
        self.keys_end = (self.num_heads + self.num_kv_heads) * d
        self.qkv = Linear(width, self.keys_end + self.num_kv_heads * d, config.bias, config.weight_std)
        of_head = "rms_plain" if config.norm_type == "rms_plain" else "rms"
        self.norm_query = make_norm(of_head, d) if config.qk_norm else nn.Identity()
        self.norm_key = make_norm(of_head, d) if config.qk_norm else nn.Identity()
        self.out = Linear(self.num_heads * d, width, config.bias, config.weight_std)

    def project(self, h_qk: Tensor, h_v: Tensor, rows: Rows = ALL_ROWS) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of h_qk and values of h_v, each [B, H, T, d].

        Args:
            h_qk, h_v: the states of rows, [B, T, D] or [N, D].
        """
        if h_qk is h_v:
            qkv = self.qkv(h_qk)
        else:
            weight, bias, keys_end = self.qkv.weight, self.qkv.bias, self.keys_end
            first, last = (None, None) if bias is None else (bias[:keys_end], bias[keys_end:])
            query_key = nn.functional.linear(h_qk, weight[:keys_end], first)
            qkv = torch.cat((query_key, nn.functional.linear(h_v, weight[keys_end:], last)), -1)
        q, k, v = rows.split(self._repeat_keys_and_values(qkv), self.num_heads)
        q, k = self.norm_query(q), self.norm_key(k)
        return q if self.query_factor == 1.0 else q * self.query_factor, k, v

    def _repeat_keys_and_values(self, qkv: Tensor) -> Tensor:
        """Return [..., 3 H d] for [..., (H + 2 G) d]: keys and values once for each of their queries' heads."""
        H, G = self.num_heads, self.num_kv_heads
        if H == G:
            return qkv
        q, k, v = qkv.unflatten(-1, (H + 2 * G, -1)).split((H, G, G), -2)
        k, v = (x.repeat_interleave(H // G, -2) for x in (k, v))
        return torch.cat((q, k, v), -2).flatten(-2)

    def forward(
        self,
        h_qk: Tensor,
        h_v: Tensor,
        terms: Terms,
        layout: Layout,
        implementation: str,
        dropout: Dropout | None = None,
        rows: Rows = ALL_ROWS,
        output_rows: Rows = ALL_ROWS,
    ) -> Tensor:
        """Return the states of the rows `output_rows`, given the states of `rows`."""
        out = attend(*self.project(h_qk, h_v, rows), terms, layout, implementation, dropout)
        states: Tensor = self.out(output_rows.join(out))
        return states


class Layer(nn.Module):
    """Attention and an MLP f, each with a residual connection and norms.

    pre is `x + f(norm(x))`, post `norm(x + f(x))`, sandwich `x + norm(f(norm(x)))`.

    Args:
        config: the config of the model.
        query_factor: the factor on queries.
    """

    def __init__(self, config: Model, query_factor: float = 1.0) -> None:
        super().__init__()
        width, sandwich = config.width, config.norm == "sandwich"
        self.attention_dropout = config.attention_dropout
        self.pre_norm = config.norm != "post"
        self.norm_attention = make_norm(config.norm_type, width, config.bias)
        self.attention = MultiHeadAttention(config, query_factor)
        self.norm_attention_out = make_norm(config.norm_type, width, config.bias) if sandwich else nn.Identity()
        self.norm_mlp = make_norm(config.norm_type, width, config.bias)
        self.mlp = make_mlp(config.mlp, width, hidden_width(config), config.bias, config.weight_std)
        self.norm_mlp_out = make_norm(config.norm_type, width, config.bias) if sandwich else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    @property
    def residual_maps(self) -> tuple[nn.Linear, nn.Linear]:
        """The linear maps whose results are added to the residual stream."""
        last = self.mlp[-1] if isinstance(self.mlp, nn.Sequential) else self.mlp.down
        assert isinstance(last, nn.Linear)
        return self.attention.out, last

    def forward(
        self,
        x: Tensor,
        index: int,
        positions: PassPositions,
        implementation: str,
        rows: Rows = ALL_ROWS,
        output_rows: Rows = ALL_ROWS,
    ) -> Tensor:
        """Return the states after the layer.

        Args:
            x: [B, T, D] states before it; [N, D] for N rows.
            index: the index of the layer.
            positions: the positions of this forward pass, made by `Stack`.
            rows: the slots of x.
            output_rows: the slots of the result, some or all of `rows`.
        """
        h = self.norm_attention(x) if self.pre_norm else x
        padded = rows.pad(h)
        h_qk, h_v, terms, layout = positions.layer(index, padded)
        if h_qk is padded and h_v is padded:
            h_qk = h_v = h
        else:
            h_qk, h_v = rows.drop(h_qk), rows.drop(h_v)
        dropout = self._weights_dropout(h.device)
        out = self.attention(h_qk, h_v, terms, layout, implementation, dropout, rows, output_rows)
        x = output_rows.within(x, rows) + self.dropout(self.norm_attention_out(out))
        if not self.pre_norm:
            x = self.norm_attention(x)
        x = x + self.dropout(self.norm_mlp_out(self.mlp(self.norm_mlp(x) if self.pre_norm else x)))
        return x if self.pre_norm else self.norm_mlp(x)

    def _weights_dropout(self, device: torch.device) -> Dropout | None:
        """Draw a seed for the dropout of attention weights; None where there is none."""
        if not self.training or not self.attention_dropout:
            return None
        return Dropout(self.attention_dropout, torch.randint(2**32, (), device=device))


class TiedHead(nn.Module):
    """The embeddings of the tokens as the head: the logit of a token is its embedding's product with the state."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = [tokens]  # in a list, so that its parameter stays one of the embeddings alone

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self._tokens[0].weight)


def mean_over_tokens(x: Tensor, layout: Layout) -> Tensor:
    """Return [B, 1, D], the mean of x [B, T, D] over the tokens that are not padding."""
    is_token = (layout.segment != PADDING)[..., None].to(x.dtype)
    return (x * is_token).sum(1, keepdim=True) / is_token.sum(1, keepdim=True).clamp(min=1)
