"""Compose the configs of cells from overrides, with Hydra."""

from copy import deepcopy
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pe_lab.config.overrides import parsed
from pe_lab.config.parts import fill_parts
from pe_lab.config.rules import check
from pe_lab.config.schema import folder
from pe_lab.config.users import Folders, find_classes, folders, tell_hydra
from pe_lab.encodings.options import shown

# settings of a sweep, not of its cells
OF_SWEEPS = ("ledger", "study_name", "workers", "margin", "decide", "budget", "search", "tune", "shipped")


def expand(overrides: list[str], multirun: bool) -> list[DictConfig]:
    """Return the configs that overrides ask for: one, or those of a sweep's jobs in the order of Hydra's sweeper.

    Raises:
        HydraException: the overrides do not fit the configuration.
        ValueError: a rule that the config alone decides is broken; a study without a sweep; a user's folder cannot be
            used.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    known = folders()
    tell_hydra()
    with initialize_config_dir(str(folder()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        _require_new_names(known, loader)
        given = parsed(overrides, loader)
        for override in [] if multirun else given:
            if override.is_sweep_override():
                line = shown(override.input_line)
                raise ValueError(f"{line} is a sweep, which needs -m of pe-lab run; a list is written in [...]")
        fixed = [override.input_line for override in given if not (multirun and override.is_sweep_override())]
        whole = compose("config", fixed, return_hydra_config=True)
        params = whole.hydra.sweeper.params or {}
        find_classes(OmegaConf.to_container(whole))  # Hydra's callbacks too
        with open_dict(whole):
            del whole["hydra"]
        if not multirun:
            if params:
                raise ValueError(f"+study={whole.study_name} is a sweep: add -m, got no -m")
            fill_parts(whole.pe, "pe", known, _written)
            _settle_length(whole, _keys(given))
            check(whole, known)
            if whole.tune.rates is not None:
                raise ValueError(f"tune.rates={list(whole.tune.rates)} needs a sweep: add -m, got no -m")
            if whole.decide.baseline is not None:
                raise ValueError(f"decide.baseline={whole.decide.baseline} needs a sweep: add -m, got no -m")
            _require_rate_unset([whole], _keys(given))
            _require_base_used([whole], _keys(given))
            return [whole]
        swept = [f"{key}={value}" for key, value in params.items()]
        cfgs = _compose_jobs(swept + overrides, loader, known, [*params, *_keys(given)])
    for setting in OF_SWEEPS:
        values = list(dict.fromkeys(str(cfg[setting]) for cfg in cfgs))
        if len(values) > 1:
            raise ValueError(f"{setting} must be the same for all cells of a sweep, got {', '.join(values)}")
    if len({cfg.steps is None for cfg in cfgs}) > 1:
        raise ValueError("a sweep must be counted in epochs or in steps, got both: make two of it")
    keys = [*params, *_keys(given)]
    _require_rate_unset(cfgs, keys)
    _require_base_used(cfgs, _keys(given))
    if cfgs[0].decide.baseline is not None and "seed" in keys:
        raise ValueError(
            "seed must not be given beside decide, which begins with the first seeds of decide.seeds and adds others: "
            "leave it out, or add ~hydra.sweeper.params.seed if the study gives it"
        )
    return cfgs


def _keys(given: list[Any]) -> list[str]:
    """Return the settings that overrides set, without those that they delete."""
    return [override.get_key_element().lstrip("+") for override in given if not override.is_delete()]


def _require_rate_unset(cfgs: list[DictConfig], keys: list[str]) -> None:
    """Raise ValueError if a learning rate is given beside the search that is to choose it."""
    by = "the search" if cfgs[0].search is not None else "tune.rates" if cfgs[0].tune.rates is not None else None
    if by is not None and "optimizer.lr" in keys:
        rates = ", ".join(dict.fromkeys(f"{cfg.optimizer.lr:g}" for cfg in cfgs))
        off = "search=none" if by == "the search" else "tune.rates=null"
        raise ValueError(f"optimizer.lr must be left to {by}, got {rates}: leave it out, or use {off}")


def _require_base_used(cfgs: list[DictConfig], keys: list[str]) -> None:
    """Raise ValueError if a base of mup is given on the command line where no cell uses it; files may state it."""
    if all(cfg.model.parametrization != "mup" for cfg in cfgs):
        for setting in ("model.base_width", "model.base_head_dim"):
            if setting in keys:
                raise ValueError(f"{setting} needs model.parametrization=mup, got {cfgs[0].model.parametrization}")


def _settle_length(cfg: DictConfig, keys: list[str]) -> None:
    """Let steps replace the epochs of a file; beside epochs that are given as well they are refused by `check`."""
    if cfg.steps is not None and "epochs" not in keys:
        cfg.epochs = None


def _compose_jobs(overrides: list[str], loader: Any, known: Folders, keys: list[str]) -> list[DictConfig]:
    """Return the configs of a sweep's jobs, each checked; files are composed once for all jobs that choose the same.

    Args:
        keys: settings that the study's parameters or the command line give.
    """
    from hydra import compose
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    cfgs: list[DictConfig] = []
    composed: dict[tuple[str, ...], DictConfig] = {}  # by the files chosen; settings are put into a copy
    for job in BasicSweeper.split_arguments(parsed(overrides, loader), None)[0]:
        settings, files = [], []
        for override in parsed(list(job), loader):
            key = override.key_or_group
            is_file = key.startswith("hydra.") or loader.repository.group_exists(key)
            (files if is_file else settings).append(override)
        chosen = tuple(override.input_line for override in files)
        if chosen not in composed:
            composed[chosen] = compose("config", list(chosen))
        cfgs.append(deepcopy(composed[chosen]))
        ConfigLoaderImpl._apply_overrides_to_config(settings, cfgs[-1])
        fill_parts(cfgs[-1].pe, "pe", known, _written)
        _settle_length(cfgs[-1], keys)
        check(cfgs[-1], known)
    return cfgs


def _written(name: str) -> DictConfig:
    """Return the settings of an encoding as its file has them."""
    from hydra import compose

    written: DictConfig = compose("config", [f"pe={name}"]).pe
    return written


def _require_new_names(known: Folders, loader: Any) -> None:
    """Raise ValueError if a user's file has the name of a launcher of Hydra or of a plugin, which would be taken."""
    for group, files in known.files.items():
        if group.startswith("hydra/"):
            for name, file in files.items():
                sources = [source for source in loader.repository.get_sources() if source.exists(f"{group}/{name}")]
                if len(sources) > 1:
                    raise ValueError(
                        f"{group}={name} must have one file, got that of {sources[0].provider} and {file}: give yours "
                        f"a name of its own"
                    )
