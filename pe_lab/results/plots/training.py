"""A metric over training: after several lengths of it, and while it went on."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_lab.results.columns import (
    displayed_settings,
    in_words,
    length_column,
    metric_column,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.panels import (
    GREY,
    MAX_COLOURED_LINES,
    PANELS_PER_ROW,
    draw_legend,
    ends_of,
    limit_axis,
    make_panels,
    means,
    name_ends,
    settings_in_words,
)
from pe_lab.results.plots.dots import seed_handles, seed_values
from pe_lab.results.plots.lines import draw_dots_beside, draw_lines, draw_with_intervals, side_by_side
from pe_lab.results.plots.plot import FLOOR_DASHES, FLOOR_NAMES, Plot, best_at_the_end, floor_levels
from pe_lab.results.plots.scales import loss_scale, scale_in_words, scale_losses, tick_measured
from pe_lab.results.styles import style
from pe_lab.system.drawing import INK, STYLE


@mpl.rc_context(STYLE)
def over_epochs(
    rows: pd.DataFrame,
    metric: str = "loss",
    panel_width: float = 3.0,
    beside: bool = True,
    baseline: str | None = None,
) -> Plot:
    """Draw a test metric against the epochs of training: a panel per setting, a line per encoding, floors as lines.

    The x axis has steps where all trainings are counted in steps. Points are means over seeds, bars their 95 % t
    intervals, and small marks beside them the seeds. Losses have the scale of `loss_scale`.
    Of many encodings, those with the best last value are in colour, and the others grey.

    Args:
        panel_width: the width of a panel, in inches.
        beside: whether the legend stands beside the panels, which are then in rows of three; otherwise all panels are
            in one row below it.
        baseline: an encoding; below each panel, the differences of the others from it, paired by seed. Encodings are
            then named at the right end of these, and not in the legend. Needs all panels in one row.
    """
    along = length_column(rows)
    names = [name for name in displayed_settings(rows, setting_columns(rows)) if name != along]
    rows = sort_by_setting(rows, [*names, along])
    rows = rows.assign(value=rows[metric_column(rows, metric)])
    data, seeds = means(rows, [along], names, metric), seed_values(rows, settings_in_words(rows, names), [along])
    levels = floor_levels(rows, metric, names)
    settings = list(data["setting"].unique())
    across = min(PANELS_PER_ROW, len(settings)) if beside else len(settings)
    if baseline is not None and across < len(settings):
        raise ValueError(f"baseline needs all panels in one row, got {len(settings)} panels")
    beside = beside and baseline is None  # otherwise encodings are named at the ends of their lines
    figure, panels, below = _make_grid(len(settings), across, panel_width, beside, paired=baseline is not None)
    measured, encodings = sorted(data[along].unique()), list(dict.fromkeys(rows["pe"]))
    highlight, linear = best_at_the_end(data, along, metric), loss_scale(metric, data["mean"])
    lines = [name for name in encodings if name in highlight]
    with_intervals, dots_of = (table[table["pe"].isin(lines)] for table in (data, seeds))
    ends = ends_of(
        [*data["mean"], *dots_of["value"], *pd.concat([pd.Series(dtype=float), *levels.values()])], with_intervals
    )
    for setting, axes in zip(settings, panels, strict=True):
        here, dots = (table[table["setting"] == setting] for table in (data, seeds))
        axes.set_xscale("log", base=2)
        draw_with_intervals(axes, here, along, lines, dots)
        for floor, values in levels.items():
            axes.axhline(values[setting], color=INK, linewidth=1.2, linestyle=FLOOR_DASHES[floor])
        axes.margins(x=0.12)
        tick_measured(axes, measured)
        scale_losses(axes, linear, ends)
        axes.set_title(setting)
    unit = " in nats" * (metric == "loss")
    for axes in panels[::across]:
        axes.set_ylabel(f"test {in_words(metric)}{unit}{scale_in_words(linear)}")
    for axes in below or panels:
        axes.set_xlabel(f"{along} of training")
    if baseline is not None:
        paired = _draw_paired(dict(zip(settings, below, strict=True)), rows, [*names, along], lines, baseline)
        data = data.merge(paired, "left")
        below[0].set_ylabel(f"difference\nfrom {baseline}{unit}")
        _name_last_differences(below[-1], data[data["setting"] == settings[-1]], along, lines, baseline)
    handles: dict[str, Artist] = {}
    for axes in panels if baseline is None else ():
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles = {name: handles[name] for name in lines if name in handles} | _floor_handles(levels)
    if others := len(encodings) - len(highlight):
        handles[f"{others} others"] = Line2D([], [], color=GREY, linewidth=0.8)
    dots_and_bars = seed_handles(data, seeds[seeds["pe"].isin(lines)], bar=True)
    handles |= {str(handle.get_label()): handle for handle in dots_and_bars}
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": 3 if baseline is None else 2}
    if beside:
        place = {"loc": "outside right center", "fontsize": 9}
    figure.legend(list(handles.values()), list(handles), frameon=False, **place)
    return Plot(figure, data, seeds)


def _make_grid(
    count: int, across: int, panel_width: float, beside: bool, paired: bool
) -> tuple[Figure, list[Axes], list[Axes]]:
    """Return a figure, its panels, and the panels below these for paired differences, if they are wanted.

    Args:
        count: the number of panels, without those of differences.
        across: the number of panels in a row.
        panel_width: the width of a panel, in inches.
        beside: whether there is room for a legend beside the panels.
        paired: whether there is a panel for differences below each; all are then in one row.
    """
    down = -(-count // across)
    height = (0.4 + 3.0 * down if beside else 4.2) + 2.4 * paired
    width = 0.7 + panel_width * across + 1.9 * beside + 1.0 * paired
    figure = Figure(figsize=(width, height), layout="constrained")
    if paired:
        above, below = figure.subplots(
            2, across, squeeze=False, sharex="col", sharey="row", height_ratios=[2.4, 2.8]
        ).tolist()
        return figure, above, below
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten().tolist()
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count], []


def _floor_handles(levels: dict[str, pd.Series]) -> dict[str, Artist]:
    """Return the line of each floor by its name in the legend, with its value if all settings have the same."""
    handles: dict[str, Artist] = {}
    for floor, values in levels.items():
        value = f" ({values.iloc[0]:.2g})" if values.nunique() == 1 else ""
        line = Line2D([], [], color=INK, linewidth=1.2, linestyle=FLOOR_DASHES[floor])
        handles[f"{FLOOR_NAMES[floor]}{value}"] = line
    return handles


def _name_last_differences(axes: Axes, data: pd.DataFrame, along: str, lines: list[str], baseline: str) -> None:
    """Name encodings at their last differences from the baseline.

    Args:
        axes: the panel of the differences.
        data: the means of its setting, with the differences.
        lines: the encodings that are drawn.
    """
    last = data.sort_values(along).drop_duplicates("pe", keep="last").set_index("pe")["difference"]
    ends = last.reindex([name for name in lines if name != baseline]).dropna()
    name_ends(axes, {baseline: 0.0} | ends.to_dict())


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
    paired["value"] -= paired["theirs"]
    data, seeds = means(paired, [along], names), seed_values(paired, settings_in_words(paired, names), [along])
    drawn = [name for name in lines if name != baseline]
    for setting, axes in panels.items():
        axes.axhline(0, color=INK, linewidth=0.8)
        draw_dots_beside(axes, seeds[seeds["setting"] == setting], along, drawn, data[along])
        for name, line in data[(data["setting"] == setting) & data["pe"].isin(drawn)].groupby("pe", sort=False):
            look, x = style(str(name)), side_by_side(axes, line[along], name, drawn, data[along])
            spread = np.nan_to_num(np.stack([line["mean"] - line["low"], line["high"] - line["mean"]])).clip(min=0)
            axes.errorbar(x, line["mean"], spread, color=look.colour, marker=look.marker, ms=5, ls="none")
    shown, dots = (table[table["pe"].isin(drawn)] for table in (data, seeds))
    limit_axis(next(iter(panels.values())), ends_of([0.0, *shown["mean"], *dots["value"]], shown))  # shared by all
    columns = {"mean": "difference", "low": "difference_low", "high": "difference_high"}
    return data.drop(columns="seeds").rename(columns=columns)


@mpl.rc_context(STYLE)
def learning_curves(curves: pd.DataFrame, metric: str = "loss", rows: pd.DataFrame | None = None) -> Plot:
    """Draw validation over training, a panel per setting: means over seeds.

    Of an encoding that was trained for several lengths in a setting, the longest is drawn: shorter ones may be other
    runs of the same seeds, at another learning rate.

    The x axis has steps where trainings are counted in steps, and epochs otherwise. Losses have the scale of
    `loss_scale`; panels of one task have the same. Where it is logarithmic, small marks are the seeds: bands that reach
    0 would cover all others. Elsewhere bands are t intervals, if there are few lines. Of many encodings, those with the
    best last value are in colour, and the others grey.

    Args:
        rows: the cells, whose floors are drawn as lines; None: no floors.
    """
    curves = curves[curves["metric"] == metric]
    names = [name for name in curves.columns[: list(curves.columns).index("epoch")] if name not in ("pe", "seed")]
    names.remove("epochs")
    curves = _longest_trainings(curves, names)
    along = "epoch"
    if length_column(curves) == "steps":
        along = "step"
        curves = curves.assign(step=(curves["epoch"] * curves["steps"] / curves["epochs"]).round().astype(int))
    curves = sort_by_setting(curves, names)
    data, seeds = means(curves, [along], names, metric), seed_values(curves, settings_in_words(curves, names), [along])
    has_dots: dict[str, bool] = {}
    one_task = "data" not in curves or curves["data"].nunique() == 1
    highlight, length = best_at_the_end(data, along, metric), length_column(curves)
    figure, panels = make_panels(data["setting"].unique(), 2.9, share_y=one_task)
    levels = {} if rows is None else floor_levels(rows[rows[length].isin(curves[length])], metric, names)
    unit = " in nats" * (metric == "loss")
    for setting, axes in panels.items():
        here, dots = (table[table["setting"] == setting] for table in (data, seeds))
        scaled = data if one_task else here
        linear, points = loss_scale(metric, scaled["mean"]), list(scaled["mean"])
        axes.set_xscale("log", base=2)
        has_dots[setting] = (linear is not None or here["low"].isna().all()) and len(dots) > 0
        drawn_bands = not has_dots[setting] and data["pe"].nunique() <= MAX_COLOURED_LINES
        if has_dots[setting]:
            points += list((seeds if one_task else dots)["value"])
        draw_lines(axes, here, along, highlight, dots if has_dots[setting] else None, bands=not has_dots[setting])
        for floor, values in levels.items():
            if setting in values:
                look = {"color": INK, "linewidth": 1.2, "linestyle": FLOOR_DASHES[floor], "label": FLOOR_NAMES[floor]}
                axes.axhline(values[setting], **look)
                points.append(values[setting])
        tick_measured(axes, here[along])
        scale_losses(axes, linear, ends_of(points, scaled if drawn_bands else None))
        axes.set_xlabel(along)
        axes.set_title(setting, fontsize=9)
        if axes.yaxis.get_tick_params()["labelleft"]:
            axes.set_ylabel(f"validation {in_words(metric)}{unit}{scale_in_words(linear)}")
    seeds = seeds[seeds["setting"].map(has_dots).astype(bool)]
    bands = data["pe"].nunique() <= MAX_COLOURED_LINES and not all(has_dots.values())
    draw_legend(
        figure, panels, [*highlight, *(FLOOR_NAMES[floor] for floor in levels)], seed_handles(data, seeds, band=bands)
    )
    return Plot(figure, data, seeds, bands)


def _longest_trainings(curves: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the curves of the longest training of each encoding and setting.

    Args:
        names: the columns that make a setting, without the length of training.
    """
    longest = curves.groupby([*names, "pe"], dropna=False)["epochs"].transform("max")
    return curves[curves["epochs"] == longest]
