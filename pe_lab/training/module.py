"""The LightningModule that trains one run, and the callback that records it."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig
from torch import Tensor

from pe_lab import config
from pe_lab.data.base import Batch, Dataset, epoch_order, in_batches
from pe_lab.data.seeding import derive, seed_all
from pe_lab.model import Transformer
from pe_lab.training.divergence import NotFiniteError
from pe_lab.training.graph import CapturedStep, used
from pe_lab.training.metrics import answers, batch_metrics, cross_entropy
from pe_lab.training.optimization import Optimization

HEARTBEAT = 1.0  # seconds between two heartbeats


class Training(L.LightningModule):
    """Trains a transformer on a dataset.

    The whole state is `model`, `optimizer`, `step` and `losses`. Batches, dropout, random draws of an encoding and the
    learning rate are functions of (seed, step). So a run that is interrupted at any step continues with the same bits,
    and dropout is the same for every encoding.

    Args:
        model: initialised.
        dataset: its training split is used, in the order of (seed, epoch).
        optimizer: settings of `Optimization`.
        trainer: batch_size, clip, log_every, fresh.
        seed: of order, dropout and random draws of the encoding.
        epochs: of the whole training, for schedules that depend on its end; None: it is counted in steps.
        steps: likewise, where epochs is None.

    Raises:
        ValueError: the batch is larger than the data.
    """

    def __init__(
        self,
        model: Transformer,
        dataset: Dataset,
        optimizer: DictConfig,
        trainer: config.Trainer,
        seed: int,
        epochs: int | None,
        steps: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.dataset = dataset
        self.clip = trainer.clip
        self.batch_size = trainer.batch_size
        self.log_every = trainer.log_every
        self.seed = seed
        self.steps_per_epoch = -(-dataset.size("train") // trainer.batch_size)
        self.total_steps = steps if epochs is None else epochs * self.steps_per_epoch
        self.fresh = trainer.fresh
        self.optimization = Optimization(optimizer, self.total_steps)
        self.optimizer = self.optimization.optimizer(model)
        self.step = 0
        self.losses: list[Tensor] = []  # of this epoch
        self.metrics: dict[str, float] = {}  # of the last batch that was logged
        self.evaluated = -1  # the last step whose batch was evaluated
        device = model.tokens.weight.device
        self.graph, self.graph_reason = used(trainer.graph, model, type(self.optimizer), device)
        self.captured: CapturedStep | None = None  # while it is trained as a graph
        self.check_graph = trainer.graph == "auto"
        self.automatic_optimization = not self.graph

    @property
    def epoch(self) -> float:
        return self.step / self.steps_per_epoch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def train_dataloader(self) -> "Batches":
        return Batches(self)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        if device.type == "cpu":
            return batch
        return batch.pinned().to(device, non_blocking=True) if device.type == "cuda" else batch.to(device)

    @property
    def logging_due(self) -> bool:
        """Whether the metrics of the current batch are logged: every `log_every` steps, and at the end of an epoch."""
        return (self.step + 1) % self.log_every == 0 or (self.step + 1) % self.steps_per_epoch == 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        seed_all(derive(self.seed, "step", self.step), batch.tokens.device)
        self.model.encodings.advance(self.step / self.total_steps)
        learning_rate = self.optimization.set_learning_rate(self.optimizer, self.step)
        if self.captured is None:
            loss, logits = self.evaluate_batch(batch)
        else:
            loss, logits, norm = self.captured(batch)
            loss = loss.clone()  # a graph writes the next one to the same memory
        if self.evaluated != self.step:  # an optimizer such as LBFGS evaluates a batch many times in a step
            self.evaluated = self.step
            self.losses.append(loss.detach())
            if self.logging_due:
                self.metrics = batch_metrics(logits, batch, self.dataset.roles)
                self.metrics["learning_rate"] = learning_rate
                if self.captured is not None:
                    self.metrics["gradient_norm"] = norm.item()
        return loss

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the logits of its answers; see `answers`."""
        layout = replace(batch.layout, seed=derive(self.seed, "positions", self.step))
        logits, targets = answers(self.model, replace(batch, layout=layout))
        return cross_entropy(logits, targets), logits

    def on_train_start(self) -> None:
        self.constrain()  # states of earlier versions were saved before the last constrain
        self.captured = CapturedStep(self, check=self.check_graph) if self.graph else None

    def on_train_end(self) -> None:
        if self.captured is not None and self.captured.given_up:
            self.graph_reason = f"trainer.graph=auto; none: {self.captured.given_up}"
        self.captured = None  # Lightning moves the parameters away from where a graph would look for them

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.constrain()

    def constrain(self) -> None:
        """Move the encodings' parameters back into their range."""
        self.model.encodings.constrain()

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        if self.clip is not None or self.logging_due:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or math.inf)
            if self.logging_due:
                self.metrics.setdefault("gradient_norm", norm.item())  # of the step's first evaluation

    def check_finite(self) -> None:
        """Raise NotFiniteError with the first step of this epoch whose loss is not finite."""
        losses = torch.stack(self.losses)
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            raise NotFiniteError("training", self.step - len(losses) + int(bad[0]), losses[bad[0]].item())


class Batches:
    """Iterates over the rest of the current epoch's batches; Lightning starts a new iteration for each epoch."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return self.training.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        training = self.training
        epoch, skip = divmod(training.step, training.steps_per_epoch)
        dataset = training.dataset.anew(epoch) if training.fresh else training.dataset
        order = epoch_order(dataset.size("train"), training.seed, epoch)
        return in_batches(dataset, "train", order[skip * training.batch_size :], training.batch_size, epoch)


class Recorder(L.Callback):
    """Counts the steps of a run and calls back at events.

    Args:
        log_metrics: called with (split, metrics) at every step that is logged.
        due: whether the training is validated at a step.
        validate: called there; returns whether the training is to stop.
        save: called when `save_every` seconds have passed since the last time.
        heartbeat: called about once a second.
        count: called with the seconds of each step in forward, backward and optimizer.
        save_every: seconds.
        end: the step at which the training ends.
    """

    def __init__(
        self,
        log_metrics: Callable[[str, dict[str, float]], None],
        due: Callable[[int], bool],
        validate: Callable[[], bool],
        save: Callable[[], None],
        heartbeat: Callable[[], None],
        count: Callable[[float], None],
        save_every: float,
        end: int,
    ) -> None:
        self.log_metrics, self.due, self.validate, self.save = log_metrics, due, validate, save
        self.heartbeat, self.count = heartbeat, count
        self.save_every = save_every
        self.end = end
        self.saved = self.heartbeat_at = self.logged = time.perf_counter()
        self.tokens = 0

    def on_train_batch_start(self, trainer: L.Trainer, training: Training, batch: Batch, batch_idx: int) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, training: Training, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        due = training.logging_due
        training.step += 1
        self.tokens += batch.tokens.numel()
        now = time.perf_counter()
        self.count(now - self.began)
        if due:
            training.check_finite()
            self.log_metrics("train", training.metrics | {"tokens_per_second": self.tokens / (now - self.logged)})
            self.logged, self.tokens = now, 0
        if training.step % training.steps_per_epoch == 0:
            self.log_metrics("train", {"objective": torch.stack(training.losses).mean().item()})
            training.losses.clear()
        trainer.should_stop = training.step >= self.end
        if self.due(training.step):
            trainer.should_stop |= self.validate()
            self.logged = time.perf_counter()
        if now - self.heartbeat_at >= HEARTBEAT:
            self.heartbeat_at = now
            self.heartbeat()
        if now - self.saved >= self.save_every:
            self.save()
            self.saved = time.perf_counter()
