"""The config of a checkpoint in a ledger, whoever wrote it, as plain data."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pe_lab.config import Config, folder
from pe_lab.config.ranges import NAME
from pe_lab.encodings.options import shown
from pe_lab.ledger.run import Run
from pe_lab.results.frame import outcome
from pe_lab.system.files import LedgerError, read_verified
from pe_lab.system.plain import complaint, read_yaml

GROUPS = ("pe", "data", "logger")  # whose settings name a class
HYDRA = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")  # for a class that is not the lab's
COST = ("parameters", "positional_parameters", "flops_per_token", "seconds")
NEEDED = ("pe", "data", "model", "epochs", "seed")


def read_settings(run: Run, epochs: int) -> dict[str, Any]:
    """The settings of a checkpoint. Nothing in them is resolved or imported, and no object is made of them.

    Classes are known by name: a setting with a name of the lab's has the lab's class. A class under another name is
    its user's own; it is a text here, and its options are plain data.

    Raises:
        LedgerError: they are not what was written, or no settings of a cell.
    """
    path = run.checkpoint(epochs) / "config.yaml"
    (content,) = read_verified(path.parent, path.name)
    try:
        settings = read_yaml(content)
        if found := complaint(settings):
            raise ValueError(found)
        _require_settings(settings)
    except ValueError as error:
        raise LedgerError(f"ledger entry {path} {error}") from None
    return settings


def read_summary(run: Run, epochs: int) -> dict[str, Any]:
    """What a checkpoint came to, as far as a run is told of it.

    Raises:
        LedgerError: it is not what was written, or no summary of a cell.
    """
    summary = outcome(run, epochs)
    tokens = summary.get("tokens_per_sequence", 1)
    if not re.fullmatch(r"[\w.-]+", str(summary.get("name"))) or not NAME.holds(summary["attention"]):
        found = "a name and an attention of letters, digits, '_', '.' and '-'"
    elif not all(type(summary.get(name)) in (int, float) for name in ("steps", *COST)) or type(tokens) is not int:
        found = f"the numbers steps, {', '.join(COST)} and tokens_per_sequence"
    else:
        return summary
    raise LedgerError(f"ledger entry {run.checkpoint(epochs) / 'summary.json'} must have {found}, got others")


def _require_settings(settings: Any) -> None:
    """Raises ValueError unless these are settings of a cell."""
    if not isinstance(settings, dict) or not settings.keys() >= set(NEEDED):
        raise ValueError(f"must have the settings {', '.join(NEEDED)}, got {shown(settings)}")
    for name, value in settings.items():
        if name not in Config.__dataclass_fields__:
            raise ValueError(f"must have the settings of a cell, got {shown(name)}")
        if name in GROUPS:
            _require_class(value, name, name)
        else:
            _require_options(value, name)
    if not isinstance(settings["model"], dict) or type(settings["model"].get("depth")) is not int:
        raise ValueError(f"must have model.depth as an integer, got {shown(settings['model'])}")
    if not (settings.get("study_name") is None or NAME.holds(settings["study_name"])):
        raise ValueError(f"must have as study_name {NAME.words}, got {shown(settings['study_name'])}")


def _require_class(leaf: Any, group: str, place: str) -> None:
    """Raises ValueError unless a leaf has a name, and a class of that name: the lab's, or somebody's own."""
    if not isinstance(leaf, dict) or not NAME.holds(leaf.get("name")):
        raise ValueError(f"must have as {place}.name {NAME.words}, got {shown(leaf)}")
    target, file = leaf.get("_target_"), folder() / group / f"{leaf['name']}.yaml"
    own = not file.is_file()
    if own:
        expected, whose = r"[^\W\d]\w*(\.[^\W\d]\w*)+", "the path of a class"
    else:  # a class by its name alone: modules move
        name = r"\w+" if group == "logger" else _class_of(file)
        expected, whose = rf"pe_lab(\.\w+)*\.{name}", f"pe_lab's class for {group}={leaf['name']}"
    if not isinstance(target, str) or not re.fullmatch(expected, target):
        raise ValueError(f"must have as {place}._target_ {whose}, got {shown(target)}")
    if leaf.get("_partial_") is not True and not own:
        raise ValueError(f"must have as {place}._partial_ true, got {shown(leaf.get('_partial_'))}")
    options = {name: value for name, value in leaf.items() if name not in ("_target_", "_partial_")}
    _require_options(options, place, "pe" if group == "pe" and not own else None, HYDRA if own else ())


def _class_of(file: Path) -> str:
    """The name of the class that a file of conf/ is of."""
    return read_yaml(file.read_bytes())["_target_"].rpartition(".")[2]


def _require_options(value: Any, place: str, within: str | None = None, allowed: Collection[str] = ()) -> None:
    """Raises ValueError if an option, however deep, has a key with a meaning for Hydra or W&B: they begin with _.

    Args:
        within: the group whose classes may stand in it: an encoding may take another.
        allowed: keys that begin with _.
    """
    if isinstance(value, dict):
        if within and "_target_" in value:
            _require_class(value, within, place)
            return
        for name, inner in value.items():
            if name.startswith("_") and name not in allowed:
                raise ValueError(f"must have no {shown(name)} in {place}, got {shown(inner)}")
            _require_options(inner, f"{place}.{name}", within, allowed)
    for inner in value if isinstance(value, list) else []:
        _require_options(inner, place, within, allowed)
