"""The interface of a positional encoding: the places where position can enter a transformer.

Shapes here and in every encoding: B batch, T length, D width, H heads, d head_dim.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from pe_lab.encodings.facts import Stored
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import CheckedOptions

Pairing = Literal["interleaved", "half"]


class UnfitError(ValueError):
    """An encoding is not defined for the sequences of a task."""


class MissingMarksError(UnfitError):
    """An encoding reads marks of tokens, and the tokens of a task have none."""


@dataclass(frozen=True)
class Softmax:
    """Attention weights by softmax; they sum to one."""


SOFTMAX = Softmax()  # an object that torch.compile finds by its name: it makes none of a class without fields


@dataclass(frozen=True)
class Stick:
    """Attention weights by stick-breaking: each key takes a share of what earlier keys left.

    Args:
        order: of the keys; "nearest": from the query outwards, "first": from key 0 on.
        include_self: whether a query attends to its own key.
        remainder: of the weight; "drop" it, or give it to the query's "own" value.
    """

    order: str = "nearest"
    include_self: bool = False
    remainder: str = "drop"

    def __post_init__(self) -> None:
        if self.order not in ("nearest", "first"):
            raise ValueError(f"order must be nearest or first, got {self.order!r}")
        if self.remainder not in ("drop", "own"):
            raise ValueError(f"remainder must be drop or own, got {self.remainder!r}")


@dataclass(frozen=True)
class Rotary:
    """Tables that rotate pairs of head dimensions: (a, b) -> (a cos - b sin, a sin + b cos).

    Args:
        cos, sin: [B|1, H|1, T, d/2]; they may include a scale.
        pairing: "interleaved" pairs dimensions (2c, 2c+1); "half" pairs (c, c + d/2).
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing = "interleaved"

    @property
    def rotation(self) -> Tensor:
        """The tables as complex numbers, cos + i sin, made once for all layers that share them.

        What is made while gradients are off has none, so it is not kept.
        """
        return self._rotation if torch.is_grad_enabled() else torch.complex(self.cos, self.sin)

    @Stored
    def _rotation(self) -> Tensor:
        return torch.complex(self.cos, self.sin)


class Lift(Protocol):
    """Changes queries and keys before they are rotated.

    Attributes:
        head_dim: dimensions of the result, which need not be d.
    """

    @property
    def head_dim(self) -> int: ...

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries [B, H, T, head_dim] and keys [B, H, S, head_dim], for q [B, H, T, d] and k [B, H, S, d]."""


class Score(Protocol):
    """Computes a term from queries and keys, with rotation and gain applied, and from their scaled product z.

    One that makes many numbers for each pair of tokens may say how many, as `held` and `needed_once` of `Adapted` in
    pe_lab.encodings.dape do: a model that would not fit in memory is then refused before it is trained.
    """

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        """Return [B, H, T, S], for q [B, H, T, d], k [B, H, S, d] and z [B, H, T, S]."""


@dataclass(frozen=True)
class Terms:
    """The effect of an encoding on the logits, weights and values of attention.

    Each table by distance, and the gain, may also have a first axis of its own for the sequences, [B, ...].

    Args:
        lift: changes queries and keys, first of all.
        rotary_q, rotary_k: applied to queries and to keys.
        gain: [1|H, d] factors on q and on k, after rotation.
        scale: of the logits; None: d ** -0.5, d being that before the lift.
        window: a key counts if |pos_i - pos_j| is less; an integer of at least 1, or None for no limit, for all heads
            or for each.
        bias: [1|H, 2R+1] added to the logits at pos_i - pos_j, indexed + R.
        gate: [1|H, 2R+1] factors on the logits, before the bias.
        clip: whether distances beyond R use the ends of a table; otherwise they are an error.
        decay: [B, H, T] cumulative log gates c; c_i - c_j is added to the logits.
        bias_full: [B|1, H|1, T, T] added to the logits.
        score: added to the logits z, before the gate and all else.
        weights: how logits become weights.
        after: [1|H, 2R+1] factors on the weights, which are not normalized again.
        values: [1|H, 2R+1, d] relative vectors added to the values.
        rotary_v, rotary_out: applied to the values, and to the result.
    """

    rotary_q: Rotary | None = None
    rotary_k: Rotary | None = None
    gain: Tensor | None = None
    scale: float | None = None
    bias: Tensor | None = None
    gate: Tensor | None = None
    clip: bool = False
    decay: Tensor | None = None
    bias_full: Tensor | None = None
    score: Score | None = None
    values: Tensor | None = None
    weights: Softmax | Stick = field(default_factory=lambda: SOFTMAX)
    lift: Lift | None = None
    window: tuple[int | None, ...] | None = None
    after: Tensor | None = None
    rotary_v: Rotary | None = None
    rotary_out: Rotary | None = None


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that an encoding may depend on.

    Args:
        width: D.
        num_heads: H; divides D.
        length: T of the training sequences.
        causal: whether attention is causal.
        grid_width: columns of the grid that a sequence represents, read row by row; None: sequences are no grids.
        depth: layers of the model.
        layer: for which the encoding is made, 0 ... depth - 1; 0 where layers share it.
        model_heads: heads of the model, where the encoding is for `num_heads` of them; None: for all.
        marks: the largest mark of a token in training, see Layout; None: tokens are not marked.

    Raises:
        ValueError: a size below 1, a width that the heads do not divide, or a layer that the model does not have.
    """

    width: int
    num_heads: int
    length: int
    causal: bool = True
    grid_width: int | None = None
    depth: int = field(default=1, kw_only=True)
    layer: int = field(default=0, kw_only=True)
    model_heads: int | None = field(default=None, kw_only=True)
    marks: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        grid_width = 1 if self.grid_width is None else self.grid_width
        if min(self.width, self.num_heads, self.length, grid_width, self.depth, self.heads_in_model) < 1:
            raise ValueError(f"sizes must be at least 1, got {self}")
        if self.width % self.heads_in_model:
            raise ValueError(
                f"width must be divisible by num_heads, got width={self.width}, num_heads={self.heads_in_model}"
            )
        if not 0 <= self.layer < self.depth:
            raise ValueError(f"layer must be one of 0 ... {self.depth - 1}, got {self.layer}")
        if self.num_heads > self.heads_in_model:
            raise ValueError(f"num_heads must be at most model_heads={self.model_heads}, got {self.num_heads}")

    @property
    def heads_in_model(self) -> int:
        return self.num_heads if self.model_heads is None else self.model_heads

    @property
    def heads_width(self) -> int:
        """Dimensions of all `num_heads` together; D, unless the model has more heads."""
        return self.num_heads * self.head_dim

    @property
    def head_dim(self) -> int:
        return self.width // self.heads_in_model


def at_least_float32(x: Tensor) -> torch.dtype:
    """Return the dtype of angles and biases for activations x: float32, or float64 if x has it."""
    return torch.promote_types(x.dtype, torch.float32)


class PositionalEncoding(CheckedOptions, nn.Module):
    """No positional encoding (Haviv et al. 2022; NoPE, Kazemnejad et al. 2023, arXiv:2305.19466).

    Also the base class of all encodings: every hook leaves its input unchanged, and an encoding overrides one or two.
    Without any encoding a causal transformer still perceives positions; a bidirectional one does not.

    Args:
        sizes: of the model.
        name: the file stem in conf/pe, used in messages.

    Attributes:
        revision: increased whenever the numbers of this class change; part of the identity of a result.
        neutral: options added later and their value that means "as before"; it is left out of the identity.
        reads_content: whether `terms` depends on h; if not, layers that share an encoding call it once.
        reads_positions: whether positions matter; if not, only the order of the tokens does.
        per_layer: whether each layer has its own encoding, made with the layer's index in `sizes`.
        period: layers of a model, at least, in which all that the encoding is made of occurs.
        causal_only: whether it is defined for causal attention only.
        whole_sequence: why it needs all tokens of a sequence at once, so that a cache cannot serve it; None: it does
            not, and what it needs of earlier tokens it gets from `Layout.with_earlier`.
        draws_positions: whether `locate` returns other positions than those of the layout.
        draws_each_pass: whether it draws random numbers in every pass of training, which a graph cannot hold.
        on_grid: whether it needs positions with two axes; others read a grid row by row.
        reads_marks: whether it needs the marks of tokens.
        phased: whether `advance` changes it, so that it depends on when the training ends.
        fallback: the encoding that an error recommends where this one is not defined.
        start_scale: the option that is the size of its vectors at the start, beside the token embeddings or the input
            of attention to which they are added; None: it adds none.
        matrices: names of parameters [..., m, n] that multiply vectors of n numbers, as weights of linear layers do;
            where n grows with the width of a model, their rates fall in the parametrization `mup`.
        weight_decay: whether weight decay applies to its parameters.
        lr: learning rate of its parameters; None: that of the optimizer.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {}
    start_scale: ClassVar[str | None] = None
    matrices: ClassVar[tuple[str, ...]] = ()
    reads_content = False
    reads_positions = True
    per_layer = False
    period = 1
    draws_positions = False
    causal_only = False
    whole_sequence: str | None = None
    draws_each_pass = False
    on_grid = False
    reads_marks = False
    phased = False
    fallback = "none"
    weight_decay = True
    lr: float | None = None

    def __init__(self, sizes: Sizes, name: str = "none") -> None:
        super().__init__()
        self.sizes = sizes
        self.name = name
        self._require_nature(sizes.causal, grid=sizes.grid_width is not None)
        self._require_marks(sizes.marks is not None)

    def _require_marks(self, marked: bool) -> None:
        if self.reads_marks and not marked:
            raise MissingMarksError(
                f"{self.name} needs marks of tokens, as the places of digits in data=addition, got none: use "
                f"{self.fallback}"
            )

    def _require_nature(self, causal: bool, grid: bool) -> None:
        if self.causal_only and not causal:
            raise UnfitError(
                f"{self.name} is defined for causal attention only, this is bidirectional: use {self.fallback}"
            )
        if self.on_grid and not grid:
            raise UnfitError(f"{self.name} needs positions on a grid, these sequences have none: use {self.fallback}")

    @property
    def embeds(self) -> bool:
        """Whether `embed` changes token embeddings."""
        return type(self).embed is not PositionalEncoding.embed

    @property
    def mixes(self) -> bool:
        """Whether `mix` changes the input of attention."""
        return type(self).mix is not PositionalEncoding.mix

    def reset_parameters(self) -> None:
        """Draw the parameters of this module, not of its children, from torch's global generator."""

    def constrain(self) -> None:
        """Move parameters back into their range; called after every optimizer step."""

    def advance(self, done: float) -> None:
        """Change with the share of the training's steps that are done, in [0, 1); called before every step."""

    def follow(self, first: "PositionalEncoding") -> None:
        """Share parameters with the first layer's encoding; called once for every other layer."""

    def locate(self, layout: Layout) -> Layout:
        """Return the layout that all other hooks receive; called once per batch, on the first layer's encoding.

        Random draws happen here, from `layout.seed`.

        Raises:
            ValueError: the encoding is not defined for this layout.
        """
        grid = layout.pos.dim() == 3
        self._require_nature(layout.causal, grid)
        self._require_marks(layout.marks is not None)
        if not grid or self.on_grid:
            return layout
        row, column = layout.pos.unbind(-1)
        if self.sizes.grid_width is None:
            raise ValueError(f"{self.name} was built for sequences, got positions on a grid")
        outside = (column < 0) | (column >= self.sizes.grid_width)
        if self.reads_positions and (outside & (layout.segment != PADDING)).any():
            raise ValueError(
                f"{self.name} reads a grid of {self.sizes.grid_width} columns row by row: got a column outside of "
                f"it, whose position another token has"
            )
        return replace(layout, pos=row * self.sizes.grid_width + column)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        """Return token embeddings [B, T, D] with position; called once, before the first layer."""
        return x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the input of queries and keys and the input of values, for a layer's attention input h [B, T, D].

        h is not changed in place. At padding its values mean nothing.
        """
        return h, h

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        """Return the terms of attention for a layer's attention input h [B, T, D], as in `mix`."""
        return Terms()
