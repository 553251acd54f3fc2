"""Values whose graph is made only when the gradients are computed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def recompute(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return function(*inputs), which is computed again for the gradients.

    Checkpointing also frees the tensors of a graph, but keeps its nodes, of almost 1 KB each. For a function of many
    steps that is called for each block of queries, they take more memory than all tensors. Here one node is kept.

    Args:
        function: a function of these inputs alone. Tensors that it has from elsewhere would be kept, and get no
            gradients.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    result: Tensor = _Recomputed.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return result


class _Recomputed(torch.autograd.Function):
    """A function whose graph is made in the backward pass, by a second call."""

    @staticmethod
    def forward(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return function(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        inputs = [x.detach().requires_grad_(need) for x, need in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad(), torch.autocast(upstream.device.type, enabled=False):
            result = ctx.function(*inputs)
            trained_inputs = [x for x in inputs if x.requires_grad]
            gradients = iter(torch.autograd.grad(result, trained_inputs, upstream))
        return None, *(next(gradients) if need else None for need in needed)
