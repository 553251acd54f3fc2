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
    return tl.load(x + base + index.to(tl.int64)[:, None] * stride + dim[None, :], mask, 0.0)


@triton.jit
def tile_rows(
    x, base, start, stride, length, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    CUT: tl.constexpr,
):  # fmt: skip
    """Return the rows start, ..., start + BLOCK - 1 of x, [BLOCK, BLOCK_D], zero beyond the head dimension.

    If CUT, rows beyond the length are zero; otherwise there must be none. `base` is an int64. Only the tile's first
    address is computed in 64 bits.
    """
    local, dim = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    at = x + (base + start.to(tl.int64) * stride) + (local[:, None] * stride + dim[None, :])
    if CUT:
        mask = (start + local < length)[:, None]
        if BLOCK_D != HEAD_DIM:
            mask = mask & (dim < HEAD_DIM)[None, :]
        return tl.load(at, mask, 0.0)
    if BLOCK_D != HEAD_DIM:
        return tl.load(at, (dim < HEAD_DIM)[None, :], 0.0)
    return tl.load(at)


@triton.jit
def tile_numbers(x, row, start, length, other, BLOCK: tl.constexpr, CUT: tl.constexpr):
    """Return the numbers start, ..., start + BLOCK - 1 of x [all rows, T] in a row; if CUT, `other` beyond T."""
    local = tl.arange(0, BLOCK)
    at = x + (row.to(tl.int64) * length + start) + local
    if CUT:
        return tl.load(at, start + local < length, other)
    return tl.load(at)


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


@triton.jit(do_not_specialize=["table_head", "reach", "out_reach", "factor"])
def spread_table(table, out, table_head, reach, out_reach, factor, BLOCK: tl.constexpr):
    """Write table [heads, 2R + 1] * factor to out [heads, 2 R' + 1], of which distances beyond R have its ends.

    Grid: blocks of 2 R' + 1, heads. Kernels can read any distance from a table so spread, without limiting it first.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1).to(tl.int64)
    width = 2 * out_reach + 1
    distance = tl.minimum(tl.maximum(place - out_reach, -reach), reach)
    value = tl.load(table + head * table_head + distance + reach, place < width, 0.0)
    tl.store(out + head * width + place, value * factor, place < width)


@triton.jit
def along_diagonals(table, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UPRIGHT: tl.constexpr):
    """Return table[first + a - b] for every row a and column b of a tile; first + b - a if UPRIGHT; first is an int64.

    All pairs of a distance need the same number. Two things let the compiler load it once per thread, from one address
    with constant offsets. The number is loaded by an instruction of its own, without side effects, since a load by
    Triton has a layout of its own and is converted to that of the tile. And an index counts down by `xor`, which keeps
    the constant part of a sum apart; a difference does not.
    """
    a, b = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    if UPRIGHT:
        at = table + (first - (ROWS - 1)) + (a ^ (ROWS - 1)).to(tl.int64)[:, None] + b.to(tl.int64)[None, :]
    else:
        at = table + (first - (COLUMNS - 1)) + a.to(tl.int64)[:, None] + (b ^ (COLUMNS - 1)).to(tl.int64)[None, :]
    if INTERPRETED:
        return tl.load(at)
    return tl.inline_asm_elementwise("ld.global.f32 $0, [$1];", "=r,l", [at], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def sum_by_distance(tile, BLOCK: tl.constexpr):
    """Return the sums of tile[a, b] [BLOCK, BLOCK] over a - b = -BLOCK, ..., BLOCK - 1, [2 BLOCK]."""
    a = tl.arange(0, BLOCK)[:, None]
    b = a + BLOCK - tl.arange(0, 2 * BLOCK)[None, :]
    inside = (b >= 0) & (b < BLOCK)
    aligned = tl.gather(tile, tl.where(inside, b, 0), 1)
    return tl.sum(tl.where(inside, aligned, 0.0), 0)


@triton.jit
def dot(a, b, total=None, PRECISION: tl.constexpr = None):  # Triton 3.6 does not take a string as default
    """Return a @ b + total in float32; in the interpreter, which does not read bfloat16, from float32 inputs."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)
