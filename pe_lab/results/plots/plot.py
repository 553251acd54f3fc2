"""What all figures of results share: the figure with its numbers, and the floors of a task."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_lab.data.score import BLIND_FLOORS
from pe_lab.results.columns import floors, lower_is_better
from pe_lab.results.panels import GREY, MAX_COLOURED_LINES, settings_in_words
from pe_lab.results.styles import style

DODGE_FACTOR = 1.08  # factor between neighbours on a logarithmic axis, where encodings stand side by side
FLOOR_DASHES: dict[str, Any] = {"position_blind_split_known": "--", "position_blind": "--", "bayes": "-"}
FLOOR_NAMES = {
    "position_blind_split_known": "best without position, split known",
    "position_blind": "best without position",
    "bayes": "best possible",
}


@dataclass(frozen=True)
class Plot:
    """A figure, and the numbers it shows as a table."""

    figure: Figure
    data: pd.DataFrame


def _drawn_floors(names: list[str]) -> list[str]:
    """Return the floors to draw: the lowest that a model without position can reach, and the best possible."""
    blind = [floor for floor in BLIND_FLOORS if floor in names][:1]
    return [*blind, *(floor for floor in ("bayes",) if floor in names)]


def floor_levels(rows: pd.DataFrame, metric: str, names: list[str]) -> dict[str, pd.Series]:
    """Return the floors to draw, each with its mean by setting.

    Args:
        names: the columns that make a setting.
    """
    columns = {floor: f"floor_{floor}_{metric}" for floor in _drawn_floors(floors(rows, metric))}
    by_setting = rows.assign(setting=settings_in_words(rows, names)).groupby("setting")
    return {floor: by_setting[column].mean() for floor, column in columns.items()}


def align_axes(panels: list[Axes]) -> None:
    """Give panels one extent along x, unless that would squeeze one to less than a third of its own."""
    ends = np.array([axes.get_xlim() for axes in panels])
    low, high = ends.min(), ends.max()
    if (high - low) < 3 * np.ptp(ends, axis=1).min():
        for axes in panels:
            axes.set_xlim(low, high)


def best_at_the_end(data: pd.DataFrame, along: str, metric: str) -> list[str]:
    """Return the encodings to colour where not all can be: those with the best last value, by mean rank."""
    last = data.sort_values(along, kind="stable").drop_duplicates(["setting", "pe"], keep="last")
    order = (last["mean"] if lower_is_better(metric) else -last["mean"]).groupby(last["setting"]).rank()
    return list(order.groupby(last["pe"]).mean().sort_values(kind="stable").index[:MAX_COLOURED_LINES])


def draw_with_intervals(axes: Axes, data: pd.DataFrame, along: str, lines: list[str]) -> None:
    """Draw means along a logarithmic axis, with marks and intervals side by side; encodings not in `lines` are grey."""
    for name, line in data.groupby("pe", sort=False):
        if name not in lines:
            axes.plot(line[along], line["mean"], color=GREY, linewidth=0.8, zorder=1)
            continue
        look = style(str(name))
        spread = np.nan_to_num(np.stack([line["mean"] - line["low"], line["high"] - line["mean"]])).clip(min=0)
        drawn = {"color": look.colour, "marker": look.marker, "ms": 5, "elinewidth": 1, "label": name}
        axes.plot(line[along], line["mean"], look.dash, color=look.colour, linewidth=1)
        axes.errorbar(
            line[along] * dodge_factor(name, lines), line["mean"], spread, linestyle="none", capsize=2, **drawn
        )


def dodge_factor(name: object, drawn: list[str]) -> float:
    """Return the factor by which a mark is moved along a logarithmic axis, to stand beside those of the others."""
    return float(DODGE_FACTOR ** (drawn.index(str(name)) - (len(drawn) - 1) / 2))
