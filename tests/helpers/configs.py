"""Configs for tests that only read them: each is composed once per process, and a file alone where that is the same."""

from collections.abc import Collection
from copy import deepcopy
from functools import cache
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import config_folder, expand_overrides

NAMES = sorted(path.stem for path in (config_folder() / "pe").glob("*.yaml"))
# of each kind of term one encoding, for what depends on the kind alone
FEW = ("alibi", "cope", "cpe", "fire", "forgetting", "path", "rope", "shaw", "stick_breaking", "urpe", "window")

TINY_MODEL = ["model.depth=1", "model.width=16", "model.num_heads=2"]  # overrides for what is trained in tests
TINY = [*TINY_MODEL, "trainer.batch_size=512", "trainer.device=cpu"]  # 9 steps an epoch of `structured`


def slow_but_for(few: Collection[str] = FEW) -> list:
    """Return the names of all encodings for a test that is slow but for a few of them."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@cache
def compose_config(*overrides: str) -> DictConfig:
    """Return the config of these overrides. It is shared: what changes it raises ReadonlyConfigError."""
    config = expand_overrides(list(overrides), False)[0]
    OmegaConf.set_readonly(config, True)
    return config


@cache
def written(name: str) -> DictConfig:
    """Return the settings of an encoding as its own file states them."""
    settings = OmegaConf.load(config_folder() / "pe" / f"{name}.yaml")
    OmegaConf.set_readonly(settings, True)
    return settings


def includes_others(name: str) -> bool:
    """Return whether the file of an encoding takes settings of other files."""
    return bool({"defaults", "parts"} & written(name).keys())


def pe_settings(name: str, *overrides: str) -> DictConfig:
    """Return the settings of an encoding; tests/config compares those of every file with what is composed of it."""
    return compose_config(f"pe={name}", *overrides).pe if overrides or includes_others(name) else written(name)


def group_of(path: Path) -> DictConfig:
    """Return the settings that the file conf/<group>/<name>.yaml gives to its group."""
    group = path.parent.name
    return pe_settings(path.stem) if group == "pe" else compose_config(f"{group}={path.stem}")[group]


@cache
def pe_class(name: str) -> type:
    """Return the class of an encoding, without composing a config."""
    return hydra.utils.get_class(written(name)._target_)


@cache
def _expanded(multirun: bool, *overrides: str) -> tuple[DictConfig, ...]:
    return tuple(expand_overrides(list(overrides), multirun))


def in_ledger(ledger: Path | None, *overrides: str, multirun: bool = True) -> list[DictConfig]:
    """Return the configs of cells, as `expand` makes them, for the caller to change.

    A test that serves the same cells in several ledgers composes them once.

    Args:
        ledger: None: that of the overrides.
    """
    assert ledger is None or not any(override.startswith("ledger=") for override in overrides)
    configs = deepcopy(_expanded(multirun, *overrides))
    for config in configs if ledger is not None else ():
        config.ledger = str(ledger)
    return list(configs)
