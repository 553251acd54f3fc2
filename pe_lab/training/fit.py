"""Check that a Trainer trains a cell as the cell's settings say."""

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from omegaconf import DictConfig

from pe_lab.config import resolve_config
from pe_lab.training.data import Sequences

PRECISIONS = ("32-true", "bf16-mixed")
WITHIN_STEPS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")


def check_fit(trainer: Any, cfg: DictConfig, per_epoch: int, phased: bool) -> None:
    """Raise ValueError, in one line, unless a Trainer can honour the settings of a cell beside its own arguments.

    Args:
        trainer: a lightning.Trainer, which sets its settings by name.
        per_epoch: the number of optimizer steps of an epoch.
        phased: whether the encoding changes in the course of the training.
    """
    settings, precision = cfg.trainer, str(trainer.precision)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got Trainer(precision={precision!r})")
    if settings.precision == "bf16-mixed" != precision:
        raise ValueError(
            f"precision must be that of trainer.precision=bf16-mixed, got Trainer(precision={precision!r})"
        )
    device = trainer.strategy.root_device.type
    if settings.device not in ("auto", device):
        raise ValueError(f"accelerator must be that of trainer.device={settings.device}, got a Trainer on {device}")
    if settings.clip is not None and trainer.gradient_clip_val not in (None, settings.clip):
        raise ValueError(
            f"gradient_clip_val must be that of trainer.clip={settings.clip:g} or none, got "
            f"Trainer(gradient_clip_val={trainer.gradient_clip_val:g})"
        )
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, Sequences) and resolve_config(data.cfg) != resolve_config(cfg):
        raise ValueError("the settings of Sequences must be those of the module that is trained on them, got others")
    if trainer.world_size > 1 and trainer.overfit_batches > 0:
        raise ValueError(f"overfit_batches must be 0 with several devices, got {trainer.overfit_batches:g}")
    _check_callbacks(trainer, cfg, phased)
    if cfg.optimizer.schedule != "constant" or phased:
        _check_length(trainer, cfg, per_epoch)


def prevents_graph(trainer: Any) -> str | None:
    """Return why a lightning.Trainer cannot train with steps replayed as a CUDA graph; None: it can."""
    hooks = [
        f"{type(callback).__name__}.{name}"
        for callback in trainer.callbacks
        for name in WITHIN_STEPS
        if getattr(type(callback), name) != getattr(L.Callback, name)
    ]
    conditions = (
        ("several devices", trainer.world_size > 1),
        ("accumulate_grad_batches", trainer.accumulate_grad_batches > 1),
        ("gradient_clip_algorithm='value'", trainer.gradient_clip_algorithm == "value"),
        *((hook, True) for hook in hooks),
    )
    return next((f"cannot be used with {feature}" for feature, present in conditions if present), None)


def _check_callbacks(trainer: L.Trainer, cfg: DictConfig, phased: bool) -> None:
    """Raise ValueError if a callback of Lightning would change learning rates, or steps that they depend on."""
    settings = cfg.optimizer
    by_step = settings.schedule != "constant" or settings.warmup_steps > 0 or phased
    untyped: Any = trainer  # its type does not say that it has callbacks
    for callback in untyped.callbacks:
        if isinstance(callback, StochasticWeightAveraging):  # it does nothing to a schedule of steps but replace it
            raise ValueError(
                f"callbacks must leave the learning rate to optimizer.schedule={settings.schedule}, got "
                f"StochasticWeightAveraging"
            )
        accumulates = isinstance(callback, GradientAccumulationScheduler)
        if by_step and accumulates and callback.scheduling != {0: trainer.accumulate_grad_batches}:
            raise ValueError(
                f"callbacks must leave the number of steps to accumulate_grad_batches, on which "
                f"optimizer.schedule={settings.schedule}, optimizer.warmup_steps={settings.warmup_steps} and phases of "
                f"an encoding depend, got GradientAccumulationScheduler({callback.scheduling})"
            )


def _check_length(trainer: L.Trainer, cfg: DictConfig, per_epoch: int) -> None:
    """Raise ValueError if a training whose steps depend on its end would go on behind it."""
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    unit, end = ("epochs", cfg.epochs * per_epoch) if cfg.steps is None else ("steps", cfg.steps)
    if min(epochs * per_epoch, steps) > end:
        reason = (
            f"optimizer.schedule={cfg.optimizer.schedule}" if cfg.optimizer.schedule != "constant" else "its phases"
        )
        raise ValueError(
            f"max_{unit} must be at most {unit}={cfg[unit]}, on which {reason} depends, got "
            f"Trainer(max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps})"
        )
