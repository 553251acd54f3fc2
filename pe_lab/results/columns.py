"""The columns of a table with one row per cell: which make a setting, and which hold a metric or a floor of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pe_lab.data.score import LEVELS
from pe_lab.system.names import unknown_name

FIRST = ("pe", "data", "depth", "epochs", "seed")  # columns that every row begins with
COST = ("parameters", "positional_parameters", "flops_per_token", "seconds", "attention", "device", "run")
# columns that describe where a checkpoint was trained, with their names in its environment.json
ENVIRONMENT = {
    "python": "python",
    "torch": "torch",
    "pe_lab": "pe_lab",
    "commit": "commit",
    "hardware": "device",
    "threads": "threads",
}
# columns of records: measurements that were made on a checkpoint after training
MEASURED = ("kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value")
SHOWN = ("loss", "accuracy", "exact_match")  # metrics that have curves
GENERATED = "exact_match_generated"  # exact match of answers that the model wrote itself
REMAINING = "remaining"  # a metric: the share of the gap between a task's level and the best possible that is left


def checkpoint(row: Mapping[str, Any]) -> int:
    """Return what names the checkpoint of a cell in its run: the steps of its training if they are given, or epochs."""
    steps = row.get("steps")
    return int(row["epochs"] if steps is None or pd.isna(steps) else steps)


def merge(left: pd.DataFrame, right: pd.DataFrame, on: list[str], **options: Any) -> pd.DataFrame:
    """Merge two tables of cells or comparisons on columns of settings.

    A setting that no line of one table has is a column of numbers there, though it may be one of texts in the other.

    Args:
        options: of DataFrame.merge.
    """
    different = [name for name in on if left[name].dtype != right[name].dtype]
    objects = dict.fromkeys(different, object)
    merged = left.astype(objects).merge(right.astype(objects), on=on, **options)
    return merged.astype({name: left[name].dtype for name in different})


def setting_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns that make a setting: those before the metrics, without encoding and seed."""
    columns = list(rows.columns)
    first = next(number for number, name in enumerate(columns) if name.startswith("test_"))
    return [name for name in columns[:first] if name not in ("pe", "seed")]


def metric_column(rows: pd.DataFrame, metric: str) -> str:
    """Return the column of a test metric.

    Raises:
        ValueError: there is no such metric.
    """
    if f"test_{metric}" not in rows:
        known = [name.removeprefix("test_") for name in rows if name.startswith("test_")]
        raise ValueError(unknown_name("metric", known, metric))
    return f"test_{metric}"


def lower_is_better(metric: str) -> bool:
    """Return whether a lower value is better: true for losses and bits, false for accuracies and exact match."""
    return metric == REMAINING or any(word in metric for word in ("loss", "bits", "perplexity"))


def floors(rows: pd.DataFrame, metric: str = "loss") -> list[str]:
    """Return the names of the floors and reference levels that the rows have for a metric."""
    end = f"_{metric}"
    known = [name.removeprefix("floor_").removesuffix(end) for name in rows if name.startswith("floor_")]
    return [floor for floor in dict.fromkeys(known) if f"floor_{floor}{end}" in rows]


def levels(known: list[str]) -> list[str]:
    """Return the floors that can serve as the reference level of a task, the most informative first."""
    first: list[str] = [floor for floor in LEVELS if floor in known]
    return first or [floor for floor in known if floor != "bayes"]


def sort_by_setting(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Sort rows by their settings: numbers ascending, tasks, other names and encodings in order of appearance."""
    keys = [name for name in names if name in rows]
    first = {name: {value: number for number, value in enumerate(rows[name].unique())} for name in [*keys, "pe"]}

    def key(column: pd.Series) -> pd.Series:
        numbers = pd.api.types.is_numeric_dtype(column) and column.name != "pe"
        return column if numbers else column.map(first[str(column.name)])

    return rows.sort_values([*keys, "pe"], kind="stable", key=key, na_position="first")
