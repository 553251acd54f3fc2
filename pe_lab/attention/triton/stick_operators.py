"""The kernels of stick-breaking attention as PyTorch operators: launches, shapes for the compiler, derivatives."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from pe_lab.attention.triton import stick
from pe_lab.attention.triton.launch_parameters import Blocks, architecture_of, choose_blocks, on_its_device, tile_dims
from pe_lab.attention.triton.operators import (
    LOG2E,
    dims_adjacent,
    product_precision,
    spread,
    table_gradient,
    table_shape,
)

CHUNK_QUERIES = 2048  # queries whose intermediate sums are held at a time: memory grows with T, not with its square


@torch.library.custom_op("pe_lab::stick_attention", mutates_args=())
@on_its_device
def stick_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    segment: Tensor | None,
    scale: float,
    down: bool,
    side: int,
    include_self: bool,
    to_itself: bool,
) -> tuple[Tensor, Tensor]:
    """Return stick-breaking attention of q [B, H, T, d] over k and v, all float32 or all bfloat16.

    Args:
        bias: a table [1|H, 2R+1] float32, added to the logits at i - j; beyond R its ends. None: no bias.
        segment: the segments of the tokens, [B, T] integers: i sees j where they are equal; None: every key.
        scale: the factor on q . k.
        down: whether the stick is broken from the last key to the first.
        side: the side of the query on which the keys are: -1 before it, 1 after it, 0 both.
        include_self: whether a query attends to its own key.
        to_itself: whether the remainder goes to the query's own value; otherwise it is dropped.

    Returns:
        The result of attention, [B, H, T, d], and the base-2 logarithm of the remainder of every stick, [B, H, T]
        float32.
    """
    call = _StickCall(q, k, v, bias, segment, scale, down, side, include_self)
    B, H, T, d = q.shape
    out, left = q.new_empty(B, H, T, d), q.new_empty(B, H, T, dtype=torch.float32)
    blocks = call.blocks("stick_forward")
    numbers = [*call.strides(q, k, v), H, T, *call.numbers]
    stick.stick_forward[(triton.cdiv(T, blocks.m), B * H)](
        *call.activations,
        *call.vectors,
        out,
        left,
        *numbers,
        **call.options,
        **call.sections,
        OWN=int(to_itself),
        **blocks.options(),
    )
    return out, left


@stick_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Any, segment: Any,
    scale: float, down: bool, side: int, include_self: bool, to_itself: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("pe_lab::stick_attention_backward", mutates_args=())
@on_its_device
def stick_attention_backward(
    grad: Tensor,
    left: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    segment: Tensor | None,
    scale: float,
    down: bool,
    side: int,
    include_self: bool,
    to_itself: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and bias; the last is empty unless `wants_bias`."""
    call = _StickCall(q, k, v, bias, segment, scale, down, side, include_self)
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
    diagonals = tiles if side else 2 * tiles - 1
    sums = left.new_zeros((B, H, diagonals, 2, by_row.n) if wants_bias else 0)
    numbers = [*call.strides(q, k, v, grad), H, T, *call.numbers]
    for first in range(0, T, chunk):
        part = [first, chunk, tiles]
        blocks = triton.cdiv(min(chunk, T - first), by_row.m)
        stick.stick_store_rests[(blocks, B * H)](
            q, k, *rest, rests, *call.strides(q, k), H, T, *call.numbers, *part,
            **call.options, **call.sections, **by_row.options(),
        )  # fmt: skip
        inputs = [q, k, v, *rest, grad]
        stick.stick_backward_queries[(blocks, B * H)](
            *inputs, left, rests, beyond, dq, *numbers, *part,
            **call.options, **call.sections, OWN=int(to_itself), **by_row.options(),
        )  # fmt: skip
        stick.stick_backward_keys[(tiles, B * H)](
            *inputs, rests, beyond, dk, dv, *numbers, *part,
            **call.options, **call.sections_of_keys, **by_key.options(),
        )  # fmt: skip
        if by_place is not None:
            stick.stick_backward_tables[(diagonals, B * H)](
                *inputs, rests, beyond, sums, *numbers, *part, **call.options, **by_place.options()
            )
    if to_itself:
        dv += left.exp2()[..., None] * grad
    dbias = sums if bias is None or not wants_bias else table_gradient(sums, bias, side)
    return dq, dk.to(k.dtype), dv.to(v.dtype), dbias


@stick_attention_backward.register_fake
def _(
    grad: Tensor, left: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, segment: Any,
    scale: float, down: bool, side: int, include_self: bool, to_itself: bool, wants_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dbias = left.new_empty(bias.shape if bias is not None and wants_bias else 0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, ctx.how = inputs[:5], inputs[5:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], *tensors)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    wants_bias = bool(ctx.needs_input_grad[3])
    dq, dk, dv, dbias = stick_attention_backward(grad, *ctx.saved_tensors, *ctx.how, wants_bias)
    return dq, dk, dv, dbias if wants_bias else None, *[None] * 6


stick_attention.register_autograd(_differentiate, setup_context=_remember)


class _StickCall:
    """The arguments that all launches of one call share; arguments as of `stick_attention`."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        segment: Tensor | None,
        scale: float,
        down: bool,
        side: int,
        include_self: bool,
    ) -> None:
        self.activations = (dims_adjacent(q), dims_adjacent(k), dims_adjacent(v))
        self.vectors = [
            spread(bias, q.shape[2], LOG2E),
            None if segment is None else segment.contiguous(),
        ]
        self.numbers = [scale, *table_shape(self.vectors[0])]
        self.q = q
        self.optional_terms = {name for name, term in (("BIAS", bias), ("SEGMENTED", segment)) if term is not None}
        self.options = stick_switches(q.dtype, q.shape[-1], down, side, include_self, self.optional_terms)
        how = (side, include_self, segment is not None)
        self.sections, self.sections_of_keys = sections(*how), sections_of_keys(*how)

    def strides(self, *tensors: Tensor) -> list[int]:
        return [stride for x in tensors for stride in dims_adjacent(x).stride()[:3]]

    def blocks(self, kernel: str) -> Blocks:
        return stick_blocks(architecture_of(self.q.device), kernel, self.q.dtype, self.q.shape[-1], self.optional_terms)


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


def sections(side: int, include_self: bool, segmented: bool) -> dict[str, int]:
    """Return the first section of a row's tiles and the one after the last (`_section` in stick.py)."""
    if segmented:
        return {"FIRST": 1, "LAST": 2}
    return {"FIRST": int(side == 1), "LAST": 2 if side == -1 or (side == 0 and include_self) else 4}


def sections_of_keys(side: int, include_self: bool, segmented: bool) -> dict[str, int]:
    """Return the first section of the queries of a tile and the one after the last (`_section_of_keys` in stick.py)."""
    if segmented:
        return {"FIRST": 1, "LAST": 2}
    return {"FIRST": int(side == -1), "LAST": 2 if side == 1 or (side == 0 and include_self) else 3}
