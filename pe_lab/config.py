"""The typed root of the configuration and the rules that it alone decides.

Nothing here imports torch: a wrong config is answered before anything heavy is loaded.
"""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict


@dataclass
class Model:
    depth: int = MISSING
    width: int = MISSING
    num_heads: int = MISSING
    mlp_ratio: int = MISSING
    norm: str = MISSING
    dropout: float = MISSING
    embedding_std: float = MISSING
    scale_tokens: bool = MISSING


@dataclass
class Optimizer:
    name: str = MISSING
    lr: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    weight_decay: float = MISSING
    schedule: str = MISSING
    warmup_steps: int = MISSING


@dataclass
class Trainer:
    device: str = MISSING
    precision: str = MISSING
    batch_size: int = MISSING
    clip: float | None = MISSING
    log_every: int = MISSING
    save_every: float = MISSING


@dataclass
class Attention:
    implementation: str = MISSING


@dataclass
class Config:
    """A cell: one encoding in one model on one dataset for a number of epochs."""

    pe: Any = MISSING
    model: Model = field(default_factory=Model)
    data: Any = MISSING
    optimizer: Optimizer = field(default_factory=Optimizer)
    trainer: Trainer = field(default_factory=Trainer)
    attention: Attention = field(default_factory=Attention)
    logger: Any = MISSING
    epochs: int = 4
    seed: int = 0
    ledger: str = "ledger"
    study_name: str | None = None
    workers: int | None = None


ConfigStore.instance().store(name="schema", node=Config)


def _workers(asked: int | None, device: str) -> int:
    """Processes that a sweep uses: what was asked, else one per core, or one if there is a GPU to share."""
    if asked:
        return asked
    if device != "cpu" and Path("/dev/nvidia0").exists():
        return 1
    from joblib import cpu_count

    return cpu_count()


OmegaConf.register_new_resolver("workers", _workers, replace=True)


def folder() -> Path:
    """Where the YAML files are: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).parent
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").exists() else package / "conf"


@dataclass(frozen=True)
class Range:
    """What a setting must be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _at_least(low: float) -> Range:
    return Range(f"at least {low}", lambda x: _number(x) and x >= low)


def _one_of(*names: str) -> Range:
    return Range(f"one of {', '.join(names)}", lambda x: x in names)


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


POSITIVE = Range("a positive number", lambda x: _number(x) and x > 0)
FRACTION = Range("in [0, 1)", lambda x: _number(x) and 0 <= x < 1)
NAME = Range("a name of letters, digits, '_', '.' and '-'", lambda x: bool(re.fullmatch(r"\w[\w.-]*", str(x))))
COUNT = Range("an integer of at least 1", lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 1)
EVEN = Range("an even integer of at least 2", lambda x: COUNT.holds(x) and x % 2 == 0)

# One line per setting, whichever file it stands in. Constructors use the same table through `require`.
RANGES: dict[str, Range] = {
    "epochs": COUNT,
    "seed": _at_least(0),
    "ledger": Range("the path of a folder", bool),
    "study_name": NAME,
    "workers": COUNT,
    "model.depth": COUNT,
    "model.width": COUNT,
    "model.num_heads": COUNT,
    "model.mlp_ratio": COUNT,
    "model.norm": _one_of("pre", "post"),
    "model.dropout": FRACTION,
    "model.embedding_std": POSITIVE,
    "optimizer.name": _one_of("adam", "adamw"),
    "optimizer.lr": POSITIVE,
    "optimizer.betas": Range("two numbers in [0, 1)", lambda x: len(x) == 2 and all(0 <= b < 1 for b in x)),
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": _at_least(0),
    "optimizer.schedule": _one_of("constant", "cosine"),
    "optimizer.warmup_steps": _at_least(0),
    "trainer.device": _one_of("auto", "cpu", "cuda"),
    "trainer.precision": _one_of("32", "bf16-mixed"),
    "trainer.batch_size": COUNT,
    "trainer.clip": POSITIVE,
    "trainer.log_every": COUNT,
    "trainer.save_every": _at_least(0),
    "attention.implementation": _one_of("auto", "reference", "sdpa", "triton"),
    "data.length": COUNT,
    "pe.theta": POSITIVE,
    "pe.pairing": _one_of("interleaved", "half"),
    "pe.share": _one_of("none", "heads", "layers", "all"),
    "pe.lr": POSITIVE,
    "pe.max_len": COUNT,
    "pe.decay": POSITIVE,
    "pe.at": _one_of("input", "every_layer", "query_key"),
    "pe.combine": _one_of("add", "concat"),
    "pe.scale": POSITIVE,
    "pe.hidden": COUNT,
    "pe.features": EVEN,
    "pe.gamma": POSITIVE,
    "pe.p": Range("in [0, 1]", lambda x: _number(x) and 0 <= x <= 1),
    "pe.scale_base": POSITIVE,
    "pe.factor": _at_least(1),
    "pe.original_length": COUNT,
    "pe.beta_fast": POSITIVE,
    "pe.beta_slow": POSITIVE,
    "pe.ramp": _one_of("paper", "code"),
    "pe.max_distance": COUNT,
    "pe.num_buckets": EVEN,
    "pe.max_position": COUNT,
    "pe.buckets": _one_of("clip", "log"),
    "pe.order": _one_of("nearest", "first"),
    "pe.form": _one_of("stable", "literal"),
    "logger.mode": _one_of("online", "offline", "disabled"),
    "logger.project": NAME,
}
OPTIONAL = {"study_name", "workers", "trainer.clip", "pe.lr", "pe.scale", "pe.original_length", "logger.mode"}


def require(setting: str, value: Any) -> Any:
    """The value, if it is in the setting's range.

    Args:
        setting: dotted name, a key of RANGES.

    Raises:
        ValueError: one line with the setting, what it must be, and what it was.
    """
    if value is None and setting in OPTIONAL:
        return value
    if not RANGES[setting].holds(value):
        raise ValueError(f"{setting} must be {RANGES[setting].words}, got {value!r}")
    return value


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
            require(setting, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
    model = cfg.model
    if model.width % model.num_heads:
        raise ValueError(
            f"model.width must be divisible by model.num_heads, got model.width={model.width}, "
            f"model.num_heads={model.num_heads}"
        )
    if "pairing" in cfg.pe:
        require_pairs(cfg.pe.name, model.width, model.num_heads)
    if cfg.pe.get("max_len") is not None and cfg.data.get("length") is not None and cfg.data.length > cfg.pe.max_len:
        raise ValueError(
            f"pe.max_len must be at least the length of the sequences, got pe.max_len={cfg.pe.max_len}, "
            f"data.length={cfg.data.length}"
        )


def _check_keys(cfg: DictConfig) -> None:
    """Every setting is there, and none that nothing reads: Hydra lets both pass with ~ and +."""
    for setting in OmegaConf.missing_keys(cfg):
        raise ValueError(f"{setting} must be set, got nothing")
    known: dict[str, set[str]] = {"": {field.name for field in fields(Config)}}
    for group, typed in (("model", Model), ("optimizer", Optimizer), ("trainer", Trainer), ("attention", Attention)):
        known[group] = {field.name for field in fields(typed)}
    leaves = [(group, group) for group in ("pe", "data", "logger")]
    leaves += [(f"pe.{key}", "pe") for key, value in cfg.pe.items() if OmegaConf.is_dict(value)]
    for leaf, group in leaves:
        given = OmegaConf.select(cfg, leaf)
        own = folder() / group / f"{given.get('name')}.yaml"
        if own.exists():
            written = _written(own, own.stat().st_mtime_ns)
            known[leaf] = {str(key) for key in written}
            if given.get("_target_") != written["_target_"]:
                raise ValueError(
                    f"{leaf}._target_ must be {written['_target_']} for {group}={given.name}, got "
                    f"{given.get('_target_')}: give a class of your own a name of its own"
                )
            # what it takes from other files: "/pe@encoding: rope" is the setting "encoding"
            taken = [entry for entry in written.get("defaults", []) if OmegaConf.is_dict(entry)]
            known[leaf] |= {str(group).partition("@")[2] for entry in taken for group in entry}
    for leaf, names in known.items():
        for key in OmegaConf.select(cfg, leaf) if leaf else cfg:
            if key not in names:
                settings = ", ".join(sorted(name for name in names if name[0] != "_" and name != "defaults"))
                raise ValueError(f"{leaf or 'the config'} has the settings {settings}: got {key}")


@cache
def _written(file: Path, changed: int) -> DictConfig:
    """A YAML file as it was at that time: the cells of a sweep share a few."""
    return OmegaConf.load(file)


def require_pairs(name: str, width: int, num_heads: int) -> None:
    """Raises ValueError unless the lanes of a head can be paired for rotation."""
    head_dim = width // num_heads
    if head_dim % 2:
        raise ValueError(
            f"{name} rotates pairs: head_dim must be even, got {head_dim} "
            f"(model.width={width}, model.num_heads={num_heads})"
        )


def in_one_line(error: BaseException) -> str:
    """An error as one line that names the setting, the requirement and the value."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.options is not None and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group or 'config'} must be one of {', '.join(error.options)}, got {name!r}"
    cause = error.__cause__
    key = getattr(cause, "full_key", None)
    text = str(cause).splitlines()[0] if key and cause is not None else str(error)
    line = " ".join(text.split()) or type(error).__name__
    return f"{key}: {line}" if key and key not in line else line


def expand(overrides: list[str], multirun: bool) -> list[DictConfig]:
    """The configs that overrides ask for: one, or those of a sweep's jobs, as Hydra's sweeper will order them.

    Raises:
        HydraException: the overrides do not fit the configuration.
        ValueError: a rule that the config alone decides is broken; a study without a sweep.
    """
    from hydra import compose, initialize_config_dir
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with initialize_config_dir(str(folder()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        parser = OverridesParser.create(loader)
        parsed = parser.parse_overrides(overrides)
        fixed = [override.input_line for override in parsed if not (multirun and override.is_sweep_override())]
        whole = compose("config", fixed, return_hydra_config=True)
        params = whole.hydra.sweeper.params or {}
        with open_dict(whole):
            del whole["hydra"]
        if not multirun:
            if params:
                raise ValueError(f"+study={whole.study_name} is a sweep: add -m, got no -m")
            check(whole)
            return [whole]
        cfgs: list[DictConfig] = []
        composed: dict[tuple[str, ...], DictConfig] = {}  # by the files chosen; settings are put into a copy
        swept = parser.parse_overrides([f"{key}={value}" for key, value in params.items()] + overrides)
        for job in BasicSweeper.split_arguments(swept, None)[0]:
            settings, files = [], []
            for override in parser.parse_overrides(list(job)):
                key = override.key_or_group
                is_file = key.startswith("hydra.") or loader.repository.group_exists(key)
                (files if is_file else settings).append(override)
            chosen = tuple(override.input_line for override in files)
            if chosen not in composed:
                composed[chosen] = compose("config", list(chosen))
            cfgs.append(deepcopy(composed[chosen]))
            ConfigLoaderImpl._apply_overrides_to_config(settings, cfgs[-1])
            check(cfgs[-1])
        return cfgs


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config's settings by dotted name; null and lists as text, so that they can be compared and grouped."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = "null" if value is None else str(value) if isinstance(value, list) else value
    return flat
