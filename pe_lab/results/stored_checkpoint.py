"""Read the settings and the summary of a checkpoint as plain data, whoever wrote them."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pe_lab.config import Config, config_folder
from pe_lab.config.ranges import NAME
from pe_lab.config.schema import LIST_GROUPS
from pe_lab.encodings.options import show_value
from pe_lab.ledger.run import Run
from pe_lab.results.from_ledger import summary_and_environment
from pe_lab.system.files import LedgerError, read_verified
from pe_lab.system.plain import plain_data_error, read_yaml

CLASS_GROUPS = ("pe", "data")  # settings that name a class
HYDRA_KEYS = (
    "_target_",
    "_partial_",
    "_args_",
    "_recursive_",
    "_convert_",
)  # allowed for classes that are not in pe_lab
COST_COLUMNS = ("parameters", "positional_parameters", "flops_per_token", "seconds")
REQUIRED_SETTINGS = ("pe", "data", "model", "epochs", "seed")
FORMER_SETTINGS = (
    "search",
    "shipped",
)  # settings in the ledger of the shipped rows of pe-bench 2; they changed no training


def read_checkpoint_settings(run: Run, target: int) -> dict[str, Any]:
    """Return the settings of a checkpoint. Nothing in them is resolved, imported or instantiated.

    A setting whose name is a file in conf/ must have the class of that file. Any other class is a user's own: its path
    and its options are returned as plain data.

    Raises:
        LedgerError: the settings are damaged, or not those of a cell.
    """
    path = run.checkpoint(target) / "config.yaml"
    (content,) = read_verified(path.parent, path.name)
    try:
        settings: dict[str, Any] = read_yaml(content)
        if problem := plain_data_error(settings):
            raise ValueError(problem)
        _require_settings(settings)
    except ValueError as error:
        raise LedgerError(f"ledger entry {path} {error}") from None
    return {name: value for name, value in settings.items() if name not in FORMER_SETTINGS}


def read_summary(run: Run, target: int) -> dict[str, Any]:
    """Return the summary of a checkpoint, after checking the values that are logged to W&B.

    Raises:
        LedgerError: the summary is damaged, or not that of a cell.
    """
    summary = summary_and_environment(run, target)
    tokens = summary.get("tokens_per_sequence")
    if not re.fullmatch(r"[\w.-]+", str(summary.get("name"))) or not NAME.holds(summary["attention"]):
        requirement = "a name and an attention of letters, digits, '_', '.' and '-'"
    elif (
        not all(type(summary.get(name)) in (int, float) for name in ("steps", *COST_COLUMNS)) or type(tokens) is not int
    ):
        requirement = f"the numbers steps, {', '.join(COST_COLUMNS)} and tokens_per_sequence"
    else:
        return summary
    raise LedgerError(f"ledger entry {run.checkpoint(target) / 'summary.json'} must have {requirement}, got others")


def _require_settings(settings: Any) -> None:
    """Raise ValueError unless these are the settings of a cell."""
    if not isinstance(settings, dict) or not settings.keys() >= set(REQUIRED_SETTINGS):
        raise ValueError(f"must have the settings {', '.join(REQUIRED_SETTINGS)}, got {show_value(settings)}")
    for name, value in settings.items():
        if name in FORMER_SETTINGS:
            continue
        if name not in Config.__dataclass_fields__:
            raise ValueError(f"must have the settings of a cell, got {show_value(name)}")
        if name in CLASS_GROUPS:
            _require_class(value, name, name)
        elif name == "logger" and isinstance(value, dict):
            # cells of earlier versions have one logger, with its name
            named = {value["name"]: value} if "name" in value else value
            for member, leaf in named.items():
                _require_class(leaf | {"name": member} if isinstance(leaf, dict) else leaf, name, f"logger.{member}")
        elif name in LIST_GROUPS and isinstance(value, dict):
            for member, leaf in value.items():
                _require_options(leaf, f"{name}.{member}", allowed=HYDRA_KEYS)
        else:
            _require_options(value, name, allowed=("_target_",) if name in ("optimizer", "trainer") else ())
    if not isinstance(settings["model"], dict) or type(settings["model"].get("depth")) is not int:
        raise ValueError(f"must have model.depth as an integer, got {show_value(settings['model'])}")
    if not (settings.get("study_name") is None or NAME.holds(settings["study_name"])):
        raise ValueError(f"must have as study_name {NAME.words}, got {show_value(settings['study_name'])}")


def _require_class(leaf: Any, group: str, place: str) -> None:
    """Raise ValueError unless a setting has a name, and pe_lab's class of that name or a user's own."""
    if not isinstance(leaf, dict) or not NAME.holds(leaf.get("name")):
        raise ValueError(f"must have as {place}.name {NAME.words}, got {show_value(leaf)}")
    target, file = leaf.get("_target_"), config_folder() / group / f"{leaf['name']}.yaml"
    is_users = not file.is_file()
    if is_users:
        expected, whose = r"[^\W\d]\w*(\.[^\W\d]\w*)+", "the path of a class"
    else:  # only the name of the class: modules may move
        name = r"\w+" if group == "logger" else _class_name(file)
        expected, whose = rf"pe_lab(\.\w+)*\.{name}", f"pe_lab's class for {group}={leaf['name']}"
    if not isinstance(target, str) or not re.fullmatch(expected, target):
        raise ValueError(f"must have as {place}._target_ {whose}, got {show_value(target)}")
    if leaf.get("_partial_") is not True and not is_users:
        raise ValueError(f"must have as {place}._partial_ true, got {show_value(leaf.get('_partial_'))}")
    options = {name: value for name, value in leaf.items() if name not in ("_target_", "_partial_")}
    _require_options(options, place, "pe" if group == "pe" and not is_users else None, HYDRA_KEYS if is_users else ())


def _class_name(file: Path) -> str:
    """Return the name of the class in a file of conf/."""
    return str(read_yaml(file.read_bytes())["_target_"]).rpartition(".")[2]


def _require_options(value: Any, place: str, within: str | None = None, allowed: Collection[str] = ()) -> None:
    """Raise ValueError if an option has, at any depth, a key that begins with _: Hydra and W&B act on such keys.

    Args:
        within: the group whose classes an option may hold, as encodings that take another encoding.
        allowed: keys with _ that are allowed.
    """
    if isinstance(value, dict):
        if within and "_target_" in value:
            _require_class(value, within, place)
            return
        for name, inner in value.items():
            if name.startswith("_") and name not in allowed:
                raise ValueError(f"must have no {show_value(name)} in {place}, got {show_value(inner)}")
            _require_options(inner, f"{place}.{name}", within, allowed)
    for inner in value if isinstance(value, list) else []:
        _require_options(inner, place, within, allowed)
