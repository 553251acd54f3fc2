"""Describe the settings to users: default, range, meaning, and what a change does.

The words are the comments beside the keys in conf/. The ranges are the ones that values are checked against.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pe_lab.config import trainer_arguments
from pe_lab.config.option_declarations import declared_ranges
from pe_lab.config.schema import RANGES, config_folder
from pe_lab.encodings.options import BOOLEAN, Range

# in the order of --help
COMMON_SETTINGS = (
    "pe",
    "data",
    "model",
    "model.depth",
    "model.width",
    "model.num_heads",
    "epochs",
    "steps",
    "seed",
    "optimizer.lr",
    "tune.rates",
    "tune.baseline",
    "margin",
    "trainer.device",
    "trainer.precision",
    "trainer.batch_size",
    "evaluate.lengths",
    "probe",
    "logger",
    "ledger",
    "study_name",
    "workers",
)
READING_CALLBACKS = (
    "device_stats_monitor",
    "learning_rate_monitor",
    "model_checkpoint",
)  # callbacks that change no training
# what a setting changes: the longest beginning of its name decides, and without one the training
TRAINING, ON_GPU, WITH_CALLBACKS = "results", "results on a GPU", "results with callbacks"
MEASURED, CELLS, NOTHING = "what is measured", "which cells", "nothing"
_CHANGES = {
    **dict.fromkeys(("evaluate", "probe"), MEASURED),
    **dict.fromkeys(("tune", "decide", "budget"), CELLS),
    **dict.fromkeys(("logger", "ledger", "study_name", "workers", "margin", "hydra"), NOTHING),
    **dict.fromkeys(("trainer.log_every", "trainer.save_every"), NOTHING),
    **dict.fromkeys((f"callbacks.{name}" for name in READING_CALLBACKS), NOTHING),
    **dict.fromkeys(("trainer.graph", "model.checkpointing"), ON_GPU),
    **dict.fromkeys((f"trainer.{name}" for name in trainer_arguments.TAKEN_ARGUMENTS), NOTHING),
    **dict.fromkeys((f"trainer.{name}" for name in trainer_arguments.NEUTRAL_ARGUMENTS), TRAINING),
    **dict.fromkeys((f"trainer.{name}" for name in trainer_arguments.ON_GPU), ON_GPU),
    **dict.fromkeys((f"trainer.{name}" for name in trainer_arguments.VALIDATION_ARGUMENTS), WITH_CALLBACKS),
}
_UNLISTED = ("_target_", "_partial_", "name", "defaults", "hydra")
_COMMENT = re.compile(r"\s+# (.*)")


@dataclass(frozen=True)
class Setting:
    """A key of a file in conf/.

    Attributes:
        name: the key as on a command line, for instance model.depth.
        default: the value as the file has it; "" for settings that have settings of their own.
        description: the comment beside the key, which may go on below, at the same column.
        range: what a value must be; "" where a class of another package decides.
    """

    name: str
    default: str
    description: str
    range: str

    @property
    def changes(self) -> str:
        """What another value of it changes."""
        return setting_effect(self.name)


def setting_effect(name: str) -> str:
    """Return what another value of a setting changes."""
    parts = name.split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((_CHANGES[beginning] for beginning in beginnings if beginning in _CHANGES), TRAINING)


def read_config_settings(file: Path, group: str = "") -> list[Setting]:
    """Return the settings of a file of conf/, in its order.

    Args:
        group: the group that the file is in; "": none.
    """
    text = file.read_text(encoding="utf-8")
    lines, root = text.splitlines(), yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(root, yaml.MappingNode):
        return []
    package = re.match(r"# @package (\S+)", text)
    prefix = package[1].removeprefix("_global_") if package else group
    target = next((value.value for key, value in root.value if key.value == "_target_"), None)
    declared = declared_ranges(target) if group in ("pe", "data") else {}  # other classes are of other packages
    ranges = RANGES | {f"{group}.{name}": allowed for name, allowed in declared.items()}
    return list(_settings(root, f"{prefix}." if prefix else "", lines, ranges))


def common_settings() -> list[Setting]:
    """Return the settings that are changed most, in the order of COMMON_SETTINGS."""
    by_name = {setting.name: setting for setting in default_groups()}
    chosen = {name.partition(".")[0] for name in COMMON_SETTINGS if "." in name}
    by_name |= {
        setting.name: setting for setting in settings_of_config([group for group in by_name if group in chosen])
    }
    return [by_name[name] for name in COMMON_SETTINGS]


def settings_of_config(chosen: list[str] | None = None) -> list[Setting]:
    """Return the settings of conf/config.yaml and of what it chooses.

    Args:
        chosen: the groups, in order; None: all.
    """
    names = {setting.name: setting.default.strip("[]") for setting in default_groups() if setting.default != "[]"}
    files = [
        (group, config_folder() / group / f"{names[group]}.yaml") for group in (names if chosen is None else chosen)
    ]
    return [
        setting
        for group, file in [("", config_folder() / "config.yaml"), *files]
        for setting in read_config_settings(file, group)
    ]


def default_groups() -> list[Setting]:
    """Return the groups of conf/ with what is chosen of each by default."""
    text = (config_folder() / "config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^  - (\w+): (\S+) +# (.*)$", text, re.MULTILINE)  # the entries of its defaults
    return [Setting(group, chosen, text, f"a file of conf/{group}") for group, chosen, text in entries]


def _settings(node: yaml.MappingNode, prefix: str, lines: list[str], ranges: dict[str, Range]) -> Iterator[Setting]:
    for key, value in node.value:
        name, text = prefix + key.value, _comment(lines, key, value)
        if key.value in _UNLISTED:
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if text:
                yield Setting(name, "", text, "")
            yield from _settings(value, f"{name}.", lines, ranges)
            continue
        default = lines[value.start_mark.line][value.start_mark.column : value.end_mark.column]
        if value.end_mark.line > value.start_mark.line:  # a list over several lines
            default = " ".join(line.strip() for line in lines[value.start_mark.line : value.end_mark.line])
        allowed = ranges.get(name, BOOLEAN if default in ("true", "false") else None)
        yield Setting(
            name, default, text, "" if allowed is None else allowed.words + (", or null" if allowed.optional else "")
        )


def first_comment(file: Path) -> str:
    """Return the first comment of a file of conf, which says what the choice is; empty if there is none."""
    lines = (
        line
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("# ") and not line.startswith("# @")
    )
    return next(lines, "").removeprefix("# ")


def _comment(lines: list[str], key: Any, value: Any) -> str:
    """Return the comment beside a key, and what stands below it at the same column."""
    inline = isinstance(value, yaml.ScalarNode) or value.flow_style
    line, column = (value.end_mark.line, value.end_mark.column) if inline else (key.end_mark.line, key.end_mark.column)
    start = _COMMENT.match(lines[line], column + (0 if inline else 1))
    if start is None:
        return ""
    text, column = [start[1]], start.start(1) - 2
    for below in lines[line + 1 :]:
        if below[:column].strip() or below[column : column + 2] != "# ":
            break
        text.append(below[column + 2 :])
    return " ".join(text)
