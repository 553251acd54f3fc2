"""Which slots of a batch are computed: all, or only those that have a token or an answer."""

from typing import Any

import torch
from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout


class Rows:
    """The slots of a batch whose states are computed: all of them, so that states are [B, T, D].

    `Some` has fewer: N rows [N, D]. Attention and encodings take all slots in either case; slots without a row have
    the values of the first row there, and mean nothing.
    """

    def pad(self, x: Tensor) -> Tensor:
        """Return states as [B, T, D]."""
        return x

    def drop(self, x: Tensor) -> Tensor:
        """Return the states of these rows, for x [B, T, D]."""
        return x

    def split(self, qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [B, H, T, d], for states of width 3 H d."""
        q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def join(self, out: Tensor) -> Tensor:
        """Return states of width H d for out [B, H, T, d]."""
        return out.transpose(1, 2).flatten(2)

    def within(self, x: Tensor, rows: "Rows") -> Tensor:
        """Return the states of these rows, for the states x of `rows`, which are these and more."""
        return x


ALL = Rows()


class Some(Rows):
    """N of the B T slots of a batch.

    Args:
        slot: [N] ascending, of each row, in the B T slots.
        shape: B, T.
    """

    def __init__(self, slot: Tensor, shape: tuple[int, int]) -> None:
        self.slot, self.shape = slot, shape
        self.row = torch.zeros(shape[0] * shape[1], dtype=torch.long)  # of each slot
        self.row[slot] = torch.arange(len(slot))
        self.has_row = torch.zeros(len(self.row), dtype=torch.bool)
        self.has_row[slot] = True
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def pad(self, x: Tensor) -> Tensor:
        padded: Tensor = _Gather.apply(x, self.row, self.slot, None)
        return padded.unflatten(0, self.shape)

    def drop(self, x: Tensor) -> Tensor:
        dropped: Tensor = _Gather.apply(x.flatten(0, 1), self.slot, self.row, self.has_row)
        return dropped

    def split(self, qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return contiguous queries, keys and values, each [B, H, T, d], for states [N, 3 H d]."""
        (B, T), (row, slot) = self.shape, self._vectors(3, num_heads)
        vectors = qkv.reshape(len(slot), -1)
        q, k, v = _Gather.apply(vectors, row, slot, None).view(3, B, num_heads, T, -1)
        return q, k, v

    def join(self, out: Tensor) -> Tensor:
        """Return states [N, H d] for out [B, H, T, d]."""
        row, slot = self._vectors(1, out.shape[1])
        used = self.has_row.view(self.shape[0], 1, -1).expand(out.shape[:3]).flatten()
        joined: Tensor = _Gather.apply(out.flatten(0, 2), slot, row, used)
        return joined.view(len(self.slot), -1)

    def within(self, x: Tensor, rows: Rows) -> Tensor:
        if rows is self:
            return x
        return x[rows.row[self.slot]] if isinstance(rows, Some) else self.drop(x)

    def _vectors(self, parts: int, num_heads: int) -> tuple[Tensor, Tensor]:
        """Return places of the vectors that heads have, in rows [N parts H] and in slots [parts B H T].

        Returns:
            For each place in slots that in the rows, and for each place in the rows that in slots.
        """
        key = parts, num_heads
        if key not in self._places:
            (B, T), part, head = self.shape, torch.arange(parts), torch.arange(num_heads)
            row = (self.row.view(B, 1, T) * parts + part[:, None, None, None]) * num_heads + head[:, None]
            batch, token = (self.slot // T)[:, None, None], (self.slot % T)[:, None, None]
            slot = ((part[:, None] * B + batch) * num_heads + head) * T + token
            self._places[key] = row.flatten(), slot.flatten()
        return self._places[key]


class _Gather(torch.autograd.Function):
    """Rows of a matrix by index; its gradient is gathered too, by the reverse index.

    Args:
        x: [M, D].
        index: [N].
        reverse: [M], where each row of x went; any row where it went nowhere.
        used: [M] bool, whether a row went anywhere; None: all did.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, reverse: Tensor, used: Tensor | None) -> Tensor:
        ctx.reverse, ctx.used = reverse, used
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        found = gradient.index_select(0, ctx.reverse)
        return found if ctx.used is None else found.mul_(ctx.used[:, None]), None, None, None


def tokens_of(layout: Layout) -> Rows:
    """Return the rows of all tokens, without padding."""
    return Some((layout.segment != PADDING).flatten().nonzero()[:, 0], tuple(layout.segment.shape))
