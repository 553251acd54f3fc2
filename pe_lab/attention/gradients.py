"""Gradients of softmax attention by matrix products over blocks of queries, for the result of a fused kernel."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def blockwise_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    of_out: Tensor,
    scale: float,
    blocks: Iterable[tuple[slice, slice, Tensor]],
    collect: Callable[[int, Tensor], None],
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v. Weights are computed again, those of one block at a time.

    Args:
        q, k, v: queries [B, H, T, d], keys [B, H, S, d] and values [B, H, S, e].
        out, of_out: the result [B, H, T, e] and its gradient.
        scale: the factor on q . k.
        blocks: for each block, the slice of its queries, the slice of the keys that they may see, and what is added to
            their logits, [B|1, H|1, queries, keys].
        collect: a function of the number of each block and of the gradient of what was added, [B, H, queries, keys].
    """
    shaped, (B, H, T, _) = (q, k, v), q.shape
    mean = (of_out * out).sum(-1, keepdim=True).reshape(B * H, T, 1)  # mean gradient of the weights of a row
    of_out, q, k, v = (x.reshape(B * H, x.shape[2], x.shape[3]) for x in (of_out, *shaped))
    q = q * scale
    of_q, of_k, of_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for number, (rows, keys, added) in enumerate(blocks):
        logits = torch.bmm(q[:, rows], k[:, keys].mT)
        weights = logits.view(B, H, *logits.shape[1:]).add_(added).softmax(-1).view_as(logits)
        of_logits = torch.baddbmm(mean[:, rows], of_out[:, rows], v[:, keys].mT, beta=-1).mul_(weights)
        of_q[:, rows] = torch.bmm(of_logits, k[:, keys])
        of_k[:, keys].baddbmm_(of_logits.mT, q[:, rows])
        of_v[:, keys].baddbmm_(weights.mT, of_out[:, rows])
        collect(number, of_logits.view(B, H, *logits.shape[1:]))
    of_q *= scale
    return tuple(x.view(like.shape) for x, like in zip((of_q, of_k, of_v), shaped, strict=True))
