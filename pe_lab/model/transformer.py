"""The transformer: the only place that calls the hooks of a positional encoding."""

from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding, Sizes
from pe_lab.encodings.layout import Layout
from pe_lab.model.blocks import Layer, Tokens, mean_over_tokens

COUNTED = 1024  # tokens of the longest sequence whose operations are counted by running the model


class Transformer(nn.Module):
    """Token embeddings, `depth` layers, and a head with a logit for every answer of the task.

    Args:
        config: depth, width, num_heads, mlp_ratio, norm, dropout, attention_dropout, embedding_std, scale_tokens.
        encoding: makes an encoding for the given sizes. Called once, or once per layer if the encoding is per layer.
        task: vocabulary, answers, length and shape of the sequences.
        implementation: of attention; "auto" is resolved when the model runs.

    Raises:
        ValueError: sizes that do not fit each other or the encoding.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {"attention_dropout": 0.0}

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
        layer_sizes = (config.width, config.num_heads, config.mlp_ratio, config.norm)
        self.layers = nn.ModuleList(
            Layer(*layer_sizes, config.dropout, config.attention_dropout) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(config.width, task.outputs)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Return logits [B, S, outputs] for tokens [B, T]; S = T, or 1 where the task is pooled."""
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
        """Return the number of parameters of the encodings."""
        return sum(p.numel() for p in self.encodings.parameters())

    def flops_per_token(self, length: int | None = None) -> float:
        """Return the floating-point operations of the matrix products of one forward pass, divided by its tokens.

        They are counted on the reference implementation, so that encodings are comparable whichever implementation
        runs them. Above COUNTED tokens the count is extrapolated from three shorter lengths.

        Args:
            length: of the sequence; None: the training length.
        """
        length = length or self.task.length
        if length <= COUNTED:
            return self._flops(length) / length
        # work per pass, per token and per pair of tokens: a polynomial of degree 2, given by three of its values
        points = (COUNTED // 2, 3 * COUNTED // 4, COUNTED)
        total = sum(
            self._flops(point) * prod(Fraction(length - other, point - other) for other in points if other != point)
            for point in points
        )
        return float(total / length)

    def _flops(self, length: int) -> int:
        """Count the operations of one sequence by running it."""
        device = self.tokens.weight.device
        layout = self.task.layout(torch.tensor([length], device=device), length)
        implementation, self.implementation = self.implementation, "reference"
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self(torch.zeros(1, length, dtype=torch.long, device=device), layout)
        finally:
            self.implementation = implementation
        return counter.get_total_flops()
