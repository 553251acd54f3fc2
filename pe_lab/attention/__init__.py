"""Attention with position: attend() and the choice of its implementation."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from pe_lab.attention import blocked, flex, reference, sdpa, selftest, selftest_verdict, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import transform_qkv
from pe_lab.attention.shapes import check_inputs
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.layout_properties import LONG_SEQUENCE
from pe_lab.encodings.terms import Terms

__all__ = ["IMPLEMENTATIONS", "Choice", "Dropout", "Implementation", "attend", "choose", "resolve"]


class Implementation(Protocol):
    """A module that computes attention.

    Attributes:
        revision: the version number of its results, increased when they change; part of the identity of a result.
        low_precision_revision: the same for results in bfloat16 and float16.
    """

    revision: int
    low_precision_revision: int

    def refusal_reason(self, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
        """Return the reason why these terms cannot be computed here, or None."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None
    ) -> Tensor:
        """Return attention of q [B, H, T, d] over k and v."""


# fastest first, as "auto" tries them
IMPLEMENTATIONS: dict[str, Implementation] = {
    "triton": triton,
    "sdpa": sdpa,
    "flex": flex,
    "blocked": blocked,
    "reference": reference,
}


@dataclass(frozen=True)
class Choice:
    """The implementation that will run, and why.

    Attributes:
        name: the name of the implementation, as in IMPLEMENTATIONS.
        reason: why it was chosen, in one line for the record of a run.
    """

    name: str
    reason: str


def choose(implementation: str, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Choice:
    """Return the implementation that will run for queries like q, and why.

    Args:
        implementation: a name of IMPLEMENTATIONS, or "auto": the first of them that can compute this and is trusted.
            On a CPU that is sdpa or reference, and above 512 tokens blocked where they would need T x T numbers. On a
            GPU it is triton only where its self-test has passed, and for terms that are nothing or a rotation only if
            it was measured faster than sdpa there; the first call on a GPU runs the self-test. auto takes flex only
            where its gradients have the same bits each time.

    Raises:
        ValueError: there is no such implementation, or it cannot compute this, with the reason.
    """
    if implementation == "auto":
        return _auto(q, terms, layout, dropout)
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"attention must be one of auto, {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    reason = IMPLEMENTATIONS[implementation].refusal_reason(q, terms, layout, dropout)
    if reason:
        fallback = _auto(q, terms, layout, dropout).name
        raise ValueError(
            f"attention={implementation} cannot compute this: {reason}; use attention=auto, which takes {fallback}"
        )
    vague = flex.summed_in_any_order(q, terms) if implementation == "flex" else []
    not_repeatable = f"; gradients of {', '.join(vague)} are summed in no fixed order" if vague else ""
    return Choice(implementation, f"attention={implementation}{not_repeatable}")


def _auto(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> Choice:
    passed_over: list[str] = []
    for name, module in IMPLEMENTATIONS.items():
        reason = module.refusal_reason(q, terms, layout, dropout) or _not_by_default(name, q, terms, layout, dropout)
        if reason is None:
            return Choice(name, "; ".join(["attention=auto", *passed_over]))
        passed_over.append(f"not {name}: {reason}")
    raise AssertionError("the reference computes all terms")


def _not_by_default(name: str, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> str | None:
    """Return why auto does not take an implementation that could compute this, or None."""
    long = q.shape[2] > LONG_SEQUENCE and q.device.type == "cpu"
    if name == "blocked":
        return None if long else f"for more than {LONG_SEQUENCE} tokens on a CPU"
    if name == "sdpa" and long and not torch.compiler.is_compiling() and sdpa.needs_mask(q, terms, layout):
        return f"it takes T x T numbers, for more than {LONG_SEQUENCE} tokens"
    if name not in ("triton", "flex"):
        return None
    if q.device.type != "cuda":
        return "for a GPU"
    if name == "flex":
        vague = flex.summed_in_any_order(q, terms)
        return f"gradients of {', '.join(vague)} are summed in no fixed order" if vague else None
    result = selftest_verdict.selftest_result(q.device)
    if result.failed:
        return result.failed
    kind = selftest.timing_kind(terms, layout, q.dtype)
    if kind and not sdpa.refusal_reason(q, terms, layout, dropout) and result.faster(kind) == "sdpa":
        return f"sdpa was measured faster for {kind}"
    return None


def resolve(implementation: str, q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str:
    """Return the name of the implementation that will run for queries like q: see `choose`."""
    return choose(implementation, q, terms, layout, dropout).name


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    layout: Layout,
    implementation: str = "auto",
    dropout: Dropout | None = None,
) -> Tensor:
    """Return attention of queries [B, H, T, d] over keys and values of the same dtype, with position.

    There are as many keys as queries, or, where the layout has `keys`, S of which the queries are the last T. Where it
    has a `memory` too, as with a cache, k and v are those of the T tokens alone: rotated keys and values of earlier
    tokens are there, and these are added. Values may have another head dimension e than queries and keys.

    Sets `terms.carried.mixed`, where the terms carry vectors: their sums by the same weights as the values.

    Args:
        k: keys [B, H, T, d], or [B, H, S, d] where the layout has keys and no memory.
        v: values, in the shape of k with e in place of d.
        terms: the effect of the encoding on logits, weights and values.
        layout: the positions of tokens, and which attend to which.
        implementation: the name of an implementation, or "auto", as for `choose`.
        dropout: dropout of the attention weights; None: no dropout.

    Returns:
        The result of attention, [B, H, T, e]. Rows of padding are finite and mean nothing.

    Raises:
        ValueError: an input does not fit the queries, the implementation cannot compute this, or a table of distances
            is too short.
    """
    check_inputs(q, k, v, terms, layout, dropout)
    for name, axis in (("distance_bias", -1), ("logit_factors", -1), ("weight_factors", -1), ("relative_values", -2)):
        table = getattr(terms, name)
        if table is None or terms.clip:
            continue
        reach = (table.shape[axis] - 1) // 2
        if reach < layout.max_distance:
            raise ValueError(f"{name} covers distances up to {reach}: got {layout.max_distance}")
    chosen = resolve(implementation, q, terms, layout, dropout)
    if layout.memory is not None:
        q, k, v, terms = transform_qkv(q, k, v, terms)
        total = layout.of_keys.segment.shape[1]
        k, v = (layout.memory.extend(name, x, 2, total) for name, x in (("keys", k), ("values", v)))
    if terms.carried is None:
        return IMPLEMENTATIONS[chosen].attend(q, k, v, terms, layout, dropout)
    # carried vectors are mixed as further dimensions of the values, in their precision
    carried, e = terms.carried, v.shape[-1]
    v = torch.cat((v, carried.vectors.to(v.dtype).expand(*v.shape[:3], -1)), -1)
    relative = None if terms.relative_values is None else pad(terms.relative_values, (0, v.shape[-1] - e))
    out = IMPLEMENTATIONS[chosen].attend(
        q, k, v, replace(terms, carried=None, relative_values=relative), layout, dropout
    )
    carried.mixed = out[..., e:]
    return out[..., :e]
