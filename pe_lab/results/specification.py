"""The figure of a sensitivity analysis: a specification curve."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import REMAINING_METRIC
from pe_lab.results.panels import ends_of, limit_axis, settings_in_words, without_wide_intervals
from pe_lab.results.plots.differences import MARGIN_BAND, legend_marks
from pe_lab.results.plots.plot import Plot
from pe_lab.results.sensitivity import Sensitivity
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict
from pe_lab.system.drawing import INK, PAPER, STYLE

DOT_SHADES = (INK, "#7A7A7A")  # of the dots of one setting and the next


@mpl.rc_context(STYLE)
def curve(sensitivity: Sensitivity) -> Plot:
    """Draw the specification curve: differences with t intervals, sorted; below each, the values of its settings.

    Marks are those of their verdicts, see `verdict_marks`; the grey band is the margin. Specifications
    without a shared seed are in the table only.
    """
    drawn = without_wide_intervals(sensitivity.lines.dropna(subset="difference"))
    levels = [(name, value) for name in sensitivity.names for value in _sorted_values(drawn[name])]
    width = float(np.clip(2.2 + 0.12 * len(drawn), 4.6, 9.5))
    heights = (2.4, 0.3 + 0.17 * len(levels))
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    above, below = figure.subplots(2, height_ratios=heights, sharex=True)
    _draw_differences(above, drawn)
    unit = "share of the gap" if sensitivity.metric == REMAINING_METRIC else sensitivity.metric
    above.set_ylabel(f"{unit}:\n{sensitivity.pe} minus\n{sensitivity.baseline}", fontsize=8)
    handles = [*legend_marks(drawn), *above.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    _draw_levels(below, drawn, levels)
    below.set_xlabel(f"{len(drawn)} settings, sorted by difference", fontsize=8)
    for axes in (above, below):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return Plot(figure, sensitivity.lines)


def _draw_differences(axes: Axes, drawn: pd.DataFrame) -> None:
    """Draw the differences of all specifications, a group of marks per verdict, over the margin of each."""
    if (margin := drawn["margin"].to_numpy(float)).size and np.isfinite(margin).any():
        edges, high = np.arange(len(drawn) + 1) - 0.5, np.append(margin, margin[-1:])
        axes.fill_between(
            edges, -high, high, step="post", color=MARGIN_BAND, linewidth=0, zorder=0, label="within the margin"
        )
    axes.axhline(0, color=INK, linewidth=0.8)
    places = pd.Series(np.arange(len(drawn)), drawn.index)
    size = float(np.clip(160 / max(1, len(drawn)), 2, 6))
    marks = [VERDICT_MARKS[Verdict(verdict)] for verdict in drawn["verdict"]]
    for mark in dict.fromkeys(marks):
        part = drawn[[other == mark for other in marks]]
        x = places[part.index]
        has_interval = part["low"].notna()
        axes.vlines(
            x[has_interval],
            part["low"][has_interval],
            part["high"][has_interval],
            color=mark.colour,
            linewidth=max(0.6, size / 4),
        )
        face = mark.colour if mark.filled else PAPER
        axes.plot(x, part["difference"], mark.shape, color=mark.colour, markerfacecolor=face, ms=size)
    axes.tick_params(axis="x", bottom=False)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if len(drawn):
        limit_axis(axes, ends_of([0.0, *drawn["difference"], *margin, *-margin], drawn))


def _draw_levels(axes: Axes, drawn: pd.DataFrame, levels: list[tuple[str, Any]]) -> None:
    """Draw a row per value of each setting, with a dot below each specification that has it."""
    size = float(np.clip(120 / max(1, len(drawn)), 1.2, 5))
    names, labels = list(dict.fromkeys(name for name, _ in levels)), []
    for row, (name, value) in enumerate(levels):
        has = drawn[name].isna() if pd.isna(value) else drawn[name] == value
        colour = DOT_SHADES[names.index(name) % len(DOT_SHADES)]
        axes.plot(np.flatnonzero(has), np.full(has.sum(), row), "o", color=colour, ms=size)
        if row and levels[row - 1][0] != name:
            axes.axhline(row - 0.5, color="#B5B5B5", linewidth=0.6)
        both = pd.DataFrame({name: [value, object()]})
        labels.append(settings_in_words(both, [name])[0])
    axes.set_yticks(range(len(levels)), labels)
    axes.set_ylim(len(levels) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(drawn) - 0.3)


def _sorted_values(column: pd.Series) -> list[Any]:
    """Return the values of a setting: numbers ascending, others in order of appearance."""
    values = column.drop_duplicates()
    return list(values.sort_values() if pd.api.types.is_numeric_dtype(column) else values)
