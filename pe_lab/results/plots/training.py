"""A metric over training: after several lengths of it, and while it went on."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from pe_lab.results.columns import displayed_settings, in_words, length_column, setting_columns, sort_by_setting
from pe_lab.results.panels import GREY, PANELS_PER_ROW, draw_legend, draw_lines, make_panels, means, name_ends
from pe_lab.results.plots.plot import (
    FLOOR_DASHES,
    FLOOR_NAMES,
    Plot,
    best_at_the_end,
    dodge_factor,
    draw_with_intervals,
    floor_levels,
)
from pe_lab.results.styles import style
from pe_lab.system.drawing import INK, STYLE

MAX_LINEAR_LOSS = 0.1  # nats, below which the scale of losses over epochs is linear


@mpl.rc_context(STYLE)
def over_epochs(
    rows: pd.DataFrame,
    metric: str = "loss",
    panel_width: float = 3.0,
    beside: bool = True,
    highlight: list[str] | None = None,
    baseline: str | None = None,
) -> Plot:
    """Draw a test metric against the epochs of training: a panel per setting, a line per encoding, floors as lines.

    The x axis has steps where all trainings are counted in steps.
    Points are means over seeds, bars their 95 % t intervals; those of one length stand side by side. Losses have a
    scale that is logarithmic above MAX_LINEAR_LOSS and linear below, so that a best possible loss of 0 can be drawn.

    Args:
        panel_width: the width of a panel, in inches.
        beside: whether the legend stands beside the panels, which are then in rows of three; otherwise all panels are
            in one row below it.
        highlight: the encodings in colour; None: those with the best last value. The others are grey.
        baseline: an encoding; below each panel, the differences of the others from it, paired by seed. Encodings are
            then named at the right end of these, and not in the legend. Needs all panels in one row.
    """
    along = length_column(rows)
    names = [name for name in displayed_settings(rows, setting_columns(rows)) if name != along]
    rows = sort_by_setting(rows, [*names, along])
    rows = rows.assign(value=rows[f"test_{metric}"])
    data = means(rows, [along], names, metric)
    levels = floor_levels(rows, metric, names)
    panels_of = data["setting"].unique()
    across = min(PANELS_PER_ROW, len(panels_of)) if beside else len(panels_of)
    down = -(-len(panels_of) // across)
    if baseline is not None and down > 1:
        raise ValueError(f"baseline needs all panels in one row, got {len(panels_of)} panels")
    named = baseline is not None  # at the ends of their lines
    beside = beside and not named
    height = (0.4 + 3.0 * down if beside else 4.2) + 2.4 * named
    width = 0.7 + panel_width * across + 1.9 * beside + 1.0 * named
    figure = Figure(figsize=(width, height), layout="constrained")
    rows_of_panels = 1 + named if down == 1 else down
    heights = [2.4, 2.8] if named else None
    grid = figure.subplots(
        rows_of_panels,
        across,
        squeeze=False,
        sharex=False if baseline is None else "col",
        sharey=True if baseline is None else "row",
        height_ratios=heights,
    )
    panels = dict(zip(panels_of, grid.flat, strict=False))
    if baseline is None:
        for axes in list(figure.axes)[len(panels_of) :]:
            axes.remove()
    measured, encodings = sorted(data[along].unique()), list(dict.fromkeys(rows["pe"]))
    highlight = best_at_the_end(data, along, metric) if highlight is None else highlight
    lines = [name for name in encodings if name in highlight]
    for setting, axes in panels.items():
        draw_with_intervals(axes, data[data["setting"] == setting], along, lines)
        for floor, values in levels.items():
            axes.axhline(values[setting], color=INK, linewidth=1.2, linestyle=FLOOR_DASHES[floor])
        axes.set_xscale("log", base=2)
        axes.set_xticks(measured, [f"{length:g}" for length in measured])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.12)
        if metric == "loss":
            axes.set_yscale("symlog", linthresh=MAX_LINEAR_LOSS, linscale=1)
            axes.axhline(MAX_LINEAR_LOSS, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
            axes.set_yticks([0, 0.05, 0.1, 0.3, 1, 3, 10])
            highest = max([data["high"].fillna(data["mean"]).max(), *(values.max() for values in levels.values())])
            axes.set_ylim(-0.01, 1.3 * highest)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(setting)
    unit = " in nats" * (metric == "loss")
    for axes in list(panels.values())[::across]:
        axes.set_ylabel(
            f"test {in_words(metric)}{unit}" + f"\n(linear below {MAX_LINEAR_LOSS:g}, dotted)" * (metric == "loss")
        )
    for axes in panels.values() if baseline is None else grid[1]:
        axes.set_xlabel(f"{along} of training")
    if baseline is not None:
        data = data.merge(
            _draw_paired(dict(zip(panels_of, grid[1], strict=True)), rows, [*names, along], lines, baseline), "left"
        )
        grid[1, 0].set_ylabel(f"difference\nfrom {baseline}{unit}")
        last = data[data["setting"] == panels_of[-1]].sort_values(along).drop_duplicates("pe", keep="last")
        ends = last.set_index("pe")["difference"].reindex([name for name in lines if name != baseline]).dropna()
        name_ends(grid[1, -1], {baseline: 0.0} | ends.to_dict())
        lines = []
    by: dict[str, Artist] = {}
    for axes in panels.values():
        by |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    for floor, values in levels.items():
        is_constant = values.nunique() == 1
        name = f"{FLOOR_NAMES[floor]} ({values.iloc[0]:.2g})" if is_constant else FLOOR_NAMES[floor]
        by[name] = Line2D([], [], color=INK, linewidth=1.2, linestyle=FLOOR_DASHES[floor])
        lines.append(name)
    lines = [name for name in lines if name in by]
    if others := len(encodings) - len(highlight):
        by[f"{others} others"] = Line2D([], [], color=GREY, linewidth=0.8)
        lines.append(f"{others} others")
    handles = [by[name] for name in lines]
    if beside:
        figure.legend(handles, lines, frameon=False, loc="outside right center", fontsize=9)
    else:
        figure.legend(handles, lines, frameon=False, loc="outside upper center", ncols=3 if not named else 2)
    return Plot(figure, data)


def _draw_paired(
    panels: dict[str, Axes], rows: pd.DataFrame, names: list[str], lines: list[str], baseline: str
) -> pd.DataFrame:
    """Draw differences from an encoding, paired by seed, with 95 % t intervals; the encodings of a point side by side.

    Args:
        panels: the axes of each setting, by the setting in words.
        rows: the cells, with their values in the column value.
        names: the columns that make a setting, and the one along the x axis.
        lines: the encodings to draw.

    Returns:
        setting, pe, the column along the x axis, difference, difference_low, difference_high.
    """
    *names, along = names
    keys = [*names, along, "seed"]
    theirs = rows.loc[rows["pe"] == baseline, [*keys, "value"]].rename(columns={"value": "theirs"})
    paired = rows[rows["pe"] != baseline].merge(theirs, on=keys)
    data = means(paired.assign(value=paired["value"] - paired["theirs"]), [along], names)
    drawn = [name for name in lines if name != baseline]
    for setting, axes in panels.items():
        axes.axhline(0, color=INK, linewidth=0.8)
        for name, line in data[(data["setting"] == setting) & data["pe"].isin(drawn)].groupby("pe", sort=False):
            look, factor = style(str(name)), dodge_factor(name, drawn)
            spread = np.nan_to_num(np.stack([line["mean"] - line["low"], line["high"] - line["mean"]])).clip(min=0)
            axes.errorbar(
                line[along] * factor, line["mean"], spread, color=look.colour, marker=look.marker, ms=5, ls="none"
            )
    columns = {"mean": "difference", "low": "difference_low", "high": "difference_high"}
    return data.drop(columns="seeds").rename(columns=columns)


@mpl.rc_context(STYLE)
def learning_curves(
    curves: pd.DataFrame, metric: str = "loss", highlight: list[str] | None = None, rows: pd.DataFrame | None = None
) -> Plot:
    """Draw validation over training, a panel per setting: means over seeds, with t intervals where there are few lines.

    The x axis has steps where trainings are counted in steps, and epochs otherwise.

    Args:
        highlight: the encodings in colour; None: those with the best last value. The others are grey.
        rows: the cells, whose floors are drawn as lines; None: no floors.
    """
    curves = curves[curves["metric"] == metric]
    names = [name for name in curves.columns[: list(curves.columns).index("epoch")] if name not in ("pe", "seed")]
    names.remove("epochs")
    along = "epoch"
    if length_column(curves) == "steps":
        along = "step"
        curves = curves.assign(step=(curves["epoch"] * curves["steps"] / curves["epochs"]).round().astype(int))
    data = means(sort_by_setting(curves, names), [along], names, metric)
    highlight = best_at_the_end(data, along, metric) if highlight is None else highlight
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    length = length_column(curves)
    levels = {} if rows is None else floor_levels(rows[rows[length].isin(curves[length])], metric, names)
    for setting, axes in panels.items():
        draw_lines(axes, data[data["setting"] == setting], along, highlight)
        for floor, values in levels.items():
            if setting in values:
                look = {"color": INK, "linewidth": 1.2, "linestyle": FLOOR_DASHES[floor], "label": FLOOR_NAMES[floor]}
                axes.axhline(values[setting], **look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel=along, ylabel=f"validation {in_words(metric)}", title=setting)
    draw_legend(figure, panels, [*highlight, *(FLOOR_NAMES[floor] for floor in levels)])
    return Plot(figure, data)
