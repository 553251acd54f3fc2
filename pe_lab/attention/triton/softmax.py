"""Softmax attention with position in O(T) memory: the kernels, forward and backward.

After FlashAttention-2 (Dao 2023, arXiv:2307.08691): logits are computed tile by tile, and again for the gradients.
The terms of an encoding are read from vectors: a table of distances (bias, gate) or a number per token (decay). There
are no atomics: one program computes each sum, so that the same inputs give the same bits.

Legend: B batch, H heads, T length, d head_dim; i query, j key; M = BLOCK_M queries and N = BLOCK_N keys make a tile.
Logits are in base 2: z = q . k * scale * log2(e) * gate[i - j] + (bias[i - j] + c_i - c_j) * log2(e); `bias` and
`decay` are given multiplied by log2(e). Tables [1|H, 2R + 1] are indexed at i - j + R; beyond R their ends are read.

Every kernel has the same options: CAUSAL; SEGMENTED: i attends to j if segment[i] == segment[j], otherwise to all;
BIAS, GATE, DECAY: the term is there; DROPOUT: weights whose hash is below `threshold` are dropped (see dropout.py).
"""

import triton
import triton.language as tl

from pe_lab.attention import dropout
from pe_lab.attention.triton.tiles import LOG2E, by_distance, dot, entry, numbers, put_rows, rows

ROW, COLUMN = tl.constexpr(dropout.ROW), tl.constexpr(dropout.COLUMN)
MIX0, MIX1 = tl.constexpr(dropout.MIX[0]), tl.constexpr(dropout.MIX[1])
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * MIX0
    x = (x ^ (x >> 15)) * MIX1
    return x ^ (x >> 16)


@triton.jit
def _kept(key, i, j, threshold):
    """Return whether a weight is kept; i [M, 1] and j [1, N] are broadcast to the tile."""
    row = _mix(key + i.to(tl.uint32) * ROW)
    return _mix(row + j.to(tl.uint32) * COLUMN) >= tl.cast(threshold, tl.uint32)


@triton.jit
def _seen(i, j, segment_i, segment_j, length, CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr):
    """Return the mask of a tile."""
    seen = (j < length) & (i >= 0)
    if CAUSAL:
        seen = seen & (i >= j)
    if SEGMENTED:
        seen = seen & (segment_i == segment_j)
    return seen


@triton.jit
def forward(
    q, k, v, bias, gate, decay, segment, keys, out, lse,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, T, d] and lse [B, H, T], the base-2 logarithm of a row's sum. Grid: blocks of queries, B * H."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i, c_i, key = 0, 0.0, 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    if DECAY:
        c_i = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = tl.load(keys + row).to(tl.uint32)
    i = at[:, None]
    highest = tl.full((BLOCK_M,), -INFINITY, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    end = length
    whole = (length // BLOCK_N) * BLOCK_N  # keys before this are in tiles without a mask
    if CAUSAL:
        end = tl.minimum((block + 1) * BLOCK_M, length)
        whole = tl.minimum((block * BLOCK_M) // BLOCK_N * BLOCK_N, whole)
    for CUT in tl.static_range(SEGMENTED, 2):
        begin = 0 if (CUT == 0 or SEGMENTED) else whole
        for start in range(begin, whole if CUT == 0 else end, BLOCK_N):
            here = start + tl.arange(0, BLOCK_N)
            j = here[None, :]
            key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
            z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
            if GATE:
                z *= entry(gate, head, gate_head, gate_reach, i, j)
            if BIAS:
                z += entry(bias, head, bias_head, bias_reach, i, j)
            if DECAY:
                z += c_i - numbers(decay, row, here, length, 0.0)[None, :]
            if CUT:
                segment_j = 0
                if SEGMENTED:
                    segment_j = numbers(segment, batch, here, length, -3)[None, :]
                z = tl.where(_seen(i, j, segment_i, segment_j, length, CAUSAL, SEGMENTED), z, -INFINITY)
            raised = tl.maximum(highest, tl.max(z, 1))
            anchor = tl.where(raised == -INFINITY, 0.0, raised)  # no key so far
            weight = tl.exp2(z - anchor[:, None])
            shrink = tl.exp2(highest - anchor)
            highest = raised
            total = total * shrink + tl.sum(weight, 1)
            if DROPOUT:
                weight = tl.where(_kept(key, i, j, threshold), weight * enlarge, 0.0)
            values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
            mixed = mixed * shrink[:, None]
            mixed = dot(weight.to(values.dtype), values, mixed, PRECISION=PRECISION)
    put_rows(out, row, at, length, mixed / total[:, None], HEAD_DIM, BLOCK_D)
    tl.store(lse + row.to(tl.int64) * length + at, highest + tl.log2(total), at < length)


@triton.jit
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


@triton.jit
def backward_keys(
    q, k, v, bias, gate, decay, segment, keys, grad, lse, delta, dk, dv, ddecay,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
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
    segment_j, c_j, key = 0, 0.0, 0
    if SEGMENTED:
        segment_j = numbers(segment, batch, at, length, -3)[:, None]
    if DECAY:
        c_j = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = tl.load(keys + row).to(tl.uint32)
    j = at[:, None]
    dkeys = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dvalues = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    column = tl.zeros((BLOCK_N,), tl.float32)

    begin = 0
    whole = 0  # queries from here on are in tiles without a mask
    if CAUSAL:
        begin = (block * BLOCK_N) // BLOCK_M * BLOCK_M
        whole = tl.minimum(((block + 1) * BLOCK_N + BLOCK_M - 2) // BLOCK_M * BLOCK_M, length)
    CUTS: tl.constexpr = 1 if CAUSAL or SEGMENTED else 0
    for PART in tl.static_range(CUTS + 1 - SEGMENTED):
        first = begin if PART < CUTS else whole
        last = whole if (PART < CUTS and not SEGMENTED) else length
        for start in range(first, last, BLOCK_M):
            here = start + tl.arange(0, BLOCK_M)
            i = here[None, :]
            queries = rows(q, batch * q_batch + head * q_head, here, q_time, length, HEAD_DIM, BLOCK_D)
            z = dot(key_rows, tl.trans(queries), PRECISION=PRECISION) * (scale * LOG2E)
            if GATE:
                factor = entry(gate, head, gate_head, gate_reach, i, j)
                z *= factor
            if BIAS:
                z += entry(bias, head, bias_head, bias_reach, i, j)
            if DECAY:
                z += numbers(decay, row, here, length, 0.0)[None, :] - c_j
            weight = tl.exp2(z - numbers(lse, row, here, length, INFINITY)[None, :])
            if PART < CUTS:
                segment_i = 0
                if SEGMENTED:
                    segment_i = numbers(segment, batch, here, length, -2)[None, :]
                weight = tl.where(_seen(i, j, segment_i, segment_j, length, CAUSAL, SEGMENTED), weight, 0.0)
            grads = rows(grad, batch * grad_batch + head * grad_head, here, grad_time, length, HEAD_DIM, BLOCK_D)
            dweight = dot(values, tl.trans(grads), PRECISION=PRECISION)
            used = weight
            if DROPOUT:
                kept = _kept(key, i, j, threshold)
                used = tl.where(kept, weight * enlarge, 0.0)
                dweight = tl.where(kept, dweight * enlarge, 0.0)
            dvalues = dot(used.to(grads.dtype), grads, dvalues, PRECISION=PRECISION)
            dz = weight * (dweight - numbers(delta, row, here, length, 0.0)[None, :])
            if DECAY:
                column += tl.sum(dz, 1)
            if GATE:
                dz *= factor
            dkeys = dot(dz.to(queries.dtype), queries, dkeys, PRECISION=PRECISION)
    put_rows(dk, row, at, length, dkeys * scale, HEAD_DIM, BLOCK_D)
    put_rows(dv, row, at, length, dvalues, HEAD_DIM, BLOCK_D)
    if DECAY:
        tl.store(ddecay + row.to(tl.int64) * length + at, -column, at < length)


@triton.jit
def backward_queries(
    q, k, v, bias, gate, decay, segment, keys, grad, lse, delta, dq,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
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
    segment_i, c_i, key = 0, 0.0, 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    if DECAY:
        c_i = numbers(decay, row, at, length, 0.0)[:, None]
    if DROPOUT:
        key = tl.load(keys + row).to(tl.uint32)
    i = at[:, None]
    dqueries = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    end = length
    whole = (length // BLOCK_N) * BLOCK_N
    if CAUSAL:
        end = tl.minimum((block + 1) * BLOCK_M, length)
        whole = tl.minimum((block * BLOCK_M) // BLOCK_N * BLOCK_N, whole)
    for CUT in tl.static_range(SEGMENTED, 2):
        begin = 0 if (CUT == 0 or SEGMENTED) else whole
        for start in range(begin, whole if CUT == 0 else end, BLOCK_N):
            here = start + tl.arange(0, BLOCK_N)
            j = here[None, :]
            key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
            values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
            z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
            if GATE:
                factor = entry(gate, head, gate_head, gate_reach, i, j)
                z *= factor
            if BIAS:
                z += entry(bias, head, bias_head, bias_reach, i, j)
            if DECAY:
                z += c_i - numbers(decay, row, here, length, 0.0)[None, :]
            weight = tl.exp2(z - top)
            if CUT:
                segment_j = 0
                if SEGMENTED:
                    segment_j = numbers(segment, batch, here, length, -3)[None, :]
                weight = tl.where(_seen(i, j, segment_i, segment_j, length, CAUSAL, SEGMENTED), weight, 0.0)
            dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
            if DROPOUT:
                dweight = tl.where(_kept(key, i, j, threshold), dweight * enlarge, 0.0)
            dz = weight * (dweight - common)
            if GATE:
                dz *= factor
            dqueries = dot(dz.to(key_rows.dtype), key_rows, dqueries, PRECISION=PRECISION)
    put_rows(dq, row, at, length, dqueries * scale, HEAD_DIM, BLOCK_D)


@triton.jit
def backward_tables(
    q, k, v, bias, gate, decay, segment, keys, grad, lse, delta, dbias, dgate,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, gate_head, gate_reach, threshold, enlarge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SEGMENTED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, DECAY: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, DBIAS: tl.constexpr, DGATE: tl.constexpr,
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
        key = tl.load(keys + row).to(tl.uint32)
    bias_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(tl.maximum(0, -diagonal), tl.minimum(blocks, blocks - diagonal)):
        at_i = (block + diagonal) * BLOCK_M + tl.arange(0, BLOCK_M)
        at_j = block * BLOCK_N + tl.arange(0, BLOCK_N)
        i, j = at_i[:, None], at_j[None, :]
        queries = rows(q, batch * q_batch + head * q_head, at_i, q_time, length, HEAD_DIM, BLOCK_D)
        key_rows = rows(k, batch * k_batch + head * k_head, at_j, k_time, length, HEAD_DIM, BLOCK_D)
        plain = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * scale
        z = plain * LOG2E
        if GATE:
            z *= entry(gate, head, gate_head, gate_reach, i, j)
        if BIAS:
            z += entry(bias, head, bias_head, bias_reach, i, j)
        if DECAY:
            c_j = numbers(decay, row, at_j, length, 0.0)[None, :]
            z += numbers(decay, row, at_i, length, 0.0)[:, None] - c_j
        segment_i, segment_j = 0, 0
        if SEGMENTED:
            segment_i = numbers(segment, batch, at_i, length, -2)[:, None]
            segment_j = numbers(segment, batch, at_j, length, -3)[None, :]
        weight = tl.exp2(z - numbers(lse, row, at_i, length, INFINITY)[:, None])
        weight = tl.where(_seen(i, j, segment_i, segment_j, length, CAUSAL, SEGMENTED), weight, 0.0)
        grads = rows(grad, batch * grad_batch + head * grad_head, at_i, grad_time, length, HEAD_DIM, BLOCK_D)
        values = rows(v, batch * v_batch + head * v_head, at_j, v_time, length, HEAD_DIM, BLOCK_D)
        dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
        if DROPOUT:
            dweight = tl.where(_kept(key, i, j, threshold), dweight * enlarge, 0.0)
        dz = weight * (dweight - numbers(delta, row, at_i, length, 0.0)[:, None])
        if DBIAS:
            bias_sum += dz
        if DGATE:
            gate_sum += dz * plain
    to = (row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (2 * BLOCK_M) + tl.arange(0, 2 * BLOCK_M)
    if DBIAS:
        tl.store(dbias + to, by_distance(bias_sum, BLOCK_M))
    if DGATE:
        tl.store(dgate + to, by_distance(gate_sum, BLOCK_M))
