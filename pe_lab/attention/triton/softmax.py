"""Softmax attention with position in O(T) memory: the kernels, forward and backward.

After FlashAttention-2 (Dao 2023, arXiv:2307.08691): logits are computed tile by tile, and again for the gradients.
The terms of an encoding are read from vectors: a table of distances (bias, gate) or a number per token (decay). There
are no atomics: one program computes each sum, so that the same inputs give the same bits.

Legend: B batch, H heads, T length, d head_dim; i query, j key; M = BLOCK_M queries and N = BLOCK_N keys make a tile.
Logits are in base 2: z = q . k * scale * log2(e) * gate[i - j] + (bias[i - j] + c_i - c_j) * log2(e); `bias` and
`decay` are given multiplied by log2(e). Tables [1|H, 2R + 1] have the entry for i - j at i - j + R, for every i - j of
a tile.

Strides in numbers: q_batch, q_head and q_time lead to the next sequence, head and token (k, v and grad likewise); the
last dimension has stride 1. bias_head and gate_head lead to the next row of a table, 0 if all heads share one row;
bias_reach and gate_reach are its R.

Kernels share these options, as far as they need them: CAUSAL; SEGMENTED: i attends to j only if segment[i] ==
segment[j]; BIAS, GATE, DECAY: the logits have this term; DROPOUT: weights whose hash is below `threshold` are dropped
(see dropout.py), and the others are multiplied by `enlarge` = 1 / (1 - p); WINDOW: i attends to j only if |i - j| <
window[head] <= 2^30; tiles without such a pair are neither read nor computed.
"""

import triton
import triton.language as tl

from pe_lab.attention import dropout
from pe_lab.attention.triton.tiles import (
    LOG2E,
    along_diagonals,
    dot,
    numbers,
    put_rows,
    rows,
    sum_by_distance,
    tile_numbers,
    tile_rows,
)

UNSPECIALIZED = [  # a kernel compiled for one length serves all
    "heads", "length", "scale", "bias_head", "bias_reach", "gate_head", "gate_reach", "threshold", "enlarge",
]  # fmt: skip
ROW, COLUMN = tl.constexpr(dropout.ROW), tl.constexpr(dropout.COLUMN)
MIX0, MIX1 = tl.constexpr(dropout.MIX_MULTIPLIERS[0]), tl.constexpr(dropout.MIX_MULTIPLIERS[1])
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * MIX0
    x = (x ^ (x >> 15)) * MIX1
    return x ^ (x >> 16)


@triton.jit
def _key(seed, batch, head):
    """Return the key of the random numbers of a head, as `Dropout.keys` does."""
    row = _mix(tl.load(seed).to(tl.uint32) + batch.to(tl.uint32) * ROW)
    return _mix(row + head.to(tl.uint32) * COLUMN)


@triton.jit
def _is_kept(key, i, j, threshold):
    """Return whether a weight is kept; i [M, 1] and j [1, N] are broadcast to the tile."""
    row = _mix(key + i.to(tl.uint32) * ROW)
    return _mix(row + j.to(tl.uint32) * COLUMN) >= tl.cast(threshold, tl.uint32)


@triton.jit
def _seen(
    i, j, segment_i, segment_j, limit, length, CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, WINDOW: tl.constexpr
):
    """Return the mask of a tile."""
    seen = (j < length) & (i >= 0)
    if CAUSAL:
        seen = seen & (i >= j)
    if SEGMENTED:
        seen = seen & (segment_i == segment_j)
    if WINDOW:
        seen = seen & (i - j < limit)
        if not CAUSAL:
            seen = seen & (j - i < limit)
    return seen


@triton.jit
def _documents(segment, batch, at, low, high, length, STEP: tl.constexpr):
    """Return where the tokens lie that those at `at` may see by their segments: the first, the last + 1, and whether
    all between them are of one segment, which all of `at` have.

    Args:
        low, high: the range of tokens that is searched: low, ..., high - 1.
    """
    segments = numbers(segment, batch, at, length, 0)
    there = at < length
    smallest = tl.min(tl.where(there, segments, 2**62), 0)
    largest = tl.max(tl.where(there, segments, -(2**62)), 0)
    first, last, count = high, low, 0
    for start in range(low, high, STEP):
        place = start + tl.arange(0, STEP)
        other = numbers(segment, batch, place, length, 0)
        inside = (other >= smallest) & (other <= largest) & (place < high)
        first = tl.minimum(first, tl.min(tl.where(inside, place, high), 0))
        last = tl.maximum(last, tl.max(tl.where(inside, place + 1, low), 0))
        count += tl.sum(inside.to(tl.int32), 0)
    return first, last, (smallest == largest) & (count == last - first)


@triton.jit
def _key_tiles(
    segment, limit, batch, block, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    SEGMENTED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the tiles of keys that a block of queries sees, and those of them that need no mask, as two ranges."""
    end, whole_end = length, length // BLOCK_N
    if CAUSAL:
        end = tl.minimum((block + 1) * BLOCK_M, length)
        whole_end = tl.minimum(block * BLOCK_M // BLOCK_N, whole_end)
    first, begin, whole_begin = 0, 0, 0
    if WINDOW:  # the first query sees the earliest key, the last query sees the fewest early keys
        first = tl.maximum(block * BLOCK_M - limit + 1, 0)
        begin = first // BLOCK_N
        whole_begin = tl.cdiv(tl.maximum((block + 1) * BLOCK_M - limit, 0), BLOCK_N)
        if not CAUSAL:
            end = tl.minimum(end, (block + 1) * BLOCK_M - 1 + limit)
            whole_end = tl.minimum(whole_end, (block * BLOCK_M + limit) // BLOCK_N)
    if SEGMENTED:
        at = block * BLOCK_M + tl.arange(0, BLOCK_M)
        first, last, is_one = _documents(segment, batch, at, first, end, length, STEP=1024)
        begin, end = first // BLOCK_N, tl.minimum(end, last)
        whole_begin = tl.maximum(whole_begin, tl.cdiv(first, BLOCK_N))
        whole_end = tl.where(is_one, tl.minimum(whole_end, last // BLOCK_N), 0)
    end = tl.cdiv(end, BLOCK_N)
    whole_begin = tl.minimum(whole_begin, end)
    return begin, end, whole_begin, tl.maximum(whole_begin, whole_end)


@triton.jit
def _query_tiles(
    segment, limit, batch, block, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    SEGMENTED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the tiles of queries that see a block of keys, and those of them that need no mask, as two ranges."""
    begin, whole_begin = 0, 0
    if CAUSAL:
        begin = block * BLOCK_N // BLOCK_M
        whole_begin = tl.cdiv((block + 1) * BLOCK_N - 1, BLOCK_M)
    end, whole_end = length, length // BLOCK_M
    if WINDOW:
        end = tl.minimum(length, (block + 1) * BLOCK_N - 1 + limit)
        whole_end = tl.minimum(whole_end, (block * BLOCK_N + limit) // BLOCK_M)
        if not CAUSAL:
            begin = tl.maximum(block * BLOCK_N - limit + 1, 0) // BLOCK_M
            whole_begin = tl.cdiv(tl.maximum((block + 1) * BLOCK_N - limit, 0), BLOCK_M)
    if SEGMENTED:
        at = block * BLOCK_N + tl.arange(0, BLOCK_N)
        first, last, is_one = _documents(segment, batch, at, begin * BLOCK_M, end, length, STEP=1024)
        begin, end = first // BLOCK_M, last
        whole_begin = tl.maximum(whole_begin, tl.cdiv(first, BLOCK_M))
        whole_end = tl.where(is_one, tl.minimum(whole_end, last // BLOCK_M), 0)
    end = tl.cdiv(end, BLOCK_M)
    whole_begin = tl.minimum(whole_begin, end)
    return begin, end, whole_begin, tl.maximum(whole_begin, whole_end)


@triton.jit
def _tile(index, begin, whole_begin, whole_end, CUT: tl.constexpr):
    """Return the tile of a loop's index: of those without a mask, or of those before and after them if CUT."""
    if CUT:
        tile = begin + index
        return tl.where(tile < whole_begin, tile, tile + (whole_end - whole_begin))
    return whole_begin + index


@triton.jit(do_not_specialize=UNSPECIALIZED)
def forward(
    q, k, v, bias, gate, decay, segment, seed, window, out, lse,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, T, d] and lse [B, H, T], the base-2 logarithm of a row's sum. Grid: blocks of queries, B * H.

    Without terms, the largest q . k of a row is found before it is scaled: `sharpness` is the scale, made positive by
    the sign of q and kept from zero, so that -inf * sharpness is -inf.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i, c_i, key, limit = 0, 0.0, 0, 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    if DECAY:
        c_i = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = _key(seed, batch, head)
    if WINDOW:
        limit = tl.load(window + head)
    i = at[:, None]
    UNSCALED: tl.constexpr = not (BIAS or GATE or DECAY)
    sharpness = 1.0
    if UNSCALED:
        sharpness = tl.maximum(tl.abs(scale) * LOG2E, 1e-30)
        queries = tl.where(scale < 0, -queries, queries)
    highest = tl.full((BLOCK_M,), -INFINITY, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    begin, end, whole_begin, whole_end = _key_tiles(
        segment, limit, batch, block, length, BLOCK_M, BLOCK_N, CAUSAL, SEGMENTED, WINDOW
    )
    for CUT in tl.static_range(2):
        whole = whole_end - whole_begin
        for index in range(0, end - begin - whole if CUT else whole):
            start = _tile(index, begin, whole_begin, whole_end, CUT) * BLOCK_N
            j = (start + tl.arange(0, BLOCK_N))[None, :]
            key_rows = tile_rows(
                k, batch * k_batch + head * k_head, start, k_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
            )
            z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION)
            if not UNSCALED:
                z *= scale * LOG2E
            if GATE:
                z *= along_diagonals(
                    gate, head * gate_head + gate_reach + block * BLOCK_M - start, BLOCK_M, BLOCK_N, UPRIGHT=False
                )
            if BIAS:
                z += along_diagonals(
                    bias, head * bias_head + bias_reach + block * BLOCK_M - start, BLOCK_M, BLOCK_N, UPRIGHT=False
                )
            if DECAY:
                z += c_i - tile_numbers(decay, row, start, length, 0.0, BLOCK_N, CUT)[None, :]
            if CUT:
                segment_j = 0
                if SEGMENTED:
                    segment_j = tile_numbers(segment, batch, start, length, -3, BLOCK_N, CUT)[None, :]
                seen = _seen(i, j, segment_i, segment_j, limit, length, CAUSAL, SEGMENTED, WINDOW)
                z = tl.where(seen, z, -INFINITY)
            raised = tl.maximum(highest, tl.max(z, 1))
            anchor = tl.where(raised == -INFINITY, 0.0, raised) * sharpness  # no key so far
            weight = tl.exp2(z * sharpness - anchor[:, None])
            shrink = tl.exp2(highest * sharpness - anchor)
            highest = raised
            total = total * shrink + tl.sum(weight, 1)
            if DROPOUT:
                weight = tl.where(_is_kept(key, i, j, threshold), weight * enlarge, 0.0)
            values = tile_rows(
                v, batch * v_batch + head * v_head, start, v_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
            )
            mixed = mixed * shrink[:, None]
            mixed = dot(weight.to(values.dtype), values, mixed, PRECISION=PRECISION)
    put_rows(out, row, at, length, mixed / total[:, None], HEAD_DIM, BLOCK_D)
    tl.store(lse + row.to(tl.int64) * length + at, highest * sharpness + tl.log2(total), at < length)


@triton.jit(do_not_specialize=["heads", "length"])
def sums(
    out, grad, delta, grad_batch, grad_head, grad_time, heads, length,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Write delta [B, H, T] = out . grad, a term of all gradients of a row's weights. Grid: blocks of T, B * H."""
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    outs = rows(out, row.to(tl.int64) * length * HEAD_DIM, at, HEAD_DIM, length, HEAD_DIM, BLOCK_D)
    grads = rows(grad, batch * grad_batch + head * grad_head, at, grad_time, length, HEAD_DIM, BLOCK_D)
    total = tl.sum(outs.to(tl.float32) * grads.to(tl.float32), 1)
    tl.store(delta + row.to(tl.int64) * length + at, total, at < length)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def backward_keys(
    q, k, v, bias, gate, decay, segment, seed, window, grad, lse, delta, dk, dv, ddecay,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk, dv [B, H, T, d] and ddecay [B, H, T] = -sum over i of dz_ij. Grid: blocks of keys, B * H.

    Tiles stand upright, [N, M]: keys are rows. A decay's sum over j is zero, as softmax does not see c_i.
    """
    block = tl.program_id(0)  # early keys have the most queries
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_N + tl.arange(0, BLOCK_N)
    key_rows = rows(k, batch * k_batch + head * k_head, at, k_time, length, HEAD_DIM, BLOCK_D)
    values = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
    segment_j, c_j, key, limit = 0, 0.0, 0, 0
    if SEGMENTED:
        segment_j = numbers(segment, batch, at, length, -3)[:, None]
    if DECAY:
        c_j = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = _key(seed, batch, head)
    if WINDOW:
        limit = tl.load(window + head)
    j = at[:, None]
    dkeys = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dvalues = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    column = tl.zeros((BLOCK_N,), tl.float32)

    begin, end, whole_begin, whole_end = _query_tiles(
        segment, limit, batch, block, length, BLOCK_M, BLOCK_N, CAUSAL, SEGMENTED, WINDOW
    )
    for CUT in tl.static_range(2):
        whole = whole_end - whole_begin
        for index in range(0, end - begin - whole if CUT else whole):
            start = _tile(index, begin, whole_begin, whole_end, CUT) * BLOCK_M
            i = (start + tl.arange(0, BLOCK_M))[None, :]
            queries = tile_rows(
                q, batch * q_batch + head * q_head, start, q_time, length, BLOCK_M, HEAD_DIM, BLOCK_D, CUT
            )
            z = dot(key_rows, tl.trans(queries), PRECISION=PRECISION) * (scale * LOG2E)
            if GATE:
                factor = along_diagonals(
                    gate, head * gate_head + gate_reach + start - block * BLOCK_N, BLOCK_N, BLOCK_M, UPRIGHT=True
                )
                z *= factor
            if BIAS:
                z += along_diagonals(
                    bias, head * bias_head + bias_reach + start - block * BLOCK_N, BLOCK_N, BLOCK_M, UPRIGHT=True
                )
            if DECAY:
                z += tile_numbers(decay, row, start, length, 0.0, BLOCK_M, CUT)[None, :] - c_j
            weight = tl.exp2(z - tile_numbers(lse, row, start, length, INFINITY, BLOCK_M, CUT)[None, :])
            if CUT:
                segment_i = 0
                if SEGMENTED:
                    segment_i = tile_numbers(segment, batch, start, length, -2, BLOCK_M, CUT)[None, :]
                seen = _seen(i, j, segment_i, segment_j, limit, length, CAUSAL, SEGMENTED, WINDOW)
                weight = tl.where(seen, weight, 0.0)
            grads = tile_rows(
                grad, batch * grad_batch + head * grad_head, start, grad_time, length, BLOCK_M, HEAD_DIM, BLOCK_D, CUT
            )
            dweight = dot(values, tl.trans(grads), PRECISION=PRECISION)
            used = weight
            if DROPOUT:
                kept = _is_kept(key, i, j, threshold)
                used = tl.where(kept, weight * enlarge, 0.0)
                dweight = tl.where(kept, dweight * enlarge, 0.0)
            dvalues = dot(used.to(grads.dtype), grads, dvalues, PRECISION=PRECISION)
            dz = weight * (dweight - tile_numbers(delta, row, start, length, 0.0, BLOCK_M, CUT)[None, :])
            if DECAY:
                column += tl.sum(dz, 1)
            if GATE:
                dz *= factor
            dkeys = dot(dz.to(queries.dtype), queries, dkeys, PRECISION=PRECISION)
    put_rows(dk, row, at, length, dkeys * scale, HEAD_DIM, BLOCK_D)
    put_rows(dv, row, at, length, dvalues, HEAD_DIM, BLOCK_D)
    if DECAY:
        tl.store(ddecay + row.to(tl.int64) * length + at, -column, at < length)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def backward_queries(
    q, k, v, bias, gate, decay, segment, seed, window, grad, lse, delta, dq,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq [B, H, T, d]. Grid: blocks of queries, B * H."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    grads = rows(grad, batch * grad_batch + head * grad_head, at, grad_time, length, HEAD_DIM, BLOCK_D)
    top = numbers(lse, row, at, length, INFINITY)[:, None]
    common = numbers(delta, row, at, length, 0.0)[:, None]
    segment_i, c_i, key, limit = 0, 0.0, 0, 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    if DECAY:
        c_i = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = _key(seed, batch, head)
    if WINDOW:
        limit = tl.load(window + head)
    i = at[:, None]
    dqueries = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    begin, end, whole_begin, whole_end = _key_tiles(
        segment, limit, batch, block, length, BLOCK_M, BLOCK_N, CAUSAL, SEGMENTED, WINDOW
    )
    for CUT in tl.static_range(2):
        whole = whole_end - whole_begin
        for index in range(0, end - begin - whole if CUT else whole):
            start = _tile(index, begin, whole_begin, whole_end, CUT) * BLOCK_N
            j = (start + tl.arange(0, BLOCK_N))[None, :]
            key_rows = tile_rows(
                k, batch * k_batch + head * k_head, start, k_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
            )
            values = tile_rows(
                v, batch * v_batch + head * v_head, start, v_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
            )
            z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
            if GATE:
                factor = along_diagonals(
                    gate, head * gate_head + gate_reach + block * BLOCK_M - start, BLOCK_M, BLOCK_N, UPRIGHT=False
                )
                z *= factor
            if BIAS:
                z += along_diagonals(
                    bias, head * bias_head + bias_reach + block * BLOCK_M - start, BLOCK_M, BLOCK_N, UPRIGHT=False
                )
            if DECAY:
                z += c_i - tile_numbers(decay, row, start, length, 0.0, BLOCK_N, CUT)[None, :]
            weight = tl.exp2(z - top)
            if CUT:
                segment_j = 0
                if SEGMENTED:
                    segment_j = tile_numbers(segment, batch, start, length, -3, BLOCK_N, CUT)[None, :]
                seen = _seen(i, j, segment_i, segment_j, limit, length, CAUSAL, SEGMENTED, WINDOW)
                weight = tl.where(seen, weight, 0.0)
            dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
            if DROPOUT:
                dweight = tl.where(_is_kept(key, i, j, threshold), dweight * enlarge, 0.0)
            dz = weight * (dweight - common)
            if GATE:
                dz *= factor
            dqueries = dot(dz.to(key_rows.dtype), key_rows, dqueries, PRECISION=PRECISION)
    put_rows(dq, row, at, length, dqueries * scale, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def backward_tables(
    q, k, v, bias, gate, decay, segment, seed, window, grad, lse, delta, dbias, dgate,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, DBIAS: tl.constexpr, DGATE: tl.constexpr,
):  # fmt: skip
    """Write dbias, dgate [B, H, diagonals, 2 M], gradients summed over i - j = diagonal * M + (-M, ..., M - 1).

    A program computes the gradients of one diagonal of square tiles. In such a tile the index of a pair determines its
    distance, so that whole tiles are summed. Grid: diagonals, B * H; the diagonals are 0, 1, ..., and, if not CAUSAL,
    0, 1, -1, 2, -2, ...
    """
    tl.static_assert(BLOCK_M == BLOCK_N)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    diagonal = tl.program_id(0)  # long ones first
    if not CAUSAL:
        diagonal = tl.where(diagonal % 2 == 1, (diagonal + 1) // 2, -(diagonal // 2))
    blocks = tl.cdiv(length, BLOCK_M)
    key = 0
    if DROPOUT:
        key = _key(seed, batch, head)
    bias_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    begin = tl.maximum(0, -diagonal)
    end = tl.minimum(blocks, blocks - diagonal)
    whole_end = tl.maximum(begin, end - (length % BLOCK_M > 0).to(tl.int32))  # the last tile may be cut
    if SEGMENTED:
        whole_end = begin
    elif CAUSAL:
        whole_end = tl.where(diagonal == 0, begin, whole_end)
    limit = 0
    if WINDOW:
        limit = tl.load(window + head)
        middle = tl.abs(diagonal) * BLOCK_M  # distances of its tiles are less than M from this
        end = tl.where(middle - BLOCK_M + 1 < limit, end, begin)
        whole_end = tl.where(middle + BLOCK_M - 1 < limit, whole_end, begin)
    distance = diagonal.to(tl.int64) * BLOCK_M
    for CUT in tl.static_range(2):
        for index in range(0, end - whole_end if CUT else whole_end - begin):
            block = _tile(index, begin, begin, whole_end, CUT)
            start_i, start_j = (block + diagonal) * BLOCK_M, block * BLOCK_N
            segment_i, segment_j, meet = 0, 0, True
            if SEGMENTED:  # CUT
                segment_i = tile_numbers(segment, batch, start_i, length, -2, BLOCK_M, CUT)
                segment_j = tile_numbers(segment, batch, start_j, length, -3, BLOCK_N, CUT)
                apart = (tl.min(segment_i, 0) > tl.max(segment_j, 0)) | (tl.max(segment_i, 0) < tl.min(segment_j, 0))
                segment_i, segment_j, meet = segment_i[:, None], segment_j[None, :], not apart
            if meet:
                i = (start_i + tl.arange(0, BLOCK_M))[:, None]
                j = (start_j + tl.arange(0, BLOCK_N))[None, :]
                queries = tile_rows(
                    q, batch * q_batch + head * q_head, start_i, q_time, length, BLOCK_M, HEAD_DIM, BLOCK_D, CUT
                )
                key_rows = tile_rows(
                    k, batch * k_batch + head * k_head, start_j, k_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
                )
                plain = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * scale
                z = plain * LOG2E
                if GATE:
                    first = head * gate_head + gate_reach + distance
                    z *= along_diagonals(gate, first, BLOCK_M, BLOCK_N, UPRIGHT=False)
                if BIAS:
                    first = head * bias_head + bias_reach + distance
                    z += along_diagonals(bias, first, BLOCK_M, BLOCK_N, UPRIGHT=False)
                if DECAY:
                    c_j = tile_numbers(decay, row, start_j, length, 0.0, BLOCK_N, CUT)[None, :]
                    z += tile_numbers(decay, row, start_i, length, 0.0, BLOCK_M, CUT)[:, None] - c_j
                weight = tl.exp2(z - tile_numbers(lse, row, start_i, length, INFINITY, BLOCK_M, CUT)[:, None])
                if CUT:
                    seen = _seen(i, j, segment_i, segment_j, limit, length, CAUSAL, SEGMENTED, WINDOW)
                    weight = tl.where(seen, weight, 0.0)
                grads = tile_rows(
                    grad,
                    batch * grad_batch + head * grad_head,
                    start_i,
                    grad_time,
                    length,
                    BLOCK_M,
                    HEAD_DIM,
                    BLOCK_D,
                    CUT,
                )
                values = tile_rows(
                    v, batch * v_batch + head * v_head, start_j, v_time, length, BLOCK_N, HEAD_DIM, BLOCK_D, CUT
                )
                dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
                if DROPOUT:
                    dweight = tl.where(_is_kept(key, i, j, threshold), dweight * enlarge, 0.0)
                dz = weight * (dweight - tile_numbers(delta, row, start_i, length, 0.0, BLOCK_M, CUT)[:, None])
                if DBIAS:
                    bias_sum += dz
                if DGATE:
                    gate_sum += dz * plain
    to = (row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (2 * BLOCK_M) + tl.arange(0, 2 * BLOCK_M)
    if DBIAS:
        tl.store(dbias + to, sum_by_distance(bias_sum, BLOCK_M))
    if DGATE:
        tl.store(dgate + to, sum_by_distance(gate_sum, BLOCK_M))
