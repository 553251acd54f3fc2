"""The kernels of softmax attention as PyTorch operators: launches, shapes for the compiler, derivatives."""

from collections.abc import Collection
from typing import Any, NamedTuple, get_type_hints

import torch
import triton
from torch import Tensor

from pe_lab.attention.triton import softmax, tiles
from pe_lab.attention.triton.launch_parameters import (
    Blocks,
    choose_blocks,
    device_architecture,
    on_its_device,
    tile_dims,
)

LOG2E = 1.4426950408889634
MAX_TILE = 128  # queries or keys
ENTRIES_PER_PROGRAM = 1024  # numbers that a program of `spread_table` writes
OPTIONAL_TERMS = ("BIAS", "GATE", "DECAY", "SEGMENTED", "DROPOUT", "WINDOW")


def operator_schema(inputs: type[tuple[Any, ...]]) -> str:
    """Return the fields of a named tuple as arguments in the schema of an operator."""
    types = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool", int: "SymInt"}
    return ", ".join(f"{types[kind]} {name}" for name, kind in get_type_hints(inputs).items())


class SoftmaxInputs(NamedTuple):
    """The inputs of softmax attention, which its operators take one by one.

    Args:
        q, k, v: queries, keys and values [B, H, T, d], all float32 or all bfloat16.
        bias: a table [1|H, 2R+1] float32, added to the logits at i - j; beyond R its ends. None here and below: no such
            term.
        gate: a table [1|H, 2R+1] float32 of factors on q . k, read in the same way.
        decay: numbers c [B, H, T] float32; c_i - c_j is added to the logits.
        segment: the segments of the tokens, [B, T] integers: i sees j where they are equal; None: every key.
        seed: the seed of the random numbers of dropout, [] int64; None: no dropout.
        window: the window of each head, [H] int32 in [1, 2^30]: i sees j if |i - j| is less; None: every key.
        scale: the factor on q . k.
        causal: whether i sees only j <= i.
        p: the probability that a weight is dropped.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    gate: Tensor | None
    decay: Tensor | None
    segment: Tensor | None
    seed: Tensor | None
    window: Tensor | None
    scale: float
    causal: bool
    p: float


INPUTS = operator_schema(SoftmaxInputs)


@torch.library.custom_op("pe_lab::softmax_attention", mutates_args=(), schema=f"({INPUTS}) -> (Tensor, Tensor)")
@on_its_device
def softmax_attention(*args: Any) -> tuple[Tensor, Tensor]:
    """Return softmax attention of q over k and v; arguments as of `SoftmaxInputs`.

    Returns:
        The result of attention, [B, H, T, d], and the base-2 logarithm of every row's sum, [B, H, T] float32.
    """
    inputs = SoftmaxInputs(*args)
    call = _Call(inputs)
    B, H, T, d = inputs.q.shape
    out, lse = inputs.q.new_empty(B, H, T, d), inputs.q.new_empty(B, H, T, dtype=torch.float32)
    blocks = call.blocks(softmax.forward)
    call.launch(softmax.forward, triton.cdiv(T, blocks.m), blocks, [out, lse], [])
    return out, lse


@softmax_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    "pe_lab::softmax_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor lse, bool[] wants, {INPUTS}) -> ({', '.join(6 * ['Tensor'])})",
)
@on_its_device
def softmax_attention_backward(
    grad: Tensor, out: Tensor, lse: Tensor, wants: list[bool], *args: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, bias, gate, decay; empty for absent terms; bias and gate only if `wants`."""
    inputs = SoftmaxInputs(*args)
    call = _Call(inputs)
    grad = dims_adjacent(grad)
    B, H, T, d = inputs.q.shape
    delta = torch.empty_like(lse)
    block_t = 64
    softmax.sums[(triton.cdiv(T, block_t), B * H)](
        out, grad, delta, *grad.stride()[:3], H, T, HEAD_DIM=d, BLOCK_D=tile_dims(d), BLOCK_M=block_t
    )
    more, strides = [grad, lse, delta], list(grad.stride()[:3])
    dq, dk, dv = (inputs.q.new_empty(inputs.q.shape) for _ in range(3))
    ddecay = lse.new_empty(0) if inputs.decay is None else torch.empty_like(lse)
    blocks = call.blocks(softmax.backward_keys)
    call.launch(softmax.backward_keys, triton.cdiv(T, blocks.n), blocks, [*more, dk, dv, ddecay], strides)
    blocks = call.blocks(softmax.backward_queries)
    call.launch(softmax.backward_queries, triton.cdiv(T, blocks.m), blocks, [*more, dq], strides)

    tables = [lse.new_empty(0), lse.new_empty(0)]
    if any(wants):
        blocks = call.blocks(softmax.backward_tables)
        count = triton.cdiv(T, blocks.m)
        diagonals = count if inputs.causal else 2 * count - 1
        sums = [lse.new_empty((B, H, diagonals, 2, blocks.m) if want else 0) for want in wants]
        gradient_flags = {"DBIAS": int(wants[0]), "DGATE": int(wants[1])}
        call.launch(softmax.backward_tables, diagonals, blocks, [*more, *sums], strides, **gradient_flags)
        tables = [
            table_gradient(sum_, table, -1 if inputs.causal else 0) if want and table is not None else empty
            for sum_, table, want, empty in zip(sums, (inputs.bias, inputs.gate), wants, tables, strict=True)
        ]
    dbias, dgate = tables
    return dq, dk, dv, dbias, dgate, ddecay


@softmax_attention_backward.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, wants: list[bool], *args: Any) -> tuple[Tensor, ...]:
    inputs = SoftmaxInputs(*args)

    def like(term: Tensor | None, exists: bool = True) -> Tensor:
        return lse.new_empty(term.shape if term is not None and exists else 0)

    dqkv = (inputs.q.new_empty(inputs.q.shape) for _ in range(3))
    return *dqkv, like(inputs.bias, wants[0]), like(inputs.gate, wants[1]), like(inputs.decay)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, ctx.numbers = inputs[:9], inputs[9:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    out, lse, *tensors = ctx.saved_tensors
    inputs = SoftmaxInputs(*tensors, *ctx.numbers)
    wants = [bool(ctx.needs_input_grad[index]) for index in (3, 4)]
    dq, dk, dv, dbias, dgate, ddecay = softmax_attention_backward(grad, out, lse, wants, *inputs)
    terms = (dbias if wants[0] else None, dgate if wants[1] else None, None if inputs.decay is None else ddecay)
    return dq, dk, dv, *terms, *[None] * 6


softmax_attention.register_autograd(_differentiate, setup_context=_remember)


class _Call:
    """What all launches of one call share."""

    def __init__(self, inputs: SoftmaxInputs) -> None:
        q, k, v = map(dims_adjacent, inputs[:3])
        bias, gate = spread(inputs.bias, q.shape[2], LOG2E), spread(inputs.gate, q.shape[2], 1.0)
        decay = None if inputs.decay is None else inputs.decay * LOG2E
        terms = (bias, gate, decay, inputs.segment, inputs.seed, inputs.window)
        self.tensors = [q, k, v, *(None if term is None else term.contiguous() for term in terms)]
        self.strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]
        self.q = q
        p = 0.0 if inputs.seed is None else inputs.p
        threshold = min(round(p * 2**32), 2**32 - 1)
        self.numbers = [inputs.scale, *table_shape(bias), *table_shape(gate), threshold, 1 / (1 - p)]
        self.optional_terms = {name for name, term in zip(OPTIONAL_TERMS, terms, strict=True) if term is not None}
        self.switches = switches(q.dtype, q.shape[-1], inputs.causal, self.optional_terms)

    def blocks(self, kernel: Any) -> Blocks:
        return choose_blocks(
            device_architecture(self.q.device), kernel.__name__, self.q.dtype, self.q.shape[-1], self.optional_terms
        )

    def launch(
        self, kernel: Any, programs: int, blocks: Blocks, more: list[Tensor], strides: list[int], **options: int
    ) -> None:
        """Run a kernel with `programs` programs per head; `more` tensors and `strides` follow those of the inputs."""
        B, H, T, _ = self.q.shape
        kernel[(programs, B * H)](
            *self.tensors, *more, *self.strides, *strides, H, T, *self.numbers,
            **self.switches, **blocks.options(), **options,
        )  # fmt: skip


def switches(dtype: torch.dtype, head_dim: int, causal: bool, optional_terms: Collection[str]) -> dict[str, Any]:
    """Return the compile-time options that all kernels share.

    Args:
        optional_terms: the names in OPTIONAL_TERMS of the terms that are present.
    """
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": tile_dims(head_dim),
        "CAUSAL": int(causal),
        "PRECISION": product_precision(dtype),
    } | {name: int(name in optional_terms) for name in OPTIONAL_TERMS}


def product_precision(dtype: torch.dtype) -> str:
    """Return the precision of matrix products; it matters for float32 only."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


def spread(table: Tensor | None, length: int, factor: float) -> Tensor | None:
    """Return a table [1|H, 2R+1] times a factor, extended to all distances of tiles of this length; None for None."""
    if table is None:
        return None
    heads, reach = table.shape[0], length + MAX_TILE - 1
    table = table.contiguous()
    out = table.new_empty(heads, 2 * reach + 1)
    tiles.spread_table[(triton.cdiv(2 * reach + 1, ENTRIES_PER_PROGRAM), heads)](
        table, out, *table_shape(table), reach, factor, BLOCK=ENTRIES_PER_PROGRAM
    )
    return out


def table_shape(table: Tensor | None) -> tuple[int, int]:
    """Return the stride between the rows of heads, and R."""
    if table is None:
        return 0, 0
    return (table.shape[1] if table.shape[0] > 1 else 0), (table.shape[1] - 1) // 2


def table_gradient(sums: Tensor, table: Tensor, side: int) -> Tensor:
    """Return the gradient of a table [1|H, 2R+1] from `backward_tables`' sums [B, H, diagonals, 2, M].

    Args:
        side: the side of the query on which the keys and the diagonals are: -1 before it, 1 after it, 0 both.
    """
    sums = sums.sum(0)
    if table.shape[0] == 1:
        sums = sums.sum(0, keepdim=True)
    heads, diagonals, _, M = sums.shape
    if side == 0:  # 0, 1, -1, 2, -2, ... from the smallest to the largest, by slices: a list would wait for the device
        sums = torch.cat((sums[:, 2::2].flip(1), sums[:, :1], sums[:, 1::2]), 1)
    elif side == 1:
        sums = sums.flip(1)
    by_distance = sums.new_zeros(heads, diagonals + 1, M)
    by_distance[:, :-1] += sums[:, :, 0]
    by_distance[:, 1:] += sums[:, :, 1]
    by_distance = by_distance.flatten(1)

    first = {-1: -M, 1: -M * diagonals, 0: -M * (diagonals + 1) // 2}[side]  # the distance that by_distance starts with
    last = first + by_distance.shape[1] - 1
    reach = (table.shape[1] - 1) // 2
    low, high = max(first, -reach), min(last, reach)
    gradient = table.new_zeros(table.shape)
    gradient[:, low + reach : high + reach + 1] = by_distance[:, low - first : high - first + 1]
    gradient[:, 0] += by_distance[:, : low - first].sum(1)
    gradient[:, -1] += by_distance[:, high - first + 1 :].sum(1)
    return gradient


def dims_adjacent(x: Tensor) -> Tensor:
    """Return x [..., T, d] in a memory layout that the kernels can read, with 32-bit addresses in a tile."""
    return x if x.stride(-1) == 1 and x.stride(-2) * MAX_TILE < 2**31 else x.contiguous()
