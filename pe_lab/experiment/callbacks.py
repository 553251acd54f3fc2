"""What the lab adds to a training: callbacks, each of which does one thing at the end of a step."""

import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from pe_lab.data.base import Batch
from pe_lab.tracking.events import log_metrics
from pe_lab.training.divergence import NotFiniteError

HEARTBEAT = 1.0  # seconds between two heartbeats


class StepTime(L.Callback):
    """Counts steps, and the seconds of forward, backward and optimizer since the start of the run.

    Attributes:
        steps: that are done.
        spent: seconds since this object was made.
    """

    def __init__(self) -> None:
        self.steps, self.seconds, self.spent = 0, 0.0, 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, training: L.LightningModule, *_: Any) -> None:
        took = time.perf_counter() - self.began
        self.steps = trainer.global_step
        self.seconds += took
        self.spent += took

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.seconds = state["steps"], state["seconds"]


class Divergence(L.Callback):
    """Ends a training whose loss is not finite, at the next step that is logged."""

    def on_train_batch_end(self, trainer: L.Trainer, training: Any, *_: Any) -> None:
        if training.logging_due:
            losses = torch.stack(training.losses)
            bad = (~losses.isfinite()).nonzero()
            if len(bad):
                first = int(bad[0])
                raise NotFiniteError("training", training.step + 1 - len(losses) + first, losses[first].item())


class Curve(L.Callback):
    """Keeps and logs the metrics of a training: of batches, and at the end of an epoch the mean of their losses.

    Attributes:
        rows: of split, step, epoch, metric and value, since the start of the run.
        loggers: that get them too.
    """

    def __init__(self, clock: StepTime, steps_per_epoch: int) -> None:
        self.clock, self.steps_per_epoch = clock, steps_per_epoch
        self.rows: list[dict[str, Any]] = []
        self.loggers: list[Logger] = []

    @property
    def epoch(self) -> float:
        return self.clock.steps / self.steps_per_epoch

    def emit(self, split: str, metrics: dict[str, float]) -> list[dict[str, Any]]:
        """Log metrics, and return their rows, which are not kept."""
        log_metrics(self.loggers, split, metrics, self.clock.steps, self.epoch)
        place = {"split": split, "step": self.clock.steps, "epoch": round(self.epoch, 6)}
        return [place | {"metric": name, "value": value} for name, value in metrics.items()]

    def add(self, split: str, metrics: dict[str, float]) -> None:
        """Log metrics, and keep their rows."""
        self.rows += self.emit(split, metrics)

    def on_train_start(self, *_: Any) -> None:
        self.tokens, self.since = 0, self.clock.seconds

    def on_train_batch_end(self, trainer: L.Trainer, training: Any, outputs: Any, batch: Batch, *_: Any) -> None:
        self.tokens += batch.tokens.numel()
        if training.logging_due:
            speed = {"tokens_per_second": self.tokens / (self.clock.seconds - self.since)}
            self.add("train", training.metrics | speed)
            self.tokens, self.since = 0, self.clock.seconds
        if self.clock.steps % self.steps_per_epoch == 0:
            self.add("train", {"objective": torch.stack(training.losses).mean().item()})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = list(state["rows"])


class Validation(L.Callback):
    """Evaluates the validation split at steps of its own.

    Args:
        due: whether a step is one of them.
        evaluate: called there.
    """

    def __init__(self, due: Callable[[int], bool], evaluate: Callable[[], None], clock: StepTime) -> None:
        self.due, self.evaluate, self.clock = due, evaluate, clock

    def on_train_batch_end(self, *_: Any) -> None:
        if self.due(self.clock.steps):
            self.evaluate()


class Every(L.Callback):
    """Does something about every so many seconds."""

    def __init__(self, seconds: float, do: Callable[[], None]) -> None:
        self.seconds, self.do = seconds, do
        self.done = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        if time.perf_counter() - self.done >= self.seconds:
            self.do()
            self.done = time.perf_counter()


class Checkpoints(L.Callback):
    """Finishes the checkpoints that are reached, and ends the training where none is left before it.

    Args:
        reached: whether the next checkpoint is reached.
        proceed: finishes all that are, and returns whether the training goes on.
    """

    def __init__(self, reached: Callable[[], bool], proceed: Callable[[], bool]) -> None:
        self.reached, self.proceed = reached, proceed

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.reached() and not self.proceed():
            trainer.should_stop = True
