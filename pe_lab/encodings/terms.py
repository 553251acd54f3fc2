"""The effect of an encoding on attention, as data: rotations, factors, biases, decay and weights.

Shapes: B batch, T length of queries, S of keys, H heads, d head_dim.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from pe_lab.encodings.layout import Layout
from pe_lab.encodings.layout_properties import LONG_SEQUENCE, StoredProperty
from pe_lab.encodings.memory import Carried

Pairing = Literal["interleaved", "half"]
ROTATIONS = ("rotary_q", "rotary_k", "rotary_v", "rotary_out")  # fields of Terms with a rotation


@dataclass(frozen=True)
class Softmax:
    """Attention weights by softmax; they sum to one."""


SOFTMAX = Softmax()  # an object that torch.compile finds by its name: it makes none of a class without fields


@dataclass(frozen=True)
class Stick:
    """Attention weights by stick-breaking: each key takes a share of what the keys before it left.

    Args:
        order: the order of the keys. "nearest": from the query outwards; "first": from key 0 on.
        include_self: whether a query attends to its own key.
        remainder: the use of the remaining weight: "drop" it, or give it to the query's "own" value.
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
        cos, sin: [B|1, H|1, T, r/2] tables, r <= d; they may include a scale. Dimensions beyond the first r stay as
            they are.
        pairing: the pairing of dimensions: "interleaved" pairs (2c, 2c+1); "half" pairs (c, c + r/2).
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

    @StoredProperty
    def _rotation(self) -> Tensor:
        return torch.complex(self.cos, self.sin)


class Lift(Protocol):
    """Changes queries and keys before they are rotated.

    Attributes:
        head_dim: the number of dimensions of the result, which need not be d.
    """

    @property
    def head_dim(self) -> int: ...

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries [B, H, T, head_dim] and keys [B, H, S, head_dim], for q [B, H, T, d] and k [B, H, S, d]."""


class ContentTerm(Protocol):
    """Computes a term from queries and keys, with rotation and gain applied, and from their scaled product z.

    It may be called for a `block` of the layout that its terms were made for, some queries and the first keys. There it
    may compute in another order what it computes for whole sequences.
    """

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        """Return [B, H, T, S], for q [B, H, T, d], k [B, H, S, d] and z [B, H, T, S]."""


class PairTerm(Protocol):
    """Computes a term of pairs of tokens for a layout, which may be a `block` of that of the terms."""

    def __call__(self, layout: Layout) -> Tensor:
        """Return [B|1, H|1, T, S]."""


def computes_in_blocks(layout: Layout) -> bool:
    """Return whether terms of pairs are to be computed for some queries at a time: T x S numbers are many."""
    fits_at_once = layout.segment.shape[1] <= LONG_SEQUENCE or layout.segment.device.type != "cpu"
    return not (torch.compiler.is_compiling() or fits_at_once)


def prepare_pair_term(term: PairTerm, layout: Layout) -> Tensor | PairTerm:
    """Return a term of pairs as `Terms` take it: [B|1, H|1, T, S], or as it is for a long sequence on a CPU."""
    return term if computes_in_blocks(layout) else term(layout)


def pair_tensor(term: Tensor | PairTerm, layout: Layout) -> Tensor:
    """Return a term of pairs [B|1, H|1, T, S]."""
    return term if isinstance(term, Tensor) else term(layout)


@dataclass(frozen=True)
class StoredPairTerm:
    """A term of pairs that is stored for all queries, of which a block takes its rows.

    Args:
        term: [B|1, H|1, T, S] values of the term.
        layout: the layout of these queries and keys.
    """

    term: Tensor
    layout: Layout

    def __call__(self, layout: Layout) -> Tensor:
        start = layout.earlier - self.layout.earlier
        queries, keys = layout.segment.shape[1], layout.of_keys.segment.shape[1]
        return self.term[..., start : start + queries, :keys]


@dataclass(frozen=True)
class Terms:
    """The effect of an encoding on the logits, weights and values of attention.

    Each table by distance, and the gain, may also have a first axis of its own for the sequences, [B, ...]. There are T
    queries and S keys, T of them without a cache; d and e are the dimensions of keys and of values.

    Args:
        lift: a change of queries and keys, before all else.
        rotary_q, rotary_k: the rotations of queries and of keys.
        gain: [1|H, d] factors on q and on k, after rotation.
        scale: a factor on the logits; None: d ** -0.5, d being that before the lift.
        window: a limit of distances: a key counts if |pos_i - pos_j| is less; an integer of at least 1, or None for no
            limit, for all heads or for each.
        distance_bias: [1|H, 2R+1] biases by distance that are added to the logits; that of pos_i - pos_j has the index
            pos_i - pos_j + R.
        logit_factors: [1|H, 2R+1] factors by distance on the logits, before the bias.
        clip: whether distances beyond R use the ends of a table; otherwise they are an error.
        decay: [B|1, H|1, S] cumulative log gates c; c_i - c_j is added to the logits.
        pair_bias: [B|1, H|1, T, S] biases of pairs that are added to the logits, or a callable that computes them: see
            `prepare_pair_term`.
        content_bias: a callable whose result is added to the logits z, before the logit factors and all else.
        normalizer: the normalization that turns logits into weights.
        weight_factors: [1|H, 2R+1] factors by distance on the weights, which are not normalized again.
        relative_values: [1|H, 2R+1, e] relative vectors by distance that are added to the values.
        rotary_v, rotary_out: the rotations of the values, and of the result.
        carried: vectors that are mixed by the same weights as the values, for the encoding of the next layer, which
            gets them as `Layout.carried`.
    """

    lift: Lift | None = None
    rotary_q: Rotary | None = None
    rotary_k: Rotary | None = None
    gain: Tensor | None = None
    scale: float | None = None
    window: tuple[int | None, ...] | None = None
    distance_bias: Tensor | None = None
    logit_factors: Tensor | None = None
    clip: bool = False
    decay: Tensor | None = None
    pair_bias: Tensor | PairTerm | None = None
    content_bias: ContentTerm | None = None
    normalizer: Softmax | Stick = field(default_factory=lambda: SOFTMAX)
    weight_factors: Tensor | None = None
    relative_values: Tensor | None = None
    rotary_v: Rotary | None = None
    rotary_out: Rotary | None = None
    carried: Carried | None = None
