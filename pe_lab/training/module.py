"""The LightningModule that trains one run, with any Trainer."""

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from pe_lab.config import resolve_config
from pe_lab.config.trainer_arguments import limit_batches
from pe_lab.data.base import IGNORE, Batch, Dataset
from pe_lab.data.seeding import derive_seed, initialise_parameters, seed_all
from pe_lab.model import Transformer
from pe_lab.training.checkpoints import SafeTensorsIO, finish_epoch, is_safetensors, load_exactly
from pe_lab.training.data import Loader, Settings, as_config, batches_done, make_dataset
from pe_lab.training.fit import check_fit, prevents_graph
from pe_lab.training.graph import CapturedStep, decide_graph, refusal_reason
from pe_lab.training.metrics import MetricSums, answer_logits, batch_metrics, cross_entropy, seeded_batch, slot_losses
from pe_lab.training.optimization import Optimization


class Training(L.LightningModule):
    """A transformer with an encoding, which any Trainer trains on `Sequences`.

    Batches, dropout, random draws of an encoding and the learning rate are functions of (seed, step). So a run that is
    interrupted at any step continues from a checkpoint with the same bits, and dropout is the same for every encoding.

    It logs `train/...` every `log_every_n_steps` of the Trainer and at the end of an epoch, `validation/...` and
    `test/...`. A prediction is the most likely answer at every slot.

    Args:
        settings: the settings of a cell, resolved; they are the hyperparameters of checkpoints.
        attention: the implementation of attention; None: the one in the settings.
        dataset: the dataset to use; None: a new dataset, from the settings.

    Attributes:
        step: the number of the current batch, counted from the start of the training.
        steps_before: the number of optimizer steps before this batch, which is lower than `step` if gradients are
            accumulated.
        losses: the losses of the batches of this epoch so far.
        metrics: the metrics of the last batch that was logged.
        to_loggers: False: metrics are logged only for callbacks of the Trainer; None: also for its loggers.
        clip: the largest norm of the gradient; None: no clipping.
        graph: whether steps are replayed as a CUDA graph, set by fit. `graph_reason` says why.
    """

    def __init__(self, settings: Settings, attention: str | None = None, dataset: Dataset | None = None) -> None:
        super().__init__()
        cfg = as_config(settings)
        settings = resolve_config(cfg)  # save_hyperparameters reads this variable
        self.save_hyperparameters(ignore="dataset")
        self.cfg = cfg
        self.dataset = make_dataset(cfg) if dataset is None else dataset
        attention = attention or cfg.attention.implementation
        self.model = Transformer(cfg.model, instantiate(cfg.pe), self.dataset.task, attention)
        initialise_parameters(self.model, cfg.seed)
        self.seed = cfg.seed
        self.clip: float | None = cfg.trainer.clip
        self.clips_values = False
        self.log_every: int = cfg.trainer.log_every
        self.batches_per_epoch = self._batches()
        self.total_steps = cfg.epochs * self.batches_per_epoch if cfg.steps is None else cfg.steps
        self.step = self.steps_before = 0
        self.accumulated_before = 0  # batches of a restored training that ended no step
        self.losses: list[Tensor] = []
        self.metrics: dict[str, float] = {}
        self.to_loggers: bool | None = None
        self.evaluated = -1  # the last step whose batch was evaluated
        self.graph, self.graph_reason = False, ""
        self.captured: CapturedStep | None = None  # while it is trained as a graph
        self.accumulated: tuple[int, int] | None = None  # first batch and number of answers of those accumulated
        self.loaded: dict[str, Any] | None = None  # the state of the optimizer in a checkpoint

    @property
    def epoch(self) -> float:
        return self.step / self.batches_per_epoch

    @property
    def updates(self) -> int:
        """The number of optimizer steps so far; where gradients are accumulated, fewer than batches."""
        return self.step - self.accumulated_before if self._trainer is None else self.global_step

    @cached_property
    def optimization(self) -> Optimization:
        return Optimization(self.cfg.optimizer, self.total_steps)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.optimization.optimizer(self.model)

    # -- what a Trainer calls ------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take from the Trainer what it decides, before anything is computed.

        Raises:
            ValueError: the Trainer cannot train this cell as its settings say.
        """
        if stage != "fit":
            return
        trainer: Any = self.trainer  # which sets its settings by name
        self.choose_graph(trainer.strategy.root_device)
        self.batches_per_epoch = limit_batches(self._batches(), trainer.limit_train_batches)
        per_epoch = -(-self.batches_per_epoch // trainer.accumulate_grad_batches)
        check_fit(trainer, self.cfg, per_epoch, self.model.encodings.first.phased)
        self.log_every = trainer.log_every_n_steps
        if trainer.gradient_clip_val is not None:
            self.clip, self.clips_values = trainer.gradient_clip_val, trainer.gradient_clip_algorithm == "value"
        if self.cfg.steps is None:
            self.total_steps = self.cfg.epochs * per_epoch
        for attribute in ("optimization", "optimizer"):  # of an earlier fit
            vars(self).pop(attribute, None)
        self.loaded = None

    def configure_model(self) -> None:
        """Split the parameters over the devices, for ModelParallelStrategy. The parameters of a layer form a group."""
        if self._trainer is None:  # loaded from a checkpoint
            return
        if not isinstance(self.trainer.strategy, ModelParallelStrategy) or isinstance(self.model, FSDPModule):
            return
        mesh = self.trainer.strategy.device_mesh["data_parallel"]
        for part in (*self.model.layers, self.model):  # encodings, which are called by other names, with the rest
            fully_shard(part, mesh=mesh)
        register_fsdp_forward_method(self.model, "answers")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        schedule = self.optimization.schedule(self.optimizer)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        self.losses = [
            loss.to(self.device) for loss in self.losses
        ]  # a checkpoint is loaded before the module is moved
        if self.loaded is not None:
            load_exactly(self.optimizer, self.loaded)
            self.loaded = None
        self.constrain()  # states of earlier versions were saved before the last constrain
        self.captured = CapturedStep(self, check=self.cfg.trainer.graph == "auto") if self.graph else None

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.step = batches_done(self.trainer)
        self.steps_before = self.trainer.global_step
        if self.step % self.batches_per_epoch == 0:
            self.losses.clear()
        self.accumulated = self._accumulation(batch_idx)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        of_rank = () if self.ranks == 1 else ("rank", self.global_rank)  # its sequences have masks of their own
        seed_all(derive_seed(self.seed, "step", self.step, *of_rank), batch.tokens.device)
        self.model.encodings.advance(self.updates / self.total_steps)
        learning_rate = self.cfg.optimizer.lr * self.optimization.factor(self.updates)
        if self.captured is None:
            loss, logits = self.evaluate_batch(batch)
        else:
            loss, logits, norm = self._replay_step(batch)
        mean, loss = loss.detach(), self._weight_answers(loss, logits, batch)
        if self.evaluated != self.step:  # an optimizer such as LBFGS evaluates a batch many times in a step
            self.evaluated = self.step
            self.losses.append(self._mean_over_ranks(mean, batch))
            if self.logging_due:
                self.metrics = batch_metrics(logits, batch, self.dataset.roles, self.ranks)
                self.metrics["learning_rate"] = learning_rate
                if self.captured is not None:
                    self.metrics["gradient_norm"] = norm.item()
                if self._trainer is not None:
                    self._log("train", self.metrics)
        return loss

    def on_train_end(self) -> None:
        if self.captured is not None and self.captured.given_up:
            _, self.graph_reason = decide_graph(self.cfg, self.captured.given_up)
        self.captured = None  # Lightning moves the parameters away from where a graph would look for them

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.constrain()

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        limit = None if self.clips_values else self.clip
        if limit is not None or self.logging_due:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)
            if self.logging_due and "gradient_norm" not in self.metrics:  # of the step's first evaluation
                self.metrics["gradient_norm"] = norm.item()
                if self._trainer is not None:
                    self._log("train", {"gradient_norm": self.metrics["gradient_norm"]})
        if self.clips_values:
            assert self.clip is not None
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.clip)

    def on_validation_epoch_start(self) -> None:
        self.measured = MetricSums(self.dataset)

    def on_test_epoch_start(self) -> None:
        self.measured = MetricSums(self.dataset)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure(batch, "validation", batch_idx)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure(batch, "test", batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._log("validation", self.measured.metrics())

    def on_test_epoch_end(self) -> None:
        self._log("test", self.measured.metrics())

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the most likely answer at every slot, [B, S]; meaningless at slots without a question."""
        batch = seeded_batch(batch, "test", batch_idx)
        likeliest: Tensor = self.model(batch.tokens, batch.layout).argmax(-1)
        return likeliest

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = torch.stack(self.losses) if self.losses else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        finish_epoch(checkpoint)
        losses = checkpoint.get("losses")
        self.losses = [] if losses is None else list(losses)
        self.loaded = next(iter(checkpoint.get("optimizer_states", ())), None)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Load what a checkpoint has of the module and its optimizer.

        Raises:
            ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError: the checkpoint is of another
                training.
        """
        self.load_state_dict(checkpoint["state_dict"])
        (state,) = checkpoint["optimizer_states"]
        self.optimizer.load_state_dict(state)
        load_exactly(self.optimizer, state)
        self.on_load_checkpoint(checkpoint)
        self.step = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]
        self.accumulated_before = self.step - checkpoint["global_step"]

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's other arguments by name only
        cls, checkpoint_path: Any, map_location: Any = None, **kwargs: Any
    ) -> Self:
        """Return the module of a checkpoint that Lightning or `SafeTensorsIO` wrote.

        The settings in a checkpoint name classes that are instantiated: load only checkpoints that you trust.

        Args:
            kwargs: arguments of the constructor, which replace those in the checkpoint.
        """
        if not is_safetensors(checkpoint_path):
            return super().load_from_checkpoint(checkpoint_path, map_location, **kwargs)
        checkpoint = SafeTensorsIO().load_checkpoint(Path(checkpoint_path), map_location)
        training = cls(**checkpoint["hyper_parameters"] | kwargs)
        training.load_state_dict(checkpoint["state_dict"])
        return training

    # -- the parts of a step -------------------------------------------------------------------------------------------

    @property
    def logging_due(self) -> bool:
        """Whether the metrics of the batch are logged: every `log_every` steps and at the end of an epoch; 0: never.

        Of batches whose gradients are accumulated it is the last.
        """
        if not self.log_every:
            return False
        trainer, batch = self._trainer, self.step % self.batches_per_epoch + 1
        if batch == self.batches_per_epoch or (trainer is not None and trainer.is_last_batch):
            return True
        if trainer is None:
            return (self.step + 1) % self.log_every == 0
        return batch % trainer.accumulate_grad_batches == 0 and (self.steps_before + 1) % self.log_every == 0

    def _batches(self) -> int:
        """Return the number of batches of all training sequences."""
        batch_size: int = self.cfg.trainer.batch_size
        return -(-self.dataset.size("train") // batch_size)

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the logits of its answers; see `answer_logits`."""
        layout = replace(batch.layout, seed=derive_seed(self.seed, "positions", self.step))
        logits, targets = answer_logits(self.model, replace(batch, layout=layout))
        return cross_entropy(logits, targets), logits

    def choose_graph(self, device: torch.device) -> None:
        """Decide whether steps are replayed as a CUDA graph.

        Raises:
            ValueError: trainer.graph is true, and steps cannot be replayed.
        """
        of_step = refusal_reason(self.model, self.optimization.optimizer_class, device)
        of_trainer = None if self._trainer is None else prevents_graph(self._trainer)
        self.graph, self.graph_reason = decide_graph(self.cfg, of_step, of_trainer)
        self.automatic_optimization = not self.graph

    def constrain(self) -> None:
        """Move the encodings' parameters back into their range."""
        self.model.encodings.constrain()

    def _replay_step(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Run a whole step, optimizer and all, as a graph; return loss, logits and the gradient's norm."""
        assert self.captured is not None
        if self._trainer is None:
            loss, logits, norm = self.captured(batch)
        else:
            optimizer: Any = self.optimizers()
            schedule: Any = self.lr_schedulers()
            optimizer._on_before_step()  # Lightning counts steps that it does not take itself
            loss, logits, norm = self.captured(batch)
            optimizer._on_after_step()
            schedule.step()
        return loss.clone(), logits, norm  # a graph writes the next loss to the same memory

    @property
    def ranks(self) -> int:
        """The number of devices that a batch is split over."""
        return 1 if self._trainer is None else self.trainer.world_size

    def _mean_over_ranks(self, mean: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of the answers of all ranks, from that of this rank."""
        if self.ranks == 1:
            return mean
        mine = (batch.targets != IGNORE).sum().float()
        summed, count = self._sum_over_ranks(torch.stack([torch.where(mine > 0, mean * mine, 0.0), mine]))
        overall: Tensor = summed / count
        return overall

    def _sum_over_ranks(self, of_rank: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        total = self.trainer.strategy.reduce(of_rank, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def _weight_answers(self, loss: Tensor, logits: Tensor, batch: Batch) -> Tensor:
        """Return what is trained on, so that each answer has the same weight in a step.

        Lightning averages gradients over ranks and over the batches that are accumulated; these may have more or fewer
        answers.
        """
        if self.accumulated is not None:
            count = torch.tensor(float(self.accumulated[1]), device=loss.device)
            parts = self.ranks * self.trainer.accumulate_grad_batches
        elif self.ranks > 1:
            count, parts = self._sum_over_ranks((batch.targets != IGNORE).sum().float()), self.ranks
        else:
            return loss
        return slot_losses(logits, batch.targets).sum() / count * parts

    def _accumulation(self, batch: int) -> tuple[int, int] | None:
        """Return the first of the batches whose gradients are accumulated, and how many answers they have.

        Args:
            batch: the number of the current batch in its epoch, from 0.

        Returns:
            The number of that batch, and the number of answers; None: each batch is a step, or
            batches are not those of `Sequences`.
        """
        trainer: Any = self.trainer
        together, loader = trainer.accumulate_grad_batches, trainer.train_dataloader
        if together == 1 or not isinstance(loader, Loader):
            return None
        start = batch - batch % together
        first = start if loader.order.fixed else self.step - batch + start
        if self.accumulated is not None and self.accumulated[0] == first and batch > start:
            return self.accumulated
        return first, loader.answers(first, min(together, self.batches_per_epoch - start))

    def _measure(self, batch: Batch, split: str, number: int) -> None:
        batch = seeded_batch(batch, split, number)
        logits, _ = answer_logits(self.model, batch)
        self.measured.add(logits, batch)

    def _log(self, split: str, metrics: dict[str, float]) -> None:
        # batch_size: Lightning would look for it in the batch; a value is logged once for all batches
        prefixed_metrics = {f"{split}/{name}": value for name, value in metrics.items()}
        is_distributed = split != "train" and self.trainer.world_size > 1
        self.log_dict(prefixed_metrics, logger=self.to_loggers, batch_size=1, sync_dist=is_distributed)
