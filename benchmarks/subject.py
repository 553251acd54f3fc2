"""The inputs of an attention benchmark: queries, keys, values and the terms of one encoding."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.presets import terms_of
from pe_lab.attention import resolve
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Rotary, Terms

LENGTHS = (4096, 1024, 16384, 2048, 8192, 512, 256)  # in the order in which they are measured


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes and lengths to measure.

    Args:
        tokens: the number of tokens in a batch: B = tokens / T.
        num_heads, head_dim: the sizes H and d.
        lengths: the lengths T, in the order of measuring.
        seconds: time after which no further row is begun.
    """

    device: torch.device
    dtype: torch.dtype = torch.bfloat16
    tokens: int = 16384
    num_heads: int = 16
    head_dim: int = 64
    lengths: tuple[int, ...] = LENGTHS
    seconds: float = 420


@dataclass(frozen=True)
class AttentionInputs:
    """An encoding's terms on one batch, detached from the encoding, so that only attention is timed."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    upstream: Tensor
    terms: Terms
    layout: Layout
    leaves: list[Tensor]

    @property
    def length(self) -> int:
        return self.q.shape[2]

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors that get a gradient."""
        return [self.q, self.k, self.v, *self.leaves]


def make_subject(
    name: str, make: Callable[[Sizes], PositionalEncoding], length: int, setting: AttentionSizes
) -> AttentionInputs | str:
    """Return the subject to measure, or the reason why it cannot be measured."""
    batch, heads, head_dim = max(1, setting.tokens // length), setting.num_heads, setting.head_dim
    try:
        terms, layout = terms_of(make, batch, length, heads, head_dim, setting.device)
    except ValueError as error:
        return str(error)
    terms, leaves = _detach(terms)
    if name != "none" and terms == Terms():
        return "adds nothing to attention: same as none"
    qkv = torch.randn(batch, length, 3, heads, head_dim, device=setting.device).to(setting.dtype)
    q, k, v = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4))
    try:
        resolve("triton", q, terms, layout)
    except ValueError as error:
        return str(error)
    upstream = torch.randn(batch, length, heads, head_dim, device=setting.device).to(setting.dtype).transpose(1, 2)
    return AttentionInputs(name, q, k, v, upstream, terms, layout, leaves)


def _detach(terms: Terms) -> tuple[Terms, list[Tensor]]:
    """Return the terms as leaf tensors, and those of them that are trained."""
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        cut = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if cut.requires_grad:
            leaves.append(cut)
        return cut

    cut: dict[str, Any] = {}
    for field in fields(terms):
        value = getattr(terms, field.name)
        if isinstance(value, Rotary):
            same = field.name == "rotary_k" and value is terms.rotary_q
            value = cut["rotary_q"] if same else replace(value, cos=leaf(value.cos), sin=leaf(value.sin))
        cut[field.name] = leaf(value) if isinstance(value, Tensor) else value
    return Terms(**cut), leaves
