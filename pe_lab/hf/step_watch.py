"""Warnings about loops that train a replaced model without what its encoding needs."""

import warnings
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.stack import Stack

CALLBACK_ADVICE = "transformers' Trainer does with callbacks=[pe_lab.hf.EncodingCallback()]"
_parts: WeakKeyDictionary[Stack, ref[nn.Module]] = WeakKeyDictionary()  # where the encodings are in use
_optimizers: WeakKeyDictionary[Optimizer, WeakSet[Stack]] = WeakKeyDictionary()  # and what trains them


class StepWatch:
    """Checks in every training pass that the encodings were updated since the step before.

    Nothing is watched for encodings that need nothing, and in a graph that is compiled.
    """

    def __init__(self, stack: Stack) -> None:
        encodings = [module for module in stack.modules() if isinstance(module, PositionalEncoding)]
        self.stack = stack
        self.constrained = any(
            type(each).constrain is not PositionalEncoding.constrain and each._parameters for each in encodings
        )
        self.phased = stack.first.phased
        self.needed = (
            self.constrained or self.phased or any(not each.weight_decay or each.lr is not None for each in encodings)
        )

    def __call__(self, part: nn.Module) -> None:
        """Warn before a pass of training, once for each encoding and need."""
        if not (self.needed and part.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return
        if self.stack not in _parts:
            _parts[self.stack] = ref(part)
            _optimizers.clear()
        name = self.stack.first.name
        if self.constrained and self.stack.unconstrained:
            self.constrained = False
            warnings.warn(
                f"{name} must be constrained after every optimizer step: call constrain() of every one of "
                f"pe_lab.hf.stacks(model), which {CALLBACK_ADVICE}",
                stacklevel=2,
            )
        if self.phased and self.stack.unadvanced > 1:
            self.phased = False
            warnings.warn(
                f"{name} must be told before every step what share of them is done: call advance(done) of every one "
                f"of pe_lab.hf.stacks(model), which {CALLBACK_ADVICE}",
                stacklevel=2,
            )


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Count the steps that change a model with encodings; look at an optimizer's groups at its first."""
    if not _parts:
        return
    if optimizer not in _optimizers:
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        parts = [(stack, part()) for stack, part in _parts.items()]
        used = [stack for stack, part in parts if part and any(id(each) in trained for each in part.parameters())]
        _optimizers[optimizer] = WeakSet(used)
        for stack in used:
            _look_at_groups(stack, optimizer)
    for stack in _optimizers[optimizer]:
        stack.unconstrained += 1
        stack.unadvanced += 1


def _look_at_groups(stack: Stack, optimizer: Optimizer) -> None:
    wrong = set()
    for encoding in (module for module in stack.modules() if isinstance(module, PositionalEncoding)):
        ids = {id(parameter) for parameter in encoding.parameters()}
        for group in optimizer.param_groups:
            among = [id(parameter) in ids for parameter in group["params"]]
            if any(among) and not encoding.weight_decay and group.get("weight_decay"):
                wrong.add(f"no weight decay, got {group['weight_decay']:g}")
            rate = group.get("initial_lr", group["lr"])
            if encoding.lr not in (None, rate) and any(among) and not all(among):
                wrong.add(f"the learning rate {encoding.lr:g}, got {rate:g} with others")
    if wrong:
        warnings.warn(
            f"parameters of {stack.first.name} must have {' and '.join(sorted(wrong))}: make the optimizer of "
            f"pe_lab.hf.parameter_groups(model, ...)",
            stacklevel=2,
        )


register_optimizer_step_post_hook(_after_step)
