"""What the figures share: panels, labels, and means over seeds."""

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_lab.results.columns import cut_interval, displayed_settings, length_column, setting_columns, value_text
from pe_lab.results.styles import style
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS, interval

GREY = "#B5B5B5"
PANELS_PER_ROW = 3  # panels side by side
MAX_COLOURED_LINES = 8  # lines that are told apart by eye; others are grey
ALONE = 0.1  # of a value, on both sides of it on an axis that shows no other
POINTS_BEYOND, INTERVALS_BEYOND = 0.5, 2.0  # see `ends_of`
LEGEND_ROW = 0.17  # inches of a row of a legend
LEGEND_LINE, LEGEND_LETTER = 0.55, 0.065  # inches of a legend of 8 pt: beside a name, and of one of its letters


def settings_in_words(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the setting of each row in words: the named columns that vary, or depth and epochs if none does.

    A training that is counted in steps is named by its steps instead of its epochs.
    """
    length = length_column(rows) if "steps" in names else "epochs"
    names = displayed_settings(rows, names) if "steps" in names else names
    varied = [name for name in names if rows[name].nunique(dropna=False) > 1]
    shown = varied or [name for name in names if name in ("depth", length)]
    if not shown:  # pandas 2 makes no records of rows without columns
        return ["all settings"] * len(rows)
    settings = rows[shown].to_dict("records")
    return [", ".join(_in_words(name, value) for name, value in cell.items()) for cell in settings]


def _in_words(name: str, value: Any) -> str:
    text = value_text(value)
    return text if name in ("data", "policy") else f"{name.rpartition('.')[2]} {text}"


def means(
    rows: pd.DataFrame, along: list[str] | None = None, names: list[str] | None = None, metric: str = ""
) -> pd.DataFrame:
    """Return the mean of the column value over seeds, with its t interval; non-finite values are not averaged away.

    Means of fewer than MIN_SHOWN_SEEDS seeds have no interval.

    Args:
        along: further columns to group by, such as the x axis of a curve.
        names: the columns that make a setting; None: those of `setting_columns`.
        metric: the metric of the values; intervals end at what is possible, see `columns.cut_interval`.
    """
    names, along = setting_columns(rows) if names is None else names, along or []
    rows = rows.assign(setting=settings_in_words(rows, names))
    lines = []
    for key, values in rows.groupby(["setting", "pe", *along], sort=False)["value"]:
        finite = np.isfinite(values).all()
        lines.append([*key, len(values), *((values.mean(), *interval(values)) if finite else (np.nan, np.nan, np.nan))])
    data = pd.DataFrame(lines, columns=["setting", "pe", *along, "seeds", "mean", "low", "high"])
    low, high = cut_interval(metric, data["mean"], data["low"], data["high"])
    return without_wide_intervals(data.assign(low=low, high=high))


def without_wide_intervals(data: pd.DataFrame) -> pd.DataFrame:
    """Return means or differences without the intervals of those of fewer than MIN_SHOWN_SEEDS seeds."""
    enough = data["seeds"] >= MIN_SHOWN_SEEDS
    return data.assign(low=data["low"].where(enough), high=data["high"].where(enough))


def ends_of(points: Iterable[float], intervals: pd.DataFrame | None = None) -> tuple[float, float]:
    """Return the ends of what an axis shows, so that no wide interval makes the rest small.

    An interval is shown up to POINTS_BEYOND times the range of the points beyond these, or up to INTERVALS_BEYOND times
    the median of half an interval, whichever is more.

    Args:
        points: means, seeds and floors; at least one is finite.
        intervals: what is drawn with an interval, with the columns low and high; None: nothing is.
    """
    values = np.fromiter(points, float)
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    if intervals is None or (half := (intervals["high"] - intervals["low"]).dropna() / 2).empty:
        return low, high
    room = max(POINTS_BEYOND * (high - low), INTERVALS_BEYOND * float(half.quantile(0.5, "lower")))
    return max(low - room, min(low, intervals["low"].min())), min(high + room, max(high, intervals["high"].max()))


def limit_axis(axes: Axes, ends: tuple[float, float]) -> None:
    """Let the y axis end a little beyond the values of `ends_of`."""
    low, high = ends
    room = float(mpl.rcParams["axes.ymargin"]) * (high - low) or ALONE * abs(high) or ALONE
    axes.set_ylim(low - room, high + room)


def most_different(data: pd.DataFrame, along: str) -> list[str]:
    """Return the encodings to colour where not all can be: those whose curves lie farthest from the mean curve.

    Distances are ranked within each setting, since losses of different tasks are not comparable.
    """
    middle = data.groupby(["setting", along])["mean"].transform("mean")
    apart = (data["mean"] - middle).abs().groupby([data["setting"], data["pe"]], sort=False).mean()
    far = apart.groupby(level="setting", sort=False).rank().groupby(level="pe", sort=False).mean()
    chosen = set(far.sort_values(ascending=False, kind="stable").index[:MAX_COLOURED_LINES])
    return [name for name in data["pe"].unique() if name in chosen]


def make_panels(settings: Sequence[str], height: float, share_y: bool = False) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with a panel per setting.

    Args:
        height: the height of a panel, in inches.
        share_y: whether panels have one y axis.
    """
    down = -(-len(settings) // PANELS_PER_ROW)
    across = -(-len(settings) // down)
    figure = Figure(figsize=(0.8 + 3.6 * across, 0.6 + height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=share_y).flat
    panels = dict(zip(settings, grid, strict=False))
    for axes in list(figure.axes)[len(settings) :]:
        axes.set_visible(False)
    return figure, panels


def label_rows(panels: dict[str, Axes], label: str) -> None:
    """Name the y axis that all panels share, at the first panel of each row."""
    for axes in panels.values():
        if (spec := axes.get_subplotspec()) is not None and spec.is_first_col():
            axes.set_ylabel(label)


def name_ends(axes: Axes, ends: dict[str, float]) -> None:
    """Write the name of each encoding, with its mark, at the right of its last value; they are moved apart.

    Args:
        ends: the last value of each encoding, in the unit of the y axis.
    """
    low, high = axes.get_ylim()
    order = sorted(ends, key=lambda name: ends[name])
    places = [min(1.0, (ends[name] - low) / (high - low)) for name in order]
    apart = min(0.12, 1 / max(1, len(order)))
    wanted = list(places)
    for at in reversed(range(len(places) - 1)):  # below the one above
        places[at] = min(places[at], places[at + 1] - apart)
    # All of them together stand where their values are, as far as there is room.
    up = min(float(np.mean(wanted) - np.mean(places)), 1.0 - places[-1])
    places = [place + up for place in places]
    for at in range(len(places)):  # and not below the panel
        places[at] = max(places[at], places[at - 1] + apart if at else 0.0)
    for name, place in zip(order, places, strict=True):
        colour, _, marker = style(name)
        axes.plot([1.04], [place], marker=marker, ms=5, transform=axes.transAxes, clip_on=False, color=colour)
        axes.text(1.08, place, name, transform=axes.transAxes, va="center", color=colour, fontsize="medium")


def draw_legend(figure: Figure, panels: dict[str, Axes], highlight: list[str], more: Sequence[Artist] = ()) -> None:
    """Draw one legend below all panels.

    Args:
        highlight: the labels of what is drawn in the panels.
        more: what follows, each with a label.
    """
    handles: dict[str, Artist] = {}
    for axes in panels.values():
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles |= {str(handle.get_label()): handle for handle in more}
    names = [
        name for name in dict.fromkeys([*highlight, *(str(handle.get_label()) for handle in more)]) if name in handles
    ]
    columns = _legend_columns(names, figure.get_figwidth())
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(names) // columns))
    figure.legend([handles[name] for name in names], names, loc="outside lower left", ncols=columns, fontsize=8)


def _legend_columns(names: list[str], width: float) -> int:
    """Return the largest number of columns, up to 4, in which a legend is no wider than so many inches.

    Columns are filled one after the other, as matplotlib does.
    """
    for columns in (4, 3, 2):
        sizes = [len(names) // columns + (column < len(names) % columns) for column in range(columns)]
        ends = np.cumsum(sizes)
        parts = [names[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        if sum(LEGEND_LINE + LEGEND_LETTER * max(map(len, part), default=0) for part in parts) <= width:
            return columns
    return 1
