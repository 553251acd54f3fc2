"""Replay a training step as one CUDA graph, so that a small model is not bound by its launches.

The first steps run as usual. Then forward, backward, clipping, optimizer and `constrain` are captured once, on buffers
of their own; every later step copies its batch into these buffers and replays. Dropout stays a function of
(seed, step): a graph reads the state of the device's generator, which is seeded before each step.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pe_lab.data.base import Batch
from pe_lab.encodings.layout import FACTS
from pe_lab.encodings.randomized import Randomized
from pe_lab.model import Transformer
from pe_lab.training.optimization import FUSED

USUAL = 3  # steps before the capture: they compile kernels and make the optimizer's state
Replay = Callable[[], object]


class Stepped(Protocol):
    """What a step needs of a training."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    clip: float | None

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, Tensor]: ...

    def constrain(self) -> None: ...


def refuses(model: Transformer, optimizer: torch.optim.Optimizer, device: torch.device) -> str | None:
    """Return the reason why steps of this training cannot be captured, or None."""
    if device.type != "cuda":
        return f"needs a CUDA device, got {device.type}"
    if type(optimizer) not in FUSED:
        names = " or ".join(made.__name__ for made in FUSED)
        return f"needs an optimizer whose steps can be captured, {names}, got {type(optimizer).__name__}"
    if any(isinstance(module, Randomized) for module in model.modules()):
        return "needs steps without random draws on the CPU, and the encoding draws its positions there"
    return None


def capture_on_cuda(function: Callable[[], None]) -> Replay:
    """Capture the CUDA work of a function, which is not run, and return what runs it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


class CapturedStep:
    """Runs training steps; those like the captured one as a graph, others as usual.

    A step is like the captured one if its batch has the same shapes, and its layout the same facts: all that Python
    code has read of it.

    Args:
        training: whose model and optimizer are stepped. Its parameters must not be replaced.
        capture: returns what runs a function again.

    Attributes:
        replayed: number of steps that ran as a graph.
    """

    def __init__(self, training: Stepped, capture: Callable[[Callable[[], None]], Replay] = capture_on_cuda) -> None:
        self.training, self.capture = training, capture
        self.steps = self.replayed = 0
        self.replay: Replay | None = None
        groups = training.optimizer.param_groups
        device = training.model.tokens.weight.device
        self.rates = [torch.tensor(float(group["lr"]), device=device) for group in groups]

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Train on a batch; return loss, logits and gradient norm, which the next call overwrites."""
        self.steps += 1
        if self.replay is None and self.steps > USUAL:
            self._capture(batch)
        if self.replay is None or not self._like(batch):
            return self._step(batch)
        for mine, given in zip(tensors(self.batch), tensors(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        for rate, group in zip(self.rates, self.training.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self.replay()
        self.replayed += 1
        return self.found

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Run all of a step that is captured."""
        training = self.training
        training.optimizer.zero_grad(set_to_none=True)
        loss, logits = training.evaluate_batch(batch)
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip or math.inf)
        training.optimizer.step()
        training.constrain()
        return loss.detach(), logits.detach(), norm

    def _capture(self, batch: Batch) -> None:
        """Capture the step of a batch, on copies of its tensors.

        Raises:
            ValueError: it does what a graph cannot hold, as reading a value on the CPU.
        """
        layout = batch.layout
        own = replace(layout, pos=layout.pos.clone(), segment=layout.segment.clone())
        copies = {name: getattr(batch, name).clone() for name in ("tokens", "targets", "role", "headline")}
        source = layout.source
        self.batch = replace(batch, **copies, layout=own.sourced(source))

        def step() -> None:
            with self._rates_in_tensors():
                self.found = self._step(self.batch)

        try:
            self.replay = self.capture(step)
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"trainer.graph=true cannot capture this step ({first}); use trainer.graph=false"
            ) from None
        self.facts = {name: source.__dict__[name] for name in FACTS if name in source.__dict__}

    def _like(self, batch: Batch) -> bool:
        shapes = [x.shape for x in tensors(self.batch)] == [x.shape for x in tensors(batch)]
        return shapes and all(getattr(batch.layout, name) == fact for name, fact in self.facts.items())

    @contextmanager
    def _rates_in_tensors(self) -> Iterator[None]:
        """Let the optimizer read learning rates from tensors, whose values a replay reads anew."""
        groups = self.training.optimizer.param_groups
        before = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group |= {"lr": rate, "capturable": True}
        try:
            yield
        finally:
            for group, was in zip(groups, before, strict=True):
                group |= was


def tensors(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch."""
    return [batch.tokens, batch.targets, batch.role, batch.headline, batch.layout.pos, batch.layout.segment]
