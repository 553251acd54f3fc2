"""Tables of cells: long (encoding, setting, seed, metrics) and wide (a column per encoding).

Cells of one seed share data, order and all weights that are not positional. So seeds are the independent units, and
differences within a seed are tested. The checkpoints of one run (after 1, 4 and 16 epochs of one training) share all
of it: they are settings, never further seeds.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

LOWER_IS_BETTER = ("loss", "bits", "perplexity", "error")  # in names of metrics whose lowest value is the best
METRIC_UNITS = {"loss": "nats", "bits": "bits"}  # of metrics with these words in their names; others have shares
STEPS_METRIC = "log2_steps"  # a metric: log2 of the steps to solve the task
REMAINING_METRIC = (
    "remaining"  # a metric: the share of the gap between a task's level and the best possible that is left
)


def setting_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns of a setting: all before the metrics, except encoding and seed."""
    columns = list(rows.columns)
    first = next(number for number, name in enumerate(columns) if name.startswith("test_"))
    return [name for name in columns[:first] if name not in ("pe", "seed")]


def metric_column(rows: pd.DataFrame, metric: str) -> str:
    """Return the column of a test metric.

    Raises:
        ValueError: there is no such metric.
    """
    if f"test_{metric}" not in rows:
        names = [name.removeprefix("test_") for name in rows if name.startswith("test_")]
        raise ValueError(unknown_name_message("metric", names, metric))
    return f"test_{metric}"


def lower_is_better(metric: str) -> bool:
    """Return whether a lower value is better: of losses, bits, perplexities and errors; see `pe_lab.data.metric`."""
    return metric in (REMAINING_METRIC, STEPS_METRIC) or any(word in metric for word in LOWER_IS_BETTER)


def metric_unit(metric: str) -> str:
    """Return the unit that a metric declares, see `pe_lab.data.metric`: nats, bits, share, or empty of perplexities.

    That of REMAINING_METRIC is gap, a share of the distance between two floors; that of STEPS_METRIC is octaves.
    """
    if metric in (REMAINING_METRIC, STEPS_METRIC):
        return "gap" if metric == REMAINING_METRIC else "octaves"
    return next(
        (unit for word, unit in METRIC_UNITS.items() if word in metric), "" if "perplexity" in metric else "share"
    )


def require_baseline(rows: pd.DataFrame, name: str | None) -> str:
    """Return the baseline: the named encoding, or the first of the rows.

    Raises:
        ValueError: the encoding is not among the rows.
    """
    names = list(rows["pe"].unique())
    if name and name not in names:
        raise ValueError(unknown_name_message("baseline", names, name))
    return name or names[0]


def unknown_name_message(what: str, choices: Iterable[str], name: str, where: str = "") -> str:
    """Return a message about an unknown name, which lists the known ones, nearest first."""
    choices = list(choices)
    rule = f"{what} must be one of {', '.join(choices)}{where}"
    near = get_close_matches(name, choices, 1)
    return f"{what}={name!r}: did you mean {near[0]}? {rule}" if near else f"{rule}, got {name!r}"


def keys_of(lines: pd.DataFrame, names: list[str]) -> list[tuple[Any, ...]]:
    """Return the setting of each line as a tuple, with None for missing values."""
    lists = [[None if pd.isna(value) else value for value in lines[name]] for name in names]
    return list(zip(*lists, strict=True)) if names else [()] * len(lines)


def sort_by_setting(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Sort rows by their settings: numbers ascending, tasks, other names and encodings in order of appearance."""
    keys = [name for name in names if name in rows]
    first = {name: {value: number for number, value in enumerate(rows[name].unique())} for name in [*keys, "pe"]}

    def key(column: pd.Series) -> pd.Series:
        numbers = pd.api.types.is_numeric_dtype(column) and column.name != "pe"
        return column if numbers else column.map(first[str(column.name)])

    return rows.sort_values([*keys, "pe"], kind="stable", key=key, na_position="first")


def wide_table(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Return a row per setting and seed, settings sorted, and a column per encoding; non-finite values become NaN.

    Raises:
        ValueError: a cell occurs twice, or there is no such metric.
    """
    measured = metric_column(rows, metric)
    keys = [*setting_columns(rows), "seed"]
    twice = rows[rows.duplicated([*keys, "pe"])]
    if len(twice):
        example = ", ".join(f"{name}={twice.iloc[0][name]}" for name in ["pe", *keys])
        raise ValueError(
            f"cells must differ in the columns of the table, got {len(twice)} that occur more than once, as {example}"
        )
    names = pd.Index(rows["pe"].unique(), name="pe")
    rows = sort_by_setting(rows, setting_columns(rows))
    lines = rows.groupby(keys, sort=False, dropna=False).ngroup()
    values = np.full((lines.nunique(), len(names)), np.nan)
    values[lines, names.get_indexer(rows["pe"])] = rows[measured].where(np.isfinite(rows[measured]))
    return pd.DataFrame(values, pd.MultiIndex.from_frame(rows.loc[~lines.duplicated(), keys]), names)


def split_by_setting(table: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return each setting of a wide table with its part of the table, indexed by seed."""
    names = [name for name in table.index.names if name != "seed"]
    parts = []
    for key, part in table.groupby(level=names if len(names) > 1 else names[0], sort=False, dropna=False):
        parts.append((dict(zip(names, key if len(names) > 1 else (key,), strict=True)), part.droplevel(names)))
    return parts
