"""Stick-breaking attention with position, exact, in log space and O(T) memory: the kernels, forward and backward.

Tan et al. 2024, arXiv:2410.17980, eq. 1-2. Every key takes a share beta = sigmoid(z) of what the keys before it left:
A_ij = beta_ij prod over k before j of (1 - beta_ik). A row iterates over tiles of keys with `rest`, the base-2
logarithm of the remainder. Within a tile the logarithms of the keys before a key are summed by a product with a
triangle of ones; its input is split into PARTS bfloat16 numbers of 8 bits each, which the product adds exactly.

With a_ij = A_ij dL/dA_ij, the gradient of a logit is a_ij (1 - beta_ij) - beta_ij (sum of a_ik over all k after j, plus
the term of the remainder). Gradients are therefore computed in reverse order and need `rest` of every tile:
`stick_store_rests` stores it for a chunk of queries, `stick_backward_queries` stores the sums of a beyond every tile,
and `stick_backward_keys` and `stick_backward_tables` read both. There are no locks: one program computes each sum.

Legend as in softmax.py. DOWN: keys are ordered from the last to the first, otherwise from the first to the last.
SIDE: -1, keys before the query; 1, keys after it; 0, all. SELF: the query's own key is included (sides -1 and 0).
OWN: the remainder goes to the query's own value. Chunks: queries from `first` on, up to `chunk` of them, both multiples
of M; the stored sums are [B, H, tiles of N keys, chunk].
"""

import triton
import triton.language as tl

from pe_lab.attention.triton.tiles import (
    INTERPRETED,
    LOG2E,
    along_diagonals,
    dot,
    numbers,
    put_rows,
    rows,
    sum_by_distance,
)

SPAN = tl.constexpr(1024)  # segments that are read at a time
UNSPECIALIZED = ["heads", "length", "scale", "bias_head", "bias_reach", "tiles"]  # compiled once for all lengths
MIN_LOG_WEIGHT = tl.constexpr(-1e30)  # in place of -inf, since 0 * -inf is nan


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
def _power(x):
    """Return 2^x; results below 2^-126 are 0 on a GPU, which saves the three instructions of their scaling."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _shares(z, PARTS: tl.constexpr):
    """Return the base-2 logarithms of beta and of 1 - beta.

    With x = 2^-|z| in [0, 1], log2(1 + x) is x p(x), where p is the polynomial with the smallest relative error:
    2^-24.9 of degree 8, for float32; 2^-19.6 of degree 6, for bfloat16, whose products below have 16 bits.
    """
    x = _power(-tl.abs(z))
    if PARTS > 2:
        p = 7.54917595e-3 * x - 4.25670345e-2
        p = p * x + 1.12856143e-1
        p = p * x - 1.97118922e-1
        p = p * x + 2.75641387e-1
        p = p * x - 3.58408465e-1
        p = p * x + 4.80692956e-1
        p = p * x - 7.21340208e-1
        p = p * x + 1.44269500
    else:
        p = 2.04011822e-2 * x - 9.57975401e-2
        p = p * x + 2.15284537e-1
        p = p * x - 3.39089025e-1
        p = p * x + 4.77668378e-1
        p = p * x - 7.21159474e-1
        p = p * x + 1.44269321
    return tl.minimum(z, 0.0) - x * p, tl.maximum(tl.minimum(-z, 0.0) - x * p, MIN_LOG_WEIGHT)


@triton.jit
def _cut(x):
    """Return x with the first 8 bits of its significand."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _ones(BLOCK: tl.constexpr, LOWER: tl.constexpr):
    """Return ones strictly below the diagonal, or strictly above it, [BLOCK, BLOCK]."""
    a, b = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    return tl.where((a > b) if LOWER else (a < b), 1.0, 0.0).to(tl.bfloat16)


@triton.jit
def _add_up(x, ones, total, PARTS: tl.constexpr, LEFT: tl.constexpr = False):
    """Return x @ ones + total, or ones @ x + total (LEFT), with 8 PARTS bits of x or one less."""
    for _ in tl.static_range(PARTS - 1):
        high = _cut(x)
        x -= high
        part = high.to(tl.bfloat16)
        total = dot(ones, part, total, "tf32") if LEFT else dot(part, ones, total, "tf32")
    part = x.to(tl.bfloat16)
    return dot(ones, part, total, "tf32") if LEFT else dot(part, ones, total, "tf32")


@triton.jit
def _range_of_segments(segment, batch, at, low, high, length):
    """Return the first token in [low, high) whose segment lies between the least and the greatest of those at `at`,
    and the one after the last such token."""
    segments = numbers(segment, batch, at, length, tl.load(segment + batch * length + tl.min(at)))
    least, greatest = tl.min(segments), tl.max(segments)
    first, last = high, low
    for start in range(low, high, SPAN):
        here = start + tl.arange(0, SPAN)
        ids = numbers(segment, batch, here, length, 0)
        meets = (ids >= least) & (ids <= greatest) & (here < high)
        first = tl.minimum(first, tl.min(tl.where(meets, here, high)))
        last = tl.maximum(last, tl.max(tl.where(meets, here + 1, low)))
    return first, last


@triton.jit
def _tiles(
    segment, batch, at, block, length,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIDE: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """Return the first tile of keys of a block of queries, and the one after the last."""
    low, high = 0, tl.cdiv(length, BLOCK_N)
    if SIDE == -1:
        high = tl.minimum(high, tl.cdiv((block + 1) * BLOCK_M, BLOCK_N))
    elif SIDE == 1:
        low = (block * BLOCK_M) // BLOCK_N
    if SEGMENTED:
        first, last = _range_of_segments(segment, batch, at, low * BLOCK_N, tl.minimum(high * BLOCK_N, length), length)
        low, high = first // BLOCK_N, tl.cdiv(last, BLOCK_N)
    return low, high


@triton.jit
def _section(
    number, block, low, high, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SIDE: tl.constexpr, SELF: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """Return the first tile of a section of a block's tiles of keys, and the one after the last.

    In the order of keys: 0, whole tiles; 1, tiles on the diagonal; 2, whole tiles; 3, the tile that the length cuts.
    Some have no section 0, 2 or 3: see `row_sections` in stick_operators.py.
    """
    full = length // BLOCK_N
    diagonal = tl.minimum((block * BLOCK_M) // BLOCK_N, full)
    beyond = tl.minimum(tl.cdiv((block + 1) * BLOCK_M, BLOCK_N), full)
    if SIDE == 0 and SELF:
        diagonal = full
    if SIDE == -1 or (SIDE == 0 and SELF):
        beyond = high
    if SEGMENTED:
        begin, end = low, high
    elif number == 0:
        begin, end = low, diagonal
    elif number == 1:
        begin, end = diagonal, beyond
    elif number == 2:
        begin, end = beyond, full
    else:
        begin, end = full, high
    return begin, end


@triton.jit
def _logits(
    queries, key_rows, bias, head, bias_head, bias_reach, apart, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, UPRIGHT: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile in base 2, [M, N], or [N, M] if UPRIGHT.

    Args:
        apart: the distance from the tile's first key to its first query.
    """
    first = head * bias_head + bias_reach + apart
    if UPRIGHT:
        z = dot(key_rows, tl.trans(queries), PRECISION=PRECISION) * (scale * LOG2E)
        if BIAS:
            z += along_diagonals(bias, first, BLOCK_N, BLOCK_M, UPRIGHT=True)
    else:
        z = dot(queries, tl.trans(key_rows), PRECISION=PRECISION) * (scale * LOG2E)
        if BIAS:
            z += along_diagonals(bias, first, BLOCK_M, BLOCK_N, UPRIGHT=False)
    return z


@triton.jit(do_not_specialize=UNSPECIALIZED[:-1])
def stick_forward(
    q, k, v, bias, segment, out, left,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time,
    heads, length, scale, bias_head, bias_reach,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr, OWN: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, T, d] and left [B, H, T], the remainder's base-2 logarithm. Grid: blocks of queries, B * H."""
    block = tl.program_id(0) if SIDE == 1 else tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    i = at[:, None]
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    ones = _ones(BLOCK_N, DOWN)
    rest = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    low, high = _tiles(segment, batch, at, block, length, BLOCK_M, BLOCK_N, SIDE, SEGMENTED)
    for section in tl.static_range(LAST - 1 if DOWN else FIRST, FIRST - 1 if DOWN else LAST, -1 if DOWN else 1):
        begin, end = _section(section, block, low, high, length, BLOCK_M, BLOCK_N, SIDE, SELF, SEGMENTED)
        for step in range(end - begin):
            tile = end - 1 - step if DOWN else begin + step
            here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            j = here[None, :]
            key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
            z = _logits(
                queries, key_rows, bias, head, bias_head, bias_reach, block * BLOCK_M - tile * BLOCK_N, scale,
                BLOCK_M, BLOCK_N, BIAS, PRECISION, UPRIGHT=False,
            )  # fmt: skip
            take, leave = _shares(z, PARTS)
            inside = True
            if section % 2 == 1:
                segment_j = 0
                if SEGMENTED:
                    segment_j = numbers(segment, batch, here, length, -3)[None, :]
                inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
                leave = tl.where(inside, leave, 0.0)
            weight = _power(take + _add_up(leave, ones, None, PARTS) + rest[:, None])
            if section % 2 == 1:
                weight = tl.where(inside, weight, 0.0)
            rest += tl.sum(leave, 1)
            values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
            mixed = dot(weight.to(values.dtype), values, mixed, PRECISION=PRECISION)
    if OWN:
        v_rows = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        mixed += tl.exp2(rest)[:, None] * v_rows.to(tl.float32)
    put_rows(out, row, at, length, mixed, HEAD_DIM, BLOCK_D)
    tl.store(left + row.to(tl.int64) * length + at, rest, at < length)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def stick_store_rests(
    q, k, bias, segment, rests,
    q_batch, q_head, q_time, k_batch, k_head, k_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write rests [B, H, tiles, chunk], the remainder before every tile of a row. Grid: blocks of the chunk, B * H."""
    block = first // BLOCK_M + tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    i = at[:, None]
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    marks = rests + row.to(tl.int64) * tiles * chunk + (at - first)
    there = (at < length) & (at - first < chunk)
    rest = tl.zeros((BLOCK_M,), tl.float32)
    low, high = _tiles(segment, batch, at, block, length, BLOCK_M, BLOCK_N, SIDE, SEGMENTED)
    for section in tl.static_range(LAST - 1 if DOWN else FIRST, FIRST - 1 if DOWN else LAST, -1 if DOWN else 1):
        begin, end = _section(section, block, low, high, length, BLOCK_M, BLOCK_N, SIDE, SELF, SEGMENTED)
        for step in range(end - begin):
            tile = end - 1 - step if DOWN else begin + step
            here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            j = here[None, :]
            key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
            z = _logits(
                queries, key_rows, bias, head, bias_head, bias_reach, block * BLOCK_M - tile * BLOCK_N, scale,
                BLOCK_M, BLOCK_N, BIAS, PRECISION, UPRIGHT=False,
            )  # fmt: skip
            tl.store(marks + tile.to(tl.int64) * chunk, rest, there)
            _, leave = _shares(z, PARTS)
            if section % 2 == 1:
                segment_j = 0
                if SEGMENTED:
                    segment_j = numbers(segment, batch, here, length, -3)[None, :]
                leave = tl.where(_inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED), leave, 0.0)
            rest += tl.sum(leave, 1)


@triton.jit
def _gradients(take, leave, inside, dweight, rest, after, before_ones, after_ones, PARTS: tl.constexpr,
    CUT: tl.constexpr, UPRIGHT: tl.constexpr):  # fmt: skip
    """Return the weights of a tile, a = weight * dweight and the gradient of its logits.

    Args:
        rest, after: the remainder before the tile and the sum of a after it, of every query.
        UPRIGHT: whether keys are the rows of the tile, [N, M].
    """
    if CUT:
        leave = tl.where(inside, leave, 0.0)
    weight = _power(take + _add_up(leave, before_ones, None, PARTS, UPRIGHT) + rest)
    if CUT:
        weight = tl.where(inside, weight, 0.0)
    a = weight * dweight
    dz = a * _power(leave) - _power(take) * (_add_up(a, after_ones, None, PARTS, UPRIGHT) + after)
    if CUT:
        dz = tl.where(inside, dz, 0.0)  # `rest` and `after` were never written where a query meets no key of a tile
    return weight, a, dz


@triton.jit(do_not_specialize=UNSPECIALIZED)
def stick_backward_queries(
    q, k, v, bias, segment, grad, left, rests, beyond, dq,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr, OWN: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write dq of a chunk, and beyond [B, H, tiles, chunk], the sums of a after every tile of a row.

    Walks from the last key of a row to its first. Grid: blocks of the chunk, B * H.
    """
    block = first // BLOCK_M + tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    at = block * BLOCK_M + tl.arange(0, BLOCK_M)
    i = at[:, None]
    queries = rows(q, batch * q_batch + head * q_head, at, q_time, length, HEAD_DIM, BLOCK_D)
    grads = rows(grad, batch * grad_batch + head * grad_head, at, grad_time, length, HEAD_DIM, BLOCK_D)
    segment_i = 0
    if SEGMENTED:
        segment_i = numbers(segment, batch, at, length, -2)[:, None]
    marks = row.to(tl.int64) * tiles * chunk + (at - first)
    there = (at < length) & (at - first < chunk)
    before_ones, after_ones = _ones(BLOCK_N, DOWN), _ones(BLOCK_N, DOWN == 0)
    after = tl.zeros((BLOCK_M,), tl.float32)
    if OWN:
        v_rows = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        remainder = tl.exp2(numbers(left, row, at, length, 0.0))
        after = remainder * tl.sum(v_rows.to(tl.float32) * grads.to(tl.float32), 1)
    dqueries = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    low, high = _tiles(segment, batch, at, block, length, BLOCK_M, BLOCK_N, SIDE, SEGMENTED)
    for section in tl.static_range(FIRST if DOWN else LAST - 1, LAST if DOWN else FIRST - 1, 1 if DOWN else -1):
        begin, end = _section(section, block, low, high, length, BLOCK_M, BLOCK_N, SIDE, SELF, SEGMENTED)
        for step in range(end - begin):
            tile = begin + step if DOWN else end - 1 - step
            here = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            j = here[None, :]
            key_rows = rows(k, batch * k_batch + head * k_head, here, k_time, length, HEAD_DIM, BLOCK_D)
            values = rows(v, batch * v_batch + head * v_head, here, v_time, length, HEAD_DIM, BLOCK_D)
            z = _logits(
                queries, key_rows, bias, head, bias_head, bias_reach, block * BLOCK_M - tile * BLOCK_N, scale,
                BLOCK_M, BLOCK_N, BIAS, PRECISION, UPRIGHT=False,
            )  # fmt: skip
            inside = True
            if section % 2 == 1:
                segment_j = 0
                if SEGMENTED:
                    segment_j = numbers(segment, batch, here, length, -3)[None, :]
                inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
            take, leave = _shares(z, PARTS)
            mark = marks + tile.to(tl.int64) * chunk
            rest = tl.load(rests + mark, there, 0.0)[:, None]
            tl.store(beyond + mark, after, there)
            dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
            _, a, dz = _gradients(
                take, leave, inside, dweight, rest, after[:, None], before_ones, after_ones, PARTS, section % 2, 0
            )
            after += tl.sum(a, 1)
            dqueries = dot(dz.to(key_rows.dtype), key_rows, dqueries, PRECISION=PRECISION)
    put_rows(dq, row, at, length, dqueries * scale, HEAD_DIM, BLOCK_D)


@triton.jit
def _section_of_keys(
    number, tile, begin, end, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SIDE: tl.constexpr, SELF: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """Return the first query of a section of those in [begin, end), and the end of the section.

    In order: 0, blocks whose pairs are all inside; 1, blocks on the diagonal; 2, as 0. If the length cuts the tile,
    all are in section 1.
    """
    diagonal = tl.minimum(tl.maximum(tile * BLOCK_N // BLOCK_M * BLOCK_M, begin), end)
    past = tl.minimum(tl.maximum(tl.cdiv((tile + 1) * BLOCK_N, BLOCK_M) * BLOCK_M, begin), end)
    if SIDE == 0 and SELF:
        diagonal, past = end, end
    if SIDE == 1:
        past = end
    if SEGMENTED or (tile + 1) * BLOCK_N > length:
        diagonal, past = begin, end
    if number == 0:
        start, stop = begin, diagonal
    elif number == 1:
        start, stop = diagonal, past
    else:
        start, stop = past, end
    return start, stop


@triton.jit(do_not_specialize=UNSPECIALIZED)
def stick_backward_keys(
    q, k, v, bias, segment, grad, rests, beyond, dk, dv,
    q_batch, q_head, q_time, k_batch, k_head, k_time, v_batch, v_head, v_time, grad_batch, grad_head, grad_time,
    heads, length, scale, bias_head, bias_reach, first, chunk, tiles,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOWN: tl.constexpr, SIDE: tl.constexpr, SELF: tl.constexpr,
    SEGMENTED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
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
    segment_j = 0
    if SEGMENTED:
        begin, end = _range_of_segments(segment, batch, at, begin, end, length)
        begin = begin // BLOCK_M * BLOCK_M
        segment_j = numbers(segment, batch, at, length, -3)[:, None]
    if begin < end:
        key_rows = rows(k, batch * k_batch + head * k_head, at, k_time, length, HEAD_DIM, BLOCK_D)
        values = rows(v, batch * v_batch + head * v_head, at, v_time, length, HEAD_DIM, BLOCK_D)
        before_ones, after_ones = _ones(BLOCK_N, DOWN == 0), _ones(BLOCK_N, DOWN)
        base = row.to(tl.int64) * length * HEAD_DIM
        marks = (row.to(tl.int64) * tiles + tile) * chunk - first
        dkeys = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        dvalues = rows(dv, base, at, HEAD_DIM, length, HEAD_DIM, BLOCK_D)
        for section in tl.static_range(FIRST, LAST):
            start, stop = _section_of_keys(section, tile, begin, end, length, BLOCK_M, BLOCK_N, SIDE, SELF, SEGMENTED)
            for from_ in range(start, stop, BLOCK_M):
                here = from_ + tl.arange(0, BLOCK_M)
                i = here[None, :]
                queries = rows(q, batch * q_batch + head * q_head, here, q_time, length, HEAD_DIM, BLOCK_D)
                grads = rows(grad, batch * grad_batch + head * grad_head, here, grad_time, length, HEAD_DIM, BLOCK_D)
                z = _logits(
                    queries, key_rows, bias, head, bias_head, bias_reach, from_ - tile * BLOCK_N, scale,
                    BLOCK_M, BLOCK_N, BIAS, PRECISION, UPRIGHT=True,
                )  # fmt: skip
                inside = True
                if section % 2 == 1:
                    segment_i = 0
                    if SEGMENTED:
                        segment_i = numbers(segment, batch, here, length, -2)[None, :]
                    inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
                take, leave = _shares(z, PARTS)
                rest = tl.load(rests + marks + here, here < length, 0.0)[None, :]
                after = tl.load(beyond + marks + here, here < length, 0.0)[None, :]
                dweight = dot(values, tl.trans(grads), PRECISION=PRECISION)
                weight, _, dz = _gradients(
                    take, leave, inside, dweight, rest, after, before_ones, after_ones, PARTS, section % 2, 1
                )
                dvalues = dot(weight.to(grads.dtype), grads, dvalues, PRECISION=PRECISION)
                dkeys = dot(dz.to(queries.dtype), queries, dkeys, PRECISION=PRECISION)
        dkeys = dkeys * scale + rows(dk, base, at, HEAD_DIM, length, HEAD_DIM, BLOCK_D)
        put_rows(dk, row, at, length, dkeys, HEAD_DIM, BLOCK_D)
        put_rows(dv, row, at, length, dvalues, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=UNSPECIALIZED)
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
    # tiles on the diagonal are cut, and the last ones by the length; those before the diagonal by nothing
    cut = (diagonal == 0) | (length % BLOCK_N > 0 if SIDE != -1 else False)
    if begin < end:
        before_ones, after_ones = _ones(BLOCK_N, DOWN), _ones(BLOCK_N, DOWN == 0)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for CUT in tl.static_range(SEGMENTED, 2):
            start, stop = begin, end
            if not SEGMENTED:
                start = begin if cut == (CUT == 1) else end
            for block in range(start, stop):
                tile = block - diagonal
                at_i = block * BLOCK_M + tl.arange(0, BLOCK_M)
                at_j = tile * BLOCK_N + tl.arange(0, BLOCK_N)
                i, j = at_i[:, None], at_j[None, :]
                queries = rows(q, batch * q_batch + head * q_head, at_i, q_time, length, HEAD_DIM, BLOCK_D)
                key_rows = rows(k, batch * k_batch + head * k_head, at_j, k_time, length, HEAD_DIM, BLOCK_D)
                z = _logits(
                    queries, key_rows, bias, head, bias_head, bias_reach, block * BLOCK_M - tile * BLOCK_N, scale,
                    BLOCK_M, BLOCK_N, BIAS, PRECISION, UPRIGHT=False,
                )  # fmt: skip
                inside = True
                if CUT:
                    segment_i, segment_j = 0, 0
                    if SEGMENTED:
                        segment_i = numbers(segment, batch, at_i, length, -2)[:, None]
                        segment_j = numbers(segment, batch, at_j, length, -3)[None, :]
                    inside = _inside(i, j, segment_i, segment_j, length, SIDE, SELF, SEGMENTED)
                take, leave = _shares(z, PARTS)
                marks = (row.to(tl.int64) * tiles + tile) * chunk + (at_i - first)
                rest = tl.load(rests + marks, at_i < length, 0.0)[:, None]
                after = tl.load(beyond + marks, at_i < length, 0.0)[:, None]
                grads = rows(grad, batch * grad_batch + head * grad_head, at_i, grad_time, length, HEAD_DIM, BLOCK_D)
                values = rows(v, batch * v_batch + head * v_head, at_j, v_time, length, HEAD_DIM, BLOCK_D)
                dweight = dot(grads, tl.trans(values), PRECISION=PRECISION)
                _, _, dz = _gradients(take, leave, inside, dweight, rest, after, before_ones, after_ones, PARTS, CUT, 0)
                sums += dz
        to = (row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (2 * BLOCK_M) + tl.arange(0, 2 * BLOCK_M)
        tl.store(dbias + to, tl.load(dbias + to) + sum_by_distance(sums, BLOCK_M))
