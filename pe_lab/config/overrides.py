"""Read the overrides of a command line before anything is composed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from pe_lab.config.config_folders import FLAGS, ConfigFolders, find_folders
from pe_lab.config.trainer_arguments import devices_of
from pe_lab.encodings.hf_config import read_encoding
from pe_lab.encodings.options import MAX_SHOWN_CHARACTERS, prefix_errors, show_value
from pe_lab.system.errors import in_one_line
from pe_lab.system.gpus import gpus
from pe_lab.system.names import HELP_COMMAND, unknown_name_message

# settings that are lists: "a,b" on the command line is "[a,b]", and not a sweep
LIST_SETTINGS = ("evaluate.lengths", "evaluate.policy", "evaluate.offset", "probe", "callbacks", "logger")
CHECKPOINT_OVERRIDE = "pe=from_checkpoint"
MAX_SWEEP_CELLS = 100_000  # cells of a sweep


def as_lists(overrides: list[str]) -> list[str]:
    """Return overrides with brackets around the values of LIST_SETTINGS."""
    converted = []
    for override in overrides:
        key, equals, value = override.partition("=")
        bare = key.lstrip("+") in LIST_SETTINGS and equals and "[" not in value and "(" not in value
        converted.append(f"{key}=[{value.rstrip(',')}]" if bare else override)
    return converted


def expand_checkpoint_override(overrides: list[str]) -> list[str]:
    """Return overrides in which `pe=from_checkpoint pe.path=DIR` is the encoding of a checkpoint, with its options.

    Options that are given beside them come after the checkpoint's.

    Raises:
        ValueError: no path is given, or there is no encoding of the lab in it.
    """
    if CHECKPOINT_OVERRIDE not in overrides:
        if any(override.startswith("pe=") and "from_checkpoint" in override for override in overrides):
            raise ValueError(
                f"pe must be from_checkpoint alone, with pe.path=DIR, or other names without it: {overrides}"
            )
        return overrides
    paths = [override.partition("=")[2] for override in overrides if override.startswith("pe.path=")]
    if not paths:
        raise ValueError(f"{CHECKPOINT_OVERRIDE} needs pe.path=DIR, a folder with a config.json: got none")
    with prefix_errors("pe"):
        name, options = read_encoding(paths[-1].strip("'\""))
    remaining = [
        override for override in overrides if override != CHECKPOINT_OVERRIDE and not override.startswith("pe.path=")
    ]
    return [f"pe={name}", *(f"pe.{option}={_override_text(value)}" for option, value in options.items()), *remaining]


def _override_text(value: Any) -> str:
    """Return a value as an override has it: JSON, but for keys, which have no quotes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_override_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_override_text, value)) + "]"
    return json.dumps(value)


def study_overrides(arguments: list[str]) -> list[list[str]]:
    """Return the studies that a study consists of, each as overrides; none if it has no parts, or no study is chosen.

    Its file lists them under `studies`, by size; other arguments are added to each.

    Raises:
        ValueError: there is no such size; it is not asked for as a sweep.
    """
    chosen = [argument for argument in arguments if argument.startswith("+study=")]
    study = find_folders().stated("study", chosen[0].partition("=")[2]) if len(chosen) == 1 else None
    made_of = study.get("studies") if isinstance(study, DictConfig) else None
    if made_of is None:
        return []
    if {"-m", "--multirun"}.isdisjoint(arguments):
        raise ValueError(f"{chosen[0]} is made of sweeps: add -m, got no -m")
    size = "small"
    remaining = []
    for argument in arguments:
        if argument.startswith("size="):
            size = argument.partition("=")[2]
        elif argument.startswith("budget=") and argument.partition("=")[2] in made_of:
            raise ValueError(
                f"budget must be a number of core-hours, got {argument}: did you mean size={argument[7:]}?"
            )
        elif argument not in (*chosen, "-m", "--multirun"):
            remaining.append(argument)
    if size not in made_of:
        raise ValueError(unknown_name_message("size", made_of, size))
    return [[*as_lists(line.split()), *remaining] for line in made_of[size]]


NULL_SWEEP = "null,null"  # how a sweep has null as its only value


def sweep_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides of a sweep, with fixed settings of `pe` and `data` as choices of one value.

    Hydra puts fixed values into the config before a swept group is chosen, and the default choice may not have them.
    It has no choice of null alone, which is written twice.
    """
    jobs = []
    for override in overrides:
        key, equals, value = override.partition("=")
        fixed = key.startswith(("pe.", "data.")) and equals and value and ("," not in value or value[0] in "[{\"'")
        if fixed and value.lower() == "null":
            jobs.append(f"{key}={NULL_SWEEP}")
        else:
            jobs.append(f"{key}=choice({value})" if fixed and "(" not in value else override)
    return jobs


def parse_overrides(overrides: list[str], conf: ConfigFolders, loader: ConfigLoader | None = None) -> list[Any]:
    """Return overrides as Hydra parses them.

    Args:
        conf: the files that can be chosen.
        loader: Hydra's loader of configs, needed to list the values of a glob.

    Raises:
        ValueError: one cannot be read; a choice is no name; a sweep of no cell, or of more than can be.
    """
    parser, parsed, sizes = OverridesParser.create(loader), list[Any](), dict[str, int]()
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            meant = [f"{group}={text}" for group, files in conf.files.items() if text in files]
            hint = f": did you mean {' or '.join(meant)}?" if meant else ""
            raise ValueError(f"a setting must be written key=value, got {show_value(text)}{hint}")
        hydra_override = _parse_override(parser, text)
        override = Override(text, hydra_override, hydra_override.key_or_group, hydra_override.value(), conf, parsed)
        if wrong := next(filter(None, (rule(override) for rule in RULES)), None):
            raise ValueError(wrong)
        if hydra_override.is_sweep_override():
            sizes[override.key] = _swept(override.value)
        parsed.append(hydra_override)
    if math.prod(sizes.values()) > MAX_SWEEP_CELLS:
        raise ValueError(f"a sweep must have at most {MAX_SWEEP_CELLS:,} cells, got more with {', '.join(sizes)}")
    return parsed


def _parse_override(parser: Any, text: str) -> Any:
    """Return an override as Hydra's parser reads it.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        (override,) = parser.parse_overrides([text])
        return override
    except (HydraException, ValueError, RecursionError) as error:
        reason = in_one_line(error).partition(" See https://")[0][:MAX_SHOWN_CHARACTERS]
        if any(text.count(opening) != text.count(closing) for opening, closing in ("()", "[]", "{}")):
            reason = "each opening bracket must have a closing one"
        reason = reason if text.isascii() else "letters outside of ASCII must stand in quotes, as \"key='é'\""
        raise ValueError(f"{show_value(text)} cannot be read: {reason}") from None


@dataclass(frozen=True)
class Override:
    """An override that a rule checks.

    Attributes:
        text: the override as it was written.
        parsed: the override as Hydra parses it.
        key: the key of the setting.
        value: the value of the setting.
        conf: the files that can be chosen.
        earlier: the overrides before it, as Hydra parses them.
    """

    text: str
    parsed: Any
    key: str
    value: Any
    conf: ConfigFolders
    earlier: list[Any]


def _study(override: Override) -> str | None:
    parsed = override.parsed
    if override.key == "study" and not (parsed.is_add() or parsed.is_force_add() or parsed.is_delete()):
        return (
            f"a study must be chosen as +{override.text}, got {show_value(override.text)}: no study is chosen by "
            f"default"
        )
    return None


def _launcher_package(override: Override) -> str | None:
    """Return what is wrong if the package that a launcher needs is not installed."""
    packages = {"submitit": ("hydra-submitit-launcher", "slurm"), "ray": ("ray", "ray"), "pe_lab_ray": ("ray", "ray")}
    for start, (package, extra) in packages.items() if override.key == "hydra/launcher" else ():
        if str(override.value).startswith(start) and not any(distributions(name=package)):
            return f"{override.text} needs the package {package}: pip install 'pe_lab[{extra}]'"
    return None


def _logger(override: Override) -> str | None:
    group, dot, name = override.key.partition(".")
    if group == "logger" and dot and "." not in name and name not in override.conf.names("logger"):
        return (
            f"{override.key} must be written with the name of a logger, logger.wandb.{name}, got "
            f"{show_value(override.text)}"
        )
    return None


def _help(override: Override) -> str | None:
    if override.key.replace("/", ".").startswith(("hydra.help", "hydra.hydra_help")):
        return f"the text of --help cannot be set, got {show_value(override.text)}: leave it out"
    return None


def _unknown_setting(override: Override) -> str | None:
    """Return what is wrong if Hydra has no such setting: with a plus it would add it, and nothing would read it."""
    if not override.key.startswith("hydra.") or override.parsed.is_delete():
        return None
    node: Any = HydraConf
    name, *parts = override.key.split(".")
    for part in parts:
        fields = getattr(node, "__dataclass_fields__", None)
        if fields is None:  # its settings have any name
            return None
        if part not in fields:
            return f"{name} has the settings {', '.join(sorted(fields))}: got {override.key}"
        name, node = f"{name}.{part}", fields[part].type
    return None


def _searchpath(override: Override) -> str | None:
    if override.key == "hydra.searchpath":
        return f"hydra.searchpath cannot be set: give a folder by {FLAGS[0]} DIR, got {show_value(override.text)}"
    return None


def _numbers(override: Override) -> str | None:
    for name in LIST_SETTINGS:  # messages of the others are elsewhere
        index = override.key.removeprefix(f"{name}.")
        if name.startswith("evaluate.") and index != override.key and not index.partition(".")[0].isdecimal():
            return f"{name} must be a list, as {name}=[...], got {show_value(override.text)}"
    return None


def _once(override: Override) -> str | None:
    earlier = sum(other.key_or_group == override.key for other in override.earlier)
    if override.key in LIST_SETTINGS and override.parsed.is_add() + earlier > 1:
        return (
            f"{override.key} must be given once, as {override.key}=[...], got {show_value(override.text)} beside "
            f"another"
        )
    return None


def _sweep(override: Override) -> str | None:
    if override.parsed.is_sweep_override() and not _swept(override.value):
        return f"a sweep must have at least one cell, got none with {show_value(override.text)}"
    return None


def _choice(override: Override) -> str | None:
    key, value = override.key, override.value
    if override.parsed.is_sweep_override() or override.parsed.is_delete():
        return None
    if key not in override.conf.files or key.startswith("hydra"):  # plugins add names there
        return None
    if isinstance(value, list) and key not in LIST_SETTINGS:  # Hydra would merge them into one
        return f"{key} must be one name, got {show_value(override.text)}: a sweep over several has no brackets"
    names, options = value if isinstance(value, list) else [value], override.conf.names(key)
    written = all(isinstance(name, str) and "${" not in name for name in names)
    if not written or (isinstance(value, list) and not set(names) <= set(options)):
        wrong = next((name for name in names if name not in options), value)
        return unknown_name_message(key, options, wrong, listing=HELP_COMMAND)
    return None


# each returns what is wrong with an override, or None; the first that says something is raised
RULES = (_study, _launcher_package, _logger, _help, _unknown_setting, _searchpath, _numbers, _once, _sweep, _choice)


def _swept(value: Any) -> int:
    """Return the number of values in a sweep over a setting, at most MAX_SWEEP_CELLS + 1."""
    if isinstance(value, ChoiceSweep):
        return len(value.list)
    if not isinstance(value, RangeSweep):
        return 1
    assert value.start is not None
    assert value.stop is not None  # the parser refuses a range without
    try:
        steps = (value.stop - value.start) / value.step
        return max(0, math.ceil(min(steps, MAX_SWEEP_CELLS + 1)))
    except (ArithmeticError, ValueError):  # no step, or no end
        return MAX_SWEEP_CELLS + 1


@dataclass(frozen=True)
class LauncherTraits:
    """How a sweep's workers are started.

    Attributes:
        workers: the largest number of workers at a time.
        remote: whether they run on machines of their own, so that this one is not to train.
        gives_gpus: whether the launcher says which GPUs each worker sees.
    """

    workers: int
    remote: bool
    gives_gpus: bool


def describe_launcher(name: str, cfg: DictConfig, settings: Mapping[str, Any] | None = None) -> LauncherTraits:
    """Return how a launcher starts the workers of a sweep.

    Args:
        name: the name of the launcher, a choice of hydra/launcher.
        cfg: the config of one of the sweep's cells.
        settings: the settings of hydra.launcher; None: not known yet, and not checked.

    Raises:
        ValueError: the number of workers is not given, or the launcher starts none; a setting of Ray does not fit the
            cell.
    """
    ray = name in ("ray", "pe_lab_ray")
    address = (settings or {}).get("address") if ray else None
    remote = name in ("submitit", "submitit_slurm") or address is not None
    if remote and cfg.workers is None:
        setting = f"hydra/launcher={name}" if address is None else f"hydra.launcher.address={address}"
        raise ValueError(f"workers must be given with {setting}, the number of jobs to submit: got none")
    if name == "basic" and cfg.workers not in (None, 1):
        raise ValueError(f"workers must be 1 with hydra/launcher=basic, which starts none, got {cfg.workers}")
    workers = 1.0 if name == "basic" else _workers_of_machine(cfg.trainer.device, devices_of(cfg.trainer))
    if ray and settings is not None:
        workers *= _tasks_per_worker(settings, cfg.trainer)
    return LauncherTraits(cfg.workers or max(1, int(workers)), remote, gives_gpus=remote or ray)


def _workers_of_machine(device: str, devices: int) -> int:
    """Return the number of workers for this machine: one per GPU, or one per core without a GPU.

    Args:
        devices: how many devices train a run together.
    """
    if device != "cpu" and (shared := gpus()):
        return max(1, len(shared) // devices)
    from joblib import cpu_count

    return max(1, int(cpu_count()) // devices)


def _tasks_per_worker(settings: Mapping[str, Any], trainer: DictConfig) -> float:
    """Return how many tasks of Ray share what another worker would have, its core or its GPUs.

    Raises:
        ValueError: a task asks for no core, or a part of one above one; its GPUs do not fit the cell.
    """
    cpus, number, devices = settings["num_cpus"], settings["num_gpus"], devices_of(trainer)
    for setting, value, least in (("num_cpus", cpus, "more than 0"), ("num_gpus", number, "0 or more")):
        if not 0 <= value < math.inf or (value == 0 and setting == "num_cpus") or (value > 1 and value % 1):
            raise ValueError(f"hydra.launcher.{setting} must be {least}, and whole above 1, got {value:g}")
    if settings["max_retries"] < -1:
        raise ValueError(f"hydra.launcher.max_retries must be 0 or more, or -1: always, got {settings['max_retries']}")
    if trainer.device == "cuda" or (trainer.device == "auto" and gpus()):
        if number == 0 or (devices > 1 and number != devices):
            must = f"trainer.devices={devices}" if devices > 1 else "1, or 0.5 for two workers per GPU"
            raise ValueError(
                f"hydra.launcher.num_gpus must be {must}, where cells are trained on GPUs (trainer.device="
                f"{trainer.device}), got {number:g}"
            )
        return float(devices / number)
    if trainer.device == "cpu" and number:
        raise ValueError(f"hydra.launcher.num_gpus must be 0 with trainer.device=cpu, got {number:g}")
    return float(devices / cpus)
