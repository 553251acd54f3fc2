"""Name the setting whose class raised an exception, where a cell is built, trained or measured."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from pe_lab.system.raised_places import name_setting, named_setting, raised_in

PACKAGES = ("pe_lab", "lightning")  # packages of classes that no user has written


@contextmanager
def naming_settings(cfg: DictConfig) -> Iterator[None]:
    """Name in an exception within the block the setting that chose the class, as pe=mine; the exception stays.

    It is the setting whose class is in the file in which the exception was raised, or else those of users' classes.
    """
    try:
        yield
    except Exception as error:
        place, settings = raised_in(error, unnamed=True), _targets(cfg)
        files = {setting: getattr(sys.modules.get(module), "__file__", None) for setting, module in settings.items()}
        within = [setting for setting, file in files.items() if place is not None and file == place[0]]
        if not named_setting(error):
            name_setting(error, " ".join(within or _own(settings) or list(settings)[:2]))
            if raised_in(error) is None:  # its message says all
                error.__notes__.pop()
        raise


@contextmanager
def naming_own_encoding(cfg: DictConfig) -> Iterator[None]:
    """Begin the message of a ValueError within the block with the name of an encoding that a user has written."""
    try:
        yield
    except ValueError as error:
        if type(error) is ValueError and raised_in(error, unnamed=True) is None and (own := _own(_targets(cfg))[:1]):
            raise ValueError(f"{own[0]}: {error}") from error
        raise


def _targets(cfg: DictConfig) -> dict[str, str]:
    """Return the modules of the classes that settings choose: of pe and data, then of callbacks and probes."""
    targets = {f"{group}={cfg[group].name}": str(cfg[group].get("_target_")) for group in ("pe", "data")}
    for group in ("callbacks", "probe"):
        chosen: Any = cfg.get(group) or {}
        targets |= {f"{group}={name}": str(chosen[name].get("_target_")) for name in chosen}
    return {setting: target.rpartition(".")[0] for setting, target in targets.items()}


def _own(settings: dict[str, str]) -> list[str]:
    return [setting for setting, module in settings.items() if module.partition(".")[0] not in PACKAGES]
