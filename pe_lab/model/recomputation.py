"""Recomputation of activations: what a layer computes again for its gradients (`model.checkpointing`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_ATEN = torch.ops.aten
KEPT_OPERATIONS = {  # by "selective", since they take most of the time
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
}


def _keep_selected(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the operations that autograd records; the forward of a Function may change its own results in place."""
    if operation in KEPT_OPERATIONS and torch.is_grad_enabled():
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_again = partial(checkpoint, use_reentrant=False)
BY_NAME: dict[str, Callable[..., Any] | None] = {  # each calls a layer with its arguments; None: everything is kept
    "none": None,
    "layer": _again,
    "selective": partial(_again, context_fn=partial(create_selective_checkpoint_contexts, _keep_selected)),
}
