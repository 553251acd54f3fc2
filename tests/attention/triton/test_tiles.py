"""Rows of any number are read and written where they lie, also beyond what 32 bits count."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from pe_lab.attention.triton.tiles import numbers, put_rows, tile_numbers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROW, LENGTH, DIMS = 40, 2**22, 16  # a row of LENGTH rows of DIMS numbers ends beyond 2^31 numbers
MIDDLE = 2**31  # numbers in front of the first row: an offset that has wrapped around is inside of the memory too
START, BLOCK = 7, 16


@triton.jit
def write(x, row, length, DIMS: tl.constexpr, BLOCK: tl.constexpr, START: tl.constexpr):
    """Write 0, 1, ... into rows START, ... of x."""
    value = tl.arange(0, BLOCK)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
    put_rows(x, row, START + tl.arange(0, BLOCK), length, value, DIMS, DIMS)


@triton.jit
def read(x, out, row, length, start, WAY: tl.constexpr, BLOCK: tl.constexpr):
    """Copy numbers start, ... of a row of x, in the way of `numbers`, or of `tile_numbers`, cut or not."""
    at = tl.arange(0, BLOCK)
    if WAY == 0:
        actual = numbers(x, row, start + at, length, 0)
    else:
        actual = tile_numbers(x, row, start, length, 0, BLOCK, WAY == 1)
    tl.store(out + at, actual)


@pytest.fixture
def far() -> Tensor:
    """Memory of which little is ever touched, from its middle."""
    return torch.empty(MIDDLE + (ROW + 1) * LENGTH * DIMS, dtype=torch.uint8, device=DEVICE)[MIDDLE:]


def test_rows_are_written_where_they_lie(far: Tensor) -> None:
    first = (ROW * LENGTH + START) * DIMS
    assert first > 2**31
    write[(1,)](far, ROW, LENGTH, DIMS, BLOCK, START)
    assert torch.equal(far[first : first + BLOCK * DIMS].cpu(), torch.arange(BLOCK * DIMS).to(torch.uint8))


@pytest.mark.parametrize("way", range(3), ids=["numbers", "tile_cut", "tile_whole"])
def test_numbers_of_a_row_are_read_where_they_lie(far: Tensor, way: int) -> None:
    length = LENGTH * DIMS
    there = far[ROW * length + START :][:BLOCK]
    there.copy_(torch.arange(100, 100 + BLOCK))
    actual = torch.zeros(BLOCK, dtype=torch.uint8, device=DEVICE)
    read[(1,)](far, actual, ROW, length, START, way, BLOCK)
    assert torch.equal(actual, there)
