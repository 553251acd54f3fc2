"""The columns of a table with one row per cell: which make a setting, and which hold a metric or a floor of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pe_lab.data.score import LEVEL_FLOORS
from pe_lab.statistics.cells import REMAINING_METRIC as REMAINING_METRIC
from pe_lab.statistics.cells import STEPS_METRIC as STEPS_METRIC
from pe_lab.statistics.cells import lower_is_better as lower_is_better
from pe_lab.statistics.cells import metric_column as metric_column
from pe_lab.statistics.cells import setting_columns as setting_columns
from pe_lab.statistics.cells import sort_by_setting as sort_by_setting

LEADING_COLUMNS = ("pe", "data", "depth", "epochs", "seed")  # columns that every row begins with
SUMMARY_COLUMNS = ("parameters", "positional_parameters", "flops_per_token", "seconds", "attention", "device", "run")
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
RECORD_COLUMNS = ("kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value")
CURVE_METRICS = ("loss", "accuracy", "exact_match")  # metrics that have curves
LENGTH_KINDS = ("length", "decode", "stride")  # kinds of measurements that have a length
STRIDED_PREFIX = "loss_stride_"  # the metric, before the stride
GENERATED_METRIC = "exact_match_generated"  # exact match of answers that the model wrote itself
METRIC_NAMES = {  # of metrics whose names are not words: what tables and figures call them
    "r2": "R² of position",
    "r2_permuted": "R² of permuted positions",
    "mae_permuted": "mean absolute error of permuted positions",
    "entropy": "entropy of attention in nats",
    "entropy_normalised": "normalised entropy of attention",
    "token_cosine": "cosine of two tokens",
    "direction_share": "variance in one direction",
    "position_share": "variance that goes with position",
    REMAINING_METRIC: "share of the gap",
    STEPS_METRIC: "log2 of the steps to solve",
    "mae": "mean absolute error of position",
}
COLUMN_NAMES = {  # of columns whose names are not words: what tables of a page call them
    "pe": "encoding",
    "data": "task",
    "baseline": "compared with",
    "low": "interval from",
    "high": "interval to",
    "p_corrected": "corrected p",
    "p_equivalent_corrected": "corrected p of equivalence",
    "optimizer.lr": "learning rate",
    "flops_per_token": "FLOPs per token",
    "seeds_equivalent": "seeds to show equivalence",
    "trained_steps": "steps of all tries",
    "core_seconds": "core seconds of all tries",
}
# the lowest and highest possible value of metrics whose names contain a word; of others nothing is known
POSSIBLE_RANGES = {
    "accuracy": (0.0, 1.0),
    "exact_match": (0.0, 1.0),
    "loss": (0.0, np.inf),
    "bits_per_byte": (0.0, np.inf),
    "perplexity": (1.0, np.inf),
    "r2": (-np.inf, 1.0),
    "score": (-np.inf, 1.0),
    "entropy": (0.0, np.inf),
    "_share": (0.0, np.inf),
    "cosine": (-1.0, 1.0),
    "_rank": (1.0, np.inf),
    "mae": (0.0, np.inf),
    "gradient": (0.0, np.inf),
    "distance": (0.0, np.inf),
}


def checkpoint_target(row: Mapping[str, Any]) -> int:
    """Return what names the checkpoint of a cell in its run: the steps of its training if they are given, or epochs."""
    steps = row.get("steps")
    return int(row["epochs"] if steps is None or pd.isna(steps) else steps)


def value_text(value: object) -> str:
    """Return the value of a setting as tables, figures and sentences show it: a number with up to six digits."""
    if isinstance(value, (int, float, np.number)):
        return "none" if pd.isna(value) else f"{value:g}"
    return "none" if value is None else str(value)


def in_words(metric: str) -> str:
    """Return the name of a metric in words."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def column_in_words(name: str) -> str:
    """Return the name of a column as tables of a page show it: in words, of a dotted setting the last part."""
    if name in COLUMN_NAMES or not re.fullmatch(r"[a-z0-9_]+(\.[a-z_]+)*", name):
        return COLUMN_NAMES.get(name, name)
    return in_words(name.rpartition(".")[2])


def possible_range(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest possible value of a metric, infinite where nothing is known."""
    if metric == "entropy_normalised":
        return 0.0, 1.0
    return next((ends for word, ends in POSSIBLE_RANGES.items() if word in metric), (-np.inf, np.inf))


def cut_interval(
    metric: str, mean: ArrayLike, low: ArrayLike, high: ArrayLike, difference: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of intervals, cut at what is possible but never beyond the mean; to be shown, not for verdicts.

    Args:
        metric: the metric of the values, see `possible_range`.
        difference: whether the values are differences of two values of the metric.
    """
    lowest, highest = possible_range(metric)
    if difference:
        lowest, highest = lowest - highest, highest - lowest
    return np.maximum(low, np.minimum(mean, lowest)), np.minimum(high, np.maximum(mean, highest))


def length_column(rows: pd.DataFrame) -> str:
    """Return the column of the length of training: steps where all trainings are counted in steps, or epochs."""
    return "steps" if "steps" in rows and rows["steps"].notna().all() else "epochs"


def sorted_values(column: pd.Series) -> list[Any]:
    """Return the different values of a setting, numbers before texts such as null; missing ones are left out."""
    return sorted(column.dropna().unique(), key=lambda value: (isinstance(value, str), value))


def displayed_settings(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the named setting columns, without epochs where trainings are counted in steps: both say the same."""
    return [name for name in names if name != "epochs" or length_column(rows) == "epochs"]


def record_settings(records: pd.DataFrame) -> list[str]:
    """Return the columns of records that make a setting."""
    return [name for name in records.columns[: list(records.columns).index("kind")] if name not in ("pe", "seed")]


def merge_tables(left: pd.DataFrame, right: pd.DataFrame, on: list[str], **options: Any) -> pd.DataFrame:
    """Merge two tables of cells or comparisons on columns of settings.

    A setting that no line of one table has is a column of numbers there, though it may be one of texts in the other.

    Args:
        options: more arguments of DataFrame.merge.
    """
    different = [name for name in on if left[name].dtype != right[name].dtype]
    objects = dict.fromkeys(different, object)
    merged = left.astype(objects).merge(right.astype(objects), on=on, **options)
    return merged.astype({name: left[name].dtype for name in different})


def probes_as_trained(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of probes at the shortest length they were applied to, usually the training length.

    A probe of position that is fitted and read at other lengths asks another question, so it is no part of a mean.
    """
    probes = records[records["kind"] == "probe"] if len(records) else records
    return probes[probes["length"].fillna(1) == probes["length"].fillna(1).min()] if len(probes) else probes


def without_whole_windows(records: pd.DataFrame) -> pd.DataFrame:
    """Return records without the exact match of text, which is that of whole windows and always about 0."""
    text = records.loc[records["metric"] == "bits_per_byte", "data"].unique() if "data" in records else []
    return records[~(records["metric"].eq("exact_match") & records["data"].isin(text))] if len(text) else records


def floors(rows: pd.DataFrame, metric: str = "loss") -> list[str]:
    """Return the names of the floors and reference levels that the rows have for a metric."""
    end = f"_{metric}"
    names = [name.removeprefix("floor_").removesuffix(end) for name in rows if name.startswith("floor_")]
    return [floor for floor in dict.fromkeys(names) if f"floor_{floor}{end}" in rows]


def reference_floors(names: list[str]) -> list[str]:
    """Return the floors that can serve as the reference level of a task, the most informative first."""
    first: list[str] = [floor for floor in LEVEL_FLOORS if floor in names]
    return first or [floor for floor in names if floor != "bayes"]
