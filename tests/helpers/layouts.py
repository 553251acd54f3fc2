"""Layouts that tests of several encodings and kernels share."""

import torch

from pe_lab.encodings.layout import PADDING, Layout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def packed() -> Layout:
    """Return two rows of documents at positions of their own, with padding: right, then left; causal, [2, 10]."""
    pos = torch.tensor([[7, 8, 11, 12, 13, 3, 4, 5, 0, 0], [0, 0, 5, 6, 7, 8, 9, 10, 11, 0]])
    segment = torch.tensor([[4] * 5 + [1] * 3 + [PADDING] * 2, [PADDING] * 2 + [2] * 7 + [5]])
    return Layout(pos, segment, True)


def mixed(causal: bool) -> Layout:
    """Return two documents and padding on the right; padding on the left, then one document, [2, 9]."""
    pos = torch.tensor([[7, 8, 11, 12, 3, 4, 5, 0, 0], [0, 0, 5, 6, 7, 8, 9, 10, 11]])
    segment = torch.tensor([[4] * 4 + [1] * 3 + [PADDING] * 2, [PADDING] * 2 + [2] * 7])
    return Layout(pos, segment, causal)


def layout_of(segments: list[list[int]], causal: bool, late: int = 0) -> Layout:
    """Return a layout on the tests' device; positions count from `late` in every segment."""
    pos = [[0 if s == PADDING else late + row[:i].count(s) for i, s in enumerate(row)] for row in segments]
    return Layout(torch.tensor(pos), torch.tensor(segments), causal).to(DEVICE)
