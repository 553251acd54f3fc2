"""What all figures of results share: the figure with its numbers, and the floors of a task."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_lab.data.score import BLIND_FLOORS
from pe_lab.results.columns import floors, lower_is_better
from pe_lab.results.panels import MAX_COLOURED_LINES, settings_in_words

FLOOR_DASHES: dict[str, Any] = {
    "position_blind_split_known": "--",
    "position_blind": "--",
    "bayes": "-",
    "unigram": ":",
    "ngram": "--",
    "xz": "-.",
}
FLOOR_NAMES = {
    "position_blind_split_known": "best without position, split known",
    "position_blind": "best without position",
    "bayes": "best possible",
    "unigram": "frequency of tokens",
    "ngram": "n-gram model",
    "xz": "xz, a compressor",
}

TEXT_FLOORS = ("unigram", "ngram", "xz")


@dataclass(frozen=True)
class Plot:
    """A figure, and the numbers that it shows.

    Attributes:
        figure: the figure.
        data: the means or differences that it draws.
        seeds: the values of single seeds that it draws as dots: setting, pe, what else a mean is of, seed, value, and
            the place of the dot beside the mean. Empty where it has no dots.
        bands: whether bands show the intervals of the means.
    """

    figure: Figure
    data: pd.DataFrame
    seeds: pd.DataFrame = field(default_factory=pd.DataFrame)
    bands: bool = True


def _drawn_floors(names: list[str]) -> list[str]:
    """Return the floors to draw: the lowest that a model without position can reach, and the best possible."""
    blind = [floor for floor in BLIND_FLOORS if floor in names][:1]
    return [*blind, *(floor for floor in ("bayes",) if floor in names)]


def floor_curves(records: pd.DataFrame, metric: str, names: list[str]) -> pd.DataFrame:
    """Return the floors of other lengths: setting, floor, length, value. Those of text are what other models reach.

    Args:
        records: the records of lengths, with all metrics.
        names: the columns that make a setting.
    """
    end = f"/{metric}"
    measured = records[records["metric"].str.endswith(end)]
    measured = measured.assign(
        floor=measured["metric"].str.removesuffix(end), setting=settings_in_words(measured, names)
    )
    drawn = [*_drawn_floors(list(measured["floor"].unique())), *TEXT_FLOORS]
    measured = measured[measured["floor"].isin(drawn)]
    return measured.groupby(["setting", "floor", "length"], sort=False)["value"].mean().reset_index()


def floor_levels(rows: pd.DataFrame, metric: str, names: list[str]) -> dict[str, pd.Series]:
    """Return the floors to draw, each with its mean by setting.

    Args:
        names: the columns that make a setting.
    """
    columns = {floor: f"floor_{floor}_{metric}" for floor in _drawn_floors(floors(rows, metric))}
    by_setting = rows.assign(setting=settings_in_words(rows, names)).groupby("setting")
    return {floor: by_setting[column].mean() for floor, column in columns.items()}


def best_at_the_end(data: pd.DataFrame, along: str, metric: str) -> list[str]:
    """Return the encodings to colour where not all can be: those with the best last value, by mean rank."""
    last = data.sort_values(along, kind="stable").drop_duplicates(["setting", "pe"], keep="last")
    order = (last["mean"] if lower_is_better(metric) else -last["mean"]).groupby(last["setting"]).rank()
    return list(order.groupby(last["pe"]).mean().sort_values(kind="stable").index[:MAX_COLOURED_LINES])
