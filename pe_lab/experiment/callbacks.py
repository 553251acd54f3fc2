"""Callbacks of the lab for Lightning's Trainer: each does one thing at the end of a step."""

import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger

from pe_lab.data.base import Batch
from pe_lab.experiment.ranks import Ranks
from pe_lab.tracking.cell_logs import log_metrics

HEARTBEAT_SECONDS = 1.0  # seconds between two heartbeats


class NotFiniteError(ArithmeticError):
    """A loss is not finite."""

    def __init__(self, split: str, step: int, value: float) -> None:
        super().__init__(f"the {split} loss must be finite, got {value} at step {step}")
        self.step = step


class CheckpointNotFiniteError(NotFiniteError):
    """A loss is not finite that is computed for a checkpoint only: later checkpoints do not depend on it."""


class StepTime(L.Callback):
    """Counts steps, and the seconds that the host spends on forward, backward and optimizer since the start of the run.

    On a GPU the host does not wait for them: what runs there after `on_train_batch_end` is not counted, so that the
    seconds are a lower bound.

    Attributes:
        steps: the number of steps that are done.
        stepped: whether the last batch ended a step; of batches whose gradients are accumulated, the last does.
        spent: the seconds spent on steps since the executor last added them up.
        ended: whether a callback of the user has ended the training there.
    """

    def __init__(self) -> None:
        self.steps, self.seconds, self.spent = 0, 0.0, 0.0
        self.stepped, self.ended = False, False

    def on_train_batch_start(self, *_: Any) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, training: L.LightningModule, *_: Any) -> None:
        elapsed = time.perf_counter() - self.began
        self.stepped, self.steps = trainer.global_step > self.steps, trainer.global_step
        self.seconds += elapsed
        self.spent += elapsed

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "seconds": self.seconds} | ({"ended": True} if self.ended else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.seconds, self.ended = state["steps"], state["seconds"], state.get("ended", False)


class Divergence(L.Callback):
    """Ends a training whose loss is not finite, at the next step that is logged."""

    def on_train_batch_end(self, trainer: L.Trainer, training: Any, *_: Any) -> None:
        if training.logging_due:
            losses = torch.stack(training.losses)
            bad = (~losses.isfinite()).nonzero()
            if len(bad):
                first = int(bad[0])
                steps = -(-(len(losses) - first) // trainer.accumulate_grad_batches)  # since then
                raise NotFiniteError("training", trainer.global_step - steps, losses[first].item())


class Curve(L.Callback):
    """Keeps and logs the metrics of a training: of batches, and at the end of an epoch the mean of their losses.

    Attributes:
        rows: the rows since the start of the run, each with split, step, epoch, metric and value.
        loggers: the loggers that also get the rows.
    """

    def __init__(self, clock: StepTime, steps_per_epoch: int) -> None:
        self.clock, self.steps_per_epoch = clock, steps_per_epoch
        self.rows: list[dict[str, Any]] = []
        self.loggers: list[Logger] = []

    @property
    def epoch(self) -> float:
        return self.clock.steps / self.steps_per_epoch

    @property
    def latest(self) -> tuple[str, float] | None:
        """The last validation score or loss with its name; before the first one, the last training loss."""
        for name in ("validation score", "validation loss", "train loss"):
            for row in reversed(self.rows):
                if f"{row['split']} {row['metric']}" == name:
                    return name, row["value"]
        return None

    def emit(self, split: str, metrics: dict[str, float]) -> list[dict[str, Any]]:
        """Log metrics, and return their rows, which are not kept."""
        log_metrics(self.loggers, split, metrics, self.clock.steps, self.epoch)
        row = {"split": split, "step": self.clock.steps, "epoch": round(self.epoch, 6)}
        return [row | {"metric": name, "value": value} for name, value in metrics.items()]

    def log(self, metrics: dict[str, float]) -> None:
        """Log what callbacks of the user have measured, under the names that they give."""
        for logger in self.loggers:
            logger.log_metrics(metrics | {"step": self.clock.steps, "epoch": self.epoch}, self.clock.steps)

    def add(self, split: str, metrics: dict[str, float]) -> None:
        """Log metrics, and keep their rows."""
        self.rows += self.emit(split, metrics)

    def on_train_start(self, *_: Any) -> None:
        self.tokens, self.since = 0, self.clock.seconds

    def on_train_batch_end(self, trainer: L.Trainer, training: Any, outputs: Any, batch: Batch, *_: Any) -> None:
        self.tokens += batch.tokens.numel() * trainer.world_size
        if training.logging_due:
            speed = {"tokens_per_second": self.tokens / (self.clock.seconds - self.since)}
            self.add("train", training.metrics | speed)
            self.tokens, self.since = 0, self.clock.seconds
        if self.clock.stepped and self.clock.steps % self.steps_per_epoch == 0:
            self.add("train", {"objective": torch.stack(training.losses).mean().item()})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = list(state["rows"])


class Validation(L.Callback):
    """Evaluates the validation split at steps of its own.

    Args:
        due: a function that returns whether to evaluate at a step.
        evaluate: a function that is called at these steps.
    """

    def __init__(self, due: Callable[[int], bool], evaluate: Callable[[], None], clock: StepTime) -> None:
        self.due, self.evaluate, self.clock = due, evaluate, clock

    def on_train_batch_end(self, *_: Any) -> None:
        if self.clock.stepped and self.due(self.clock.steps):
            self.evaluate()


class AfterStep(Checkpoint):
    """Acts at the end of a step.

    It is a Checkpoint, because Lightning calls checkpoints after all other callbacks, including the user's.

    Args:
        late: whether to act after callbacks of the user. Callbacks that save or stop act at the end of a validation or
            an epoch; a state that is saved before them would not contain their effect.
    """

    def __init__(self, act: Callable[[L.Trainer], None], clock: StepTime, late: bool) -> None:
        self.act, self.clock, self.late = act, clock, late

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.clock.stepped and not (self.late and (trainer.is_last_batch or _validates(trainer))):
            self.act(trainer)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.late and self.clock.stepped and not (trainer.sanity_checking or trainer.is_last_batch):
            self.act(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.late:
            self.act(trainer)


class PeriodicAction(AfterStep):
    """Does something about every so many seconds, at the end of a step, on all ranks together."""

    def __init__(self, seconds: float, do: Callable[[], None], clock: StepTime, late: bool, ranks: Ranks) -> None:
        super().__init__(self._act, clock, late)
        self.seconds, self.do, self.ranks = seconds, do, ranks
        self.done = time.perf_counter()

    def _act(self, trainer: L.Trainer) -> None:
        if self.ranks.broadcast(lambda: time.perf_counter() - self.done >= self.seconds):
            self.do()
            self.done = time.perf_counter()


class Checkpoints(AfterStep):
    """Makes the requested checkpoints when they are reached, and ends the training after the last.

    Args:
        is_at_target: a function that returns whether the next checkpoint is reached.
        finish_reached: a function that finishes all reached checkpoints, and returns whether the training goes on.
        finish_early: a function that is called where something else ends the training.
    """

    def __init__(
        self,
        is_at_target: Callable[[], bool],
        finish_reached: Callable[[], bool],
        finish_early: Callable[[], None],
        clock: StepTime,
        late: bool,
    ) -> None:
        super().__init__(self._act, clock, late)
        self.is_at_target, self.finish_reached, self.finish_early = is_at_target, finish_reached, finish_early
        self.last = False  # whether the last checkpoint is made

    def _act(self, trainer: L.Trainer) -> None:
        if trainer.should_stop and not self.last:
            self.finish_early()
        elif self.is_at_target() and not self.finish_reached():
            trainer.should_stop = self.last = True

    def on_train_end(self, *_: Any) -> None:
        if not self.is_at_target():
            self.finish_early()


def _validates(trainer: L.Trainer) -> bool:
    """Return whether Lightning validates after the current batch."""
    interval, batch = trainer.val_check_batch, trainer.fit_loop.epoch_loop.batch_idx + 1
    due = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
    return trainer.enable_validation and due and interval is not None and batch % interval == 0
