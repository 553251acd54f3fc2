"""Attention one pair of tokens at a time, written without the package's code, for tests of encodings."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout

POSITIONS = [[0, 1, 2, 0, 1, 2, 3], [40, 41, 43, 44, 0, 3, 9], [5, 6, 7, 8, 9, 0, 0]]
SEGMENTS = [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, PADDING, PADDING]]


def mixed(causal: bool) -> Layout:
    """Return packed documents, positions that do not start at 0 or leave some out, and padding, [3, 7]."""
    return Layout(torch.tensor(POSITIONS), torch.tensor(SEGMENTS), causal)


def inputs(heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 queries, keys and values for `mixed`, with gradients."""
    shape = (3, heads, len(POSITIONS[0]), head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    return q, k, v


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    *,
    logit: Callable[[int, int, int, Tensor], Tensor] = lambda head, i, j, z: z,
    sees: Callable[[int, int, int], bool] = lambda head, i, j: True,
    factor: Callable[[int, int, int], Tensor | float] = lambda head, i, j: 1.0,
    value: Callable[[int, int, Tensor], Tensor] = lambda i, j, v: v,
) -> Tensor:
    """Return attention in the layout `mixed`; zero at padding. All functions take the positions of query and key.

    Args:
        logit: of a pair, from its q . k / sqrt(d).
        sees: whether a head's query sees a key.
        factor: on a weight, after the softmax.
        value: that the query gets of the key's v.
    """
    out = torch.zeros_like(v)
    for b, h, i in product(range(len(q)), range(q.shape[1]), range(q.shape[2])):
        segment, pos = SEGMENTS[b], POSITIONS[b]
        if segment[i] == PADDING:
            continue
        keys = [j for j in range(len(pos)) if segment[j] == segment[i] and (j <= i or not causal)]
        keys = [j for j in keys if sees(h, pos[i], pos[j])]
        z = [logit(h, pos[i], pos[j], (q[b, h, i] * k[b, h, j]).sum() / q.shape[-1] ** 0.5) for j in keys]
        top = max(one.item() for one in z)
        total = sum((one - top).exp() for one in z)
        for j, one in zip(keys, z, strict=True):
            weight = (one - top).exp() / total * factor(h, pos[i], pos[j])
            share = torch.zeros_like(out)
            share[b, h, i] = 1
            out = out + share * (weight * value(pos[i], pos[j], v[b, h, j]))
    return out


def unpadded(out: Tensor) -> Tensor:
    """Return a result of attention with zeros at padding."""
    return out.masked_fill((torch.tensor(SEGMENTS) == PADDING)[:, None, :, None], 0)
