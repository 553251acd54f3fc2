"""Attention with position: attend() and the rule that picks its implementation."""

from types import ModuleType

import torch
from torch import Tensor

from pe_lab.attention import reference, sdpa, triton
from pe_lab.encodings.base import Terms
from pe_lab.encodings.layout import Layout

# fastest first: the order in which "auto" asks
IMPLEMENTATIONS: dict[str, ModuleType] = {"triton": triton, "sdpa": sdpa, "reference": reference}


def resolve(implementation: str, terms: Terms, device: torch.device) -> str:
    """The implementation that will run.

    Args:
        implementation: "reference", "sdpa", "triton", or "auto": the first of triton, sdpa, reference that can.

    Raises:
        ValueError: there is no such implementation, or the one that was named cannot compute these terms on this
            device, with the reason.
    """
    if implementation == "auto":
        return next(name for name, module in IMPLEMENTATIONS.items() if not module.refuses(terms, device))
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"attention must be one of auto, {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    reason = IMPLEMENTATIONS[implementation].refuses(terms, device)
    if reason:
        raise ValueError(f"attention={implementation} cannot compute this: {reason}; use attention=auto")
    return implementation


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, implementation: str = "auto") -> Tensor:
    """Attention of queries [B, H, T, d] over keys and values of the same shape, with an encoding's terms.

    Args:
        terms: what the encoding does to logits, weights and values.
        layout: which tokens may see each other, and where they are.
        implementation: as `resolve`.

    Returns:
        [B, H, T, d]. Rows of padding are finite and mean nothing.

    Raises:
        ValueError: the implementation cannot compute the terms, or a table of distances is too short.
    """
    for name in ("bias", "gate", "values"):
        table = getattr(terms, name)
        if table is None or terms.clip:
            continue
        reach = (table.shape[1] - 1) // 2
        if reach < layout.max_distance:
            raise ValueError(f"{name} covers distances up to {reach}: got {layout.max_distance}")
    return IMPLEMENTATIONS[resolve(implementation, terms, q.device)].attend(q, k, v, terms, layout)
