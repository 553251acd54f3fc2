"""The margin: the smallest difference between two encodings that matters, declared before the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log

import pandas as pd

from pe_lab.statistics.cells import REMAINING_METRIC, metric_column, metric_unit, setting_columns

MARGIN_UNITS = {
    "gap": "a share of the distance between the floors bayes and position_blind",
    "nats": "of a loss",
    "share": "of an accuracy, error or exact match, from 0 to 1",
}
MIN_GAP = 1e-9  # smaller distances between floors are rounding


@dataclass(frozen=True)
class Margin:
    """The smallest difference that matters, in a unit that a reader understands.

    Args:
        value: the size of the margin, above 0; below 1 for shares and gaps.
        unit: gap (a share of the distance between a task's floors `bayes` and `position_blind`), nats (of a loss) or
            share (of an accuracy, error or exact match).

    Raises:
        ValueError: another unit, or a value out of range.
    """

    value: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in MARGIN_UNITS:
            raise ValueError(f"the unit of a margin must be one of {', '.join(MARGIN_UNITS)}, got {self.unit!r}")
        most = float("inf") if self.unit == "nats" else 1.0
        if not (isfinite(self.value) and 0 < self.value < most):
            bounds = "above 0" if self.unit == "nats" else "above 0 and below 1"
            raise ValueError(f"a margin in {self.unit} must be {bounds}, got {self.value:g}")

    @classmethod
    def parse(cls, text: str) -> "Margin":
        """Read a margin from text such as `0.05 gap`.

        Raises:
            ValueError: the text is not a number and a unit.
        """
        words = str(text).split()
        try:
            value = float(words[0]) if len(words) == 2 and words[1] in MARGIN_UNITS else float("nan")
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise ValueError(
                f"margin must be a number and one of {', '.join(MARGIN_UNITS)}, such as '0.05 gap', got {text!r}"
            )
        return cls(value, words[1])

    def __str__(self) -> str:
        return f"{self.value:.12g} {self.unit}"

    def require_metric(self, metric: str) -> None:
        """Raise ValueError unless the unit suits a metric.

        Raises:
            ValueError: the metric has another unit.
        """
        if self.unit not in (units := _margin_units(metric)):
            raise ValueError(f"the margin of {metric} must be in {' or '.join(units)}, got {str(self)!r}")

    def in_units(self, rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
        """Return the margin of each setting in the unit of the metric.

        Where seeds have different floors, such as those of test sets of their own, the gap of a setting is the mean
        over its seeds, each counted once. The floors are computed from the task, so the margin is a constant for tests.
        Nats are divided by ln 2 for metrics in bits. What remains of the gap (REMAINING_METRIC) has a gap of 1.

        Returns:
            A line per setting: setting columns, margin.

        Raises:
            ValueError: there is no such metric, it has another unit, or a setting has no gap.
        """
        self.require_metric(metric)
        gaps = _gap_per_setting(rows, metric)
        if self.unit != "gap":
            value = self.value / log(2) if self.unit == "nats" and metric_unit(metric) == "bits" else self.value
            return gaps.drop(columns="gap").assign(margin=value)
        if len(without := gaps[~(gaps["gap"] > MIN_GAP)]):
            setting = ", ".join(f"{name} {value}" for name, value in without.iloc[0].items() if name != "gap")
            units = [f"{unit}, or " for unit in _margin_units(metric) if unit != "gap"]
            raise ValueError(
                f"a margin in gap needs floors bayes and position_blind of {metric} that differ, got {str(self)!r} for "
                f"{setting}: use {''.join(units)}no margin for the default of each task"
            )
        return gaps.assign(margin=self.value * gaps["gap"]).drop(columns="gap")


Margins = Margin | Mapping[str, Margin] | None  # one for the metric in question, by metric, or the defaults


def default_margin(rows: pd.DataFrame, metric: str = "loss") -> Margin | None:
    """Return the margin of a task for which none was declared.

    Args:
        rows: cells of one task.

    Returns:
        0.05 gap where every setting has a gap between its floors; otherwise 0.02 nats for losses and bits, 0.02 share
        for accuracies, errors and exact match, and None for a perplexity, whose differences have none of these units.

    Raises:
        ValueError: there is no such metric.
    """
    if len(rows) and (_gap_per_setting(rows, metric)["gap"] > MIN_GAP).all():
        return Margin(0.05, "gap")
    unit = next((unit for unit in _margin_units(metric) if unit != "gap"), None)
    return None if unit is None else Margin(0.02, unit)


def margins(rows: pd.DataFrame, metric: str = "loss", margin: Margin | None = None) -> pd.DataFrame:
    """Return the margin of each setting as `Margin.in_units` does; None: the default of each task.

    Its attribute "margin" says in words what was used; a margin is NaN where there is no default.
    """
    if margin is not None:
        table = margin.in_units(rows, metric)
        table.attrs["margin"] = str(margin)
        return table
    tasks = [(str(task), cells) for task, cells in rows.groupby("data", sort=False)] if "data" in rows else [("", rows)]
    parts, words = [], {}
    for task, cells in tasks:
        default = default_margin(cells, metric)
        words[task] = "none" if default is None else str(default)
        none = _gap_per_setting(cells, metric).assign(margin=float("nan")).drop(columns="gap")
        parts.append(none if default is None else default.in_units(cells, metric))
    table = (
        pd.concat(parts, ignore_index=True)
        if parts
        else _gap_per_setting(rows, metric).rename(columns={"gap": "margin"})
    )
    if len(set(words.values())) > 1:
        table.attrs["margin"] = ", ".join(f"{word} for {task}" for task, word in words.items())
    else:
        table.attrs["margin"] = next(iter(words.values()), "none")
    return table


def margins_by_metric(margin: Margins, metric: str) -> dict[str, Margin]:
    """Return declared margins by metric.

    Args:
        margin: a margin for `metric`, or margins by metric. A margin in gaps holds for what remains of the gap as well,
            in which several tasks are pooled.
    """
    margins = {metric: margin} if isinstance(margin, Margin) else dict(margin or {})
    if metric in margins and margins[metric].unit == "gap":
        margins.setdefault(REMAINING_METRIC, margins[metric])
    return margins


def _margin_units(metric: str) -> list[str]:
    """Return the units that a margin of a metric may have."""
    further = {"nats": ["nats"], "bits": ["nats"], "share": ["share"]}
    return ["gap", *further.get(metric_unit(metric), [])]


def _gap_per_setting(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a line per setting: setting columns, gap (mean distance between the floors; NaN if unknown)."""
    metric_column(rows, metric)
    names = setting_columns(rows)
    floors = [f"floor_{floor}_{metric}" for floor in ("bayes", "position_blind")]
    if metric == REMAINING_METRIC:
        gap = pd.Series(1.0, rows.index)
    elif set(floors) <= set(rows):
        gap = (rows[floors[1]] - rows[floors[0]]).abs()
    else:
        gap = pd.Series(float("nan"), rows.index)
    seeds = rows[[*names, "seed"]].assign(gap=gap).drop_duplicates([*names, "seed"])
    means = seeds.groupby(names, sort=False, dropna=False)["gap"].agg(lambda gaps: gaps.mean(skipna=False))
    return means.reset_index()
