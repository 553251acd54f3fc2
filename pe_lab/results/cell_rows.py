"""One row per cell, made of the cell's settings and of its summary."""

from collections import Counter, defaultdict
from itertools import count, takewhile
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from pe_lab.config import LR, flatten_settings, resolve_config
from pe_lab.results.columns import ENVIRONMENT, LEADING_COLUMNS, SUMMARY_COLUMNS
from pe_lab.system.files import canonical_form

Settings = dict[str, Any]  # the settings of a cell, by dotted name

# settings of logging, storage and later measurements: they say nothing about the training
NOT_TRAINING = (
    "logger",
    "ledger",
    "hydra",
    "study_name",
    "workers",
    "unit",
    "margin",
    "decide.",
    "budget",
    "shipped",
    "search",
    "tune.",
    "evaluate.",
    "probe",
    "optimizer._target_",
)
# settings that may have one value per encoding, and are then no setting of their own
STARTING_SCALES = ("std", "size")  # likewise, options of encodings, and of encodings within them
COMBINATIONS = ("sum", "heads", "interleave")  # names that say nothing about the parts
_PER_ENCODING = (LR, "attention.implementation", "attention.revision")


def settings_of(cfg: DictConfig) -> Settings:
    """Return the settings of a cell's config by dotted name."""
    return flatten_settings(resolve_config(cfg))


def describe_cells(settings: list[Settings]) -> pd.DataFrame:
    """Return the columns that distinguish cells, one row each: pe, data, depth, epochs, seed, other varying settings.

    Where trainings are counted in steps, the column steps comes next; epochs is then the fraction that they make.
    Options of the data that vary are settings; with several tasks they are part of the task's name. A learning rate or
    an attention implementation with one value per encoding is left out, and so is the scale at which an encoding starts
    if it has one value per setting. Settings and options are in alphabetical order, whole numbers without a decimal
    point, as in the identity of a run.
    """
    settings = _without_starting_scales([canonical_form(cell) for cell in settings])
    varied = _varied_settings(settings)
    several_tasks = "data.name" in varied
    left_out = (*NOT_TRAINING, "pe.", *(("data.",) if several_tasks else ()))
    leading = ("model.depth", "epochs", "steps", "seed")
    steps = ["steps"] if any(cell.get("steps", "null") != "null" for cell in settings) else []
    others = [key for key in sorted(varied) if key not in leading and not key.startswith(left_out)]
    encodings = _label_choices("pe", settings)
    tasks = _label_choices("data", settings) if several_tasks else [cell["data.name"] for cell in settings]
    records = []
    for encoding, task, cell in zip(encodings, tasks, settings, strict=True):
        values = (encoding, task, cell["model.depth"], cell["epochs"], cell["seed"])
        first = dict(zip(LEADING_COLUMNS, values, strict=True)) | {key: cell.get(key) for key in steps}
        records.append(first | {key: cell.get(key) for key in others})
    return _without_per_encoding(pd.DataFrame(records))


def _varied_settings(settings: list[Settings]) -> list[str]:
    """Return the settings that have several values, or that some cells lack."""
    values: dict[str, set[Any]] = defaultdict(set)
    present = Counter(key for cell in settings for key in cell)
    for cell in settings:
        for key, value in cell.items():
            values[key].add(value)
    return [key for key in values if len(values[key]) > 1 or present[key] < len(settings)]


def _without_starting_scales(settings: list[Settings]) -> list[Settings]:
    """Return settings without those of `STARTING_SCALES` that have one value per encoding and setting."""
    names = dict.fromkeys(name for cell in settings for name in cell if name.startswith("pe."))
    for name in (name for name in names if name.rpartition(".")[2] in STARTING_SCALES):
        values: dict[str, set[Any]] = defaultdict(set)
        for cell in settings:
            rest = {key: cell[key] for key in sorted(cell) if key not in (name, "seed", *_PER_ENCODING)}
            values[repr([item for item in rest.items() if not item[0].startswith(NOT_TRAINING)])].add(cell.get(name))
        if all(len(scales) == 1 for scales in values.values()):
            settings = [{key: value for key, value in cell.items() if key != name} for cell in settings]
    return settings


def _without_per_encoding(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns of `_PER_ENCODING` that have one value per encoding and setting."""
    for name in _PER_ENCODING:
        others = [other for other in table.columns if other not in (name, "seed")]
        if name in table and not table[[*others, name]].drop_duplicates().duplicated(others).any():
            table = table.drop(columns=name)
    return table


def _label_choices(group: str, settings: list[Settings]) -> list[str]:
    """Return each cell's choice in a config group: its name and the options that differ among cells of that name."""
    values: dict[str, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    names = [_name_choice(cell, f"{group}.") for cell in settings]
    number = Counter(names)
    present: Counter[tuple[str, str]] = Counter()
    for name, cell in zip(names, settings, strict=True):
        for key in cell:
            if key.startswith(f"{group}."):
                values[name][key].add(cell[key])
                present[name, key] += 1
    labels = []
    for name, cell in zip(names, settings, strict=True):
        options = values[name]
        varied = [key for key in sorted(options) if len(options[key]) > 1 or present[name, key] < number[name]]
        labels.append(name + "".join(f" {key[len(group) + 1 :]}={cell[key]}" for key in varied if key in cell))
    return labels


def _name_choice(settings: Settings, prefix: str) -> str:
    """Return the name of a choice, with those of its parts if the name does not stand for them: sum[rope+alibi]."""
    name: str = settings[f"{prefix}name"]
    if name not in COMBINATIONS or f"{prefix}parts.0.name" not in settings:
        return name
    parts = [
        _name_choice(settings, f"{prefix}parts.{i}.")
        for i in takewhile(lambda i: f"{prefix}parts.{i}.name" in settings, count())
    ]
    return f"{name}[{'+'.join(parts)}]"


def rows_of(settings: list[Settings], summaries: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one row per cell.

    Returns:
        The distinguishing columns (see `describe_cells`); `test_<metric>`; `floor_<floor>_<metric>`; parameters,
        positional_parameters, flops_per_token, seconds (in training steps), attention, device, run; python, torch,
        pe_lab, commit, hardware, threads (of the training; empty where unknown); optimizer.lr and
        attention.implementation where they vary and are not among the distinguishing columns.
    """
    described = describe_cells(settings)
    extra = [name for name in _PER_ENCODING if name not in described and len({cell.get(name) for cell in settings}) > 1]
    records = []
    for distinguishing, cell, summary in zip(described.to_dict("records"), settings, summaries, strict=True):
        records.append(distinguishing | _summary_columns(summary) | {name: cell.get(name) for name in extra})
    rows = pd.DataFrame(records).drop_duplicates(["run", "epochs"], ignore_index=True)
    floors = [name for name in rows if name.startswith("floor_")]  # tasks of one sweep have different ones
    last = [name for name in rows if name in (*SUMMARY_COLUMNS, *ENVIRONMENT, *_PER_ENCODING) and name not in described]
    return rows[[name for name in rows if name not in (*floors, *last)] + floors + last]


def _summary_columns(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that come from the summary of a checkpoint."""
    outcome = {f"test_{name}": value for name, value in summary["test"].items()}
    for floor, values in summary["floors"].items():
        outcome |= {f"floor_{floor}_{name}": value for name, value in values.items()}
    outcome |= {name: summary[name] for name in SUMMARY_COLUMNS}
    environment = summary.get("environment", {})
    return outcome | {column: environment.get(name) for column, name in ENVIRONMENT.items()}
