"""Merge the terms of several encodings: by head, or summed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pe_lab.encodings.distance_table import table_distances, table_index
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import OptionError
from pe_lab.encodings.terms import (
    ROTATIONS,
    SOFTMAX,
    ContentTerm,
    Lift,
    PairTerm,
    Rotary,
    Softmax,
    StoredPairTerm,
    Terms,
)

NEUTRAL_ENTRIES = {
    "distance_bias": 0.0,
    "logit_factors": 1.0,
    "weight_factors": 1.0,
    "relative_values": 0.0,
}  # entries by distance that leave attention as it is


@dataclass(frozen=True)
class PartTerms:
    """The terms of a part.

    Attributes:
        name: the name of the part's encoding.
        heads: the number of heads that the part has.
        terms: the terms of these heads.
    """

    name: str
    heads: int
    terms: Terms


class CannotCombineError(OptionError):
    """Raised if two encodings have terms that cannot be combined."""


# -- head by head ------------------------------------------------------------------------------------------------------


def terms_by_head(parts: Sequence[PartTerms], head_dim: int, layout: Layout) -> Terms:
    """Return the terms of all heads: those of the first part's heads, then those of the second's, and so on.

    Args:
        head_dim: the dimension of a head, d.

    Raises:
        CannotCombineError: parts differ in what all heads of a layer share; both are named.
        ValueError: a table does not reach the distances of the layout.
    """
    for description, share in SHARED_BY_HEADS.items():
        _require_same(parts, description, [share(part.terms, head_dim) for part in parts])
    for part in parts:
        if part.terms.carried is not None:
            raise CannotCombineError(f"parts must carry nothing from layer to layer for all heads, got {part.name}")
    heads = [part.heads for part in parts]

    def of_parts(name: str) -> list[Any]:
        return [getattr(part.terms, name) for part in parts]

    merged: dict[str, Any] = {name: _rotations(parts, name) for name in ROTATIONS}
    merged |= {
        name: _without_sequences(_side_by_side(_same_reach(parts, name, layout), heads, neutral))
        for name, neutral in NEUTRAL_ENTRIES.items()
    }
    merged["decay"] = _side_by_side(of_parts("decay"), heads, 0.0)
    merged["pair_bias"] = _merged_pairs(of_parts("pair_bias"), layout, lambda terms: _side_by_side(terms, heads, 0.0))
    merged["gain"] = _without_sequences(
        _side_by_side([None if gain is None else _with_sequences(gain, 2) for gain in of_parts("gain")], heads, 1.0)
    )
    if any(window is not None for window in of_parts("window")):
        merged["window"] = tuple(
            size for part in parts for size in _each_head(part.terms.window or (None,), part.heads)
        )
    if any(term is not None for term in of_parts("content_bias")):
        merged["content_bias"] = ContentTermByHead(tuple(of_parts("content_bias")), tuple(heads))
    if any(lift is not None for lift in of_parts("lift")):
        merged["lift"] = LiftByHead(tuple(of_parts("lift")), tuple(heads), head_dim)
    return Terms(scale=parts[0].terms.scale, normalizer=parts[0].terms.normalizer, clip=True, **merged)


SHARED_BY_HEADS: dict[str, Callable[[Terms, int], object]] = {
    "weights": lambda terms, d: terms.normalizer,
    "scale of logits": lambda terms, d: d**-0.5 if terms.scale is None else terms.scale,
    "head_dim of queries": lambda terms, d: d if terms.lift is None else terms.lift.head_dim,
}


def _require_same(parts: Sequence[PartTerms], term: str, values: list[object]) -> None:
    for part, value in zip(parts, values, strict=True):
        if value != values[0]:
            raise CannotCombineError(
                f"parts must have the same {term}, which all heads share, got {values[0]} of {parts[0].name} and "
                f"{value} of {part.name}"
            )


def _each_head(values: tuple[int | None, ...], heads: int) -> tuple[int | None, ...]:
    return values * heads if len(values) == 1 else values


def _side_by_side(tensors: Sequence[Tensor | None], heads: Sequence[int], neutral: float) -> Tensor | None:
    """Return tensors [B|1, H|1, ...] of several parts as one [B|1, H, ...], neutral for a part that has none."""
    present = [x for x in tensors if x is not None]
    if not present:
        return None
    batch, entry_shape = max(len(x) for x in present), present[0].shape[2:]
    filled = [present[0].new_full((1, 1, *entry_shape), neutral) if x is None else x for x in tensors]
    return torch.cat([x.expand(batch, count, *entry_shape) for x, count in zip(filled, heads, strict=True)], 1)


def _with_sequences(x: Tensor, axes: int) -> Tensor:
    """Return x with a first axis for the sequences; without it x has so many axes."""
    return x[None] if x.dim() == axes else x


def _without_sequences(x: Tensor | None) -> Tensor | None:
    """Return x without its first axis, if all sequences share it."""
    return x[0] if x is not None and len(x) == 1 else x


def _same_reach(parts: Sequence[PartTerms], name: str, layout: Layout) -> list[Tensor | None]:
    """Return the tables [B|1, H|1, 2R+1, ...] of all parts, extended by their ends to one reach.

    Raises:
        ValueError: one does not reach the distances of the layout, and its part does not clip.
    """
    tables = [getattr(part.terms, name) for part in parts]
    tables = [
        None if table is None else _with_sequences(table, 3 if name == "relative_values" else 2) for table in tables
    ]
    reach = max([0, *(table.shape[2] // 2 for table in tables if table is not None)])  # compiled: no default=
    for part, table in zip(parts, tables, strict=True):
        if table is not None and not part.terms.clip and table.shape[2] // 2 < layout.max_distance:
            raise ValueError(
                f"{name} of {part.name} covers distances up to {table.shape[2] // 2}: got {layout.max_distance}"
            )
    return [None if table is None else _extend_table(table, reach) for table in tables]


def _extend_table(table: Tensor, reach: int) -> Tensor:
    """Return a table [B|1, H|1, 2R+1, ...] extended by its ends to a reach of at least R."""
    half = table.shape[2] // 2
    if half == reach:
        return table
    return table.index_select(2, table_index(table_distances(reach, table.device), half))


def _rotations(parts: Sequence[PartTerms], name: str) -> Rotary | None:
    """Return the rotation of all heads; a part that has none is rotated by nothing.

    Raises:
        CannotCombineError: parts pair the dimensions differently, or rotate more of them.
    """
    rotating = [part for part in parts if getattr(part.terms, name) is not None]
    if not rotating:
        return None
    pairings = [getattr(part.terms, name).pairing for part in rotating]
    _require_same(rotating, "pairing of dimensions", pairings)
    _require_same(rotating, "rotary_dim", [2 * getattr(part.terms, name).cos.shape[-1] for part in rotating])
    heads = [part.heads for part in parts]
    rotaries = [getattr(part.terms, name) for part in parts]
    cos, sin = (
        _side_by_side([None if rotary is None else getattr(rotary, side) for rotary in rotaries], heads, neutral)
        for side, neutral in (("cos", 1.0), ("sin", 0.0))
    )
    assert cos is not None
    assert sin is not None
    return Rotary(cos, sin, pairings[0])


def _slices(heads: Sequence[int]) -> list[slice]:
    """Return where the heads of each part are."""
    ends = list(accumulate(heads))
    return [slice(end - count, end) for end, count in zip(ends, heads, strict=True)]


@dataclass(frozen=True)
class ContentTermByHead:
    """Content terms of several parts, each for its own heads; None is a term of zero."""

    terms: tuple[ContentTerm | None, ...]
    heads: tuple[int, ...]

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        return torch.cat(
            [
                torch.zeros_like(z[:, at]) if term is None else term(q[:, at], k[:, at], z[:, at], layout)
                for term, at in zip(self.terms, _slices(self.heads), strict=True)
            ],
            1,
        )


@dataclass(frozen=True)
class LiftByHead:
    """Lifts of several parts, each for its own heads; None changes nothing."""

    lifts: tuple[Lift | None, ...]
    heads: tuple[int, ...]
    head_dim: int

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [
            (q[:, at], k[:, at]) if lift is None else lift(q[:, at], k[:, at])
            for lift, at in zip(self.lifts, _slices(self.heads), strict=True)
        ]
        return torch.cat([q for q, _ in pairs], 1), torch.cat([k for _, k in pairs], 1)


# -- added up ----------------------------------------------------------------------------------------------------------

SINGLE_TERMS = (
    "lift",
    *ROTATIONS,
    "gain",
    "scale",
    "logit_factors",
    "weight_factors",
    "carried",
)  # terms that at most one part may have


def add_terms(parts: Sequence[PartTerms], layout: Layout) -> Terms:
    """Return the terms of all parts together: biases, decays and relative values are added; of windows the
    smaller holds; of all other terms there is one at most.

    Raises:
        CannotCombineError: two parts have a term of which there can be one; both are named.
        ValueError: a table does not reach the distances of the layout.
    """
    merged: dict[str, Any] = {name: _only(parts, name) for name in SINGLE_TERMS}
    merged["normalizer"] = _only(parts, "normalizer") or SOFTMAX
    for name in ("distance_bias", "relative_values"):
        merged[name] = _without_sequences(_sum(_same_reach(parts, name, layout)))
    for name in ("logit_factors", "weight_factors"):
        merged[name] = _without_sequences(next((x for x in _same_reach(parts, name, layout) if x is not None), None))
    merged["decay"] = _sum([part.terms.decay for part in parts])
    merged["pair_bias"] = _merged_pairs([part.terms.pair_bias for part in parts], layout, _sum)
    content = [part.terms.content_bias for part in parts if part.terms.content_bias is not None]
    merged["content_bias"] = SumOfContentTerms(tuple(content)) if len(content) > 1 else next(iter(content), None)
    merged["window"] = _smallest_window([part.terms.window for part in parts if part.terms.window is not None])
    return Terms(clip=True, **merged)


def add_limits(terms: Terms, window: int | None, content_bias: ContentTerm | None) -> Terms:
    """Return terms with a window and a content bias besides: the smaller of two windows, the sum of two biases."""
    if window is not None:
        windows = [(window,)] if terms.window is None else [(window,), terms.window]
        terms = replace(terms, window=_smallest_window(windows))
    if content_bias is not None:
        total = content_bias if terms.content_bias is None else SumOfContentTerms((content_bias, terms.content_bias))
        terms = replace(terms, content_bias=total)
    return terms


def _only(parts: Sequence[PartTerms], name: str) -> Any:
    """Return the term of the only part that has it, or None.

    Raises:
        CannotCombineError: two parts have it.
    """
    parts_with_term = [part for part in parts if not _is_neutral(getattr(part.terms, name))]
    if len(parts_with_term) > 1:
        raise CannotCombineError(
            f"parts must have at most one {TERM_DESCRIPTIONS.get(name, name)}, got {parts_with_term[0].name} and "
            f"{parts_with_term[1].name}"
        )
    return getattr(parts_with_term[0].terms, name) if parts_with_term else None


def _is_neutral(term: Any) -> bool:
    return term is None or isinstance(term, Softmax)


TERM_DESCRIPTIONS = {
    "rotary_q": "rotation of queries",
    "rotary_k": "rotation of keys",
    "rotary_v": "rotation of values",
    "rotary_out": "rotation of the result",
    "scale": "scale of logits",
    "logit_factors": "factor on logits",
    "gain": "gain of queries and keys",
    "weight_factors": "factor on weights",
    "carried": "part that carries vectors from layer to layer",
    "normalizer": "way from logits to weights that is no softmax",
}


def _smallest_window(windows: Sequence[tuple[int | None, ...]]) -> tuple[int | None, ...] | None:
    """Return the smallest of several windows, of all heads or of each."""
    if not windows:
        return None
    heads = max(map(len, windows))
    sizes_of_heads = zip(*(_each_head(window, heads) for window in windows), strict=True)
    return tuple(_smallest_size([size for size in sizes if size is not None]) for sizes in sizes_of_heads)


def _smallest_size(sizes: list[int]) -> int | None:
    return min(sizes) if sizes else None


Merge = Callable[[Sequence[Tensor | None]], Tensor | None]


def _merged_pairs(values: Sequence[Tensor | PairTerm | None], layout: Layout, merge: Merge) -> Tensor | PairTerm | None:
    """Return terms of pairs as one: a tensor if all are, otherwise what computes it."""
    tensors = [x for x in values if x is None or isinstance(x, Tensor)]
    if len(tensors) == len(values):
        return merge(tensors)
    return MergedPairs(tuple(StoredPairTerm(x, layout) if isinstance(x, Tensor) else x for x in values), merge)


@dataclass(frozen=True)
class MergedPairs:
    """The terms of pairs of several parts, merged for each layout; None is a part without one."""

    terms: tuple[PairTerm | None, ...]
    merge: Merge

    def __call__(self, layout: Layout) -> Tensor:
        merged = self.merge([None if term is None else term(layout) for term in self.terms])
        assert merged is not None
        return merged


def _sum(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [x for x in tensors if x is not None]
    return _total(present) if present else None


@dataclass(frozen=True)
class SumOfContentTerms:
    """The sum of several content terms of the same logits."""

    terms: tuple[ContentTerm, ...]

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        return _total([term(q, k, z, layout) for term in self.terms])


def _total(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])
