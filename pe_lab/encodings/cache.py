"""The cache of a model for decoding: what it stores of the tokens it has seen."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.memory import Memory


class Cache:
    """The tokens of a batch seen so far: their layout, and what the layers and the encoding store of them.

    It starts empty; `Stack.cache` makes one, and every pass of the model adds its tokens. Attention keeps rotated keys
    and values of each layer; an encoding keeps what it asks for by `Layout.with_earlier`.

    Args:
        depth: the number of layers of the model.
        room: the number of tokens for which memory is reserved at once, and which it holds at most; None: it grows.

    Attributes:
        layout: the layout of all tokens so far, as the encoding located them; None: there are none.
        embedding: the memory of the encoding's `embed`.
        layers: the memories of the layers.
    """

    def __init__(self, depth: int, room: int | None = None) -> None:
        self.room = room
        self.layout: Layout | None = None
        self.embedding = Memory(room=room)
        self.layers = [Memory(room=room) for _ in range(depth)]

    def __len__(self) -> int:
        """Return the number of tokens of each sequence, padding included."""
        return 0 if self.layout is None else self.layout.segment.shape[1]

    def names(self) -> list[str]:
        """Return the names of the stored tensors, in alphabetical order."""
        return sorted({name for memory in (self.embedding, *self.layers) for name in memory.tensors})

    def add(self, layout: Layout, check: Callable[[Layout], None] | None = None) -> Layout:
        """Add tokens and return their layout, whose keys are all tokens so far.

        Args:
            check: a function that raises if the encoding is not defined for the layout that will be returned.

        Raises:
            ValueError: another batch; positions that do not follow those in the cache; padding behind a token; a layout
                with keys of its own; more tokens than there is room for.
        """
        total = len(self) + layout.segment.shape[1]
        if self.room is not None and total > self.room:
            raise ValueError(f"the cache must have room for all tokens: it was made for {self.room}, got {total}")
        if layout.keys is not None:
            raise ValueError("the layout must be that of the new tokens alone, got one with keys of earlier tokens")
        if self.layout is not None:
            _require_same_batch(layout, self.layout)
        layout = layout.after(self.layout)
        structure = layout.of_keys.structure
        if structure is None or not (structure.whole and structure.runs_on):
            require_left_padding(layout.of_keys)
            if self.layout is not None:
                _require_following(layout.of_keys, layout.earlier)
        if check is not None:
            check(layout)
        self.layout = layout.of_keys
        return layout

    def select(self, rows: Tensor) -> None:
        """Keep the sequences with these indices [N], in this order; repeats are allowed, as in beam search.

        Raises:
            ValueError: rows that are no indices of sequences.
        """
        if not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"rows must be a tensor of integers [N], got {_description(rows)}")
        if self.layout is None:
            return
        count = len(self.layout.segment)
        if ((rows < 0) | (rows >= count)).any():
            raise ValueError(f"rows must be in 0 ... {count - 1}, the sequences in the cache, got {rows.tolist()}")
        pos = self.layout.pos.expand(count, *self.layout.pos.shape[1:])
        self.layout = replace(self.layout, pos=pos).rows(rows)
        for memory in (self.embedding, *self.layers):
            memory.select(rows)


def require_left_padding(layout: Layout) -> None:
    """Raise ValueError if a sequence has padding on the right: decoded tokens follow its last slot."""
    is_token = layout.source.segment != PADDING
    if (is_token[:, :-1] & ~is_token[:, 1:]).any():
        raise ValueError("sequences that are decoded must be padded on the left, got padding behind a token")


def _require_same_batch(layout: Layout, earlier: Layout) -> None:
    if len(layout.segment) != len(earlier.segment):
        raise ValueError(
            f"the cache must be that of this batch: it holds {len(earlier.segment)} sequences, got "
            f"{len(layout.segment)}"
        )
    if layout.pos.shape[2:] != earlier.pos.shape[2:]:
        cached_shape, shape = (f"[B, T{', axes' * (x.pos.dim() - 2)}]" for x in (earlier, layout))
        raise ValueError(f"positions must be {cached_shape} as those in the cache, got {shape}")


def _require_following(keys: Layout, earlier: int) -> None:
    """Raise ValueError if a new token on a line repeats or precedes the last position of its document."""
    if keys.pos.dim() == 3:  # the order of positions on a grid is that of the tokens
        return
    pos, segment = (x[:, earlier - 1 : earlier + 1] for x in (keys.source.pos, keys.source.segment))
    repeated = (segment[:, 0] == segment[:, 1]) & (segment[:, 0] != PADDING) & (pos[:, 0] >= pos[:, 1])
    if repeated.any():
        row = int(repeated.nonzero()[0])
        last, first = pos.expand(len(segment), -1)[row].tolist()
        raise ValueError(
            f"positions must follow those in the cache: that of sequence {row} ends at {last}, got {first}"
        )


def _description(x: object) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else repr(x)
