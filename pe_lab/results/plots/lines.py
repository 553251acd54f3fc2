"""Means as lines, with intervals and seeds."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pe_lab.results.panels import GREY, MAX_COLOURED_LINES
from pe_lab.results.plots.dots import draw_dots
from pe_lab.results.styles import style

BAND, BANDS = 0.2, 0.6  # the most opaque that a band is, and all bands together
EDGE = 0.5  # how opaque the edges of a band are
SPREAD = 0.5  # share of the distance between two points over which the encodings of one point stand side by side


def draw_lines(
    axes: Axes,
    data: pd.DataFrame,
    along: str,
    highlight: list[str],
    seeds: pd.DataFrame | None = None,
    bands: bool = True,
) -> None:
    """Draw a line per encoding, those of `highlight` in colour and on top.

    Args:
        seeds: the table of `seed_values`: dots beside the means, those of an encoding in a column; None: no dots.
        bands: whether intervals are drawn, where there are few lines.
    """
    if seeds is not None:
        draw_dots_beside(axes, seeds, along, highlight, data[along])
    for name, line in sorted(data.groupby("pe", sort=False), key=lambda pair: pair[0] in highlight):
        line = line.sort_values(along)
        if name not in highlight:
            axes.plot(line[along], line["mean"], color=GREY, linewidth=0.8)
            continue
        colour, dash, marker = style(str(name))
        axes.plot(line[along], line["mean"], dash, color=colour, marker=marker, ms=4, linewidth=1.4, label=name)
        if bands and (count := data["pe"].nunique()) <= MAX_COLOURED_LINES:
            alpha = min(BAND, BANDS / count)
            axes.fill_between(line[along], line["low"], line["high"], color=colour, alpha=alpha, linewidth=0)
            for end in ("low", "high"):
                axes.plot(line[along], line[end], color=colour, alpha=EDGE, linewidth=0.8, zorder=1.4, label="_end")
    axes.tick_params(labelsize=8)


def draw_with_intervals(
    axes: Axes, data: pd.DataFrame, along: str, lines: list[str], seeds: pd.DataFrame, spread: float = 0.0
) -> None:
    """Draw means as lines with marks and intervals on them; encodings not in `lines` are grey, and have none.

    Args:
        seeds: the table of `seed_values`: dots beside the means, those of an encoding in a column.
        spread: share of the distance between two points over which lines are moved aside, each with its marks, so that
            equal means are seen. 0 where they fall steeply: a line that is moved aside would seem to be higher.
    """
    draw_dots_beside(axes, seeds, along, lines, data[along], spread or SPREAD)
    for name, line in data.groupby("pe", sort=False):
        if name not in lines:
            axes.plot(line[along], line["mean"], color=GREY, linewidth=0.8, zorder=1)
            continue
        look = style(str(name))
        ends = np.nan_to_num(np.stack([line["mean"] - line["low"], line["high"] - line["mean"]])).clip(min=0)
        drawn = {"color": look.colour, "marker": look.marker, "ms": 5, "elinewidth": 1, "label": name}
        x = side_by_side(axes, line[along], name, lines, data[along], spread=spread)
        axes.errorbar(x, line["mean"], ends, linestyle=look.dash, linewidth=1, capsize=2, **drawn)


def draw_dots_beside(
    axes: Axes, seeds: pd.DataFrame, along: str, lines: list[str], measured: pd.Series, spread: float = SPREAD
) -> None:
    """Draw seeds as dots, those of an encoding around its place beside the others.

    Args:
        measured: all points of the x axis.
        spread: share of the distance between two points over which these columns stand.
    """
    for name, part in seeds[seeds["pe"].isin(lines)].groupby("pe", sort=False):
        x = side_by_side(axes, part[along], name, lines, measured, part["place"], spread)
        draw_dots(axes, x, part["value"], str(name))


def side_by_side(
    axes: Axes,
    x: pd.Series,
    name: object,
    drawn: list[str],
    measured: pd.Series,
    places: pd.Series | float = 0.0,
    spread: float = SPREAD,
) -> pd.Series:
    """Return where the marks of an encoding stand, so that those of all encodings at one point are side by side.

    Args:
        x: the points.
        drawn: all encodings, in order; those of one point are together around it.
        measured: all points of the axis, whose smallest distance is the room that there is.
        places: from -0.5 to 0.5, where dots stand around the mark of the encoding.
        spread: share of the distance between two points over which encodings stand side by side.
    """
    logarithmic = axes.get_xscale() == "log"
    points = np.unique(np.log(measured) if logarithmic else measured)
    step = spread * (np.diff(points).min() if len(points) > 1 else 1.0) / len(drawn)
    shift = step * (drawn.index(str(name)) - (len(drawn) - 1) / 2 + 0.6 * places)
    return x * np.exp(shift) if logarithmic else x + shift
