"""Attention in hand-written Triton kernels. None is written yet: `refuses` says so, and "auto" passes by."""

import torch

from pe_lab.encodings.base import Terms

revision = 1  # raised when the numbers change; part of a cell's identity


def refuses(terms: Terms, device: torch.device) -> str | None:
    """Why these terms cannot be computed here, or None."""
    return "there are no Triton kernels in this version"
