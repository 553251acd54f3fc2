"""Compose the configs of cells from overrides, with Hydra."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import OverrideType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pe_lab.config import trainer_arguments
from pe_lab.config.config_folders import ConfigFolders, find_folders, register_search_path
from pe_lab.config.overrides import NULL_SWEEP, expand_checkpoint_override, parse_overrides
from pe_lab.config.parts import fill_parts
from pe_lab.config.rules import check_config
from pe_lab.config.schema import STUDY_SETTINGS, config_folder, require_setting
from pe_lab.encodings.options import show_value

Composed = tuple[DictConfig, Mapping[str, Any] | None]  # a config, and the parameters of its study's sweep
State = tuple[tuple[str, int, int, int], ...]  # the state of all files
SWEEPER_SETTINGS = ("workers", "tune.rates", "decide.baseline")  # mean nothing to a cell; others need one of them
# configs that Hydra composed, 0.5 MB each: it takes 0.13 s for one, and a cell of the same files then 0.03 s (one core
# of 2026). A study with more combinations of files composes each cell again: 640 cells of 64 encodings took 100 s with
# 64 configs, and 21 s with 128
CACHED_CONFIGS = 128
_composed: dict[tuple[tuple[str, ...], State], Composed] = {}  # composed configs, by overrides and state


def expand_overrides(overrides: list[str], multirun: bool) -> list[DictConfig]:
    """Return the configs that overrides ask for: one, or those of a sweep's jobs in the order of Hydra's sweeper.

    For programs that Hydra does not start.

    Raises:
        HydraException: the overrides do not fit the configuration.
        ValueError: a rule that the config alone decides is broken; a study without a sweep; a user's folder cannot be
            used.
    """
    overrides = expand_checkpoint_override(overrides)
    register_search_path()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        conf = find_folders()
        _require_new_names(conf)
        whole, params = _compose(_single_values(overrides, multirun, conf), conf, _fingerprint(conf))
        return compose_cells(params, overrides) if multirun else [complete_cell(whole, overrides, params)]


def single_valued_overrides(overrides: list[str], multirun: bool) -> list[str]:
    """Return the overrides that have one value; raises ValueError for others if there is no sweep."""
    conf = find_folders()
    _require_new_names(conf)
    return [override.input_line for override in _single_values(overrides, multirun, conf)]


def _single_values(overrides: list[str], multirun: bool, conf: ConfigFolders) -> list[Any]:
    """Return the overrides that have one value, parsed; raises ValueError as `single_valued_overrides`."""
    elements = parse_overrides(overrides, conf)
    for override in [] if multirun else elements:
        if override.is_sweep_override():
            line = show_value(override.input_line)
            raise ValueError(f"{line} is a sweep, which needs -m of pe-lab run; a list is written in [...]")
    return [override for override in elements if not override.is_sweep_override()]


def complete_cell(cfg: DictConfig, overrides: list[str], params: Mapping[str, Any] | None = None) -> DictConfig:
    """Complete and check the config that Hydra composed for one cell.

    Args:
        overrides: the overrides of the command line or of a job.
        params: the sweep parameters of the chosen study, which a single cell must not have; None: there are none, or
            another sweeper has used them.

    Raises:
        ValueError: as in `expand_overrides`.
    """
    conf = find_folders()
    if params:
        chosen = [line for line in overrides if line.startswith(("+study=", "study=", "search="))]
        raise ValueError(f"{' '.join(chosen) or ', '.join(params)} is a sweep: add -m, got no -m")
    keys = _settings_set_by(parse_overrides(overrides, conf))
    fill_parts(cfg.pe, "pe", conf, partial(_encoding_settings, state=_fingerprint(conf)))
    _use_lab_settings(cfg, keys)
    check_config(cfg, conf)
    for setting in SWEEPER_SETTINGS:
        value = OmegaConf.select(cfg, setting)
        if value is not None:
            value = list(value) if OmegaConf.is_list(value) else value
            raise ValueError(
                f"{setting}={value} needs a sweep, by hydra/sweeper=pe_lab, and is not used for a single cell: add -m, "
                f"or leave it out"
            )
    _require_rate_unset([cfg], keys)
    _require_base_used([cfg], keys)
    return cfg


def compose_cells(params: Mapping[str, Any] | None, overrides: list[str]) -> list[DictConfig]:
    """Return the configs of a sweep's cells, each checked, within a program or a context of Hydra.

    Args:
        params: the sweep parameters of the study, by setting; the overrides come after them.

    Raises:
        HydraException, ValueError: as `expand_overrides`.
    """
    conf = find_folders()
    override_keys, params = _settings_set_by(parse_overrides(overrides, conf)), params or {}
    keys = [*params, *override_keys]
    cfgs = _compose_jobs([*(f"{key}={value}" for key, value in params.items()), *overrides], conf, keys)
    for setting in ("ledger", "study_name", *STUDY_SETTINGS):
        values = list(dict.fromkeys(str(cfg[setting]) for cfg in cfgs))
        if len(values) > 1:
            raise ValueError(f"{setting} must be the same for all cells of a sweep, got {', '.join(values)}")
    if len({cfg.steps is None for cfg in cfgs}) > 1:
        raise ValueError("a sweep must be counted in epochs or in steps, got both: make two of it")
    _require_rate_unset(cfgs, keys)
    _require_base_used(cfgs, override_keys)
    if cfgs[0].decide.baseline is not None and "seed" in keys:
        raise ValueError(
            "seed must not be given beside decide, which begins with the first seeds of decide.seeds and adds others: "
            "leave it out, or add ~hydra.sweeper.params.seed if the study gives it"
        )
    names = list(dict.fromkeys(cfg.pe.name for cfg in cfgs))
    if (baseline := cfgs[0].tune.baseline) is not None and (baseline not in names or len(names) < 2):
        raise ValueError(
            f"tune.baseline must be one of at least two encodings of the sweep, got {baseline}: the sweep has "
            f"{', '.join(names)}"
        )
    return cfgs


def _settings_set_by(overrides: list[Any]) -> list[str]:
    """Return the settings that overrides set, without those that they delete."""
    return [override.get_key_element().lstrip("+") for override in overrides if not override.is_delete()]


def _require_rate_unset(cfgs: list[DictConfig], keys: list[str]) -> None:
    """Raise ValueError if a learning rate is given beside those that seeds choose from."""
    if cfgs[0].tune.rates is not None and "optimizer.lr" in keys:
        rates = ", ".join(dict.fromkeys(f"{cfg.optimizer.lr:g}" for cfg in cfgs))
        raise ValueError(f"optimizer.lr must be left to tune.rates, got {rates}: leave it out, or use tune.rates=null")


def _require_base_used(cfgs: list[DictConfig], keys: list[str]) -> None:
    """Raise ValueError if a base of mup is given on the command line where no cell uses it; files may state it."""
    if all(cfg.model.parametrization != "mup" for cfg in cfgs):
        for setting in ("model.base_width", "model.base_head_dim"):
            if setting in keys:
                raise ValueError(f"{setting} needs model.parametrization=mup, got {cfgs[0].model.parametrization}")


def _use_lab_settings(cfg: DictConfig, keys: list[str]) -> None:
    """Give what Lightning has other names for to the settings of the lab, and let steps replace the epochs of a file.

    Raises:
        ValueError: an argument of lightning.Trainer is no value of the setting, or another one is given.
    """
    for name, (setting, _) in trainer_arguments.ALIASES.items():
        value = OmegaConf.select(cfg, f"trainer.{name}")
        if value is None:
            continue
        require_setting(f"trainer.{name}", value)
        value = "cuda" if value == "gpu" else value
        if setting in keys and OmegaConf.select(cfg, setting) != value:
            raise ValueError(
                f"trainer.{name} is another name of {setting}={OmegaConf.select(cfg, setting)} and must be left out, "
                f"got {value}"
            )
        OmegaConf.update(cfg, setting, value)
        cfg.trainer[name] = None
        keys = [*keys, setting]
    if cfg.steps is not None and "epochs" not in keys:  # beside epochs that are given as well they are refused
        cfg.epochs = None


def _compose_jobs(overrides: list[str], conf: ConfigFolders, keys: list[str]) -> list[DictConfig]:
    """Return the configs of a sweep's jobs, each checked.

    Args:
        keys: the settings that the study's parameters or the command line give.
    """
    cfgs: list[DictConfig] = []
    read: dict[str, Any] = {}  # each override once
    state = _fingerprint(conf)
    for job in _jobs(overrides, conf):
        for override in job:
            if override not in read:
                (read[override],) = parse_overrides([override], conf)
        cfgs.append(_compose([read[override] for override in job], conf, state)[0])
        fill_parts(cfgs[-1].pe, "pe", conf, partial(_encoding_settings, state=state))
        _use_lab_settings(cfgs[-1], keys)
        check_config(cfgs[-1], conf)
    return cfgs


def _jobs(overrides: list[str], conf: ConfigFolders) -> Iterator[tuple[str, ...]]:
    """Yield the overrides of each job of a sweep, in the order of Hydra's basic sweeper.

    Raises:
        ValueError: the values of a setting cannot be listed.
    """
    values_of: dict[str, list[str]] = {}
    for override in parse_overrides(overrides, conf, GlobalHydra.instance().config_loader()):
        key = override.get_key_element()
        if not override.is_sweep_override():
            values_of[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values = list(override.sweep_string_iterator())
            values_of[key] = [f"{key}={value}" for value in (values[:1] if ",".join(values) == NULL_SWEEP else values)]
        else:
            line = show_value(override.input_line)
            raise ValueError(f"a sweep must have values that can be listed, as 1,2 or range(3), got {line}")
        if not values_of[key]:
            raise ValueError(f"a sweep must have at least one cell, got none with {show_value(override.input_line)}")
    return product(*values_of.values())


def _compose(overrides: list[Any], conf: ConfigFolders, state: State) -> Composed:
    """Return the config of parsed overrides, and the parameters of the study's sweep.

    Files are composed once for all overrides that choose the same; the other settings are put into a copy.
    """
    files = [
        override
        for override in overrides
        if override.key_or_group in conf.files or override.key_or_group.startswith("hydra")
    ]
    settings = [override for override in overrides if override not in files]
    while settings and not all(setting.type is OverrideType.CHANGE and setting.package is None for setting in settings):
        files.append(settings.pop(0))  # up to the last that does more than to change a value, in order
    cached, params = _compose_cached(tuple(override.input_line for override in files), state)
    cfg = deepcopy(cached)
    try:
        for setting in settings:
            OmegaConf.update(cfg, setting.key_or_group, setting.value(), merge=True)
    except OmegaConfBaseException:
        return _compose_with_hydra([override.input_line for override in overrides])  # which raises its own error
    return cfg, params


def _fingerprint(conf: ConfigFolders) -> State:
    """Return what tells that no file that can be chosen was written since: paths, inodes, times and sizes."""
    stats = [(path, path.stat()) for files in conf.files.values() for path in files.values()]
    return tuple((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def _compose_cached(overrides: tuple[str, ...], state: State) -> Composed:
    """Return what Hydra composes of overrides, not to be changed: once, while no file changes."""
    if (overrides, state) not in _composed:
        while len(_composed) >= CACHED_CONFIGS:
            del _composed[next(iter(_composed))]
        _composed[overrides, state] = _compose_with_hydra(list(overrides))
    return _composed[overrides, state]


def _compose_with_hydra(overrides: list[str]) -> Composed:
    cfg = compose("config", overrides, return_hydra_config=True)
    params = OmegaConf.select(cfg, "hydra.sweeper.params")
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, params


def _encoding_settings(name: str, state: State) -> DictConfig:
    """Return the settings of an encoding as its file has them."""
    written: DictConfig = deepcopy(_compose_cached((f"pe={name}",), state)[0].pe)
    return written


def _require_new_names(conf: ConfigFolders) -> None:
    """Raise ValueError if a user's file has the name of a launcher of Hydra or of a plugin, which would be taken."""
    Plugins.instance()  # reads those of plugins
    for group, files in conf.files.items():
        taken = ConfigStore.instance().list(group) if group.startswith("hydra/") else []
        for name, file in files.items():
            if f"{name}.yaml" in taken:
                raise ValueError(
                    f"{group}={name} must have one file, got that of a plugin and {file}: give yours a name of its own"
                )
