"""Functions that the attention kernels share: reading and writing blocks of rows, tables of distances."""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows(x, base, index, stride, length, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return rows of x, [rows, BLOCK_D], zero beyond the length and the head dimension."""
    dim = tl.arange(0, BLOCK_D)
    mask = (index < length)[:, None]
    if BLOCK_D != HEAD_DIM:
        mask = mask & (dim < HEAD_DIM)[None, :]
    return tl.load(x + base + index[:, None] * stride + dim[None, :], mask, 0.0)


@triton.jit
def put_rows(x, row, index, length, value, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write [rows, BLOCK_D] into x [B * H, T, d]."""
    dim = tl.arange(0, BLOCK_D)
    at = (row.to(tl.int64) * length + index[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), (index < length)[:, None] & (dim < HEAD_DIM)[None, :])


@triton.jit
def numbers(x, row, index, length, other):
    """Return the numbers of x [all rows, T] in a row at an index."""
    return tl.load(x + row.to(tl.int64) * length + index, index < length, other)


@triton.jit
def entry(table, head, table_head, reach, i, j):
    """Return table[i - j + R] of this head, for every pair of a tile."""
    return tl.load(table + head * table_head + tl.minimum(tl.maximum(i - j, -reach), reach) + reach)


@triton.jit
def by_distance(tile, BLOCK: tl.constexpr):
    """Return the sums of tile[a, b] [BLOCK, BLOCK] over a - b = -BLOCK, ..., BLOCK - 1, [2 BLOCK]."""
    a = tl.arange(0, BLOCK)[:, None]
    b = a + BLOCK - tl.arange(0, 2 * BLOCK)[None, :]
    inside = (b >= 0) & (b < BLOCK)
    aligned = tl.gather(tile, tl.where(inside, b, 0), 1)
    return tl.sum(tl.where(inside, aligned, 0.0), 0)


@triton.jit
def dot(a, b, total=None, PRECISION: tl.constexpr = "tf32"):
    """Return a @ b + total in float32; in the interpreter, which does not read bfloat16, from float32 inputs."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)
