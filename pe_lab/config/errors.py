"""Describe what Hydra and OmegaConf raise in one line: the setting, the requirement and the value."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, ValidationError

from pe_lab.system.names import HELP_COMMAND, nearest_names, unknown_name_message
from pe_lab.system.raised_places import raised_line

TYPE_NAMES = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false", "String": "text"}
TYPE_NAMES |= {
    "ListConfig": "a list",
    "DictConfig": "a group of settings",
}  # by OmegaConf's kinds of nodes
LOCATING_PATTERN = re.compile(
    r"Error locating target '(\S+)', set env var .*full_key: (\S+)", re.DOTALL
)  # hydra's words

OTHER_NAMES = {  # of settings in other libraries, with ours
    **{"learning_rate": "optimizer.lr", "encoding": "pe", "task": "data", "dataset": "data", "max_steps": "steps"},
    **dict.fromkeys(("layers", "num_layers", "n_layer", "n_layers", "num_hidden_layers"), "model.depth"),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), "model.width"),
    **dict.fromkeys(("heads", "n_head", "n_heads", "num_attention_heads"), "model.num_heads"),
}
NEARLY_EQUAL = 0.9  # how alike a name of the group must be to come before an equal name of another group
MAX_VALUE_CHARACTERS = 80  # characters of a value in a message
COMPOSING_PATTERN = re.compile(r"In '([^']+)': ")  # hydra's words, about a setting in a file
APPEND_PATTERN = re.compile(r"To append to your config use \+([^=\s]+)=(.*)")  # hydra's words, about an unknown setting


def describe_hydra_error(error: BaseException) -> str:
    """Return a line about an error of Hydra or OmegaConf; "" for one whose own text says what it needs."""
    if isinstance(error, MissingConfigException) and error.options is not None and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if f"{group}={name}" in ("search=fair", "search=pe_bench"):
            rates = "tune.rates=[1e-3,3e-3,1e-2], with which every seed of a training in steps tunes for itself"
            return f"learning rates must be given as {rates}, got search={name}"
        return unknown_name_message(group or "config", error.options, name, listing=HELP_COMMAND)
    cause = error.__cause__
    if (file := COMPOSING_PATTERN.match(str(error))) and (line := _describe_setting(error.__context__)):
        return f"{file[1]}.yaml: {line}"
    if cause is not None and (located := LOCATING_PATTERN.match(str(error))):
        reason = raised_line(cause.__cause__, unnamed=True) if cause.__cause__ is not None else ""
        reason = reason or (str(cause).splitlines() or [""])[:2][-1]  # the second line has the error of the import
        return f"{located[2]}._target_ must be a class that can be imported, got {located[1]!r}: {reason}"
    appended = APPEND_PATTERN.search(str(error))
    if line := _describe_setting(error) or _describe_setting(cause, *(appended.groups() if appended else ())):
        return line
    key, text = getattr(cause, "full_key", None), " ".join(str(cause).strip().partition("\n")[0].split())
    return "" if not key or not text else text if key in text else f"{key}: {text}"


def unknown_setting(leaf: DictConfig, group: str, name: str, valid: Iterable[Any], value_text: str = "") -> str:
    """Return a message about a setting that does not exist: those that do, the value, and the nearest name.

    Args:
        leaf: the settings of the group, in their config.
        group: the dotted name of the group in the config; "": the config itself.
        valid: the names of the settings of the group.
        value_text: the value, as text; "": it is not known.
    """
    chosen = leaf.get("name") if group else None  # a name of conf/pe, conf/data, ...
    left_out = ("hydra", "name") if chosen else ("hydra",)
    names = sorted(key for key in map(str, valid) if key[0] != "_" and key not in left_out)
    owner = f"{group}={chosen}" if chosen else group or "the config"
    full = f"{group}.{name}".lstrip(".")
    elsewhere = [key for key in _settings(leaf._get_root()) if key != full]
    other = OTHER_NAMES.get(name)
    near = [other] if other in elsewhere else get_close_matches(name, names if group else [], 1, NEARLY_EQUAL)
    near = near or nearest_names(name, names, elsewhere)
    value = (
        f"={value_text[:MAX_VALUE_CHARACTERS]}{'...' if len(value_text) > MAX_VALUE_CHARACTERS else ''}"
        if value_text
        else ""
    )
    has = f"has the settings {', '.join(names)}" if names else "has no settings"
    has += f" before {group}=NAME is given" if group == "probe" and not names else ""
    return (
        f"{full}{value}: did you mean {' or '.join(near)}? {owner} {has}"
        if near
        else f"{owner} {has}: got {full}{value}"
    )


def _settings(leaf: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of the settings below a group, without Hydra's."""
    for key in leaf:
        name, value = f"{path}.{key}" if path else str(key), leaf._get_node(key)
        if name != "hydra":
            yield name
            yield from _settings(value, name) if hasattr(value, "items") and not value._is_none() else ()


def _describe_setting(error: BaseException | None, override: str = "", value_text: str = "") -> str:
    """Return what the type of a setting requires and the value that it was given; "" for other errors.

    Args:
        override: an unknown setting as it was written, and its value, if known.
    """
    key = getattr(error, "full_key", None)
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and key and error.parent_node is not None:
        group, _, name = key.rpartition(".")
        if override.startswith(f"{key}."):  # a setting within one that does not exist
            name += override.removeprefix(key)
        return unknown_setting(error.parent_node, group, name, list(error.parent_node), value_text)
    if not (isinstance(error, ValidationError) and key):
        return ""
    kind = type(error.child_node).__name__.removesuffix("Node")
    kind = (
        kind if kind in TYPE_NAMES else str(error).partition("\n")[0].rpartition(" ")[2]
    )  # a member of a list has no node
    return f"{key} must be {TYPE_NAMES[kind]}, got {error.value!r}" if kind in TYPE_NAMES else ""
