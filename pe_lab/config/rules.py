"""Rules that can be checked from the config alone."""

from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from pe_lab.config.config_folders import ConfigFolders, add_import_paths, find_folders, is_package
from pe_lab.config.errors import unknown_setting
from pe_lab.config.option_declarations import declared_ranges
from pe_lab.config.parts import PARTS
from pe_lab.config.ranges import NAME
from pe_lab.config.schema import LIST_GROUPS, RANGES, TYPED_GROUPS, Config, Decide, Model, Solve, Tune, require_setting
from pe_lab.config.seed_looks import study_looks
from pe_lab.config.trainer_arguments import check_trainer
from pe_lab.encodings import options
from pe_lab.encodings.options import show_value
from pe_lab.system.plain import plain_data_error

DECAY_FRACTION = 0.2  # the default of optimizer.decay_fraction
OPTIMIZER_SETTINGS = ("lr", "weight_decay", "schedule", "warmup_steps")  # settings of every optimizer


def check_config(cfg: DictConfig, conf: ConfigFolders | None = None) -> None:
    """Check every rule that can be checked from the config alone.

    Args:
        conf: the files that can be chosen; None: find them.

    Raises:
        ValueError: the first rule that is broken, in one line.
    """
    add_import_paths(OmegaConf.to_container(cfg))
    _check_keys(cfg, conf or find_folders())
    for setting in RANGES:
        missing = object()
        value = OmegaConf.select(cfg, setting, default=missing)
        if value is not missing:
            require_setting(setting, _plain(value))
    encodings = list(_encodings(cfg.pe, "pe"))
    for path in [*encodings, "data", "optimizer", *_chosen_places(cfg)]:
        _check_module(OmegaConf.select(cfg, path), path)
    for path in [*encodings, "data"]:
        _check_options(OmegaConf.select(cfg, path), path)
    _check_heads(cfg)
    _check_mup(cfg.model)
    hidden_width(cfg.model)  # refuses one that is not whole
    _check_length(cfg)
    _check_schedule(cfg)
    _check_tune(cfg)
    _check_decide(cfg)
    check_trainer(cfg)
    if problem := plain_data_error(_plain(cfg)):  # otherwise what is written of it could not be read back
        raise ValueError(f"the config {problem}")


def _chosen_places(cfg: DictConfig) -> list[str]:
    """Return the places of what is chosen as a list: each file stands in its group under its name."""
    return [f"{group}.{name}" for group in LIST_GROUPS for name in cfg[group]]


def _check_module(leaf: DictConfig, path: str) -> None:
    """Raise ValueError if the package of a class is not there. Nothing is imported."""
    target = leaf.get("_target_")
    package = str(target).partition(".")[0]
    if not is_package(package):
        raise ValueError(
            f"{path}._target_ must be the import path of a class, got {show_value(target)}: there is no module "
            f"{package} in the current folder, beside --config-dir or among the installed packages"
        )


def _check_options(leaf: DictConfig, path: str) -> None:
    """Check the options of a class against the ranges that it declares."""
    declared = declared_ranges(leaf.get("_target_"))
    for option, value in leaf.items():
        if option in declared:
            options.require_option(f"{path}.{option}", _plain(value), declared[option])


def _check_heads(cfg: DictConfig) -> None:
    """Check that the width can be divided among the heads, and the heads of queries among those of keys."""
    width, num_heads, num_kv_heads = cfg.model.width, cfg.model.num_heads, cfg.model.num_kv_heads
    if cfg.model.head_dim is None and width % num_heads:
        raise ValueError(
            f"model.width must be divisible by model.num_heads, got model.width={width}, model.num_heads={num_heads}: "
            f"or give model.head_dim"
        )
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise ValueError(
            f"model.num_kv_heads must divide model.num_heads, got model.num_kv_heads={num_kv_heads}, "
            f"model.num_heads={num_heads}"
        )


def _check_mup(model: DictConfig) -> None:
    """Check that mup alone decides how weights start and how wide a head is."""
    if model.parametrization != "mup":
        return
    if model.head_dim is not None:
        raise ValueError(f"model.head_dim must be null for model.parametrization=mup, got {model.head_dim}")
    if model.weight_std is not None:
        raise ValueError(
            f"model.weight_std must be null for model.parametrization=mup, whose weights start by their inputs, got "
            f"{model.weight_std}"
        )
    if model.tie_embeddings:
        raise ValueError("model.tie_embeddings=true is not defined for model.parametrization=mup: choose one of them")


def head_dim(model: Model | DictConfig) -> int:
    """Return the dimensions of a head."""
    return model.width // model.num_heads if model.head_dim is None else int(model.head_dim)


def hidden_width(model: Model | DictConfig) -> int:
    """Return the dimensions inside the MLP.

    Raises:
        ValueError: the width times the ratio is not whole.
    """
    hidden = model.width * Fraction(model.mlp_ratio)
    if hidden.denominator != 1:
        raise ValueError(
            f"model.mlp_ratio x model.width must be whole, got {model.mlp_ratio} x {model.width} = {float(hidden):.2f}"
        )
    return int(hidden)


def _check_length(cfg: DictConfig) -> None:
    """Check that the length of the training is given once, and no setting of one in steps for one in epochs."""
    if (cfg.epochs is None) == (cfg.steps is None):
        actual = "neither" if cfg.steps is None else f"epochs={cfg.epochs}, steps={cfg.steps}"
        raise ValueError(f"epochs or steps must be given, not both: set the other to null, got {actual}")
    if cfg.steps is None:
        for key, usual in vars(Solve()).items():
            if cfg.solve[key] != usual:
                raise ValueError(f"solve.{key}={cfg.solve[key]} needs a training in steps, as steps=2000: got epochs")
    elif cfg.solve.level is not None and cfg.steps <= cfg.solve.first:
        raise ValueError(
            f"steps must be above solve.first, {cfg.solve.first}, the first evaluation, where solve.level is given, "
            f"got {cfg.steps}"
        )


def _check_schedule(cfg: DictConfig) -> None:
    """Check that settings of a schedule are given for one that has them."""
    optimizer, least = cfg.optimizer, cfg.optimizer.get("min_lr", 0)
    if optimizer.get("decay_fraction", DECAY_FRACTION) != DECAY_FRACTION and optimizer.schedule != "wsd":
        raise ValueError(
            f"optimizer.decay_fraction={optimizer.decay_fraction} needs optimizer.schedule=wsd, "
            f"got {optimizer.schedule}"
        )
    if least and optimizer.schedule == "constant":
        raise ValueError(f"optimizer.min_lr={least} needs optimizer.schedule=cosine, linear or wsd, got constant")
    if least > optimizer.lr:
        raise ValueError(f"optimizer.min_lr must be at most optimizer.lr, {optimizer.lr}, got {least}")


def _check_tune(cfg: DictConfig) -> None:
    """Check that seeds that tune for themselves have steps, and that nothing else chooses rates or seeds."""
    tune = cfg.tune
    if tune.rates is None:
        for key, usual in vars(Tune()).items():
            if tune[key] != usual:
                raise ValueError(f"tune.{key}={_plain(tune[key])} needs tune.rates, as [1e-3,3e-3]: got none")
        return
    if cfg.steps is None:
        raise ValueError(f"tune.rates needs a training in steps, as steps=3840, got epochs={cfg.epochs}")
    if cfg.decide.baseline is not None:
        rates = _plain(tune.rates)
        raise ValueError(f"tune.rates={rates} must not be given beside decide.baseline: choose one of them")
    if cfg.optimizer.schedule != "constant":
        raise ValueError(
            f"optimizer.schedule must be constant with tune.rates, as tries of several lengths are compared, got "
            f"{cfg.optimizer.schedule}"
        )
    if tune.scaled and len(tune.scaled) != len(tune.rates):
        raise ValueError(
            f"tune.scaled must have as many pairs as tune.rates, {len(tune.rates)}, so that every encoding has as many "
            f"tries, got {len(tune.scaled)}"
        )
    unit = "octave" if cfg.solve.level is not None else "nat"
    if tune.margin is not None and unit not in tune.margin:
        where = "with" if unit == "octave" else "without"
        raise ValueError(f"tune.margin must be in {unit}s {where} solve.level, got {tune.margin!r}")


def _check_decide(cfg: DictConfig) -> None:
    """Check the looks of a study that adds seeds, and that no setting of it is given without it."""
    decide = cfg.decide
    study_looks(decide.seeds, _plain(decide.looks))
    if decide.baseline is None:
        changes = [f"decide.{key}" for key in ("seeds", "looks", "best") if decide[key] != getattr(Decide(), key)]
        for setting in [*changes, *(["budget"] if cfg.budget is not None else [])]:
            raise ValueError(f"{setting} needs decide.baseline, an encoding, 'all pairs' or best: got none")
        if cfg.margin is not None and cfg.study_name is None:
            raise ValueError(
                f"margin={cfg.margin!r} needs study_name, where it is declared, or decide.baseline: got neither"
            )
    elif decide.best is not None and decide.baseline != "best":
        raise ValueError(f"decide.best={decide.best} needs decide.baseline=best, got {decide.baseline!r}")


def _plain(value: Any) -> Any:
    """Return a value without OmegaConf's types."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _encodings(leaf: DictConfig, path: str) -> Iterator[str]:
    """Yield the path of an encoding in the config, then the paths of the encodings that are its options."""
    yield path
    declared = declared_ranges(leaf.get("_target_"))
    for option, value in leaf.items():
        if OmegaConf.is_dict(value) and option not in declared:
            yield from _encodings(value, f"{path}.{option}")
        for i, part in enumerate(value if option == PARTS and OmegaConf.is_list(value) else ()):
            yield from _encodings(part, f"{path}.{option}[{i}]")


def _check_keys(cfg: DictConfig, files: ConfigFolders) -> None:
    """Refuse missing and unknown settings, which Hydra permits with ~ and +."""
    for setting in OmegaConf.missing_keys(cfg):
        raise ValueError(f"{setting} must be set, got nothing")
    allowed: dict[str, set[str]] = {"": {field.name for field in fields(Config)}}
    _require_known(cfg, "", allowed[""])
    for group in ("pe", "data", "optimizer", *LIST_GROUPS, *dict(TYPED_GROUPS)):
        if not OmegaConf.is_dict(cfg[group]):
            raise ValueError(f"{group} must have settings, got {show_value(_plain(cfg[group]))}")
    for group, typed in TYPED_GROUPS:
        allowed[group] = {field.name for field in fields(typed)}
    for leaf in [*_encodings(cfg.pe, "pe"), "data", "optimizer"]:
        allowed |= _check_choice(leaf, OmegaConf.select(cfg, leaf), files)
    for key in OPTIMIZER_SETTINGS:
        if key not in cfg.optimizer:
            raise ValueError(f"optimizer.{key} must be set, got nothing")
    for group in LIST_GROUPS:
        _check_named(group, cfg[group], files)
    allowed |= _check_loggers(cfg.logger, files)
    for leaf, names in allowed.items():
        _require_known(OmegaConf.select(cfg, leaf) if leaf else cfg, leaf, names)


def _check_choice(leaf: str, settings: DictConfig, files: ConfigFolders) -> dict[str, set[str]]:
    """Raise ValueError unless a choice of a group is as its file says; return the settings that it has, by leaf."""
    group = leaf.partition(".")[0]
    if not NAME.holds(settings.get("name")):
        raise ValueError(f"{leaf}.name must be {NAME.words}, got {show_value(_plain(settings.get('name')))}")
    if not files.file(group, settings.name):
        return {}
    written = _settings(files, group, settings.name)
    # settings that come from other files: "/pe@encoding: rope" fills the setting "encoding"
    taken = {
        str(key).partition("@")[2] for entry in written.get("defaults", []) if OmegaConf.is_dict(entry) for key in entry
    }
    for key in taken:
        if not OmegaConf.is_dict(settings.get(key)):
            raise ValueError(f"{leaf}.{key} must be another {group}, got {show_value(_plain(settings.get(key)))}")
    for key in ("_target_", "_partial_"):
        if settings.get(key) != written.get(key):
            raise ValueError(
                f"{leaf}.{key} must be {written.get(key)} for {group}={settings.name}, got "
                f"{show_value(_plain(settings.get(key)))}: give a class of your own a name of its own"
            )
    return {leaf: (set(written) | taken) - {"defaults"}}


def _check_loggers(loggers: DictConfig, files: ConfigFolders) -> dict[str, set[str]]:
    """Raise ValueError unless loggers are made later, and none stands alone; return their settings, by leaf."""
    for name, leaf in loggers.items():
        if leaf.get("_partial_") is not True:
            raise ValueError(f"logger.{name}._partial_ must be true, got {show_value(_plain(leaf.get('_partial_')))}")
    if "none" in loggers and len(loggers) > 1:
        raise ValueError(f"logger=none must stand alone, got logger=[{','.join(map(str, loggers))}]")
    names = [str(name) for name in loggers if files.file("logger", str(name))]
    return {f"logger.{name}": set(_settings(files, "logger", name)) - {"defaults"} for name in names}


def _check_named(group: str, settings: DictConfig, files: ConfigFolders) -> None:
    """Raise ValueError unless each of a group has a class, and one of a file the class of the file."""
    for key, leaf in settings.items():
        name = str(key)
        target = leaf.get("_target_") if OmegaConf.is_dict(leaf) else None
        if not NAME.holds(name) or not isinstance(target, str) or name[0] == "_":
            raise ValueError(
                f"{group}.{name} must be settings with a _target_, got {show_value(_plain(leaf))}: a file of "
                f"conf/{group} begins with # @package {group}.<name>"
            )
        written = _settings(files, group, name) if files.file(group, name) else {}
        if written and target != written.get("_target_"):
            raise ValueError(
                f"{group}.{name}._target_ must be {written.get('_target_')}, got {show_value(target)}: give a class of "
                f"your own a name of its own"
            )


def _require_known(settings: DictConfig, leaf: str, names: set[str]) -> None:
    """Raise ValueError unless the settings of a leaf are exactly these."""
    for key in settings:
        if key not in names:
            raise ValueError(unknown_setting(settings, leaf, str(key), names, show_value(_plain(settings[key]))))
    for key in sorted(names):
        if key not in settings:
            raise ValueError(f"{leaf}{'.' if leaf else ''}{key} must be set, got nothing")


def _settings(files: ConfigFolders, group: str, name: str) -> dict[str, Any]:
    """Return what a file says, and before it the files of its group that it begins with."""
    file = files.file(group, name)
    if file is None:
        return {}
    written = _load_yaml(file, file.stat().st_mtime_ns)
    bases = [entry for entry in written.get("defaults", []) if isinstance(entry, str) and entry not in ("_self_", name)]
    settings: dict[str, Any] = {}
    entries: list[Any] = []
    for content in (*(_settings(files, group, base) for base in bases), written):
        entries += content.get("defaults", [])
        settings |= {str(key): value for key, value in content.items()}
    return settings | {"defaults": entries}


@cache
def _load_yaml(file: Path, changed: int) -> DictConfig:
    """Load a YAML file as it was at that time; the cells of a sweep share a few files."""
    return cast(DictConfig, OmegaConf.load(file))
