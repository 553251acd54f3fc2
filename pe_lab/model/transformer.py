"""The transformer: embeddings, layers with an encoding, and the logits of the answers."""

from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from math import prod
from typing import ClassVar

import torch
from omegaconf import MISSING
from torch import Tensor, nn

from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.cache import Cache, require_left_padding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack
from pe_lab.model import recomputation
from pe_lab.model.blocks import Layer, Linear, TiedHead, Tokens, make_norm, mean_over_tokens
from pe_lab.model.computed_rows import ALL_ROWS, Rows, SomeRows, unpad_rows
from pe_lab.model.parametrization import MaximalUpdate, query_factor, width_factor

MAX_COUNTED_LENGTH = 1024  # tokens of the longest sequence whose operations are counted by running the model


class Transformer(nn.Module):
    """Token embeddings, `depth` layers, and a head with a logit for every answer of the task.

    Args:
        config: the sizes and parts, see `pe_lab.config.Model`.
        encoding: a function that makes an encoding for the given sizes. Called once, or once per layer if the encoding
            is per layer.
        task: the vocabulary, the answers, and the length and shape of the sequences.
        implementation: the implementation of attention; "auto" is resolved when the model runs.

    Raises:
        ValueError: sizes that do not fit each other or the encoding.
    """

    revision: ClassVar[int] = 2
    neutral: ClassVar[dict[str, object]] = {
        setting.name: setting.default for setting in fields(Model) if setting.default != MISSING
    }

    def __init__(
        self,
        config: Model,
        encoding: Callable[[Sizes], PositionalEncoding],
        task: Task,
        implementation: str = "auto",
    ) -> None:
        super().__init__()
        require_fit(config, task)
        sizes = task.sizes(config.width, config.num_heads, config.head_dim)
        self.task = task
        self.implementation = implementation
        self.tokens = Tokens(task.vocabulary, config.width, config.embedding_std)
        factor = width_factor(config)
        self.token_scale = (config.width / factor) ** 0.5 if config.scale_tokens else 1.0
        self.norm_tokens = make_norm(config.norm_type, config.width, config.bias) if config.embedding_norm else None
        self.logit_cap, self.checkpointing = config.logit_cap, config.checkpointing
        self.dropout = nn.Dropout(config.dropout)
        self.encodings = Stack.build(encoding, sizes, config.depth)
        self.layers = nn.ModuleList(Layer(config, query_factor(config)) for _ in range(config.depth))
        self.norm = nn.Identity() if config.norm == "post" else make_norm(config.norm_type, config.width, config.bias)
        self.head = (
            TiedHead(self.tokens)
            if config.tie_embeddings
            else Linear(config.width, task.outputs, config.bias, config.weight_std)
        )
        self.residual_scale = (2 * config.depth) ** -0.5 if config.residual_scale == "depth" else 1.0
        self.update = MaximalUpdate(self, encoding, sizes, config.depth, factor)

    def layer(self, index: int) -> Layer:
        """Return a layer."""
        layer = self.layers[index]
        assert isinstance(layer, Layer)  # ModuleList has members of type Module
        return layer

    @torch.no_grad()
    def scale_parameters(self) -> None:
        """Scale initial weights as the parametrization and `residual_scale` say; called once, when all are drawn."""
        self.update.scale_weights()
        if self.residual_scale != 1.0:
            for index in range(len(self.layers)):
                for linear in self.layer(index).residual_maps:
                    linear.weight.mul_(self.residual_scale)

    def matrices(self) -> set[nn.Parameter]:
        """Return the weights of the linear layers in all blocks, without the weights of encodings."""
        return {part.get_parameter("weight") for part in self.layers.modules() if isinstance(part, nn.Linear)}

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factors on learning rates that are not 1, by parameter."""
        return self.update.rates()

    def forward(self, tokens: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
        """Return logits [B, N, outputs] for tokens [B, T]; N = T, or 1 where the task is pooled.

        Args:
            layout: the layout of these tokens.
            cache: the cache of earlier tokens, to which these are added; see `Stack`.
        """
        return self._pass(tokens, layout, cache, ALL_ROWS, ALL_ROWS)

    def answers(self, tokens: Tensor, layout: Layout, slot: Tensor) -> Tensor:
        """Return the logits [N, outputs] of some slots, equal to those of `forward` up to rounding.

        Padding is not computed, and after the last layer's keys and values no slot but these.

        Args:
            layout: the layout of the tokens [B, T].
            slot: the indices of the slots, [N] ascending, without padding, among the batch's slots: B T, or B where the
                task is pooled.

        Raises:
            ValueError: a slot is padding.
        """
        rows = unpad_rows(layout)
        if self.task.pooled:
            return self._pass(tokens, layout, None, rows, rows)[:, 0][slot]
        return self._pass(tokens, layout, None, rows, SomeRows(slot, (tokens.shape[0], tokens.shape[1])))

    def _pass(self, tokens: Tensor, layout: Layout, cache: Cache | None, rows: Rows, output_rows: Rows) -> Tensor:
        """Return the logits of the slots `output_rows` after computing states of the slots `rows`; see `forward`."""
        x = self.tokens(tokens)
        if self.token_scale != 1.0:
            x = x * self.token_scale
        if self.norm_tokens is not None:
            x = self.norm_tokens(x)
        x, positions = self.encodings(x, layout, cache)
        x = self.dropout(rows.drop(x))
        recompute = recomputation.BY_NAME[self.checkpointing] if torch.is_grad_enabled() else None
        if recompute is not None:
            positions.prepare()
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            arguments = (x, index, positions, self.implementation, rows, output_rows if last else rows)
            x = layer(*arguments) if recompute is None else recompute(layer, *arguments)
        x = self.norm(x)
        logits = self.head(mean_over_tokens(output_rows.pad(x), layout) if self.task.pooled else x)
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        layout: Layout | None = None,
        cached: bool | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Return the most likely next token of every sequence, `count` times (greedy decoding), [B, count].

        Args:
            tokens: [B, T] prompts; prompts of different lengths are padded on the left.
            count: the number of tokens to generate, >= 1.
            layout: the layout of the prompts; None: they have no padding, and positions start at 0.
            cached: whether earlier tokens are kept, instead of computed again for each token; None: if the encoding
                allows it.
            marks: [B, count] marks of the tokens to be generated, where the layout has marks.

        Raises:
            ValueError: the task's answers are not its tokens, or attention is bidirectional; count out of range; a
                prompt without tokens, or padded on the right; the encoding is not defined at these positions, or cannot
                use a cache.
        """
        task = self.task
        if not task.causal or task.pooled or task.outputs != task.vocabulary:
            raise ValueError("generate needs a causal task whose answers are the next tokens, this one has others")
        if layout is None:
            layout = task.layout(torch.full((len(tokens),), tokens.shape[-1], device=tokens.device), tokens.shape[-1])
        _require_prompts(tokens, count, layout)
        if layout.marks is not None and marks is None:
            raise ValueError("generate needs the marks of the tokens to be generated, as the prompts have, got none")

        def part(start: int, end: int) -> Tensor | None:
            return None if marks is None else marks[:, start:end]

        with torch.random.fork_rng(devices=[]):  # positions are drawn by the passes, not here
            self.encodings.locate(layout.joined(layout.following(count - 1, task.grid_width, part(0, count - 1))))
        cached = self.encodings.first.whole_sequence is None if cached is None else cached
        cache = self.encodings.cache() if cached else None
        training = self.training
        self.eval()
        try:
            inputs, generated = (tokens, layout), [self(tokens, layout, cache)[:, -1:].argmax(-1)]
            while len(generated) < count:
                number = len(generated)
                following = layout.following(1, task.grid_width, part(number - 1, number))
                layout = layout.joined(following)
                inputs = (generated[-1], following) if cached else (torch.cat((inputs[0], generated[-1]), 1), layout)
                generated.append(self(*inputs, cache)[:, -1:].argmax(-1))
        finally:
            self.train(training)
        return torch.cat(generated, 1)

    def positional_parameters(self) -> int:
        """Return the number of parameters of the encodings."""
        return sum(p.numel() for p in self.encodings.parameters())

    def flops_per_token(self, length: int | None = None) -> float:
        """Return the floating-point operations of the matrix products of one forward pass, divided by its tokens.

        They are counted on the reference implementation, so that encodings are comparable whichever implementation
        runs them. Above MAX_COUNTED_LENGTH tokens the count is extrapolated from three shorter lengths.

        Args:
            length: the length of the sequence in tokens; None: the training length.
        """
        length = length or self.task.length
        if length <= MAX_COUNTED_LENGTH:
            return self._flops(length) / length
        # work per pass, per token and per pair of tokens: a polynomial of degree 2, given by three of its values
        points = (MAX_COUNTED_LENGTH // 2, 3 * MAX_COUNTED_LENGTH // 4, MAX_COUNTED_LENGTH)
        total = sum(
            self._flops(point) * prod(Fraction(length - other, point - other) for other in points if other != point)
            for point in points
        )
        return float(total / length)

    def _flops(self, length: int) -> int:
        """Count the operations of one sequence by running it."""
        from torch.utils.flop_counter import FlopCounterMode  # loads triton

        device = self.tokens.weight.device
        layout = self.task.example(length, device)
        implementation, self.implementation = self.implementation, "reference"
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self(torch.zeros(1, length, dtype=torch.long, device=device), layout)
        finally:
            self.implementation = implementation
        operations: int = counter.get_total_flops()
        return operations


def require_fit(config: Model, task: Task) -> None:
    """Check that a model can be made for a task.

    Raises:
        ValueError: embeddings are tied, and the answers are not the tokens.
    """
    if config.tie_embeddings and (task.pooled or task.outputs != task.vocabulary):
        raise ValueError(
            f"model.tie_embeddings needs a task whose answers are its {task.vocabulary} tokens, got "
            f"{task.outputs} answers{' of whole sequences' if task.pooled else ''}"
        )


def _require_prompts(tokens: Tensor, count: int, layout: Layout) -> None:
    """Raise ValueError if tokens cannot be generated behind these."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an integer of at least 1, got {count!r}")
    if tokens.dim() != 2 or not tokens.numel() or tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens must be integers [B, T], B and T at least 1, got {tokens.dtype} {list(tokens.shape)}")
    if layout.segment.shape != tokens.shape:
        raise ValueError(f"layout must be that of tokens, {list(tokens.shape)}, got {list(layout.segment.shape)}")
    if not layout.causal:
        raise ValueError("generate needs causal attention, got a layout with causal=False")
    require_left_padding(layout)
    empty = layout.source.segment[:, -1] == PADDING
    if empty.any():
        raise ValueError(f"a prompt must have a token, got padding alone in sequence {int(empty.nonzero()[0])}")
