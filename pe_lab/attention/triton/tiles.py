"""What the attention kernels share: reading and writing blocks of rows, tables of distances."""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows(x, base, index, stride, length, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D] of x, zero beyond the length and the head dimension."""
    lane = tl.arange(0, BLOCK_D)
    mask = (index < length)[:, None]
    if BLOCK_D != HEAD_DIM:
        mask = mask & (lane < HEAD_DIM)[None, :]
    return tl.load(x + base + index[:, None] * stride + lane[None, :], mask, 0.0)


@triton.jit
def put_rows(x, row, index, length, value, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write [rows, BLOCK_D] into x [B * H, T, d]."""
    lane = tl.arange(0, BLOCK_D)
    at = (row.to(tl.int64) * length + index[:, None]) * HEAD_DIM + lane[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), (index < length)[:, None] & (lane < HEAD_DIM)[None, :])


@triton.jit
def numbers(x, row, index, length, other):
    """[rows] of x [rows of it, T]."""
    return tl.load(x + row.to(tl.int64) * length + index, index < length, other)


@triton.jit
def entry(table, head, table_head, reach, i, j):
    """table[i - j + R] of this head, for every pair of a tile."""
    return tl.load(table + head * table_head + tl.minimum(tl.maximum(i - j, -reach), reach) + reach)


@triton.jit
def by_distance(tile, BLOCK: tl.constexpr):
    """[2 BLOCK]: the sums of tile[a, b] [BLOCK, BLOCK] over a - b = -BLOCK, ..., BLOCK - 1."""
    a = tl.arange(0, BLOCK)[:, None]
    b = a + BLOCK - tl.arange(0, 2 * BLOCK)[None, :]
    inside = (b >= 0) & (b < BLOCK)
    turned = tl.gather(tile, tl.where(inside, b, 0), 1)
    return tl.sum(tl.where(inside, turned, 0.0), 0)


@triton.jit
def dot(a, b, total=None, PRECISION: tl.constexpr = "tf32"):
    """a @ b + total, in float32; the interpreter, which takes bfloat16 bits for integers, is given float32."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)
