"""The typed root of the configuration and the rules that it alone decides.

Nothing here imports torch: a wrong config is answered before anything heavy is loaded.
"""

import csv
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from pe_lab.ranges import RANGES, require, require_pairs


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
    attention_dropout: float = 0.0


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
class Evaluate:
    """On a trained cell: every length, under every policy, at every offset."""

    lengths: list[float] = field(default_factory=lambda: [1.0])
    policy: list[str] = field(default_factory=lambda: ["raw"])
    offset: list[int] = field(default_factory=lambda: [0])


# settings that are lists: "a,b" on the command line is "[a,b]", and not a sweep
LISTS = ("evaluate.lengths", "evaluate.policy", "evaluate.offset", "probe")


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
    evaluate: Evaluate = field(default_factory=Evaluate)
    probe: list[str] = field(default_factory=list)
    epochs: int = 4
    seed: int = 0
    ledger: str = "ledger"
    study_name: str | None = None
    workers: int | None = None


TYPED = (
    ("model", Model),
    ("optimizer", Optimizer),
    ("trainer", Trainer),
    ("attention", Attention),
    ("evaluate", Evaluate),
)
ConfigStore.instance().store(name="schema", node=Config)


def _workers(asked: int | None, device: str) -> int:
    """Processes that a sweep uses: what was asked, else one per core, or one if there is a GPU to share."""
    if asked:
        return asked
    if device != "cpu" and Path("/dev/nvidia0").exists():
        return 1
    from joblib import cpu_count

    return cpu_count()


def _tuned_rate(path: str, _root_: DictConfig) -> float:
    """The learning rate of an encoding at this depth, from a study that tuned it; of the same epochs, or of the most.

    Raises:
        ValueError: there is no such table, or the encoding is not in it.
    """
    if not Path(path).is_file():
        raise ValueError(
            f"optimizer.lr must come from a table of tuned rates, got none at {path}: "
            f"python -m pe_lab.run -m +study=tune_lr ledger={_root_.ledger} makes it"
        )
    with Path(path).open() as file:
        rows = list(csv.DictReader(file))
    there = {"pe": _root_.pe.name, "depth": str(_root_.model.depth), "data": _root_.data.name}
    found = [row for row in rows if all(row.get(name, value) == value for name, value in there.items())]
    if not found:
        known = sorted({f"{row['pe']} at depth {row['depth']}" for row in rows})
        raise ValueError(
            f"optimizer.lr must come from a table that has {there['pe']} at depth {there['depth']}, got {path} with "
            f"{', '.join(known)}"
        )
    same = [row for row in found if row["epochs"] == str(_root_.epochs)]
    return float((same or sorted(found, key=lambda row: int(row["epochs"])))[-1]["optimizer.lr"])


OmegaConf.register_new_resolver("workers", _workers, replace=True)
OmegaConf.register_new_resolver("tuned_rate", _tuned_rate, replace=True)


def folder() -> Path:
    """Where the YAML files are: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).parent
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").exists() else package / "conf"


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


def as_lists(overrides: list[str]) -> list[str]:
    """Overrides with brackets around the values of LISTS."""
    listed = []
    for override in overrides:
        key, equals, value = override.partition("=")
        bare = key.lstrip("+") in LISTS and equals and "[" not in value and "(" not in value
        listed.append(f"{key}=[{value.rstrip(',')}]" if bare else override)
    return listed


def studies(words: list[str]) -> list[list[str]]:
    """The studies that a study is made of, each as overrides; none if it is a study of its own, or there is none.

    Its file lists them under `studies`, by budget; other words are added to each.

    Raises:
        ValueError: there is no such budget; it is not asked for as a sweep.
    """
    chosen = [word for word in words if word.startswith("+study=")]
    file = folder() / "study" / f"{chosen[0].partition('=')[2]}.yaml" if len(chosen) == 1 else None
    if file is None or not file.is_file():
        return []
    made_of = OmegaConf.load(file).get("studies")
    if made_of is None:
        return []
    if {"-m", "--multirun"}.isdisjoint(words):
        raise ValueError(f"{chosen[0]} is made of sweeps: add -m, got no -m")
    budget = "small"
    others = []
    for word in words:
        if word.startswith("budget="):
            budget = word.partition("=")[2]
        elif word not in (*chosen, "-m", "--multirun"):
            others.append(word)
    if budget not in made_of:
        raise ValueError(f"budget must be one of {', '.join(made_of)}, got {budget!r}")
    return [[*as_lists(one.split()), *others] for one in made_of[budget]]


def of_jobs(overrides: list[str]) -> list[str]:
    """Overrides of a sweep, with choices of one value for settings of `pe` and `data`.

    Hydra puts fixed values into the config before a swept group is chosen, and the default choice may not have them.
    """
    jobs = []
    for override in overrides:
        key, equals, value = override.partition("=")
        fixed = key.startswith(("pe.", "data.")) and equals and value and ("," not in value or value[0] in "[{\"'")
        jobs.append(f"{key}=choice({value})" if fixed and "(" not in value else override)
    return jobs


def _check_keys(cfg: DictConfig) -> None:
    """Every setting is there, and none that nothing reads: Hydra lets both pass with ~ and +."""
    for setting in OmegaConf.missing_keys(cfg):
        raise ValueError(f"{setting} must be set, got nothing")
    known: dict[str, set[str]] = {"": {field.name for field in fields(Config)}}
    for group, typed in TYPED:
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


def require_trusted(leaf: DictConfig, where: str) -> None:
    """Test that a leaf of a config that comes from a ledger, whoever wrote it, has nothing called but the lab's own.

    Not even torch's: torch.load would run what a file tells it to.

    Raises:
        ValueError: a `_target_` elsewhere.
    """
    for name, target in flatten(OmegaConf.to_container(leaf, resolve=False)).items():
        if name.rpartition(".")[2] == "_target_" and not str(target).startswith("pe_lab."):
            raise ValueError(f"{where}: {name} must begin with pe_lab., got {target!r}")


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


def flatten(tree: dict[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """A tree's values by joined names; null and lists as text, so that they can be compared and grouped."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}{separator}", separator)
        else:
            flat[f"{prefix}{key}"] = "null" if value is None else str(value) if isinstance(value, list) else value
    return flat
