"""Encodings that are parts of another: names on the command line, all of their settings in the config."""

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from pe_lab.config.config_folders import ConfigFolders
from pe_lab.encodings.options import OptionError, show_value
from pe_lab.system.names import did_you_mean

PARTS = "parts"  # the option


def is_encoding(value: Any) -> TypeGuard[DictConfig]:
    """Return whether a setting is an encoding of its own, with all of its settings."""
    return OmegaConf.is_dict(value) and "_target_" in value


def inner_encodings(leaf: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield the encodings that an encoding is made of, each behind its dotted setting, as encoding or parts.0.

    Encodings within those are not among them.

    Args:
        leaf: the settings of the encoding, in which parts are filled.
    """
    for key, value in leaf.items():
        if is_encoding(value):
            yield str(key), value
        elif isinstance(value, ListConfig):
            yield from ((f"{key}.{i}", part) for i, part in enumerate(value) if is_encoding(part))


def fill_parts(leaf: DictConfig, path: str, conf: ConfigFolders, written: Callable[[str], DictConfig]) -> None:
    """Replace each part of an encoding that is a name, or a name with some settings, by all of its settings.

    The same holds for another encoding that is a setting of a part, as `encoding` of `dape`.

    Args:
        leaf: the settings of the encoding.
        path: the path of the encoding in the config, for messages.
        conf: the files that can be chosen.
        written: a function that composes the settings of a name of conf/pe.

    Raises:
        OptionError: a part is no encoding, or has no such setting.
    """
    for key, value in leaf.items():
        if is_encoding(value):
            fill_parts(value, f"{path}.{key}", conf, written)
    parts = leaf.get(PARTS)
    if not isinstance(parts, ListConfig):
        return
    filled = [_fill_part(part, f"{path}.{PARTS}[{i}]", conf, written) for i, part in enumerate(parts)]
    for i, part in enumerate(filled):
        fill_parts(part, f"{path}.{PARTS}[{i}]", conf, written)
    with open_dict(leaf):
        leaf[PARTS] = filled


def _fill_part(part: Any, path: str, conf: ConfigFolders, written: Callable[[str], DictConfig]) -> DictConfig:
    if is_encoding(part):
        return part
    leaf = {"name": part} if isinstance(part, str) else OmegaConf.to_container(part) if OmegaConf.is_dict(part) else {}
    assert isinstance(leaf, dict)
    name = leaf.pop("name", None)
    if not isinstance(name, str) or conf.file("pe", name) is None:
        names = conf.names("pe")
        raise OptionError(
            f"{path} must be an encoding, or {{name: an encoding, and settings of it}}, got "
            f"{show_value(OmegaConf.to_container(part) if OmegaConf.is_config(part) else part)}"
            f"{did_you_mean(name, names) or ': there are ' + ', '.join(names)}"
        )
    settings = written(name)
    for key, value in leaf.items():
        if key not in settings or str(key)[0] == "_":
            allowed = [str(key) for key in settings if str(key)[0] != "_" and key != "name"]
            has = f"has the settings {', '.join(allowed)}" if allowed else "has no settings"
            raise OptionError(f"{path}={name} {has}: got {key}={show_value(value)}{did_you_mean(key, allowed)}")
        if is_encoding(settings[key]):
            value = _fill_part(
                OmegaConf.create(value) if isinstance(value, dict) else value, f"{path}.{key}", conf, written
            )
        settings[key] = value
    return settings
