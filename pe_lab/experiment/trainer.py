"""Make, check and identify the arguments of lightning.Trainer and the callbacks that a config names.

Lightning is imported where a config names some; that takes seconds.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

from hydra.utils import get_class, instantiate
from omegaconf import DictConfig

from pe_lab.config import resolve_config
from pe_lab.config.trainer_arguments import ON_GPU, given_arguments
from pe_lab.encodings.options import show_value
from pe_lab.experiment.identity import source_digests
from pe_lab.system.errors import in_one_line

# classes of Lightning that read a training and do not change it
READING_CLASSES = (
    *("DeviceStatsMonitor", "LearningRateMonitor", "ModelCheckpoint"),
    *("ModelSummary", "RichModelSummary", "RichProgressBar", "TQDMProgressBar"),
)


def keyword_arguments(cfg: DictConfig) -> dict[str, Any]:
    """Return the arguments of lightning.Trainer that a config gives, and its callbacks; what has a class is made.

    Raises:
        ValueError: one cannot be made.
    """
    options = {name: _instantiate(value, f"trainer.{name}") for name, value in given_arguments(cfg.trainer).items()}
    return options | ({"callbacks": _make_callbacks(cfg)} if _callbacks_of(cfg) else {})


def prevents_graph(cfg: DictConfig, of_cell: Callable[[], dict[str, Any]]) -> str | None:
    """Return why the Trainer of a config cannot train with steps replayed as a CUDA graph; None: it can.

    Args:
        of_cell: a function that returns the arguments of the cell's Trainer.

    Raises:
        ValueError: Lightning makes no Trainer of it, in one line.
    """
    options = given_arguments(cfg.trainer)
    if not (options or _callbacks_of(cfg)):
        return None
    import lightning as L

    from pe_lab.training import fit

    silence_lightning()
    tried = {name: value for name, value in of_cell().items() if name not in ON_GPU}  # they act on the whole process
    try:
        return fit.prevents_graph(L.Trainer(**tried | {"accelerator": "cpu", "logger": False}))
    except Exception as error:  # Lightning raises its own and others, for values and their combinations
        named = [f"trainer.{name}={show_value(value)}" for name, value in options.items()]
        named += [f"callbacks={list(names)}"] if (names := _callbacks_of(cfg)) else []
        raise ValueError(f"{', '.join(named)} must be what lightning.Trainer takes: {in_one_line(error)}") from None


def callbacks_identity(cfg: DictConfig) -> dict[str, Any]:
    """Return what determines the callbacks that may change a training: their settings, and where they come from.

    Raises:
        ValueError: the source of a class cannot be read.
    """
    identities = {}
    for name, settings in _callbacks_of(cfg).items():
        kind = get_class(settings["_target_"])
        if not (kind.__module__.partition(".")[0] == "lightning" and kind.__qualname__ in READING_CLASSES):
            identities[name] = {key: value for key, value in settings.items() if key[0] != "_"} | source_digests(kind)
    return identities


def _callbacks_of(cfg: DictConfig) -> dict[str, Any]:
    """Return the settings of callbacks by name; cells of earlier versions have no such group."""
    return resolve_config(cfg).get("callbacks") or {}


def _make_callbacks(cfg: DictConfig) -> list[Any]:
    import lightning as L

    callbacks = []
    for name, settings in _callbacks_of(cfg).items():
        callback = _instantiate(settings, f"callbacks.{name}")
        if not isinstance(callback, L.Callback):
            raise ValueError(
                f"callbacks.{name}._target_ must be derived from lightning.Callback, got {settings['_target_']}"
            )
        callbacks.append(callback)
    return callbacks


def _instantiate(settings: Any, name: str) -> Any:
    if not (isinstance(settings, dict) and "_target_" in settings):
        return settings
    try:
        return instantiate(settings)
    except Exception as error:  # the class may be written by anyone
        raise ValueError(f"{name} must be settings of {settings['_target_']}: {in_one_line(error)}") from None


def silence_lightning() -> None:
    """Keep Lightning from announcing devices and products, and from warning about its own code."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("callbacks", "profilers"):  # only the ones that the user asks for exist
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    for advice in (
        r".*isinstance\(treespec, LeafSpec\)",
        r".*does not have many workers",
        r".*smaller than the logging interval",
        r".*callbacks used to create the checkpoint",
    ):
        warnings.filterwarnings("ignore", message=advice)
