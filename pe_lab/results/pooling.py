"""The mean over all settings of a table, in a unit that settings of several tasks share."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pe_lab.data.score import NO_GAP
from pe_lab.results.columns import (
    REMAINING_METRIC,
    floors,
    lower_is_better,
    metric_column,
    reference_floors,
    setting_columns,
)


@dataclass(frozen=True)
class Pool:
    """The mean over all settings.

    Attributes:
        rows: a row per encoding and seed: settings (their number), test_<metric> (the mean over them),
            positional_parameters, flops_per_token (summed), for one task also the means of its floors. Empty where
            nothing can be pooled.
        metric: the metric of the settings, or REMAINING_METRIC.
        note: what was pooled and in which unit, or why not.
    """

    rows: pd.DataFrame
    metric: str
    note: str


def pool(rows: pd.DataFrame, metric: str = "loss") -> Pool:
    """Return the mean over all settings for each encoding and seed that has them all.

    Settings of one task are averaged as they are, and so are those of several tasks without a gap, such as text.
    Losses of other tasks are not comparable: the share of the gap that remains is averaged, (loss - best) / (level -
    best). The level is that of `summary_table.score_table`; the best possible value is the floor bayes, or a loss of 0
    where that is unknown.

    Raises:
        ValueError: there is no such metric.
    """
    measured, names = metric_column(rows, metric), setting_columns(rows)
    rows = rows[np.isfinite(rows[measured])]
    tasks = rows.groupby("data", sort=False) if "data" in rows else [("", rows)]
    gaps = {str(task): _mean_gap(cells, metric) for task, cells in tasks}
    without = [task for task, gap in gaps.items() if gap is None]
    if several := len(gaps) > 1 and not _without_gap(gaps.values()):
        unit = f"share of the gap to the best possible that remains, (test {metric} − best) / (level − best)"
        unit += "".join(f"; {task} from {gap.ends}" for task, gap in gaps.items() if gap)
        shares = [((rows[measured] - gap.best) / (gap.level - gap.best)).dropna() for gap in gaps.values() if gap]
        rows = rows.assign(value=pd.concat(shares) if shares else np.nan)
    else:
        unit = f"test {metric}{', in nats' * ('loss' in metric)}"
        rows = rows.assign(value=rows[measured])
    pooled = REMAINING_METRIC if several else metric
    count = len(rows[names].drop_duplicates())
    means = _average_settings(rows, pooled, count)
    if several and without:
        note = f"Not pooled over tasks: for test {metric}, no level is known for {', '.join(without)}."
        return Pool(means.head(0), pooled, note)
    note = f"Pooled over {count} settings: for each seed, the mean {unit}."
    if left_out := [name for name in rows["pe"].unique() if name not in set(means["pe"])]:
        note += f" Not included: {', '.join(left_out)}, for which no seed has all settings."
    return Pool(means, pooled, note)


def _average_settings(rows: pd.DataFrame, metric: str, count: int) -> pd.DataFrame:
    """Return the mean of the column value for each encoding and seed that has `count` settings, costs and floors."""
    others: dict[str, Any] = {"positional_parameters": "max", "flops_per_token": "sum"}
    # NaN if a setting lacks the floor
    others |= {f"floor_{name}_{metric}": lambda values: values.mean(skipna=False) for name in floors(rows, metric)}
    means = rows.groupby(["pe", "seed"], sort=False).agg(
        settings=("value", "size"),
        **{f"test_{metric}": ("value", "mean")},
        **{name: (name, how) for name, how in others.items() if name in rows},
    )
    means = means[means["settings"] == count].reset_index()
    return means[["settings", *(name for name in means if name != "settings")]]


class _Gap(NamedTuple):
    """The best possible value and the level of each row, their names, and whether the best value is a floor."""

    best: pd.Series
    level: pd.Series
    ends: str
    by_floor: bool


def _without_gap(gaps: Iterable[_Gap | None]) -> bool:
    """Return whether the best possible value of no task is known, so that none has a gap between floors."""
    return all(gap is not None and not gap.by_floor for gap in gaps)


def _mean_gap(rows: pd.DataFrame, metric: str) -> _Gap | None:
    """Return best value and level of a task, each the mean over the cells of a setting; None without a level."""
    present = [floor for floor in floors(rows, metric) if rows[f"floor_{floor}_{metric}"].notna().all()]
    if "bayes" not in present and not lower_is_better(metric):
        return None
    settings = rows.groupby(setting_columns(rows), sort=False, dropna=False)
    means = {floor: settings[f"floor_{floor}_{metric}"].transform("mean") for floor in present}
    best = means.get("bayes", 0.0 * rows[f"test_{metric}"])
    sign = 1 if lower_is_better(metric) else -1
    for floor in reference_floors(present):
        if (sign * (means[floor] - best)).gt(NO_GAP).all():
            zero = "bayes" if "bayes" in present else f"no {metric}"
            return _Gap(best, means[floor], f"{floor.replace('_', '-')} to {zero}", "bayes" in present)
    return None


def with_remaining(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame | None:
    """Return the rows of several tasks with test_remaining, the unit in which `pool` averages over tasks.

    None for one task and for tasks without a gap, whose metric needs no other unit, and where a task has no level.
    """
    if "data" not in rows or rows["data"].nunique() < 2:
        return None
    gaps = [_mean_gap(cells, metric) for _, cells in rows.groupby("data", sort=False)]
    if _without_gap(gaps) or any(gap is None for gap in gaps):
        return None
    measured = rows[metric_column(rows, metric)]
    shares = [((measured - gap.best) / (gap.level - gap.best)).dropna() for gap in gaps if gap]
    return rows.assign(**{f"test_{REMAINING_METRIC}": pd.concat(shares)})
