"""Which slots of a batch are computed: all, or only those that have a token or an answer."""

from typing import Any

import torch
from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout


class Rows:
    """All slots of a batch are computed: states are [B, T, D].

    `SomeRows` computes fewer: N rows [N, D]. Attention and encodings take all slots in either case; skipped slots hold
    a copy of the first row, which means nothing.
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


ALL_ROWS = Rows()


class SomeRows(Rows):
    """N of the B T slots of a batch: a state has a row among N, and a slot among the B T.

    Args:
        slot: the slot of each row, [N] ascending.
        shape: the shape (B, T) of the batch.

    Attributes:
        row: [B T], the row of each slot; 0 where it has none.
        has_row: [B T] bool, whether a slot has a row.
    """

    def __init__(self, slot: Tensor, shape: tuple[int, int]) -> None:
        self.slot, self.shape = slot, shape
        self.row = slot.new_zeros(shape[0] * shape[1])
        self.row[slot] = torch.arange(len(slot), device=slot.device)
        self.has_row = torch.zeros_like(self.row, dtype=torch.bool)
        self.has_row[slot] = True
        # by (parts, num_heads): what `_vectors` returned, which every layer asks for
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def pad(self, x: Tensor) -> Tensor:
        padded: Tensor = _gather(x, self.row, self.slot).unflatten(0, self.shape)
        return padded

    def drop(self, x: Tensor) -> Tensor:
        """Return the states [N, D] of these rows, for x [B, T, D]."""
        return _gather(x.flatten(0, 1), self.slot, self.row, self.has_row)

    def split(self, qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return contiguous queries, keys and values, each [B, H, T, d], for states [N, 3 H d]."""
        (B, T), (row, slot) = self.shape, self._vectors(3, num_heads)
        vectors = qkv.unflatten(-1, (3 * num_heads, -1)).flatten(0, 1)
        q, k, v = _gather(vectors, row, slot).view(3, B, num_heads, T, -1)
        return q, k, v

    def join(self, out: Tensor) -> Tensor:
        """Return states [N, H d] for out [B, H, T, d]."""
        row, slot = self._vectors(1, out.shape[1])
        used = self.has_row.view(self.shape[0], 1, -1).expand(out.shape[:3]).flatten()
        joined = _gather(out.flatten(0, 2), slot, row, used)
        return joined.view(len(self.slot), out.shape[1] * out.shape[3])

    def within(self, x: Tensor, rows: Rows) -> Tensor:
        """Return the states of these rows, for the states x of `rows`.

        Raises:
            ValueError: one of these slots has no row in `rows`: it is padding.
        """
        if rows is self:
            return x
        if not isinstance(rows, SomeRows):
            return self.drop(x)
        missing = ~rows.has_row[self.slot]
        if missing.any():
            raise ValueError(f"answers must be asked at tokens, got padding in slot {int(self.slot[missing][0])}")
        return x[rows.row[self.slot]]

    def _vectors(self, parts: int, num_heads: int) -> tuple[Tensor, Tensor]:
        """Return where the vector of each head is: one order of vectors is [N, parts, H], the other [parts, B, H, T].

        Args:
            parts: the number of vectors per slot and head: 3 for queries, keys and values; 1 for what attention
                returns.

        Returns:
            The index of each vector of the second order in the first, [parts B H T], and the reverse, [N parts H].
        """
        key = parts, num_heads
        if key not in self._places:
            (B, T), device = self.shape, self.slot.device
            part, head = torch.arange(parts, device=device), torch.arange(num_heads, device=device)
            row = (self.row.view(B, 1, T) * parts + part[:, None, None, None]) * num_heads + head[:, None]
            batch, token = (self.slot // T)[:, None, None], (self.slot % T)[:, None, None]
            slot = ((part[:, None] * B + batch) * num_heads + head) * T + token
            self._places[key] = row.flatten(), slot.flatten()
        return self._places[key]


class _Gather(torch.autograd.Function):
    """Rows of a matrix by index; the gradient is gathered too, by the reverse index, which is faster than adding it up.

    The gradient of a slot without a row is dropped: nothing depends on its state.

    Args:
        x: the matrix [M, D].
        index: the rows to take, [N].
        reverse: [M], where each row of x went; any row where it went nowhere.
        used: [M] bool, whether a row went anywhere; None: all did.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, reverse: Tensor, used: Tensor | None) -> Tensor:
        ctx.reverse, ctx.used = reverse, used
        return _select(x, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        selected = _select(gradient, ctx.reverse)
        return selected if ctx.used is None else selected.mul_(ctx.used[:, None]), None, None, None


def _gather(x: Tensor, index: Tensor, reverse: Tensor, used: Tensor | None = None) -> Tensor:
    """Return rows of x [M, D] by index [N], see `_Gather`."""
    rows: Tensor = _Gather.apply(x, index, reverse, used)  # type: ignore[no-untyped-call]
    return rows


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Return rows of x [M, D] by index [N]; zeros if x has no rows, as in a batch without an answer."""
    return x.index_select(0, index) if len(x) else x.new_zeros(len(index), x.shape[1])


def unpad_rows(layout: Layout) -> Rows:
    """Return the rows of all tokens, without padding."""
    B, T = layout.segment.shape
    return SomeRows((layout.segment != PADDING).flatten().nonzero()[:, 0], (B, T))
