"""The contract of a positional encoding: where position can enter a transformer.

Shapes here and in every encoding: B batch, T length, D width, H heads, d head_dim.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import CheckedOptions

Pairing = Literal["interleaved", "half"]


class UnfitError(ValueError):
    """An encoding is not made for the sequences of a task."""


@dataclass(frozen=True)
class Softmax:
    """Weights that sum to one."""


@dataclass(frozen=True)
class Stick:
    """Stick-breaking weights: each key takes a share of what those before it left.

    Args:
        order: "nearest" breaks the stick from the query outwards, "first" from key 0 on.
        include_self: whether the query's own key takes part.
        remainder: "drop" what is left, or give it to the query's "own" value.
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
    """Tables that turn pairs of lanes: (a, b) -> (a cos - b sin, a sin + b cos).

    Args:
        cos, sin: [B|1, H|1, T, d/2]; a scale, if there is one, is inside.
        pairing: "interleaved" pairs lanes (2c, 2c+1); "half" pairs (c, c + d/2).
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing = "interleaved"


@dataclass(frozen=True)
class Terms:
    """Everything about position that touches logits, weights and values.

    Args:
        rotary_q, rotary_k: applied to queries and to keys.
        gain: [1|H, d] factors on q and on k, after rotation.
        scale: of the logits; None: d ** -0.5.
        bias: [1|H, 2R+1] added to the logits at pos_i - pos_j, indexed + R.
        gate: [1|H, 2R+1] factors on the logits, before the bias.
        clip: distances beyond R use the table's ends; otherwise they are an error.
        decay: [B, H, T] cumulative log gates c; c_i - c_j is added to the logits.
        bias_full: [B|1, H|1, T, T] added to the logits.
        score: module (q, k, z, layout) -> [B, H, T, T] added to the logits z; q and k come as they meet, rotated and
            with their gain, and the gate comes after.
        values: [1|H, 2R+1, d] relative vectors added to the values.
        weights: how logits become weights.
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
    score: nn.Module | None = None
    values: Tensor | None = None
    weights: Softmax | Stick = Softmax()


@dataclass(frozen=True)
class Sizes:
    """What an encoding may need to know of its model.

    Args:
        width: D.
        num_heads: H; divides D.
        length: T of the training sequences.
        causal: whether the task is.
        grid_width: of the grid that the sequences are, read row by row; None: they are no grid.

    Raises:
        ValueError: a size below 1, or a width that the heads do not divide.
    """

    width: int
    num_heads: int
    length: int
    causal: bool = True
    grid_width: int | None = None

    def __post_init__(self) -> None:
        sizes = (self.width, self.num_heads, self.length, 1 if self.grid_width is None else self.grid_width)
        if min(sizes) < 1:
            raise ValueError(f"sizes must be at least 1, got {self}")
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be divisible by num_heads, got width={self.width}, num_heads={self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads


def at_least_float32(x: Tensor) -> torch.dtype:
    """The dtype of angles and biases for activations x: float32, or float64 where x has it."""
    return torch.promote_types(x.dtype, torch.float32)


class PositionalEncoding(CheckedOptions, nn.Module):
    """No positional encoding (Haviv et al. 2022; NoPE, Kazemnejad et al. 2023, arXiv:2305.19466).

    Also the base of all others: every hook leaves its input alone, and an encoding overrides one or two.
    A causal transformer without any encoding is not position-blind; a bidirectional one is.

    Args:
        sizes: of the model it serves.
        name: the file stem in conf/pe, used in messages.

    Attributes:
        revision: raised whenever the numbers of this class change; part of a cell's identity.
        neutral: options added since, at the value that means "as before": left out of the identity there.
        reads_content: whether `terms` looks at h; if not, an encoding that all layers share is asked once.
        reads_positions: whether positions matter to it; if not, only the order of the tokens does.
        per_layer: whether each layer has an encoding of its own.
        causal_only: whether it is defined under a causal mask only.
        on_grid: whether it needs positions with two axes; others take a grid in reading order.
        instead: the encoding to name where this one is refused.
        weight_decay: whether the optimizer may decay its parameters.
        lr: learning rate of its parameters; None: the optimizer's.
    """

    revision = 1
    neutral: dict[str, object] = {}
    reads_content = False
    reads_positions = True
    per_layer = False
    causal_only = False
    on_grid = False
    instead = "none"
    weight_decay = True
    lr: float | None = None

    def __init__(self, sizes: Sizes, name: str = "none") -> None:
        super().__init__()
        self.sizes = sizes
        self.name = name
        self._require_nature(sizes.causal, grid=sizes.grid_width is not None)

    def _require_nature(self, causal: bool, grid: bool) -> None:
        if self.causal_only and not causal:
            raise UnfitError(
                f"{self.name} is defined for causal attention only, this is bidirectional: use {self.instead}"
            )
        if self.on_grid and not grid:
            raise UnfitError(f"{self.name} needs positions on a grid, these sequences have none: use {self.instead}")

    def reset_parameters(self) -> None:
        """Draw the parameters of this module from torch's global generator."""

    def constrain(self) -> None:
        """Put parameters back into their range; called after every optimizer step."""

    def follow(self, first: "PositionalEncoding") -> None:
        """Share with the first layer's encoding what layers share; called once on those of the other layers."""

    def locate(self, layout: Layout) -> Layout:
        """The layout as this encoding takes it, for all other hooks; called once per batch, on the first layer's.

        What is drawn at random is drawn here, from `layout.seed`.

        Raises:
            ValueError: it is outside of the encoding's nature.
        """
        grid = layout.pos.dim() == 3
        self._require_nature(layout.causal, grid)
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
        """Token embeddings [B, T, D] with position in them; called once, before the first layer."""
        return x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """A layer's attention input [B, T, D] as it goes to queries and keys, and to values."""
        return h, h

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        """What attention must know, for a layer's attention input h [B, T, D]."""
        return Terms()
