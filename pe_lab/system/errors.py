"""Print errors as one line."""

import re
from typing import NoReturn

KINDS = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false", "String": "text"}
KINDS |= {
    "ListConfig": "a list",
    "DictConfig": "a group of settings",
}  # by OmegaConf's kinds of nodes
LOCATING = re.compile(r"Error locating target '(\S+)', set env var .*full_key: (\S+)", re.DOTALL)  # hydra's words


def refuse(reason: str) -> NoReturn:
    """Raise ValueError, where argparse would print its usage and end the program."""
    raise ValueError(reason)


def printable(text: str) -> str:
    """Escape control characters, which could move a terminal's cursor or change its title."""
    return "".join(of if of.isprintable() else of.encode("unicode_escape").decode() for of in text)


def in_one_line(error: BaseException) -> str:
    """Return an error as one printable line that names the setting, the requirement and the value."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.options is not None and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group or 'config'} must be one of {', '.join(error.options)}, got {name!r}"
    cause = error.__cause__
    if cause is not None and (located := LOCATING.match(str(error))):
        reason = (str(cause).splitlines() or [""])[:2][-1]  # the second line has the error of the import
        return printable(f"{located[2]}._target_ must be a class that can be imported, got {located[1]!r}: {reason}")
    if line := _of_setting(error) or _of_setting(cause):
        return printable(line)
    key = getattr(cause, "full_key", None)
    text = str(cause).strip().partition("\n")[0] if key and cause is not None else str(error)
    line = " ".join(text.split())
    if not line:
        within = cause or error.__context__
        return in_one_line(within) if within else type(error).__name__
    return printable(f"{key}: {line}" if key and key not in line else line)


def _of_setting(error: BaseException | None) -> str:
    """Return what the type of a setting requires and the value that it was given; "" for other errors."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, ValidationError

    key = getattr(error, "full_key", None)
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and key and error.parent_node is not None:
        known = sorted(str(name) for name in error.parent_node if str(name)[0] != "_")
        group, _, name = key.rpartition(".")
        return f"{group or 'the config'} has the settings {', '.join(known)}: got {name}"
    if not (isinstance(error, ValidationError) and key):
        return ""
    kind = type(error.child_node).__name__.removesuffix("Node")
    kind = kind if kind in KINDS else str(error).partition("\n")[0].rpartition(" ")[2]  # a member of a list has no node
    return f"{key} must be {KINDS[kind]}, got {error.value!r}" if kind in KINDS else ""
