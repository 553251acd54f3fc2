"""The kernels of stick-breaking attention as PyTorch operators: launches, shapes for the compiler, derivatives."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from pe_lab.attention.triton import stick
from pe_lab.attention.triton.launch_parameters import (
    Blocks,
    choose_blocks,
    device_architecture,
    on_its_device,
    tile_dims,
)
from pe_lab.attention.triton.operators import (
    LOG2E,
    dims_adjacent,
    operator_schema,
    product_precision,
    spread,
    table_gradient,
    table_shape,
)

CHUNK_QUERIES = 2048  # queries whose intermediate sums are held at a time: memory grows with T, not with its square


class StickInputs(NamedTuple):
    """The inputs of stick-breaking attention, which its operators take one by one.

    Args:
        q, k, v: queries, keys and values [B, H, T, d], all float32 or all bfloat16.
        bias: a table [1|H, 2R+1] float32, added to the logits at i - j; beyond R its ends. None: no bias.
        segment: the segments of the tokens, [B, T] integers: i sees j where they are equal; None: every key.
        scale: the factor on q . k.
        down: whether the stick is broken from the last key to the first.
        side: the side of the query on which the keys are: -1 before it, 1 after it, 0 both.
        include_self: whether a query attends to its own key.
        to_itself: whether the remainder goes to the query's own value; otherwise it is dropped.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    segment: Tensor | None
    scale: float
    down: bool
    side: int
    include_self: bool
    to_itself: bool


INPUTS = operator_schema(StickInputs)


@torch.library.custom_op("pe_lab::stick_attention", mutates_args=(), schema=f"({INPUTS}) -> (Tensor, Tensor)")
@on_its_device
def stick_attention(*args: Any) -> tuple[Tensor, Tensor]:
    """Return stick-breaking attention of q over k and v; arguments as of `StickInputs`.

    Returns:
        The result of attention, [B, H, T, d], and the base-2 logarithm of the remainder of every stick, [B, H, T]
        float32.
    """
    inputs = StickInputs(*args)
    call = _StickCall(inputs)
    q, k, v = inputs[:3]
    B, H, T, d = q.shape
    out, left = q.new_empty(B, H, T, d), q.new_empty(B, H, T, dtype=torch.float32)
    blocks = call.blocks("stick_forward")
    stick.stick_forward[(triton.cdiv(T, blocks.m), B * H)](
        *call.activations, *call.vectors, out, left, *call.strides(q, k, v), H, T, *call.numbers,
        **call.options, **call.sections, OWN=int(inputs.to_itself), **blocks.options(),
    )  # fmt: skip
    return out, left


@stick_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    "pe_lab::stick_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor left, bool wants_bias, {INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
@on_its_device
def stick_attention_backward(
    grad: Tensor, left: Tensor, wants_bias: bool, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and bias; the last is empty unless `wants_bias`."""
    inputs = StickInputs(*args)
    call = _StickCall(inputs)
    (q, k, v), rest = call.activations, call.vectors
    grad = dims_adjacent(grad)
    B, H, T, _ = q.shape
    by_row, by_key = call.blocks("stick_backward_queries"), call.blocks("stick_backward_keys")
    by_place = call.blocks("stick_backward_tables") if wants_bias else None  # a kernel for tables only
    tiles = triton.cdiv(T, by_row.n)
    chunk = min(CHUNK_QUERIES, triton.cdiv(T, 128) * 128)
    rests, beyond = q.new_empty(2, B, H, tiles, chunk, dtype=torch.float32)
    dq = q.new_empty(q.shape)
    dk, dv = (q.new_zeros(q.shape, dtype=torch.float32) for _ in range(2))
    diagonals = tiles if inputs.side else 2 * tiles - 1
    sums = left.new_zeros((B, H, diagonals, 2, by_row.n) if wants_bias else 0)
    numbers = [*call.strides(q, k, v, grad), H, T, *call.numbers]
    for first in range(0, T, chunk):
        part = [first, chunk, tiles]
        blocks = triton.cdiv(min(chunk, T - first), by_row.m)
        stick.stick_store_rests[(blocks, B * H)](
            q, k, *rest, rests, *call.strides(q, k), H, T, *call.numbers, *part,
            **call.options, **call.sections, **by_row.options(),
        )  # fmt: skip
        read = [q, k, v, *rest, grad]
        stick.stick_backward_queries[(blocks, B * H)](
            *read, left, rests, beyond, dq, *numbers, *part,
            **call.options, **call.sections, OWN=int(inputs.to_itself), **by_row.options(),
        )  # fmt: skip
        stick.stick_backward_keys[(tiles, B * H)](
            *read, rests, beyond, dk, dv, *numbers, *part,
            **call.options, **call.sections_of_keys, **by_key.options(),
        )  # fmt: skip
        if by_place is not None:
            stick.stick_backward_tables[(diagonals, B * H)](
                *read, rests, beyond, sums, *numbers, *part, **call.options, **by_place.options()
            )
    if inputs.to_itself:
        dv += left.exp2()[..., None] * grad
    dbias = sums if inputs.bias is None or not wants_bias else table_gradient(sums, inputs.bias, inputs.side)
    return dq, dk.to(k.dtype), dv.to(v.dtype), dbias


@stick_attention_backward.register_fake
def _(grad: Tensor, left: Tensor, wants_bias: bool, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, bias, *_ = args
    dbias = left.new_empty(bias.shape if bias is not None and wants_bias else 0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, ctx.numbers = inputs[:5], inputs[5:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], *tensors)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    left, *tensors = ctx.saved_tensors
    wants_bias = bool(ctx.needs_input_grad[3])
    dq, dk, dv, dbias = stick_attention_backward(grad, left, wants_bias, *tensors, *ctx.numbers)
    return dq, dk, dv, dbias if wants_bias else None, *[None] * 6


stick_attention.register_autograd(_differentiate, setup_context=_remember)


class _StickCall:
    """What all launches of one call share."""

    def __init__(self, inputs: StickInputs) -> None:
        q, bias, segment = inputs.q, inputs.bias, inputs.segment
        self.activations = tuple(map(dims_adjacent, inputs[:3]))
        self.vectors = [spread(bias, q.shape[2], LOG2E), None if segment is None else segment.contiguous()]
        self.numbers = [inputs.scale, *table_shape(self.vectors[0])]
        self.q = q
        self.optional_terms = {name for name, term in (("BIAS", bias), ("SEGMENTED", segment)) if term is not None}
        self.options = stick_switches(
            q.dtype, q.shape[-1], inputs.down, inputs.side, inputs.include_self, self.optional_terms
        )
        how = (inputs.side, inputs.include_self, segment is not None)
        self.sections, self.sections_of_keys = row_sections(*how), sections_of_keys(*how)

    def strides(self, *tensors: Tensor) -> list[int]:
        return [stride for x in tensors for stride in dims_adjacent(x).stride()[:3]]

    def blocks(self, kernel: str) -> Blocks:
        return stick_blocks(
            device_architecture(self.q.device), kernel, self.q.dtype, self.q.shape[-1], self.optional_terms
        )


def stick_blocks(
    architecture: str, kernel: str, dtype: torch.dtype, head_dim: int, optional_terms: Collection[str]
) -> Blocks:
    """Return the blocks of a kernel; the backward kernels share sums, and therefore the size of key tiles."""
    if kernel == "stick_store_rests":
        kernel = "stick_backward_queries"
    blocks = choose_blocks(architecture, kernel, dtype, head_dim, optional_terms)
    if kernel in ("stick_backward_keys", "stick_backward_tables"):
        n = choose_blocks(architecture, "stick_backward_queries", dtype, head_dim, optional_terms).n
        blocks = replace(blocks, n=n, m=n if kernel == "stick_backward_tables" else blocks.m)
    return blocks


def logarithm_parts(dtype: torch.dtype) -> int:
    """Return the number of 8-bit parts of a logarithm: 3 for all 24 bits of float32, 2 for bfloat16 activations."""
    return 3 if dtype == torch.float32 else 2


def stick_switches(
    dtype: torch.dtype, head_dim: int, down: bool, side: int, include_self: bool, optional_terms: Collection[str]
) -> dict[str, int | str]:
    """Return the compile-time options that all kernels share."""
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": tile_dims(head_dim),
        "DOWN": int(down),
        "SIDE": side,
        "SELF": int(include_self),
        "PRECISION": product_precision(dtype),
        "PARTS": logarithm_parts(dtype),
        "BIAS": int("BIAS" in optional_terms),
        "SEGMENTED": int("SEGMENTED" in optional_terms),
    }


def row_sections(side: int, include_self: bool, segmented: bool) -> dict[str, int]:
    """Return the first section of a row's tiles and the one after the last (`_section` in stick.py)."""
    if segmented:
        return {"FIRST": 1, "LAST": 2}
    return {"FIRST": int(side == 1), "LAST": 2 if side == -1 or (side == 0 and include_self) else 4}


def sections_of_keys(side: int, include_self: bool, segmented: bool) -> dict[str, int]:
    """Return the first section of the queries of a tile and the one after the last (`_section_of_keys` in stick.py)."""
    if segmented:
        return {"FIRST": 1, "LAST": 2}
    return {"FIRST": int(side == -1), "LAST": 2 if side == 1 or (side == 0 and include_self) else 3}
