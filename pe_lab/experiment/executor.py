"""Train one run and write its checkpoints to the ledger. Only the owner of the run's lease does this."""

import math
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from omegaconf import OmegaConf

from pe_lab.data.base import Floors
from pe_lab.data.score import exact_range, score
from pe_lab.experiment.callbacks import (
    HEARTBEAT_SECONDS,
    CheckpointNotFiniteError,
    Checkpoints,
    Curve,
    Divergence,
    NotFiniteError,
    PeriodicAction,
    StepTime,
    Validation,
)
from pe_lab.experiment.cell import Cell, grid_of_steps
from pe_lab.experiment.checkpoint_loggers import CheckpointLoggers
from pe_lab.experiment.measurement import Datasets, measure_cell, prepare_cpu
from pe_lab.experiment.memory_errors import explain_memory_errors
from pe_lab.experiment.own_classes import naming_own_encoding, naming_settings
from pe_lab.experiment.ranks import Ranks, core_seconds
from pe_lab.experiment.trainer import silence_lightning
from pe_lab.ledger.run import DIVERGED, ERROR, WEIGHTS_FILE, Run
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.environment import environment
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError, write_json
from pe_lab.system.raised_places import raised_trace
from pe_lab.system.termination import no_exit, sigterm_raises
from pe_lab.tracking.cell_logs import log_checkpoint, log_curve, log_floors
from pe_lab.tracking.loggers import ForwardingLogger, is_delivered
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.metrics import evaluate
from pe_lab.training.module import Training
from pe_lab.training.weights import save_tensors

QUIET_ARGUMENTS: dict[str, Any] = {  # without Lightning's own logs, validation and messages
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
}


class AbandonedError(Exception):
    """No living process requests this checkpoint any more."""


class TimeOverError(RuntimeError):
    """The training took the time that it may take."""


class Executor:
    """Trains a run from its newest state to its requested checkpoints, while this process holds the lease of the run.

    A cell is a checkpoint of the run. It goes through these states; the method in brackets leads to the state:

    1. requested: a live process waits for it, and it is neither done nor failed.
    2. started [_start]: the run is at its newest stored state before the first requested checkpoint, or at step 0.
    3. target [_set_target]: the run is being trained to this checkpoint. Its loggers are open, and heartbeats name it.
    4. reached [_fit]: the run is at the target's step, or has ended before it: the task is solved, or a callback of the
       user stopped Lightning.
    5. done [_complete_checkpoint]: it is evaluated, written and measured, and its loggers are closed.

    `_finish_reached` does step 5 for each checkpoint that is reached, and step 3 for the next checkpoint. It is called
    after step 2, and by Lightning's loop whenever a target is reached, so one `_fit` makes all later checkpoints. If an
    earlier checkpoint is requested meanwhile, `_train_requested` starts again at step 2. A cell that does not reach
    step 5 has failed [_fail], with a recorded reason, or is still requested, because the run was abandoned or killed.
    In that case its newest state is kept.

    Args:
        cell: any cell of the run, not necessarily its next checkpoint.
        run: the run. This process, or the process that started it, holds its lease.
        ranks: the processes that train the run. Only the first process writes to the ledger and to loggers.

    Attributes:
        target: the next checkpoint; None: not yet chosen.
        clock, curve: the step counter and the metrics of the current training.
        state: the file of the stored state from which the training continues; None: it begins at step 0.
        solved: whether the last evaluations have solved the task.
        training, trainer, flops_per_token: the model with its optimizer, Lightning's Trainer, and FLOPs of a training
            step per token. They are set by `_start` and `_fit`.
    """

    def __init__(self, cell: Cell, run: Run, ranks: Ranks = Ranks()) -> None:  # noqa: B008 it is frozen
        prepare_cpu(cell.device)
        self.cell, self.run, self.ranks = cell, run, ranks
        self.datasets = Datasets(cell)
        self.logs = CheckpointLoggers(cell, run, self.datasets)
        self.spent = {"steps": 0.0, "evaluation": 0.0, "checkpoints": 0}  # seconds and checkpoints, by this executor
        self.target: int | None = None
        self.state: Path | None = None
        self.solved = False
        self.training: Training
        self.trainer: L.Trainer
        self.flops_per_token: float
        self.clock = StepTime()
        self.curve = Curve(self.clock, cell.steps_per_epoch)

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
        limits = exact_range(self.datasets.floors(split="validation"))
        if limits is None:
            raise ValueError(
                f"solve.level={self.cell.cfg.solve.level:g} needs a task with an exact level without position and an "
                f"exact best loss, got data={self.cell.cfg.data.name}: leave it null"
            )
        return limits

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
            if self.ranks.is_rank_zero:
                spent = self.spent | {"total": time.perf_counter() - began}
                self.run.account(
                    {name: x * (1 if name == "checkpoints" else self.ranks.size) for name, x in spent.items()}
                )

    def _train_requested(self) -> None:
        _ = self.exact_range  # refused before the first step
        while requested := self.ranks.broadcast(self.run.requested):
            started = False
            try:
                with (
                    naming_settings(self.cell.cfg),
                    naming_own_encoding(self.cell.cfg),
                    no_exit(),
                    explain_memory_errors(self.cell.cfg, self.cell.dataset.task.length),
                ):
                    self._start(requested[0])
                    started = True
                    if self._finish_reached():
                        self._fit()
                    self._close_loggers("success")
            except AbandonedError:
                return
            except CheckpointNotFiniteError:  # recorded; the training itself may go on
                raise
            except Exception as error:
                # an error that every attempt would repeat fails all later checkpoints too; others fail this cell
                repeats = isinstance(error, (NotFiniteError, ValueError))
                step = error.step if isinstance(error, NotFiniteError) else self.clock.steps if started else None
                if self.ranks.is_rank_zero:
                    self._fail(self.run.requested() if repeats else [self.cell.target], error, step)
                raise
            finally:
                self._close_loggers("failed")
                self.spent["steps"] += self.clock.spent
                self.clock.spent = 0.0

    def _fail(self, checkpoints: list[int], error: Exception, step: int | None) -> None:
        """Record why checkpoints are not reached, and what training to there has cost."""
        kind = DIVERGED if isinstance(error, NotFiniteError) else ERROR
        cost = core_seconds(self.clock.seconds, torch.get_num_threads(), self.ranks.size)
        for target in checkpoints:
            self.run.fail(target, in_one_line(error), step, cost, kind, raised_trace(error))

    # -- from one checkpoint to the next -------------------------------------------------------------------------------

    def _start(self, target: int) -> None:
        """Make the training at the newest stored state before the target, or at step 0."""
        self.state = None
        while True:
            self.training = self.cell.lightning_module()
            self.clock = StepTime()
            self.curve = Curve(self.clock, self.cell.steps_per_epoch)
            self.flops_per_token = self.training.model.flops_per_token()
            stored = self.ranks.broadcast(lambda: self.run.states.newest(self.cell.steps_to(target)))
            if stored is None:
                break
            reason = self._restored(stored[1])
            self.ranks.broadcast(lambda: None)  # all have read it
            if reason is None:
                break
            if self.ranks.is_rank_zero:
                self.run.set_aside(stored[1], reason)
        self.training.model.to(self.cell.device)
        self.target, self.solved = None, self._solved()

    def _restored(self, path: Path) -> LedgerError | None:
        """Load a state; Lightning loads it again where the training goes on. Returns why it cannot be loaded."""
        try:
            self._restore(path)
        except LedgerError as error:
            return error
        return None

    def _restore(self, path: Path) -> None:
        """Load a state.

        Raises:
            LedgerError: it is not a state of this training.
        """
        checkpoint = SafeTensorsIO().load_checkpoint(path)
        try:
            self.training.restore(checkpoint)
            for callback in (self.clock, self.curve):
                callback.load_state_dict(checkpoint["callbacks"][callback.state_key])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError):
            raise LedgerError(f"ledger entry {path} must be a state of the training, got another") from None
        self.state = path

    def _finish_reached(self) -> bool:
        """Finish the requested checkpoints that are reached; return whether the training goes on to another."""
        while True:
            if self.target is None:
                requested = self.ranks.broadcast(self.run.requested)
                if not requested or self._passed_or_stored(requested[0]):
                    return False
                self._set_target(requested[0])
            if not self._is_at_target():
                return True
            target = self.target
            assert target is not None
            try:
                self._complete_checkpoint(target)
            except CheckpointNotFiniteError as error:
                if self.ranks.is_rank_zero:
                    self._fail([target], error, error.step)
                if target == self.cell.target:
                    raise
                self._close_loggers("failed")

    def _is_at_target(self) -> bool:
        """Return whether the training is at its target, or something has ended it before."""
        return (
            self.target is None
            or self.solved
            or self.clock.ended
            or self.clock.steps >= self.cell.steps_to(self.target)
        )

    def _passed_or_stored(self, target: int) -> bool:
        """Return whether the training is past the target, or a stored state lies between it and the target."""
        end = self.cell.steps_to(target)
        stored = self.ranks.broadcast(lambda: self.run.states.newest(end))
        return self.clock.steps > end or (stored is not None and self.clock.steps < stored[0])

    def _set_target(self, target: int) -> None:
        """Train to a checkpoint from here on: it has loggers of its own."""
        self._close_loggers("success")
        self.target = target
        self._call_heartbeat()
        self.curve.loggers = self.logs.make(target) if self.ranks.is_rank_zero else []
        log_floors(self.curve.loggers, self.floors, 0, 0)
        log_curve(self.curve.loggers, self.curve.rows)

    def _close_loggers(self, status: str) -> None:
        """Finalize the loggers of the checkpoint, if there are any that are open."""
        loggers, self.curve.loggers, target, self.target = self.curve.loggers, [], self.target, None
        for logger in loggers:
            logger.finalize(status)
        if status == "success" and target == self.cell.target and is_delivered(loggers):
            self.logs.delivered = True

    def _complete_checkpoint(self, target: int) -> None:
        """Evaluate a checkpoint, write it, and make the requested measurements."""
        self._evaluate_and_write(target)
        if self.ranks.is_rank_zero:
            measure_cell(self.cell, self.run, target, lambda: self.training.model, self.datasets)
        self.logs.log_measurements(self.curve.loggers, target)
        self.logs.log_pictures(self.curve.loggers, target, self.training.model)
        self._close_loggers("success")

    # -- training ------------------------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Run Lightning's loop until no requested checkpoint is ahead."""
        silence_lightning()
        length = {} if self.cell.depends_on_end else {"max_epochs": -1, "max_steps": -1}  # callbacks end it
        options = self.cell.trainer_arguments() | length
        users = options.pop("callbacks", [])
        callbacks = [
            self.clock,
            *users,
            Divergence(),
            self.curve,
            Validation(self._is_validation_due, self._validate, self.clock),
            PeriodicAction(HEARTBEAT_SECONDS, self._on_heartbeat, self.clock, bool(users), self.ranks),
            PeriodicAction(self.cell.cfg.trainer.save_every, self._save, self.clock, bool(users), self.ranks),
            Checkpoints(self._is_at_target, self._finish_reached, self._finish_early, self.clock, bool(users)),
        ]
        arguments = QUIET_ARGUMENTS | self._trainer_arguments_for_callbacks(users) | options
        self.training.to_loggers = False
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only, benchmark = torch.is_deterministic_algorithms_warn_only_enabled(), torch.backends.cudnn.benchmark
        try:
            self.trainer = L.Trainer(**arguments, callbacks=callbacks, plugins=[SafeTensorsIO()])
            self.trainer.fit(self.training, datamodule=self.cell.data_module(self.datasets.at()), ckpt_path=self.state)
            if not self._is_at_target():  # Lightning has found nothing to do
                self._finish_early()
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into it
                raise KeyboardInterrupt from None
            raise
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            torch.backends.cudnn.benchmark = benchmark

    def _trainer_arguments_for_callbacks(self, users: list[L.Callback]) -> dict[str, Any]:
        """Return arguments of the Trainer on which callbacks of the user depend: validation, a logger and a folder."""
        if not users:
            return {}
        folder = self.run.folder.parent / "callbacks"
        LedgerFiles(folder.parent).refuse_links(folder / self.run.name)
        return {
            "logger": ForwardingLogger(self.curve.log, folder, self.run.name),
            "default_root_dir": str(folder / self.run.name),
            "limit_val_batches": 1.0,
        }

    def _finish_early(self) -> None:
        """Write all later checkpoints from the present state: a user's callback or a limit ended the training.

        Raises:
            TimeOverError: it was ended by a limit on time. The state is saved, and a longer limit goes on from there.
        """
        trainer: Any = self.trainer  # its type does not say that it has callbacks
        left = [
            callback.time_remaining()
            for callback in trainer.callbacks
            if isinstance(callback, L.pytorch.callbacks.Timer)
        ]
        self.clock.ended = self.ranks.broadcast(lambda: all(time is None or time > 0 for time in left))
        if self._finish_reached():
            assert self.target is not None
            if self.clock.spent:
                self._save()
            raise TimeOverError(
                f"trainer.max_time={self.cell.cfg.trainer.max_time} must be long enough for "
                f"{self.cell.steps_to(self.target)} steps, got {self.clock.steps}: a longer one goes on from there"
            )

    def _save(self, finished: bool = False) -> None:
        """Write the full state. After a checkpoint it is kept only if no stored state is later."""
        temporary = self.ranks.broadcast(self.run.states.temporary_file)
        self.trainer.save_checkpoint(temporary, storage_options={"run": self.run.name})
        if self.ranks.is_rank_zero:
            self.run.states.keep(temporary, self.clock.steps, finished)

    def _call_heartbeat(self) -> None:
        assert self.target is not None
        if self.ranks.is_rank_zero:
            reached = self.clock.steps if self.cell.unit == "steps" else self.curve.epoch
            self.run.heartbeat(reached, self.target, self.curve.latest)

    def _on_heartbeat(self) -> None:
        """Write a heartbeat.

        Raises:
            AbandonedError: nobody waits for the checkpoint; the state is saved.
        """
        self._call_heartbeat()
        if self.target not in self.ranks.broadcast(self.run.requested):
            self._save()
            raise AbandonedError

    def _validate(self) -> None:
        self.curve.add("validation", self.evaluate("validation"))
        self.solved = self._solved()

    def _is_validation_due(self, step: int) -> bool:
        """Return whether the training is validated at a step: after epoch 1, 2, 4, 8, ...; or on the grid of steps."""
        if self.cell.unit == "steps":
            return step in grid_of_steps(step, self.cell.cfg.solve.first, self.cell.cfg.solve.per_doubling)
        epoch, rest = divmod(step, self.cell.steps_per_epoch)
        return not rest and epoch & (epoch - 1) == 0

    def _solved(self, rows: list[dict[str, Any]] | None = None) -> bool:
        """Return whether the last two evaluations reached the level at which the task counts as solved.

        Args:
            rows: the metric rows of the run and of the evaluation at the end, which is not part of the run; None: those
                of the run.
        """
        level = self.cell.cfg.solve.level
        if level is None:
            return False
        lines = self.curve.rows if rows is None else rows
        scores = [row["value"] for row in lines if (row["split"], row["metric"]) == ("validation", "score")]
        return len(scores) > 1 and min(scores[-2:]) >= level

    def evaluate(self, split: str, error: type[NotFiniteError] = NotFiniteError) -> dict[str, float]:
        """Return the metrics on a split; raise the error if its loss is not finite."""
        began = time.perf_counter()
        metrics = evaluate(self.training.model, self.datasets.at(), split, self.cell.autocast())
        if split == "validation" and self.exact_range is not None:
            metrics["score"] = score(metrics["loss"], *self.exact_range)
        self.spent["evaluation"] += time.perf_counter() - began
        if not math.isfinite(metrics["loss_all"]):
            raise error(split, self.clock.steps, metrics["loss_all"])
        return metrics

    def _evaluate_and_write(self, target: int) -> None:
        """Evaluate on the validation split, unless that was done there, and the test split; write the checkpoint.

        The validation belongs to the checkpoint and not to the run: other checkpoints of it do not depend on which
        were requested.
        """
        step, rows = self.clock.steps, self.curve.rows
        if not any(row["split"] == "validation" and row["step"] == step for row in rows):
            rows = rows + self.curve.emit("validation", self.evaluate("validation", CheckpointNotFiniteError))
        test = self.evaluate("test", CheckpointNotFiniteError)
        summary = self._make_summary(target, test, solved=self._solved(rows))
        if self.ranks.is_rank_zero:
            row = {"split": "test", "step": step, "epoch": summary["epochs"]}
            self._write_files(target, summary, rows + [row | {"metric": name, "value": test[name]} for name in test])
        self.spent["checkpoints"] += 1
        if self.state is None or self.clock.spent:  # otherwise the stored state is of this step
            self._save(finished=True)
        log_checkpoint(self.curve.loggers, summary)

    def _make_summary(self, target: int, test: dict[str, float], solved: bool) -> dict[str, Any]:
        """Return the content of summary.json.

        Args:
            solved: whether the training was stopped because the task is solved.
        """
        cell, model, step, seconds = self.cell, self.training.model, self.clock.steps, self.clock.seconds
        epoch = step / cell.steps_per_epoch
        tokens = cell.sequences_in(step) * cell.dataset.task.length
        return {
            "name": cell.name(target),
            "run": self.run.name,
            **({"epochs": target} if cell.unit == "epochs" else {"epochs": epoch, "target": target}),
            "steps": step,
            **({} if cell.cfg.solve.level is None else {"solved": step if solved else None}),
            "test": test,
            "floors": self.floors,
            "parameters": sum(p.numel() for p in model.parameters()),
            "positional_parameters": model.positional_parameters(),
            "flops_per_token": self.flops_per_token,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds if seconds else None,
            "attention": cell.implementation,
            "device": cell.device.type,
            "tokens_per_sequence": cell.dataset.task.length,
        }

    def _write_files(self, target: int, summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Write all files of a checkpoint to the ledger: config, metrics, summary, environment, weights."""
        cell = self.cell
        surroundings = environment(cell.device) | {"attention": cell.attention_reason}
        if cell.cfg.trainer.graph:
            surroundings["graph"] = self.training.graph_reason
        with self.run.recording(target) as folder:
            (folder / "config.yaml").write_text(
                OmegaConf.to_yaml(OmegaConf.create(cell.settings(target))), encoding="utf-8"
            )
            pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
            write_json(folder / "summary.json", summary)
            write_json(folder / "environment.json", surroundings)
            save_tensors(self.training.model.state_dict(), folder / WEIGHTS_FILE)
