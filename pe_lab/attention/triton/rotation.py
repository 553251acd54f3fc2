"""Rotation and gain of queries or keys in one pass, with gradients of the tables: kernels and their operator.

Applied before attention, once per token instead of once per tile that reads it. Shapes: B batch, H heads, T length,
d head_dim, C = d / 2 pairs. Tables [B|1, H|1, T, C] are read where they lie, shared or one per sequence and head: their
strides are 0 along an axis that is shared, and `table_rows` is that of T in rows of C numbers, 1 in a compact table.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe_lab.attention.triton.launch_parameters import on_its_device

BLOCK_T = 32
MAX_MEMBERS = 16  # most heads and sequences sharing a table that one program sums over


@triton.jit
def _pairs(x, offsets, mask, pair, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Return both dimensions of every pair, [BLOCK_T, BLOCK_C] each, in float32; offsets are those of the rows."""
    first = offsets + (pair if HALF else 2 * pair)[None, :]
    step: tl.constexpr = HEAD_DIM // 2 if HALF else 1
    return tl.load(x + first, mask, 0.0).to(tl.float32), tl.load(x + first + step, mask, 0.0).to(tl.float32)


@triton.jit
def _put(x, offsets, mask, pair, a, b, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    first = offsets + (pair if HALF else 2 * pair)[None, :]
    step: tl.constexpr = HEAD_DIM // 2 if HALF else 1
    tl.store(x + first, a.to(x.dtype.element_ty), mask)
    tl.store(x + first + step, b.to(x.dtype.element_ty), mask)


@triton.jit
def _gains(gain, head, gain_head, pair, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Return the gains of both dimensions of every pair, [1, BLOCK_C] each."""
    first = gain + head * gain_head + (pair if HALF else 2 * pair)
    inside = pair < HEAD_DIM // 2
    step: tl.constexpr = HEAD_DIM // 2 if HALF else 1
    return tl.load(first, inside, 0.0)[None, :], tl.load(first + step, inside, 0.0)[None, :]


@triton.jit(do_not_specialize=["gain_head", "heads", "length"])
def rotate_forward(
    x, cos, sin, gain, out,
    x_batch, x_head, x_time, table_batch, table_head, table_rows, gain_head, heads, length,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, GAIN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write x, rotated by cos and sin, times gain, to out [B, H, T, d]. Grid: blocks of T, B * H."""
    time = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    pair = tl.arange(0, BLOCK_C)
    mask = (time < length)[:, None] & (pair < HEAD_DIM // 2)[None, :]
    at = batch * table_batch + head * table_head + time[:, None] * table_rows * (HEAD_DIM // 2) + pair[None, :]
    c, s = tl.load(cos + at, mask, 0.0), tl.load(sin + at, mask, 0.0)
    a, b = _pairs(x, batch * x_batch + head * x_head + time[:, None] * x_time, mask, pair, HEAD_DIM, HALF)
    first, second = a * c - b * s, a * s + b * c
    if GAIN:
        gain_first, gain_second = _gains(gain, head, gain_head, pair, HEAD_DIM, HALF)
        first, second = first * gain_first, second * gain_second
    rows = (row.to(tl.int64) * length + time[:, None]) * HEAD_DIM
    _put(out, rows, mask, pair, first, second, HEAD_DIM, HALF)


@triton.jit(do_not_specialize=["gain_head", "heads", "length", "sharing_heads", "sharing", "chunks"])
def rotate_backward(
    grad, x, cos, sin, gain, dx, dcos, dsin, dgain,
    grad_batch, grad_head, grad_time, x_batch, x_head, x_time, table_batch, table_head, table_rows,
    gain_head, heads, length, sharing_heads, sharing, chunks,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, GAIN: tl.constexpr, TABLES: tl.constexpr, MEMBERS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradients of rotate_forward. Grid: blocks of T, tables * chunks.

    A table [T, C] is shared by `sharing` pairs (batch, head); a program takes up to MEMBERS of them and writes the sum
    of their gradients into dcos, dsin [tables, chunks, T, C], and each one's into dgain [B, H, blocks of T, d].
    """
    block = tl.program_id(0)
    time = (block * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    table, chunk = tl.program_id(1) // chunks, tl.program_id(1) % chunks
    table_heads = heads // sharing_heads
    pair = tl.arange(0, BLOCK_C)
    mask = (time < length)[:, None] & (pair < HEAD_DIM // 2)[None, :]
    step: tl.constexpr = HEAD_DIM // 2 if HALF else 1
    sharing_batches = sharing // sharing_heads
    first_batch = (table // table_heads) * sharing_batches
    first_head = (table % table_heads) * sharing_heads
    within = time[:, None] * (HEAD_DIM // 2) + pair[None, :]
    at = first_batch.to(tl.int64) * table_batch + first_head.to(tl.int64) * table_head
    at += time[:, None] * table_rows * (HEAD_DIM // 2) + pair[None, :]
    c, s = tl.load(cos + at, mask, 0.0), tl.load(sin + at, mask, 0.0)
    sum_c = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    sum_s = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for member in range(chunk * MEMBERS, tl.minimum(sharing, (chunk + 1) * MEMBERS)):
        batch = (first_batch + member // sharing_heads).to(tl.int64)
        head = (first_head + member % sharing_heads).to(tl.int64)
        row = batch * heads + head
        at_x = batch * x_batch + head * x_head + time[:, None] * x_time
        at_grad = batch * grad_batch + head * grad_head + time[:, None] * grad_time
        a, b = _pairs(x, at_x, mask, pair, HEAD_DIM, HALF)
        g, h = _pairs(grad, at_grad, mask, pair, HEAD_DIM, HALF)
        if GAIN:
            where = dgain + (row * tl.num_programs(0) + block) * HEAD_DIM + (pair if HALF else 2 * pair)
            tl.store(where, tl.sum((a * c - b * s) * g, 0), pair < HEAD_DIM // 2)
            tl.store(where + step, tl.sum((a * s + b * c) * h, 0), pair < HEAD_DIM // 2)
            gain_first, gain_second = _gains(gain, head, gain_head, pair, HEAD_DIM, HALF)
            g, h = g * gain_first, h * gain_second
        if TABLES:
            sum_c += a * g + b * h
            sum_s += a * h - b * g
        rows = (row * length + time[:, None]) * HEAD_DIM
        _put(dx, rows, mask, pair, c * g + s * h, c * h - s * g, HEAD_DIM, HALF)
    if TABLES:
        to = (tl.program_id(1).to(tl.int64) * length) * (HEAD_DIM // 2) + within
        tl.store(dcos + to, sum_c, mask)
        tl.store(dsin + to, sum_s, mask)


def sizes(head_dim: int) -> dict[str, int]:
    """Return the compile-time sizes of both kernels."""
    return {"HEAD_DIM": head_dim, "BLOCK_T": BLOCK_T, "BLOCK_C": max(triton.next_power_of_2(head_dim // 2), 8)}


def _shared_stride(table: Tensor, axis: int) -> int:
    return table.stride(axis) if table.shape[axis] > 1 else 0


def _readable(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tables where they lie, if that is in rows of pairs and in one way for both; or else copies."""
    pairs = cos.shape[-1]
    in_rows = (cos.stride(-1) == 1 or pairs == 1) and cos.stride(-2) % pairs == 0
    return (cos, sin) if in_rows and cos.stride() == sin.stride() else (cos.contiguous(), sin.contiguous())


def _table_strides(table: Tensor) -> tuple[int, int, int]:
    """Return the strides of sequences and of heads in numbers, 0 if shared, and that of tokens in rows."""
    return _shared_stride(table, 0), _shared_stride(table, 1), table.stride(2) // table.shape[-1]


@torch.library.custom_op("pe_lab::rotate", mutates_args=())
@on_its_device
def rotate(x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor | None, half: bool) -> Tensor:
    """Return x [B, H, T, d] with its pairs of dimensions rotated, then scaled: in x's dtype, computed in float32.

    Args:
        cos, sin: cosines and sines of the angles, [B|1, H|1, T, d/2] float32.
        gain: factors on the dimensions after the rotation, [1|H, d] float32; None: no factors.
        half: whether pairs are (c, c + d/2) instead of (2c, 2c + 1).
    """
    B, H, T, d = x.shape
    x, (cos, sin) = _dims_adjacent(x), _readable(cos, sin)
    gain = None if gain is None else gain.contiguous()
    out = x.new_empty(x.shape)
    rotate_forward[(triton.cdiv(T, BLOCK_T), B * H)](
        x, cos, sin, gain, out, *x.stride()[:3], *_table_strides(cos),
        0 if gain is None else _shared_stride(gain, 0), H, T, HALF=half, GAIN=gain is not None, **sizes(d),
    )  # fmt: skip
    return out


@rotate.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor | None, half: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("pe_lab::rotate_backward", mutates_args=())
@on_its_device
def _backward(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor | None, half: bool, tables: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, cos, sin and gain; empty for cos and sin unless `tables`, and for an absent gain."""
    B, H, T, d = x.shape
    grad, x, (cos, sin) = _dims_adjacent(grad), _dims_adjacent(x), _readable(cos, sin)
    gain = None if gain is None else gain.contiguous()
    sharing_heads, sharing = H // cos.shape[1], (H // cos.shape[1]) * (B // cos.shape[0])
    members = min(MAX_MEMBERS, triton.next_power_of_2(sharing)) if tables else 1
    chunks = triton.cdiv(sharing, members)
    dx = x.new_empty(x.shape)
    partial = cos.new_empty((2, *cos.shape[:2], chunks, T, d // 2) if tables else (2, 0))
    blocks = triton.cdiv(T, BLOCK_T)
    dgain = cos.new_empty(0) if gain is None else cos.new_empty(B, H, blocks, d)
    rotate_backward[(blocks, cos.shape[0] * cos.shape[1] * chunks)](
        grad, x, cos, sin, gain, dx, partial[0], partial[1], dgain, *grad.stride()[:3], *x.stride()[:3],
        *_table_strides(cos), 0 if gain is None else _shared_stride(gain, 0),
        H, T, sharing_heads, sharing, chunks,
        HALF=half, GAIN=gain is not None, TABLES=tables, MEMBERS=members, **sizes(d),
    )  # fmt: skip
    if tables:
        partial = partial.sum(3)
    if gain is not None:
        dgain = dgain.sum((0, 2))
        dgain = dgain if gain.shape[0] == H else dgain.sum(0, keepdim=True)
    return dx, partial[0].clone(), partial[1].clone(), dgain


@_backward.register_fake
def _(grad, x, cos, sin, gain, half, tables):
    shapes = (cos.shape, sin.shape) if tables else (0, 0)
    return x.new_empty(x.shape), *map(cos.new_empty, shapes), cos.new_empty(0 if gain is None else gain.shape)


def _dims_adjacent(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.half = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor):
    x, cos, sin, gain = ctx.saved_tensors
    tables = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    dx, dcos, dsin, dgain = _backward(grad, x, cos, sin, gain, ctx.half, tables)
    return dx, dcos if tables else None, dsin if tables else None, None if gain is None else dgain, None


rotate.register_autograd(_differentiate, setup_context=_remember)
