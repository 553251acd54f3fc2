"""The windows of tokens that a stream is cut into, and their layout."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.text.token_streams import TokenStreams
from pe_lab.encodings.layout import Layout

BLOCK_WINDOWS = 2**12  # windows of a read


@dataclass(frozen=True)
class Windows:
    """Windows of a stream of tokens.

    Args:
        length: the length of a window, in tokens.
        size: the number of windows that are taken.
        total: the number of windows in the stream, of which `size` are taken evenly.
        starts: [size] the first token of each window that is taken; None: at multiples of the length.
    """

    length: int
    size: int
    total: int
    starts: np.ndarray | None = None

    def read(self, stream: np.ndarray, index: np.ndarray, following: int) -> np.ndarray:
        """Return [B, length + following], the tokens of the windows with these indices [B] and those after them."""
        begin = index * self.total // self.size * self.length if self.starts is None else self.starts[index]
        rows = np.empty((len(index), self.length + following), stream.dtype)
        whole = np.asarray(stream)  # slices of it are ten times faster than slices of a memory map
        for row, start in zip(rows, begin.tolist(), strict=True):
            row[:] = whole[start : start + rows.shape[1]]
        return rows

    def read_evenly(self, text: TokenStreams, split: str, number: int, following: int) -> np.ndarray:
        """Return [number, length + following], evenly spaced windows of the split and the tokens after each."""
        blocks = np.split(np.arange(number) * self.size // number, range(BLOCK_WINDOWS, number, BLOCK_WINDOWS))
        # a new map for each block, so that pages already read leave memory
        return np.concatenate([self.read(text.stream(split), block, following) for block in blocks])


def place_windows(
    text: TokenStreams,
    split: str,
    length: int,
    most: int | None,
    context: int,
    following: int,
    setting: str,
    stride: int | None = None,
) -> Windows:
    """Return the windows of a split; held-out windows that occur in an earlier split are left out.

    Args:
        length: the length of a window, in tokens.
        most: the largest number of windows, taken evenly; None: all.
        context: the number of tokens of the shortest sequence whose repetition counts.
        following: the number of tokens after a window that are read too.
        setting: the setting that decides the length, for messages.
        stride: the number of tokens from one held-out window to the next; None: the length.

    Raises:
        ValueError: there is no window.
    """
    step = length if stride is None or split == "train" else stride
    total = max(0, text.sizes[split] - following - length + step) // step
    _require_windows(total, text, split, length, setting)
    if split == "train":
        return Windows(length, total if most is None else min(most, total), total)
    starts = np.arange(total) * step
    repeated = text.repeats(split, context)
    last = np.searchsorted(repeated, starts + length - context, side="right")
    starts = starts[last == np.searchsorted(repeated, starts)]
    total = len(starts)
    _require_windows(total, text, split, length, setting, ", all known from the splits before")
    size = total if most is None else min(most, total)
    return Windows(length, size, total, starts[np.arange(size) * total // size])


def _require_windows(number: int, text: TokenStreams, split: str, length: int, setting: str, why: str = "") -> None:
    """Raise ValueError if there is no window."""
    if not number:
        raise ValueError(
            f"{setting} must leave a sequence in every split of {text.corpus}, got none of {length} tokens in the "
            f"{text.sizes[split]} for {split}{why}"
        )


def packed_layout(ends: Tensor, causal: bool) -> Layout:
    """Return the layout of windows of packed documents: a segment for each, with positions from 0.

    For instance, two documents "cat" and "dog!", the first begun in the window before:

        token     a    t    END  d    o    g    !    END
        segment   0    0    0    1    1    1    1    1
        position  0    1    2    0    1    2    3    4

    Args:
        ends: [B, T] bool, the last token of a document.
    """
    segment = ends.cumsum(1) - ends.long()
    begins = torch.nn.functional.pad(ends[:, :-1], (1, 0))
    slot = torch.arange(ends.shape[1])
    pos = slot - slot.where(begins, 0).cummax(1).values
    return Layout(pos, segment, causal)
