"""Train one run and write its checkpoints to the ledger. Only the owner of the run's lease does this."""

import logging
import math
import time
import warnings
from functools import cached_property
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from pe_lab.data.base import Dataset, Floors
from pe_lab.data.score import exact_range, score
from pe_lab.data.seeding import initialise
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.checkpoint import Checkpoint
from pe_lab.experiment.logs import Logs, prepare
from pe_lab.experiment.measurement import Datasets, measure
from pe_lab.experiment.memory import naming_memory
from pe_lab.ledger.run import Run
from pe_lab.model.transformer import Transformer
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError
from pe_lab.system.termination import no_exit, sigterm_raises
from pe_lab.tracking.events import log_checkpoint, log_curve, log_floors, log_metrics
from pe_lab.tracking.loggers import closing, delivered
from pe_lab.training import state
from pe_lab.training.divergence import CheckpointNotFiniteError, NotFiniteError
from pe_lab.training.metrics import evaluate
from pe_lab.training.module import Recorder, Training


class AbandonedError(Exception):
    """No living process requests this checkpoint any more."""


class Executor:
    """Trains one run to its requested checkpoints, from its newest state, while this process owns its lease.

    Args:
        cell: of the run; its checkpoint need not be the next.
        run: whose lease this process holds.
    """

    def __init__(self, cell: Cell, run: Run) -> None:
        self.cell, self.run = cell, run
        self.datasets = Datasets(cell)
        self.logs = Logs(cell, run, self.datasets)
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0  # in training steps, since the start of the run
        self.spent = {"steps": 0.0, "evaluation": 0.0, "checkpoints": 0}  # seconds and checkpoints, by this executor
        self.loggers: list[Logger] = []
        prepare(cell)

    @cached_property
    def floors(self) -> Floors:
        return self.datasets.floors()

    @cached_property
    def exact_range(self) -> tuple[float, float] | None:
        """The level without position and the best loss on the validation split; None if the task is not to be solved.

        Raises:
            ValueError: the task does not have them exactly.
        """
        if self.cell.cfg.solve.level is None:
            return None
        found = exact_range(self.datasets.floors(split="validation"))
        if found is None:
            raise ValueError(
                f"solve.level={self.cell.cfg.solve.level:g} needs a task with an exact level without position and an "
                f"exact best loss, got data={self.cell.cfg.data.name}: leave it null"
            )
        return found

    def train_requested(self) -> None:
        """Train to every requested checkpoint, in order, and write each.

        Raises:
            KeyboardInterrupt: the user stopped it; no failure is recorded.
            Exception: what ended the training, recorded with every checkpoint that it keeps from being reached.
        """
        began = time.perf_counter()
        try:
            with sigterm_raises():
                self._train_requested()
        finally:
            self.run.account(self.spent | {"total": time.perf_counter() - began})

    def _train_requested(self) -> None:
        training: Training | None = None
        _ = self.exact_range  # refused before the first step
        while requested := self.run.requested():
            target = requested[0]
            try:
                with no_exit(), naming_memory(self.cell.cfg, self.cell.dataset.task.length):
                    if training is None or self._better_start(training, target):
                        training = self._start(target)
                    self._train_to(training, target)
            except AbandonedError:
                return
            except CheckpointNotFiniteError as error:  # the training itself may go on
                self._fail([target], error, error.step)
                if target == self.cell.target:
                    raise
            except Exception as error:
                # an error that every attempt would repeat fails all later checkpoints too; others fail this cell
                repeats = isinstance(error, (NotFiniteError, ValueError))
                step = error.step if isinstance(error, NotFiniteError) else training.step if training else None
                self._fail(requested if repeats else [self.cell.target], error, step)
                raise

    def _fail(self, checkpoints: list[int], error: Exception, step: int | None) -> None:
        """Record why checkpoints are not reached, and what training to there has cost."""
        for epochs in checkpoints:
            self.run.fail(epochs, in_one_line(error), step, self.seconds * torch.get_num_threads())

    def _better_start(self, training: Training, target: int) -> bool:
        """Return whether the training is past the target, or a stored state lies between it and the target."""
        end = self.cell.steps_to(target)
        stored = self.run.newest_state(end)
        return training.step > end or (stored is not None and training.step < stored[0])

    def _start(self, target: int) -> Training:
        """Return the training at the newest stored state before the target, or at step 0."""
        training = build(self.cell, self.datasets.at())
        self.rows, self.seconds = [], 0.0
        self.flops_per_token = training.model.flops_per_token()
        while stored := self.run.newest_state(self.cell.steps_to(target)):
            try:
                kept = state.restore(training, stored[1])
                self.rows, self.seconds = kept["rows"], kept["seconds"]
                break
            except LedgerError as error:
                self.run.set_aside(stored[1], error)
        return training

    def _save(self, training: Training, finished: bool = False) -> None:
        """Write the full state. After a checkpoint it is kept only if no stored state is later."""
        temporary = self.run.temporary_file()
        state.save(training, {"run": self.run.name, "rows": self.rows, "seconds": self.seconds}, temporary)
        self.run.keep_state(temporary, training.step, finished)

    def _train_to(self, training: Training, target: int) -> None:
        """Train to the target, evaluate there, and write the checkpoint."""
        self.run.heartbeat(self._reached(training), target)
        with closing(self.logs.make(target)) as self.loggers:
            log_floors(self.loggers, self.floors, 0, 0)
            log_curve(self.loggers, self.rows)
            if training.step < self.cell.steps_to(target) and not self._solved():
                self._fit(training, target)
            self._finish(training, target)
            measure(self.cell, self.run, target, training.model, self.datasets)
            self.logs.log_measurements(self.loggers, target)
            self.logs.log_pictures(self.loggers, target, training.model)
        if target == self.cell.target and delivered(self.loggers):
            self.logs.delivered = True

    def _fit(self, training: Training, target: int) -> None:
        """Run Lightning's loop to the target, recording metrics, states and heartbeats on the way."""

        def log(split: str, metrics: dict[str, float]) -> None:
            self.rows += self._log(training, split, metrics)

        def count(seconds: float) -> None:
            self.seconds += seconds
            self.spent["steps"] += seconds

        def heartbeat() -> None:
            self.run.heartbeat(self._reached(training), target)
            if target not in self.run.requested():
                self._save(training)
                raise AbandonedError

        def validate() -> bool:
            log("validation", self._evaluate(training, "validation"))
            return self._solved()

        save_every, end = self.cell.cfg.trainer.save_every, self.cell.steps_to(target)
        recorder = Recorder(log, self._due, validate, lambda: self._save(training), heartbeat, count, save_every, end)
        trainer = _trainer(self.cell, recorder)
        try:
            trainer.fit(training)
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into it
                raise KeyboardInterrupt from None
            raise
        training.model.to(self.cell.device)

    def _due(self, step: int) -> bool:
        """Return whether the training is validated at a step: after epoch 1, 2, 4, 8, ...; or on the grid of steps."""
        if self.cell.unit == "steps":
            return on_grid(step, self.cell.cfg.solve.first, self.cell.cfg.solve.per_doubling)
        epoch, rest = divmod(step, self.cell.steps_per_epoch)
        return not rest and epoch & (epoch - 1) == 0

    def _reached(self, training: Training) -> float:
        return training.step if self.cell.unit == "steps" else training.epoch

    def _solved(self, rows: list[dict[str, Any]] | None = None) -> bool:
        """Return whether the last two evaluations reached the level at which the task counts as solved.

        Args:
            rows: with the evaluation at the end, which is not of the run; None: those of the run.
        """
        level = self.cell.cfg.solve.level
        if level is None:
            return False
        found = self.rows if rows is None else rows
        scores = [row["value"] for row in found if (row["split"], row["metric"]) == ("validation", "score")]
        return len(scores) > 1 and min(scores[-2:]) >= level

    def _log(self, training: Training, split: str, metrics: dict[str, float]) -> list[dict[str, Any]]:
        """Log metrics, and return their rows."""
        log_metrics(self.loggers, split, metrics, training.step, training.epoch)
        place = {"split": split, "step": training.step, "epoch": round(training.epoch, 6)}
        return [place | {"metric": name, "value": value} for name, value in metrics.items()]

    def _evaluate(
        self, training: Training, split: str, error: type[NotFiniteError] = NotFiniteError
    ) -> dict[str, float]:
        """Return the metrics on a split; raise the error if its loss is not finite."""
        began = time.perf_counter()
        metrics = evaluate(training.model, self.datasets.at(), split, self.cell.autocast())
        if split == "validation" and self.exact_range is not None:
            metrics["score"] = score(metrics["loss"], *self.exact_range)
        self.spent["evaluation"] += time.perf_counter() - began
        if not math.isfinite(metrics["loss_all"]):
            raise error(split, training.step, metrics["loss_all"])
        return metrics

    def _finish(self, training: Training, target: int) -> None:
        """Evaluate on the validation split, unless that was done there, and the test split; write the checkpoint.

        The validation belongs to the checkpoint and not to the run: other checkpoints of it do not depend on which
        were requested.
        """
        rows = self.rows
        if not any(row["split"] == "validation" and row["step"] == training.step for row in rows):
            validation = self._evaluate(training, "validation", CheckpointNotFiniteError)
            rows = rows + self._log(training, "validation", validation)
        test = self._evaluate(training, "test", CheckpointNotFiniteError)
        solved = training.step if self._solved(rows) else None
        checkpoint = Checkpoint(
            self.cell, self.run, target, solved, training, test, self.floors, rows, self.seconds, self.flops_per_token
        )
        checkpoint.write()
        self.spent["checkpoints"] += 1
        self._save(training, finished=True)
        log_checkpoint(self.loggers, checkpoint.summary)


def build(cell: Cell, dataset: Dataset) -> Training:
    """Return the model with its initial weights, at step 0, ready to train."""
    cfg = cell.cfg
    model = Transformer(cfg.model, cell.encoding, dataset.task, cell.implementation)
    initialise(model, cfg.seed)
    model.to(cell.device)
    return Training(model, dataset, cfg.optimizer, cfg.trainer, cfg.seed, cfg.epochs, cfg.steps)


def on_grid(step: int, first: int, per_doubling: int) -> bool:
    """Return whether a step is on the grid first * 2^(k / per_doubling), k = 0, 1, 2, ..., rounded to whole steps."""
    if step < first:
        return False
    nearest = round(per_doubling * math.log2(step / first))
    return any(round(first * 2 ** (k / per_doubling)) == step for k in (nearest - 1, nearest, nearest + 1) if k >= 0)


def _trainer(cell: Cell, recorder: Recorder) -> L.Trainer:
    """Return Lightning's trainer without its own end, logs, checkpoints, validation and messages."""
    silence_lightning()
    return L.Trainer(
        accelerator=cell.device.type,
        devices=1,
        precision="bf16-mixed" if cell.cfg.trainer.precision == "bf16-mixed" else "32-true",
        max_epochs=-1,  # the recorder stops it
        logger=False,
        callbacks=[recorder],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )


def silence_lightning() -> None:
    """Keep Lightning from announcing devices and products, and from warning about its own code."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
