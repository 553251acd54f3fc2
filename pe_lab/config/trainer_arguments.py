"""Which arguments of lightning.Trainer a run of the lab takes, and which of them change numbers.

Nothing is imported from Lightning.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pe_lab.encodings.options import BOOLEAN, POSITIVE, Range, choice_range, integers, is_integer, is_number, is_text

STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")
NO_VALUES: tuple[Any, ...] = ()
DECIDED_ARGUMENTS: dict[
    str, tuple[tuple[Any, ...], str]
] = {  # arguments that are left to others: what may be given, and why
    "barebones": (NO_VALUES, "the lab needs its callbacks"),
    "callbacks": (NO_VALUES, "callbacks=... adds some"),
    "enable_autolog_hparams": (NO_VALUES, "loggers get all settings"),
    "enable_checkpointing": (NO_VALUES, "callbacks=model_checkpoint writes some beside those of the ledger"),
    "fast_dev_run": (NO_VALUES, "steps=5 is a short run"),
    "limit_predict_batches": (NO_VALUES, "nothing is predicted"),
    "limit_test_batches": (NO_VALUES, "the test is the whole split"),
    "logger": (NO_VALUES, "logger=... chooses it"),
    "min_epochs": (NO_VALUES, "callbacks that end a training have a patience of their own"),
    "min_steps": (NO_VALUES, "callbacks that end a training have a patience of their own"),
    "model_registry": (NO_VALUES, "there is none"),
    "num_nodes": ((1,), "a run is trained on one machine, and cell.lightning_module() by any Trainer"),
    "plugins": (NO_VALUES, "the lab writes its own checkpoints, and trainer.precision chooses the precision"),
    "sync_batchnorm": (NO_VALUES, "there is no batch norm"),
    "use_distributed_sampler": (NO_VALUES, "batches are split by the lab"),
}
# names that Lightning has for settings of the lab
ALIASES: dict[str, tuple[str, Range]] = {
    "accelerator": ("trainer.device", choice_range("auto", "cpu", "cuda", "gpu")),
    "gradient_clip_val": ("trainer.clip", POSITIVE),
    "log_every_n_steps": ("trainer.log_every", integers(1)),
    "max_epochs": ("epochs", integers(1)),
    "max_steps": ("steps", integers(1)),
}


def devices_of(trainer: DictConfig) -> int:
    """Return the number of devices that a trainer trains on together; null is 1."""
    return int(trainer.get("devices") or 1)


def _batches(fewest: int) -> Range:
    return Range(
        f"a number of batches, at least {fewest}, or a share in {'(' if fewest else '['}0, 1] such as 0.5",
        lambda x: (is_integer(x) and x >= fewest) or (isinstance(x, float) and (0 < x <= 1 or x == fewest == 0)),
    )


def _is_one_type_of(values: tuple[Any, ...], value: Any) -> bool:
    return value in values and not isinstance(value, bool)


def _text_or_target(words: str) -> Range:
    return Range(
        f"{words}, or settings with a _target_", lambda x: is_text(x) or (isinstance(x, dict) and "_target_" in x)
    )


TAKEN_ARGUMENTS: dict[str, Range] = {
    "accumulate_grad_batches": integers(1),
    "benchmark": BOOLEAN,
    "check_val_every_n_epoch": integers(1),
    "default_root_dir": Range("the path of a folder", is_text),
    "detect_anomaly": BOOLEAN,
    "deterministic": Range("true, false or warn", lambda x: isinstance(x, bool) or x == "warn"),
    "devices": integers(1),
    "enable_model_summary": BOOLEAN,
    "enable_progress_bar": BOOLEAN,
    "gradient_clip_algorithm": choice_range("norm", "value"),
    "inference_mode": BOOLEAN,
    "limit_train_batches": _batches(1),
    "limit_val_batches": _batches(0),
    "max_time": Range("a time as 00:01:30:00, or {minutes: 90}", lambda x: is_text(x) or isinstance(x, dict)),
    "num_sanity_val_steps": Range("an integer of at least -1", lambda x: is_integer(x) and x >= -1),
    "overfit_batches": _batches(1),
    "profiler": _text_or_target("simple, advanced or pytorch"),
    "reload_dataloaders_every_n_epochs": integers(0),
    "strategy": choice_range(*STRATEGIES),
    "val_check_interval": Range(
        "a number of batches, at least 1, or a share in (0, 1] such as 0.5",
        lambda x: is_number(x) and (0 < x <= 1 if isinstance(x, float) else x >= 1),
    ),
}
# arguments that change numbers, with the values that do not
NEUTRAL_ARGUMENTS: dict[str, Any] = {
    "accumulate_grad_batches": 1,
    "devices": 1,
    "gradient_clip_algorithm": "norm",
    "limit_train_batches": 1.0,
    "overfit_batches": None,
}
ON_GPU = {"benchmark": False, "deterministic": False}  # likewise on a GPU
# arguments of the validation, which callbacks read and may end a training by
VALIDATION_ARGUMENTS = {
    "check_val_every_n_epoch": 1,
    "inference_mode": True,
    "limit_val_batches": 1.0,
    "num_sanity_val_steps": 0,
    "val_check_interval": 1.0,
}
ARGUMENT_NAMES = sorted(
    {**TAKEN_ARGUMENTS, **DECIDED_ARGUMENTS, **ALIASES}
)  # the names of all arguments but `precision`, which the lab has too


def argument_ranges() -> dict[str, Range]:
    """Return the ranges of all arguments of lightning.Trainer, by name."""
    allowed = TAKEN_ARGUMENTS | {name: accepted for name, (_, accepted) in ALIASES.items()}
    for name, (values, why) in DECIDED_ARGUMENTS.items():
        words = f"left out{''.join(f' or {value}' for value in values)}: {why}"
        allowed[name] = Range(words, partial(_is_one_type_of, values))
    return {name: replace(allowed[name], optional=True) for name in ARGUMENT_NAMES}


def given_arguments(trainer: DictConfig) -> dict[str, Any]:
    """Return the arguments of lightning.Trainer that are given, as plain data."""
    plain: Any = OmegaConf.to_container(trainer, resolve=True)
    options = {name: plain[name] for name in TAKEN_ARGUMENTS if plain.get(name) is not None}
    return options | ({"gradient_clip_val": plain["clip"]} if "gradient_clip_algorithm" in options else {})


def changing_arguments(trainer: DictConfig, gpu: bool, watched: bool) -> dict[str, Any]:
    """Return the arguments of lightning.Trainer that change the numbers of a cell.

    Args:
        watched: whether the cell has callbacks, which may change its training.
    """
    neutral = NEUTRAL_ARGUMENTS | (ON_GPU if gpu else {}) | (VALIDATION_ARGUMENTS if watched else {})
    options = given_arguments(trainer)
    changes = {name: options[name] for name, usual in neutral.items() if name in options and options[name] != usual}
    if "accumulate_grad_batches" in changes:
        changes["accumulation"] = 2  # once each batch had the same weight, whatever the number of its answers
    return changes


def batches_of_epoch(trainer: DictConfig, batches: int) -> int:
    """Return how many of the batches of an epoch are trained on."""
    options = given_arguments(trainer)
    return limit_batches(batches, options.get("overfit_batches", options.get("limit_train_batches", 1.0)))


def limit_batches(batches: int, limit: float) -> int:
    """Return the number of batches under a limit of Lightning's: a number of them, or a share."""
    return int(batches * limit) if isinstance(limit, float) else min(batches, limit)


def require_split(size: int, batch_size: int, devices: int) -> None:
    """Raise ValueError unless every batch has a sequence for each device.

    Args:
        size: the number of training sequences.
        batch_size: the number of sequences in a batch, over all devices together.
    """
    smallest = min(batch_size, size % batch_size or batch_size)
    if smallest < devices:
        raise ValueError(
            f"trainer.batch_size must leave no batch smaller than the number of devices, {devices}, got "
            f"{batch_size}, of {size} training sequences: the last batch has {smallest}"
        )


def check_trainer(cfg: DictConfig) -> None:
    """Check that arguments of lightning.Trainer fit each other and the settings of the lab.

    Raises:
        ValueError: an argument does not fit, in one line.
    """
    trainer = cfg.trainer
    for name in [] if cfg.callbacks else VALIDATION_ARGUMENTS:
        if trainer[name] is not None:
            raise ValueError(
                f"trainer.{name} needs callbacks, which read Lightning's validation, as callbacks=early_stopping: got "
                f"none"
            )
    if trainer._target_ != "lightning.Trainer":
        raise ValueError(
            f"trainer._target_ must be lightning.Trainer, got {trainer._target_}: "
            f"cell.lightning_module() trains with any Trainer"
        )
    if trainer.gradient_clip_algorithm is not None and trainer.clip is None:
        raise ValueError(
            f"trainer.gradient_clip_algorithm={trainer.gradient_clip_algorithm} needs trainer.gradient_clip_val, "
            f"got none"
        )
    devices = devices_of(trainer)
    if devices == 1 and trainer.strategy not in (None, "auto"):
        raise ValueError(f"trainer.strategy={trainer.strategy} needs trainer.devices=2 or more, got {devices}")
    if devices > 1 and trainer.overfit_batches is not None:
        raise ValueError(f"trainer.overfit_batches must be null with several devices, got {trainer.overfit_batches}")
    if None not in (trainer.limit_train_batches, trainer.overfit_batches):
        raise ValueError(
            f"trainer.limit_train_batches must be null beside trainer.overfit_batches, "
            f"got {trainer.limit_train_batches}"
        )
