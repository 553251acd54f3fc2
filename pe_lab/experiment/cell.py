"""A cell: the parts that a config names, checked against each other, and the identity of the result."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from pe_lab.attention import IMPLEMENTATIONS, Choice, attend, choose
from pe_lab.attention.dropout import Dropout
from pe_lab.config import head_dim, resolve_config, without_study_settings
from pe_lab.config.trainer_arguments import batches_of_epoch, changing_arguments, devices_of, require_split
from pe_lab.data.base import Dataset
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import MAX_LENGTH, prefix_errors
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack
from pe_lab.encodings.terms import Terms
from pe_lab.experiment import trainer
from pe_lab.experiment.identity import identity_options
from pe_lab.experiment.measurement_requests import check_requests, requested_measurements
from pe_lab.experiment.memory_errors import explain_memory_errors
from pe_lab.experiment.own_classes import naming_own_encoding, naming_settings
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import Run
from pe_lab.model.parametrization import MUP, STANDARD
from pe_lab.model.transformer import Transformer
from pe_lab.system.termination import no_exit
from pe_lab.tracking.checkpoint_info import CheckpointInfo
from pe_lab.training.graph import decide_graph, refusal_reason
from pe_lab.training.metrics import metric_directions
from pe_lab.training.optimization import Optimization

if TYPE_CHECKING:
    from pe_lab.training.data import Sequences
    from pe_lab.training.module import Training


def cell_name(cfg: DictConfig, target: int) -> str:
    """Return a cell's name for people: encoding, task unless it is `structured`, depth, epochs or steps, seed."""
    task = "" if cfg.data.name == "structured" else f"{cfg.data.name}-"
    length = f"e{target}" if cfg.steps is None else f"{target}steps"
    return f"{cfg.pe.name}-{task}d{cfg.model.depth}-{length}-s{cfg.seed}"


def grid_of_steps(most: int, first: int, per_doubling: int) -> list[int]:
    """Return first * 2^(k / per_doubling), k = 0, 1, 2, ..., rounded to whole steps, up to a number of steps."""
    last = math.ceil(per_doubling * math.log2(max(1.0, most / first)))
    steps = dict.fromkeys(round(first * 2 ** (k / per_doubling)) for k in range(last + 1))
    return [step for step in steps if step <= most]


@dataclass(frozen=True, eq=False)
class Cell:
    """One result: an encoding at a depth, trained for a number of epochs or of steps, on a task, with a seed.

    It has no sequences and no model; making one takes some 20 ms.

    Attributes:
        cfg: the composed config, with nothing left to interpolate and without settings of a study.
        device: the device that trains the cell.
        dataset: the dataset, for sizes and checks; code that needs sequences makes another one, so that they are freed.
        encoding: a callable that makes the encoding for given sizes.
        encoding_class: the class of this encoding.
        implementation: the name of the attention implementation that will run.
        attention_reason: the reason why it is that implementation, for the record.
        phased: whether the encoding changes in the course of the training.
        graph: whether its steps are captured, or, after a check of trainer.graph=auto, run with the same numbers.
    """

    cfg: DictConfig
    device: torch.device
    dataset: Dataset
    encoding: Callable[[Sizes], PositionalEncoding]
    encoding_class: type[PositionalEncoding]
    implementation: str
    attention_reason: str
    phased: bool
    graph: bool

    @classmethod
    @no_exit()
    def from_config(cls, cfg: DictConfig) -> "Cell":
        """Make the cell that a config describes.

        Args:
            cfg: the config, composed, and tested by config.check_config.

        Raises:
            UnfitError: the encoding is not made for the task.
            NoMemoryError: there is no memory for one encoding.
            ValueError: the parts do not fit each other otherwise.
        """
        cfg = without_study_settings(cfg)
        with naming_settings(cfg):
            return cls._built(cfg)

    @classmethod
    def _built(cls, cfg: DictConfig) -> "Cell":
        device = torch.device(_resolve_device(cfg.trainer.device))
        dataset = _make_dataset(cfg)
        if cfg.trainer.batch_size > dataset.size("train"):
            raise ValueError(
                f"trainer.batch_size must be at most the number of training sequences, "
                f"{dataset.size('train')} in {cfg.data.name}, got {cfg.trainer.batch_size}"
            )
        if cfg.trainer.fresh:
            dataset.with_epoch(1)  # refuses a fixed set
        if dataset.task.length > MAX_LENGTH:
            raise ValueError(
                f"data={cfg.data.name} must have sequences of at most {MAX_LENGTH} tokens, got {dataset.task.length}"
            )
        sizes = dataset.task.sizes(cfg.model.width, cfg.model.num_heads, cfg.model.head_dim)
        encoding = _partial_of_group(cfg, "pe", sizes)
        with explain_memory_errors(cfg, dataset.task.length):
            with prefix_errors("pe"), naming_own_encoding(cfg):
                stack = Stack.build(encoding, sizes, cfg.model.depth, whole=False)
            with naming_own_encoding(cfg):
                attention = _choose_attention(cfg, dataset, stack.to(device))
        first = stack.first
        devices = devices_of(cfg.trainer)
        require_split(dataset.size("train"), cfg.trainer.batch_size, devices)
        if device.type == "cuda" and devices > (there := torch.cuda.device_count()):
            raise ValueError(f"trainer.devices must be at most the number of GPUs, {there}, got {devices}")
        optimization = Optimization(cfg.optimizer, total_steps=1)  # refuses settings that its class does not take
        if cfg.model.parametrization == MUP:
            optimization.require_mup()
        check_requests(cfg, dataset, encoding)
        chosen = (attention.name, attention.reason)
        cell = cls(cfg, device, dataset, encoding, type(first), *chosen, first.phased, graph=False)
        if cell.batches_per_epoch < 1:
            raise ValueError(f"trainer.limit_train_batches must leave a batch, got {cfg.trainer.limit_train_batches}")
        # a device or an optimizer without graphs is refused when the training is made
        of_step = None if cfg.trainer.graph is True else refusal_reason(first, optimization.optimizer_class, device)
        graph, _ = decide_graph(cfg, trainer.prevents_graph(cfg, cell.trainer_arguments), of_step)
        return replace(cell, graph=graph)

    @property
    def unit(self) -> Literal["epochs", "steps"]:
        """What the length of its training is counted in."""
        return "epochs" if self.cfg.steps is None else "steps"

    @property
    def target(self) -> int:
        """The number of epochs or steps at which it is a checkpoint of its run."""
        return int(self.cfg[self.unit])

    @property
    def devices(self) -> int:
        """The number of devices that train it together."""
        return devices_of(self.cfg.trainer)

    @cached_property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch of the training."""
        return batches_of_epoch(self.cfg.trainer, -(-self.dataset.size("train") // self.cfg.trainer.batch_size))

    @property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps in an epoch: batches whose gradients are accumulated are one step."""
        return -(-self.batches_per_epoch // (self.cfg.trainer.accumulate_grad_batches or 1))

    def steps_to(self, target: int) -> int:
        """Return the number of steps to a checkpoint of its run."""
        return target * (self.steps_per_epoch if self.unit == "epochs" else 1)

    def sequences_in(self, steps: int) -> int:
        """Return the number of sequences of the first steps. A sequence counts each time it is used."""
        settings, size = self.cfg.trainer, self.dataset.size("train")
        epochs, rest = divmod(steps, self.steps_per_epoch)
        batches = epochs * self.batches_per_epoch + rest * (settings.accumulate_grad_batches or 1)
        # a limited epoch goes on where the one before ended, and overfit_batches starts again
        in_pass = -(-size // settings.batch_size) if settings.overfit_batches is None else self.batches_per_epoch
        passes, rest = divmod(batches, in_pass)
        return int(passes * min(size, in_pass * settings.batch_size) + rest * settings.batch_size)

    def epochs_to(self, target: int) -> float:
        """Return the number of epochs to a checkpoint of its run; an epoch has the batches that its limit leaves."""
        return target / (self.steps_per_epoch if self.unit == "steps" else 1)

    def lengths(self) -> dict[str, float]:
        """Return the columns of tables that say how long it is trained, where they differ from those of its config."""
        return {} if self.unit == "epochs" else {"steps": self.target, "epochs": self.epochs_to(self.target)}

    @cached_property
    def requests(self) -> list[dict[str, Any]]:
        """The requested measurements besides the test, each described by everything that determines it."""
        return requested_measurements(self.cfg)

    @property
    def run(self) -> Run:
        """The training run in the ledger, whether it is there or not. Nothing is written."""
        return Ledger(self.cfg.ledger).find(self.identity)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What determines the training. Its hash is the run's name.

        Raises:
            ValueError: the source of a class that is not of this package cannot be read.
        """
        cfg = self.cfg
        identity = {
            "pe": identity_options(cfg.pe, self.encoding_class),
            "data": identity_options(cfg.data, type(self.dataset)) | self.dataset.content(),
            "model": self._model_options(),
            "optimizer": identity_options(cfg.optimizer, Optimization),
            "batch_size": cfg.trainer.batch_size,
            "clip": cfg.trainer.clip,
            "seed": cfg.seed,
            "device": self.device.type,
            "attention": self.implementation,
            "precision": cfg.trainer.precision,
        }
        module = IMPLEMENTATIONS[self.implementation]
        revision = module.low_precision_revision if cfg.trainer.precision == "bf16-mixed" else module.revision
        if revision > 1:
            identity["attention_revision"] = revision
        if self.graph:  # learning rates are rounded to float32
            identity["graph"] = True
        if self.depends_on_end:  # each length of training is a run of its own
            identity[self.unit] = self.target
        if cfg.trainer.fresh:
            identity["fresh"] = True
        callbacks = trainer.callbacks_identity(cfg)
        if arguments := changing_arguments(cfg.trainer, self.device.type == "cuda", bool(callbacks)):
            identity["trainer"] = arguments
        if callbacks:
            identity["callbacks"] = callbacks
        if self.unit == "steps":  # its checkpoints are numbered otherwise than those of a run in epochs
            identity["unit"] = "steps"
            identity["solve"] = resolve_config(cfg.solve)  # where it is evaluated, and may end
        return identity

    @property
    def depends_on_end(self) -> bool:
        """Whether the steps of its training depend on when it ends."""
        return bool(self.cfg.optimizer.schedule != "constant" or self.phased)

    def _model_options(self) -> dict[str, Any]:
        """Return what determines the model; the base of `mup` only where it is used."""
        values = identity_options(self.cfg.model, Transformer)
        unused = ("base_width", "base_head_dim") if self.cfg.model.parametrization == STANDARD else ()
        return {key: value for key, value in values.items() if key not in (*unused, "checkpointing")}  # the same bits

    def name(self, target: int | None = None) -> str:
        """Return a name for people: see `cell_name`.

        Args:
            target: the epochs or steps of another checkpoint of the same run; None: the cell's own.
        """
        return cell_name(self.cfg, target or self.target)

    def settings(self, target: int | None = None) -> dict[str, Any]:
        """Return the resolved config as plain data, with the length of another checkpoint of the same run if given."""
        return resolve_config(self.cfg) | ({self.unit: target} if target else {})

    def lightning_module(self) -> "Training":
        """Return the LightningModule of this cell, with its initial weights."""
        from pe_lab.training.module import Training  # loads Lightning, which takes seconds

        return Training(self.cfg, self.implementation)

    def data_module(self, dataset: Dataset | None = None) -> "Sequences":
        """Return the LightningDataModule of this cell.

        Args:
            dataset: the dataset of this cell, where it has been made already.
        """
        from pe_lab.training.data import Sequences  # loads Lightning

        return Sequences(self.cfg, dataset)

    def trainer_arguments(self) -> dict[str, Any]:
        """Return new arguments of a Lightning Trainer that trains this cell."""
        precision = "bf16-mixed" if self.cfg.trainer.precision == "bf16-mixed" else "32-true"
        length = (
            {"max_epochs": self.cfg.epochs} if self.unit == "epochs" else {"max_epochs": -1, "max_steps": self.target}
        )
        log_every = self.cfg.trainer.log_every
        return {
            "accelerator": self.device.type,
            "devices": 1,
            "precision": precision,
            "log_every_n_steps": log_every,
            **length,
            **trainer.keyword_arguments(self.cfg),
        }

    def make_dataset(self) -> Dataset:
        """Return a new dataset. Its sequences are made when they are first used."""
        return _make_dataset(self.cfg)

    def autocast(self) -> torch.autocast:
        """Return the precision context of training and evaluation."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cfg.trainer.precision == "bf16-mixed")

    def checkpoint_info(self, target: int) -> CheckpointInfo:
        """Return what loggers need to know of a checkpoint of this cell's run."""
        return CheckpointInfo(
            run=self.run.name,
            target=target,
            name=self.name(target),
            settings=self.settings(target),
            attention=self.implementation,
            ledger=Path(self.cfg.ledger),
            requested=target == self.target,
            best=metric_directions(self.dataset),
        )


def _make_dataset(cfg: DictConfig) -> Dataset:
    with prefix_errors("data"):  # an error about `length` is about the setting `data.length`
        dataset: Dataset = _partial_of_group(cfg, "data", seed=cfg.seed)(seed=cfg.seed)
    return dataset


def _partial_of_group(cfg: DictConfig, group: str, *args: Any, **named: Any) -> Callable[..., Any]:
    """Return what makes the object of a group when it is called with these arguments.

    Raises:
        ValueError: the class or function that the group names does not take its options.
    """
    factory, leaf = instantiate(cfg[group]), cfg[group]
    if not isinstance(factory, partial):
        raise ValueError(f"{group}._partial_ must be true, got {leaf.get('_partial_')}")
    try:
        inspect.signature(factory.func).bind(*args, *factory.args, **factory.keywords, **named)
    except TypeError as error:
        options = ", ".join(str(key) for key in leaf if str(key)[0] != "_")
        start = "; start from pe=none, which has name alone" if group == "pe" else ""
        raise ValueError(f"{group}._target_ must take the options {options}: {leaf._target_} {error}{start}") from None
    return factory


def _choose_attention(cfg: DictConfig, dataset: Dataset, stack: Stack) -> Choice:
    """Return the attention that will run; the terms on a short sequence, and the training length, decide.

    Args:
        stack: the encodings of one period of layers: all layers of a model run the same attention.
    """
    model, length, device = cfg.model, min(16, dataset.task.length), torch.device(_resolve_device(cfg.trainer.device))
    h = torch.zeros(1, length, model.width, device=device)
    short = torch.zeros(1, model.num_heads, length, head_dim(model), device=device)
    dropout = None
    if model.attention_dropout:
        dropout = Dropout(model.attention_dropout, torch.zeros((), dtype=torch.long, device=device))
    q = short.bfloat16() if cfg.trainer.precision == "bf16-mixed" else short
    if device.type == "cpu":  # where it matters how many queries there are
        q = q[:, :, :1].expand(-1, -1, dataset.task.length, -1)
    q = q.detach().requires_grad_()
    layers: list[tuple[Terms, Layout]] = []
    with torch.enable_grad():  # an implementation may compute the terms, but not their gradients
        _, positions = stack(h, dataset.task.example(length, device))
        for index in range(stack.depth):
            _, _, terms, layout = positions.layer(index, h)
            layers.append((terms, layout))
            if terms.carried is not None and index + 1 < stack.depth:  # the next layer needs its sums
                attend(short, short, short, terms, layout, "reference")
        chosen = [choose(cfg.attention.implementation, q, *layer, dropout) for layer in layers]
    for choice in chosen:  # the choice of the first layer if all can run it
        if not any(IMPLEMENTATIONS[choice.name].refusal_reason(q, *layer, dropout) for layer in layers):
            return choice
    return Choice("reference", "attention=auto; no other computes all layers")


def _resolve_device(device: str) -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device=cuda needs a CUDA device, and there is none; use trainer.device=cpu or auto")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
