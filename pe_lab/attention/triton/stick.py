"""Stick-breaking attention with position, exact, in log space and O(T) memory: the kernels, forward and backward.

Tan et al. 2024, arXiv:2410.17980, eq. 1-2. Every key takes a share beta = sigmoid(z) of what the keys before it left:
A_ij = beta_ij prod over k before j of (1 - beta_ik). A row iterates over tiles of keys with `rest`, the base-2
logarithm of the remainder. Within a tile the logarithms of the keys before a key are summed by a product with a
triangle of ones; its input is split into PARTS bfloat16 numbers of 8 bits each, which the product adds exactly.

With a_ij = A_ij dL/dA_ij, the gradient of a logit is a_ij (1 - beta_ij) - beta_ij (sum of a_ik over all k after j, plus
the term of the remainder). Gradients are therefore computed in reverse order and need `rest` of every tile:
`stick_mark` stores it for a chunk of queries, `stick_backward_queries` stores the sums of a beyond every tile, and
`stick_backward_keys` and `stick_backward_tables` read both. There are no locks: one program computes each sum.

Legend as in softmax.py. DOWN: keys are ordered from the last to the first, otherwise from the first to the last.
SIDE: -1, keys before the query; 1, keys after it; 0, all. SELF: the query's own key is included (sides -1 and 0).
OWN: the remainder goes to the query's own value. Chunks: queries from `first` on, up to `chunk` of them, both multiples
of M; the stored sums are [B, H, chunk, tiles of N keys].
"""

import triton
import triton.language as tl

from pe_lab.attention.triton.tiles import LOG2E, by_distance, dot, entry, numbers, put_rows, rows

LEAST = tl.constexpr(-1e30)  # in place of -inf, since 0 * -inf is nan


@triton.jit
def _inside(i, j, segment_i, segment_j, length, SIDE: tl.constexpr, SELF: tl.constexpr, SEGMENTED: tl.constexpr):
    """Return the mask of a tile."""
    inside = (j < length) & (i < length)
    if SIDE == -1:
        inside = inside & ((i >= j) if SELF else (i > j))
    elif SIDE == 1:
        inside = inside & (i < j)
    elif not SELF:
        inside = inside & (i != j)
    if SEGMENTED:
        inside = inside & (segment_i == segment_j)
    return inside


@triton.jit
def _shares(z, inside):
    """Return the base-2 logarithms of beta and of 1 - beta, the latter 0 for masked keys."""
    x = tl.exp2(-tl.abs(z))
    above = 1.0 + x
    # log2(1 + x), accurate for small x (Kahan): the rounding error of 1 + x cancels between the factors
    soft = tl.where(above == 1.0, x * LOG2E, tl.log2(above) * (x / tl.maximum(above - 1.0, 1e-30)))
    leave = tl.maximum(-tl.maximum(z, 0.0) - soft, LEAST)
    return tl.minimum(z, 0.0) - soft, tl.where(inside, leave, 0.0)


@triton.jit
def _ones(BLOCK: tl.constexpr, LOWER: tl.constexpr):
    """Return ones strictly below the diagonal, or strictly above it, [BLOCK, BLOCK]."""
    a, b = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    return tl.where((a > b) if LOWER else (a < b), 1.0, 0.0).to(tl.bfloat16)


@triton.jit
def _add_up(x, ones, PARTS: tl.constexpr):
    """Return x @ ones, with 8 PARTS bits of x."""
    high = x.to(tl.bfloat16)
    total = dot(high, ones)
    if PARTS > 1:
        rest = x - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        total = dot(middle, ones, total)
        if PARTS > 2:
            total = dot((rest - middle.to(tl.float32)).to(tl.bfloat16), ones, total)
    return total


@triton.jit
def _add_up_columns(ones, x, PARTS: tl.constexpr):
    """Return ones @ x, with 8 PARTS bits of x."""
    high = x.to(tl.bfloat16)
    total = dot(ones, high)
    if PARTS > 1:
        rest = x - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        total = dot(ones, middle, total)
        if PARTS > 2:
            total = dot(ones, (rest - middle.to(tl.float32)).to(tl.bfloat16), total)
    return total


@triton.jit
def _tiles(block, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIDE: tl.constexpr):
    """Return the first tile of keys of a block of queries, and the one after the last."""
    low, high = 0, tl.cdiv(length, BLOCK_N)
    if SIDE == -1:
        high = tl.minimum(high, tl.cdiv((block + 1) * BLOCK_M, BLOCK_N))
    elif SIDE == 1:
        low = (block * BLOCK_M) // BLOCK_N
    return low, high


@triton.jit
def stick_forward(
    q, k, v, bias, segment, out, left,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time,
    heads, length, scale, bias_head, bias_reach,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr, OWN: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, T, d] and left [B, H, T], the remainder's base-2 logarithm. Grid: blocks of queries, B * H."""
    block = tl.program_id(0) if SIDE == 1 else tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    i = at[:, None]
    ones = _ones(BLOCK_N, DOWN)
    rest = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    low, high = _tiles(block, length, BLOCK_M, BLOCK_N, SIDE)
    for step in range(high - low):
        tile = high - 1 - step if DOWN else low + step
        here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        j = here[None, :]
        key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
        z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
        if BIAS:
            z += entry(bias, head, bias_head, bias_reach, i, j)
        segment_j = 0
        if SEGMENTED:
            segment_j = numbers(segment, batch, here, length, -3)[None, :]
        inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
        take, leave = _shares(z, inside)
        weight = tl.where(inside, tl.exp2(take + _add_up(leave, ones, PARTS) + rest[:, None]), 0.0)
        rest += tl.sum(leave, 1)
        values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
        mixed = dot(weight.to(values.dtype), values, mixed, PRECISION=PRECISION)
    if OWN:
        own = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        mixed += tl.exp2(rest)[:, None] * own.to(tl.float32)
    put_rows(out, row, at, length, mixed, HEAD_DIM, BLOCK_D)
    tl.store(left + row.to(tl.int64) * length + at, rest, at < length)


@triton.jit
def stick_mark(
    q, k, bias, segment, rests,
    q_batch, q_head, q_time, k_batch, k_head, k_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write rests [B, H, chunk, tiles], the remainder before every tile of a row. Grid: blocks of the chunk, B * H."""
    block = first // BLOCK_M + tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    i = at[:, None]
    marks = rests + (row.to(tl.int64) * chunk + at - first) * tiles
    there = (at < length) & (at - first < chunk)
    rest = tl.zeros((BLOCK_M,), tl.float32)
    low, high = _tiles(block, length, BLOCK_M, BLOCK_N, SIDE)
    for step in range(high - low):
        tile = high - 1 - step if DOWN else low + step
        here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        j = here[None, :]
        key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
        z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
        if BIAS:
            z += entry(bias, head, bias_head, bias_reach, i, j)
        segment_j = 0
        if SEGMENTED:
            segment_j = numbers(segment, batch, here, length, -3)[None, :]
        tl.store(marks + tile, rest, there)
        _, leave = _shares(z, _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED))
        rest += tl.sum(leave, 1)


@triton.jit
def stick_backward_queries(
    q, k, v, bias, segment, grad, left, rests, beyond, dq,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr, OWN: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq of a chunk, and beyond [B, H, chunk, tiles], the sums of a after every tile of a row.

    Walks from the last key of a row to its first. Grid: blocks of the chunk, B * H.
    """
    block = first // BLOCK_M + tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    grads = rows(grad, batch * grad_batch + head * grad_head, at, grad_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    i = at[:, None]
    marks = (row.to(tl.int64) * chunk + at - first) * tiles
    there = (at < length) & (at - first < chunk)
    before_ones, after_ones = _ones(BLOCK_N, DOWN), _ones(BLOCK_N, DOWN == 0)
    after = tl.zeros((BLOCK_M,), tl.float32)
    if OWN:
        own = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        remainder = tl.exp2(numbers(left, row, at, length, 0.0))
        after = remainder * tl.sum(own.to(tl.float32) * grads.to(tl.float32), 1)
    dqueries = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    low, high = _tiles(block, length, BLOCK_M, BLOCK_N, SIDE)
    for step in range(high - low):
        tile = low + step if DOWN else high - 1 - step
        here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        j = here[None, :]
        key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
        values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
        z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
        if BIAS:
            z += entry(bias, head, bias_head, bias_reach, i, j)
        segment_j = 0
        if SEGMENTED:
            segment_j = numbers(segment, batch, here, length, -3)[None, :]
        inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
        take, leave = _shares(z, inside)
        rest = tl.load(rests + marks + tile, there, 0.0)
        tl.store(beyond + marks + tile, after, there)
        weight = tl.where(inside, tl.exp2(take + _add_up(leave, before_ones, PARTS) + rest[:, None]), 0.0)
        a = weight * dot(grads, tl.trans(values), PRECISION=PRECISION)
        dz = tl.where(
            inside, a * tl.exp2(leave) - tl.exp2(take) * (_add_up(a, after_ones, PARTS) + after[:, None]), 0.0
        )
        after += tl.sum(a, 1)
        dqueries = dot(dz.to(key_rows.dtype), key_rows, dqueries, PRECISION=PRECISION)
    put_rows(dq, row, at, length, dqueries * scale, HEAD_DIM, BLOCK_D)


@triton.jit
def stick_backward_keys(
    q, k, v, bias, segment, grad, rests, beyond, dk, dv,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a chunk to dk, dv [B, H, T, d] float32. Grid: tiles of keys, B * H.

    Tiles stand upright, [N, M]: keys are rows.
    """
    tile = tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    j = at[:, None]
    begin, end = first, tl.minimum(first + chunk, length)
    if SIDE == -1:
        begin = tl.maximum(begin, tile * BLOCK_N // BLOCK_M * BLOCK_M)
    elif SIDE == 1:
        end = tl.minimum(end, (tile + 1) * BLOCK_N)
    if begin < end:
        key_rows = rows(k, batch * k_batch + head * k_head, at, k_time, length, HEAD_DIM, BLOCK_D)
        values = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        segment_j = 0
        if SEGMENTED:
            segment_j = numbers(segment, batch, at, length, -3)[:, None]
        before_ones, after_ones = _ones(BLOCK_N, DOWN == 0), _ones(BLOCK_N, DOWN)
        base = row.to(tl.int64) * length * HEAD_DIM
        dkeys = rows(dk, base, at, HEAD_DIM, length, HEAD_DIM, BLOCK_D)
        dvalues = rows(dv, base, at, HEAD_DIM, length, HEAD_DIM, BLOCK_D)
        for start in range(begin, end, BLOCK_M):
            here = start + tl.arange(0, BLOCK_M)
            i = here[None, :]
            queries = rows(q, batch * q_batch + head * q_head, here, q_time, length, HEAD_DIM, BLOCK_D)
            grads = rows(grad, batch * grad_batch + head * grad_head, here, grad_time, length, HEAD_DIM, BLOCK_D)
            z = dot(key_rows, tl.trans(queries), PRECISION=PRECISION) * (scale * LOG2E)
            if BIAS:
                z += entry(bias, head, bias_head, bias_reach, i, j)
            segment_i = 0
            if SEGMENTED:
                segment_i = numbers(segment, batch, here, length, -2)[None, :]
            inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
            take, leave = _shares(z, inside)
            marks = (row.to(tl.int64) * chunk + here - first) * tiles + tile
            rest = tl.load(rests + marks, here < length, 0.0)[None, :]
            after = tl.load(beyond + marks, here < length, 0.0)[None, :]
            weight = tl.where(inside, tl.exp2(take + _add_up_columns(before_ones, leave, PARTS) + rest), 0.0)
            dvalues = dot(weight.to(grads.dtype), grads, dvalues, PRECISION=PRECISION)
            a = weight * dot(values, tl.trans(grads), PRECISION=PRECISION)
            dz = a * tl.exp2(leave) - tl.exp2(take) * (_add_up_columns(after_ones, a, PARTS) + after)
            dz = tl.where(inside, dz * scale, 0.0)  # entries outside were never written
            dkeys = dot(dz.to(queries.dtype), queries, dkeys, PRECISION=PRECISION)
        put_rows(dk, row, at, length, dkeys, HEAD_DIM, BLOCK_D)
        put_rows(dv, row, at, length, dvalues, HEAD_DIM, BLOCK_D)


@triton.jit
def stick_backward_tables(
    q, k, v, bias, segment, grad, rests, beyond, dbias,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a chunk to dbias [B, H, diagonals, 2 N], as softmax.backward_tables. Grid: diagonals, B * H.

    The diagonals are 0, 1, ... of side -1; 0, -1, ... of side 1; 0, 1, -1, 2, -2, ... of all.
    """
    tl.static_assert(BLOCK_M == BLOCK_N)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    diagonal = tl.program_id(0)
    if SIDE == 1:
        diagonal = -diagonal
    elif SIDE == 0:
        diagonal = tl.where(diagonal % 2 == 1, (diagonal + 1) // 2, -(diagonal // 2))
    begin = tl.maximum(first // BLOCK_M, diagonal)
    end = tl.minimum(tl.cdiv(tl.minimum(first + chunk, length), BLOCK_M), tiles + diagonal)
    if begin < end:
        before_ones, after_ones = _ones(BLOCK_N, DOWN), _ones(BLOCK_N, DOWN == 0)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in range(begin, end):
            tile = block - diagonal
            at_i = block * BLOCK_M + tl.arange(0, BLOCK_M)
            at_j = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            i, j = at_i[:, None], at_j[None, :]
            queries = rows(q, batch * q_batch + head * q_head, at_i, q_time, length, HEAD_DIM, BLOCK_D)
            key_rows = rows(k, batch * k_batch + head * k_head, at_j, k_time, length, HEAD_DIM, BLOCK_D)
            z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
            z += entry(bias, head, bias_head, bias_reach, i, j)
            segment_i, segment_j = 0, 0
            if SEGMENTED:
                segment_i = numbers(segment, batch, at_i, length, -2)[:, None]
                segment_j = numbers(segment, batch, at_j, length, -3)[None, :]
            inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
            take, leave = _shares(z, inside)
            marks = (row.to(tl.int64) * chunk + at_i - first) * tiles + tile
            rest = tl.load(rests + marks, at_i < length, 0.0)[:, None]
            after = tl.load(beyond + marks, at_i < length, 0.0)[:, None]
            weight = tl.where(inside, tl.exp2(take + _add_up(leave, before_ones, PARTS) + rest), 0.0)
            grads = rows(grad, batch * grad_batch + head * grad_head, at_i, grad_time, length, HEAD_DIM, BLOCK_D)
            values = rows(v, batch * v_batch + head * v_head, at_j, v_time, length, HEAD_DIM, BLOCK_D)
            a = weight * dot(grads, tl.trans(values), PRECISION=PRECISION)
            sums += tl.where(inside, a * tl.exp2(leave) - tl.exp2(take) * (_add_up(a, after_ones, PARTS) + after), 0.0)
        to = (row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (2 * BLOCK_M) + tl.arange(0, 2 * BLOCK_M)
        tl.store(dbias + to, tl.load(dbias + to) + by_distance(sums, BLOCK_M))
