"""Attention with position: attend() and the choice of its implementation."""

from typing import Protocol

from torch import Tensor

from pe_lab.attention import reference, sdpa, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.shapes import check
from pe_lab.encodings.base import Terms
from pe_lab.encodings.layout import Layout

__all__ = ["IMPLEMENTATIONS", "Dropout", "Implementation", "attend", "resolve"]


class Implementation(Protocol):
    """A module that computes attention.

    Attributes:
        revision: increased when its numbers change; part of the identity of a result.
    """

    revision: int

    def refuses(self, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
        """Return the reason why these terms cannot be computed here, or None."""

    def bytes_per_pair(self, q: Tensor, terms: Terms, layout: Layout) -> int:
        """Return the bytes per pair of positions that attention of queries like q needs at least."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None
    ) -> Tensor:
        """Return attention of q [B, H, T, d] over k and v."""


# fastest first, as "auto" tries them
IMPLEMENTATIONS: dict[str, Implementation] = {"triton": triton, "sdpa": sdpa, "reference": reference}


def resolve(implementation: str, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str:
    """Return the name of the implementation that will run for queries like q.

    Args:
        implementation: "reference", "sdpa", "triton", or "auto": the first of triton, sdpa, reference that can compute
            this; triton on CUDA only, since a CPU runs it in an interpreter.

    Raises:
        ValueError: there is no such implementation, or it cannot compute this, with the reason.
    """
    if implementation == "auto":
        names = [name for name in IMPLEMENTATIONS if name != "triton" or q.device.type == "cuda"]
        return next(name for name in names if not IMPLEMENTATIONS[name].refuses(q, terms, layout, dropout))
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"attention must be one of auto, {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    reason = IMPLEMENTATIONS[implementation].refuses(q, terms, layout, dropout)
    if reason:
        fallback = resolve("auto", q, terms, layout, dropout)
        raise ValueError(
            f"attention={implementation} cannot compute this: {reason}; use attention=auto, which takes {fallback}"
        )
    return implementation


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    layout: Layout,
    implementation: str = "auto",
    dropout: Dropout | None = None,
) -> Tensor:
    """Return attention of queries [B, H, T, d] over keys and values of the same shape and dtype, with position.

    Fewer queries than keys, as in cached decoding, and values of another head dimension are refused.

    Args:
        terms: the effect of the encoding on logits, weights and values.
        layout: the positions of tokens, and which attend to which.
        implementation: as `resolve`.
        dropout: of the weights; None: no dropout.

    Returns:
        [B, H, T, d]. Rows of padding are finite and mean nothing.

    Raises:
        ValueError: an input does not fit the queries, the implementation cannot compute this, or a table of distances
            is too short.
    """
    check(q, k, v, terms, layout, dropout)
    for name in ("bias", "gate", "values"):
        table = getattr(terms, name)
        if table is None or terms.clip:
            continue
        reach = (table.shape[1] - 1) // 2
        if reach < layout.max_distance:
            raise ValueError(f"{name} covers distances up to {reach}: got {layout.max_distance}")
    chosen = resolve(implementation, q, terms, layout, dropout)
    return IMPLEMENTATIONS[chosen].attend(q, k, v, terms, layout, dropout)
