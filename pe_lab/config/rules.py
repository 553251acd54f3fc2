"""The rules that the config alone decides."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pe_lab.config.schema import TYPED, Config, folder
from pe_lab.ranges import NAME, RANGES, require, require_pairs, shown
from pe_lab.system.plain import complaint


def check(cfg: DictConfig) -> None:
    """Test every rule that the config alone decides.

    Raises:
        ValueError: the first rule that is broken, in one line.
    """
    _check_keys(cfg)
    for setting in RANGES:
        missing = object()
        value = OmegaConf.select(cfg, setting, default=missing)
        if value is not missing:
            require(setting, _plain(value))
    for leaf in _within(cfg.pe, "pe"):
        for key, value in OmegaConf.select(cfg, leaf).items():
            if leaf != "pe" and f"pe.{key}" in RANGES:
                require(f"pe.{key}", _plain(value), where=f"{leaf}.{key}")
    model = cfg.model
    if model.width % model.num_heads:
        raise ValueError(
            f"model.width must be divisible by model.num_heads, got model.width={model.width}, "
            f"model.num_heads={model.num_heads}"
        )
    if "pairing" in cfg.pe:
        require_pairs(cfg.pe.name, model.width, model.num_heads)
    if found := complaint(_plain(cfg)):  # or nobody could read what is written of it
        raise ValueError(f"the config {found}")


def _plain(value: Any) -> Any:
    """A value without OmegaConf's types."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _within(leaf: DictConfig, path: str) -> Iterator[str]:
    """The path of a leaf, and those of the encodings within it."""
    yield path
    for key, value in leaf.items():
        if OmegaConf.is_dict(value) and f"pe.{key}" not in RANGES:
            yield from _within(value, f"{path}.{key}")


def _check_keys(cfg: DictConfig) -> None:
    """Every setting is there, and none that nothing reads: Hydra lets both pass with ~ and +."""
    for setting in OmegaConf.missing_keys(cfg):
        raise ValueError(f"{setting} must be set, got nothing")
    known: dict[str, set[str]] = {"": {field.name for field in fields(Config)}}
    _require_known(cfg, "", known[""])
    for group in ("pe", "data", "optimizer", "logger", "probe", *dict(TYPED)):
        if not OmegaConf.is_dict(cfg[group]):
            raise ValueError(f"{group} must have settings, got {shown(_plain(cfg[group]))}")
    for group, typed in TYPED:
        known[group] = {field.name for field in fields(typed)}
    for leaf in [*_within(cfg.pe, "pe"), "data", "optimizer", "logger"]:
        group, given = leaf.partition(".")[0], OmegaConf.select(cfg, leaf)
        if not NAME.holds(given.get("name")):
            raise ValueError(f"{leaf}.name must be {NAME.words}, got {shown(_plain(given.get('name')))}")
        own = folder() / group / f"{given.name}.yaml"
        if own.exists():
            written = _written(own, own.stat().st_mtime_ns)
            # what it takes from other files: "/pe@encoding: rope" is the setting "encoding"
            taken = {
                str(group).partition("@")[2]
                for entry in written.get("defaults", [])
                if OmegaConf.is_dict(entry)
                for group in entry
            }
            for key in taken:
                if not OmegaConf.is_dict(given.get(key)):
                    raise ValueError(f"{leaf}.{key} must be another {group}, got {shown(_plain(given.get(key)))}")
            for key in ("_target_", "_partial_"):
                if given.get(key) != written.get(key):
                    raise ValueError(
                        f"{leaf}.{key} must be {written.get(key)} for {group}={given.name}, got "
                        f"{shown(_plain(given.get(key)))}: give a class of your own a name of its own"
                    )
            known[leaf] = ({str(key) for key in written} | taken) - {"defaults"}
    _check_probes(cfg.probe)
    for leaf, names in known.items():
        _require_known(OmegaConf.select(cfg, leaf) if leaf else cfg, leaf, names)


def _check_probes(probes: DictConfig) -> None:
    """Raise ValueError unless every probe has a class, and a probe of conf/probe that of its file."""
    for name, leaf in probes.items():
        target = leaf.get("_target_") if OmegaConf.is_dict(leaf) else None
        if not NAME.holds(name) or not isinstance(target, str) or name[0] == "_":
            raise ValueError(
                f"probe.{name} must be settings with a _target_, got {shown(_plain(leaf))}: a file of conf/probe "
                f"begins with # @package probe.<name>"
            )
        own = folder() / "probe" / f"{name}.yaml"
        if own.exists() and target != _written(own, own.stat().st_mtime_ns).get("_target_"):
            raise ValueError(
                f"probe.{name}._target_ must be {_written(own, own.stat().st_mtime_ns).get('_target_')}, got "
                f"{shown(target)}: give a class of your own a name of its own"
            )


def _require_known(given: DictConfig, leaf: str, names: set[str]) -> None:
    """Raises ValueError unless the settings of a leaf are these."""
    for key in given:
        if key not in names:
            settings = ", ".join(sorted(name for name in names if name[0] != "_"))
            raise ValueError(f"{leaf or 'the config'} has the settings {settings}: got {key}")
    for key in sorted(names):
        if key not in given:
            raise ValueError(f"{leaf}{'.' if leaf else ''}{key} must be set, got nothing")


@cache
def _written(file: Path, changed: int) -> DictConfig:
    """A YAML file as it was at that time: the cells of a sweep share a few."""
    return OmegaConf.load(file)
