"""The way along a run: train, evaluate, record; what only the owner of its lease does."""

import logging
import math
import time
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from pe_lab.data.base import Floors
from pe_lab.data.seeding import initialise
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.measurement import log_measurements, measure, measure_finished, replay
from pe_lab.model.transformer import Transformer
from pe_lab.system.environment import environment
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError, write_json
from pe_lab.system.termination import sigterm_raises
from pe_lab.tracking.events import log_checkpoint, log_curve, log_floors, log_metrics
from pe_lab.tracking.loggers import closing, delivered, load
from pe_lab.tracking.pictures import log_pictures
from pe_lab.training import state
from pe_lab.training.metrics import evaluate
from pe_lab.training.module import NotFiniteError, Recorder, Training


class AbandonedError(Exception):
    """Nobody who wanted this stop is alive."""


class Journey:
    """One worker's way along a run whose lease it holds."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.run = cell, cell.run
        self.environment = environment(cell.device)
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0  # in training steps, from the start of the run
        self.spent = {
            "steps": 0.0,
            "evaluation": 0.0,
            "checkpoints": 0,
        }  # seconds, and checkpoints recorded, on this journey
        self.loggers: list[L.pytorch.loggers.Logger] = []

    @cached_property
    def floors(self) -> Floors:
        return self.cell.floors()

    def serve_all(self) -> None:
        """Train to every wanted checkpoint, in order, and record each.

        Raises:
            KeyboardInterrupt: the user stopped it; nothing is recorded.
            Exception: what ended the training, recorded with every stop that it keeps from being reached.
        """
        self._prepare()
        began = time.perf_counter()
        try:
            with sigterm_raises():
                self._serve_all()
        finally:
            self.run.account(self.spent | {"served": time.perf_counter() - began})

    def _prepare(self) -> None:
        if self.cell.device.type == "cpu":
            torch.set_num_threads(1)  # two are not reproducible against themselves
        load(self.cell.cfg)

    def measure(self) -> None:
        """Measure what is missing on the cell's checkpoint, which is there; what fails is recorded."""
        self._prepare()
        with sigterm_raises():
            measure_finished(self.cell)

    def replay(self) -> None:
        """Open the run of the cell, which is there, and tell it from the ledger."""
        self._prepare()
        with sigterm_raises():
            replay(self.cell)

    def _serve_all(self) -> None:
        training: Training | None = None
        while wanted := self.run.requested():
            target = wanted[0]
            try:
                if training is None or self._better_start(training, target):
                    training = self._start(target)
                self._travel(training, target)
            except AbandonedError:
                return
            except Exception as error:
                # what would happen again, to whoever tries, ends every stop from here on; the rest ends this cell
                again = isinstance(error, (NotFiniteError, ValueError))
                step = error.step if isinstance(error, NotFiniteError) else training.step if training else None
                for epochs in wanted if again else [self.cell.epochs]:
                    self.run.fail(epochs, in_one_line(error), step)
                raise

    def _better_start(self, training: Training, target: int) -> bool:
        """Whether the target is behind, or a state that is kept is between here and there."""
        end = target * training.steps_per_epoch
        kept = self.run.newest_state(end)
        return training.step > end or (kept is not None and training.step < kept[0])

    def _start(self, target: int) -> Training:
        """The training as the newest state before the target left it, or from the start."""
        training = self._build()
        self.rows, self.seconds = [], 0.0
        self.flops_per_token = training.model.flops_per_token()
        while kept := self.run.newest_state(target * training.steps_per_epoch):
            try:
                self._restore(training, kept[1])
                break
            except LedgerError as error:
                self.run.set_aside(kept[1], error)
        return training

    def _build(self) -> Training:
        """The model with its initial weights, ready to train."""
        cell, cfg, data = self.cell, self.cell.cfg, self.cell.dataset
        model = Transformer(cfg.model, cell.encoding, data.task, cell.implementation)
        initialise(model, cfg.seed)
        model.to(cell.device)
        return Training(model, data, cfg.optimizer, cfg.trainer, cfg.seed, cell.epochs)

    def _restore(self, training: Training, path: Path) -> None:
        kept = state.restore(training, path)
        self.rows, self.seconds = kept["rows"], kept["seconds"]

    def _save(self, training: Training, finished: bool = False) -> None:
        """Keep the full state; of a checkpoint that is recorded, unless there is one that is farther."""
        temporary = self.run.temporary_file()
        state.save(training, {"run": self.run.name, "rows": self.rows, "seconds": self.seconds}, temporary)
        self.run.keep_state(temporary, training.step, finished)

    def _travel(self, training: Training, target: int) -> None:
        """Train to the target, evaluate there, and record the checkpoint."""
        self.run.heartbeat(training.epoch, target)
        with closing(instantiate(self.cell.cfg.logger)(cell=self.cell, epochs=target)) as self.loggers:
            log_floors(self.loggers, self.floors, 0, 0)
            log_curve(self.loggers, self.rows)
            if training.step < target * training.steps_per_epoch:
                self._train(training, target)
            self._record(training, target)
            measure(self.cell, target, training.model)
            log_measurements(self.cell, target, self.loggers)
            log_pictures(self.cell, target, self.loggers, lambda: training.model)
        self.cell.logged = self.cell.logged or (target == self.cell.epochs and delivered(self.loggers))

    def _train(self, training: Training, target: int) -> None:
        cfg = self.cell.cfg

        def log(split: str, metrics: dict[str, float]) -> None:
            place = {"split": split, "step": training.step, "epoch": round(training.epoch, 6)}
            self.rows += [place | {"metric": name, "value": value} for name, value in metrics.items()]
            log_metrics(self.loggers, split, metrics, training.step, training.epoch)

        def validate() -> None:
            log("validation", self._evaluate(training, "validation"))

        def count(seconds: float) -> None:
            self.seconds += seconds
            self.spent["steps"] += seconds

        def heartbeat(epoch: float) -> None:
            self.run.heartbeat(epoch, target)
            if target not in self.run.requested():
                self._save(training)
                raise AbandonedError

        recorder = Recorder(log, validate, lambda: self._save(training), heartbeat, count, cfg.trainer.save_every)
        quiet()
        trainer = L.Trainer(
            accelerator=self.cell.device.type,
            devices=1,
            precision="bf16-mixed" if cfg.trainer.precision == "bf16-mixed" else "32-true",
            max_epochs=target - training.step // training.steps_per_epoch,
            logger=False,
            callbacks=[recorder],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
        )
        try:
            trainer.fit(training)
        except SystemExit:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
        training.model.to(self.cell.device)

    def _evaluate(self, training: Training, split: str) -> dict[str, float]:
        began = time.perf_counter()
        metrics = evaluate(training.model, self.cell.dataset, split, self.cell.autocast())
        self.spent["evaluation"] += time.perf_counter() - began
        if not math.isfinite(metrics["loss_all"]):
            raise NotFiniteError(split, training.step, metrics["loss_all"])
        return metrics

    def _record(self, training: Training, target: int) -> None:
        """Write the checkpoint: what it came to, how, and the weights."""
        cell, model = self.cell, training.model
        test = self._evaluate(training, "test")
        rows = [
            *self.rows,
            *(
                {"split": "test", "step": training.step, "epoch": target, "metric": name, "value": value}
                for name, value in test.items()
            ),
        ]
        tokens = training.step / training.steps_per_epoch * cell.dataset.size("train") * cell.dataset.task.length
        summary = {
            "name": cell.name(target),
            "run": self.run.name,
            "epochs": target,
            "steps": training.step,
            "test": test,
            "floors": self.floors,
            "parameters": sum(p.numel() for p in model.parameters()),
            "positional_parameters": model.positional_parameters(),
            "flops_per_token": self.flops_per_token,
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds if self.seconds else None,
            "attention": cell.implementation,
            "device": cell.device.type,
            "tokens_per_sequence": cell.dataset.task.length,
        }
        resolved = OmegaConf.merge(cell.cfg, {"epochs": target})
        with self.run.recording(target) as folder:
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(resolved, resolve=True))
            pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
            write_json(folder / "summary.json", summary)
            write_json(folder / "environment.json", self.environment)
            state.save_tensors(model.state_dict(), folder / "weights.safetensors")
        self.spent["checkpoints"] += 1
        self._save(training, finished=True)
        log_checkpoint(self.loggers, summary)


def quiet() -> None:
    """Keep Lightning from announcing devices and products, and from warning about its own code."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
