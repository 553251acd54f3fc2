"""The layout of tokens, from the masks and positions that models of transformers take."""

import torch
from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout


def make_layout(
    shape: tuple[int, int], mask: Tensor | None, position_ids: Tensor | None, causal: bool, earlier: Layout | None
) -> Layout:
    """Return the layout of tokens, on the CPU.

    Args:
        shape: the shape of the tokens, B and T.
        mask: [B, S] integers, 0 for padding and 1 for tokens, including those in a cache; None: these tokens are no
            padding.
        position_ids: [B|1, T] integers, increasing in a sequence; None: tokens are counted, padding aside, from 0 or
            from the last token in the cache. Where there is neither mask nor cache and attention is causal, a position
            that does not follow the one before it begins a packed document, as in transformers.
        causal: whether attention is causal.
        earlier: the layout of the tokens in a cache, on the CPU; None: there are none.

    Raises:
        ValueError: a mask or positions of another shape or range; a mask that changes what earlier tokens are.
    """
    B, T = shape
    if earlier is not None and len(earlier.segment) != B:
        raise ValueError(f"the cache must be that of this batch: it holds {len(earlier.segment)} sequences, got {B}")
    is_token = torch.ones(B, T, dtype=torch.bool) if mask is None else _is_token(mask, shape, earlier)
    last, document = torch.tensor([[-1]]), torch.tensor([[0]])
    if earlier is not None:
        document = earlier.segment[:, -1:]
        last = earlier.pos[:, -1:].where(document != PADDING, -1)
    segment = torch.where(is_token, document.clamp(min=0), PADDING)
    pos = (last + is_token.cumsum(1)).clamp(min=0)
    if position_ids is not None:
        pos = _whole_positions(position_ids, shape)
        if mask is None and earlier is None and causal:
            segment = (pos.diff(dim=1, prepend=pos[:, :1] - 1) != 1).cumsum(1).expand(B, T)
        _require_increasing(pos.expand(B, T), segment, earlier)
    return Layout(pos[:1] if bool((pos == pos[:1]).all()) else pos, segment, causal)


def _is_token(mask: Tensor, shape: tuple[int, int], earlier: Layout | None) -> Tensor:
    """Return whether new tokens are tokens and no padding, [B, T]."""
    B, T = shape
    before = 0 if earlier is None else earlier.segment.shape[1]
    if mask.shape != (B, before + T):
        raise ValueError(f"attention_mask must be [B, S] = [{B}, {before + T}], got {list(mask.shape)}")
    mask = mask.detach().cpu()
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask must be 0 for padding and 1 for tokens, got other values")
    is_token = mask.bool()
    if earlier is not None and not torch.equal(is_token[:, :before], earlier.segment != PADDING):
        raise ValueError(f"attention_mask must be what it was for the {before} tokens in the cache, got another")
    return is_token[:, before:]


def _whole_positions(position_ids: Tensor, shape: tuple[int, int]) -> Tensor:
    B, T = shape
    fits = position_ids.dim() == 2 and len(position_ids) in (1, B) and position_ids.shape[1] == T
    if not fits or position_ids.is_floating_point():
        raise ValueError(
            f"position_ids must be integers [B|1, T] with B = {B} and T = {T}, got "
            f"{str(position_ids.dtype).removeprefix('torch.')} {list(position_ids.shape)}"
        )
    return position_ids.detach().cpu()


def _require_increasing(pos: Tensor, segment: Tensor, earlier: Layout | None) -> None:
    """Raise ValueError if a token is not after the one before it in its document."""
    if earlier is not None:
        pos = torch.cat((earlier.pos[:, -1:].expand(len(pos), 1), pos), 1)
        segment = torch.cat((earlier.segment[:, -1:], segment), 1)
    follows = (segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] != PADDING)
    wrong = follows & (pos.diff(dim=1) <= 0)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"position_ids must increase in a sequence, got {int(pos[row, column + 1])} after {int(pos[row, column])}"
        )
