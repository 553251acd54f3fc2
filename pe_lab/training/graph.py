"""Replay a training step as one CUDA graph, so that a small model is not bound by its launches.

The first steps run as usual. Then forward, backward, clipping, optimizer and `constrain` are captured once, on buffers
of their own; every later step copies its batch into these buffers and replays. Dropout stays a function of
(seed, step): a graph reads the state of the device's generator, which is seeded before each step. All steps take their
learning rates from float32 tensors, so that a step has the same bits whether it is replayed or not.

trainer.graph=true replays or refuses. trainer.graph=auto replays where that is possible and the captured step, run once
on a batch of the training, has the bits of the usual one; otherwise it trains without a graph and says why.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from pe_lab.data.base import Batch
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PROPERTY_NAMES
from pe_lab.model import Transformer
from pe_lab.training.optimization import FUSED_CLASSES

EAGER_STEPS = 3  # steps before the capture: they compile kernels and make the optimizer's state
Replay = Callable[[], object]


class CapturableTraining(Protocol):
    """What a captured step needs of a training."""

    model: Transformer
    clip: float | None

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, Tensor]: ...

    def constrain(self) -> None: ...


def refusal_reason(encodings: nn.Module, optimizer: type[torch.optim.Optimizer], device: torch.device) -> str | None:
    """Return the reason why steps of a training cannot be captured, or None.

    Args:
        encodings: a module that has all encodings of the model, as the model itself.
    """
    if device.type != "cuda":
        return f"needs a CUDA device, got {device.type}"
    if optimizer not in FUSED_CLASSES:
        names = " or ".join(kind.__name__ for kind in FUSED_CLASSES)
        return f"needs an optimizer whose steps can be captured, {names}, got {optimizer.__name__}"
    for module in encodings.modules():
        if isinstance(module, PositionalEncoding) and (module.draws_positions or module.draws_each_pass):
            return "needs steps without random draws on the CPU, and the encoding draws positions or shifts there"
    return None


def decide_graph(cfg: DictConfig, *obstacles: str | None) -> tuple[bool, str]:
    """Decide whether the steps of a training are replayed as a CUDA graph, and say why, for the record.

    Args:
        cfg: the config of the cell. `trainer.graph` is true, false or "auto": wherever nothing prevents it.
        obstacles: the reasons why steps cannot be captured, each as the end of a sentence; None for no reason.

    Raises:
        ValueError: `trainer.graph` is true, and there is an obstacle.
    """
    setting = cfg.trainer.graph
    if cfg.model.checkpointing != "none":  # it reads the state of the random generator
        obstacles = ("cannot be used with model.checkpointing", *obstacles)
    reason = next(filter(None, obstacles), None) if setting else None
    if reason and setting is True:
        raise ValueError(f"trainer.graph=true {reason}: use trainer.graph=auto or false")
    return bool(setting) and not reason, f"trainer.graph={str(setting).lower()}{f'; none: {reason}' if reason else ''}"


def capture_on_cuda(function: Callable[[], None]) -> Replay:
    """Capture the CUDA work of a function without running it, and return a function that runs the captured work.

    Raises:
        RuntimeError: the function does something that a graph cannot contain. The random generator of the device and
            the current stream are then restored, because PyTorch leaves both in a capturing state and refuses later
            draws.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    draws = generator.clone_state()
    try:
        with torch.cuda.graph(graph):
            function()
    except RuntimeError:
        generator.graphsafe_set_state(draws)
        torch.cuda.set_stream(stream)
        raise
    return graph.replay


class CapturedStep:
    """Runs training steps: as a graph if they are like the captured step, otherwise as usual.

    A step is like the captured step if its batch has the same shapes and its layout the same properties, as far as
    Python code has read them.

    Args:
        training: the training whose steps are run. Its parameters must not be replaced.
        capture: a function that captures another function and returns a function that replays it.
        check: whether to also run the first captured step as usual, and to continue without the graph if the results
            differ in a bit or the step cannot be captured. If False, a step that cannot be captured is an error.

    Attributes:
        replayed: the number of steps that ran as a graph.
        given_up: the reason why steps do not run as a graph after a check; otherwise empty.
    """

    def __init__(
        self,
        training: CapturableTraining,
        capture: Callable[[Callable[[], None]], Replay] = capture_on_cuda,
        check: bool = False,
    ) -> None:
        self.training, self.capture, self.check = training, capture, check
        self.steps = self.replayed = 0
        self.replay: Replay | None = None
        self.given_up = ""
        groups = training.optimizer.param_groups
        device = training.model.tokens.weight.device
        self.rates = [torch.tensor(float(group["lr"]), device=device) for group in groups]

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Train on a batch; return loss, logits and gradient norm, which the next call overwrites."""
        self.steps += 1
        for rate, group in zip(self.rates, self.training.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self.replay is None and not self.given_up and self.steps > EAGER_STEPS:
            self._capture(batch)
            if self.check and self.replay is not None:
                return self._compare(batch)
        if self.replay is None or not self._has_layout_of_capture(batch):
            return self._step(batch)
        for mine, new in zip(batch_tensors(self.batch), batch_tensors(batch), strict=True):
            mine.copy_(new, non_blocking=True)
        self.replay()
        self.replayed += 1
        return self.results

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Run all of a step that is captured."""
        training = self.training
        training.optimizer.zero_grad(set_to_none=True)
        loss, logits = training.evaluate_batch(batch)
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip or math.inf)
        with self._rates_in_tensors():
            training.optimizer.step()
        training.constrain()
        return loss.detach(), logits.detach(), norm

    def _compare(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Train on the captured batch as usual, and give the graph up unless it does the same, bit for bit."""
        assert self.replay is not None
        state = self._changed_tensors()
        before = {name: x.clone() for name, x in state.items()}
        device = self.rates[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.replay()
        values = {name: x.clone() for name, x in (self._results(self.results) | state).items()}
        with torch.no_grad():
            for name, x in state.items():
                x.copy_(before[name])
        usual = self._step(batch)
        expected = self._results(usual) | state
        apart = [name for name in expected if not torch.equal(values[name], expected[name])]
        if apart:
            self._give_up(f"the captured step differs from the usual one in {apart[0]}")
        return usual

    def _changed_tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by their names in a message."""
        model, optimizer = self.training.model, self.training.optimizer
        state = {f"{name} after the step": x for name, x in model.state_dict(keep_vars=True).items()}
        for index, buffers in enumerate(optimizer.state.values()):
            state |= {f"{key} of parameter {index}": x for key, x in buffers.items() if isinstance(x, Tensor)}
        return state

    def _results(self, results: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
        """Return what a step has computed, by names in a message; gradients are read where it left them."""
        gradients = {
            f"the gradient of {name}": parameter.grad
            for name, parameter in self.training.model.named_parameters()
            if parameter.grad is not None
        }
        loss, logits, norm = results
        return {"the loss": loss, "the logits": logits, **gradients, "the gradient norm": norm}

    def _give_up(self, reason: str) -> None:
        self.replay, self.given_up = None, reason
        logging.getLogger("pe_lab.training").warning(f"trainer.graph=auto trains without a graph: {reason}")

    def _capture(self, batch: Batch) -> None:
        """Capture the step of a batch, on copies of its tensors.

        Raises:
            ValueError: the step does what a graph cannot hold, as reading a value on the CPU, and there is no check.
        """
        layout = batch.layout
        marks = None if layout.marks is None else layout.marks.clone()
        own_layout = replace(layout, pos=layout.pos.clone(), segment=layout.segment.clone(), marks=marks)
        copies = {name: getattr(batch, name).clone() for name in ("tokens", "targets", "role", "headline")}
        source = layout.source
        self.batch = replace(batch, **copies, layout=own_layout.with_source(source))

        def step() -> None:
            self.results = self._step(self.batch)

        try:
            self.replay = self.capture(step)
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0]
            if self.check:
                return self._give_up(f"a step cannot be captured ({first})")
            raise ValueError(
                f"trainer.graph=true cannot capture this step ({first}); use trainer.graph=false"
            ) from None
        self.facts = {name: source.__dict__[name] for name in PROPERTY_NAMES if name in source.__dict__}

    def _has_layout_of_capture(self, batch: Batch) -> bool:
        shapes = [x.shape for x in batch_tensors(self.batch)] == [x.shape for x in batch_tensors(batch)]
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


def batch_tensors(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch."""
    layout = batch.layout
    inputs = [batch.tokens, batch.targets, batch.role, batch.headline, layout.pos, layout.segment]
    return inputs if layout.marks is None else [*inputs, layout.marks]
