"""Figures of results, each with the numbers that it draws. No two encodings differ by colour alone."""

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from pe_lab.config import LR
from pe_lab.data.score import BLIND_FLOORS, NO_GAP
from pe_lab.results.columns import (
    displayed_settings,
    floors,
    in_words,
    length_column,
    lower_is_better,
    merge_tables,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.panels import (
    GREY,
    MAX_COLOURED_LINES,
    PANELS_PER_ROW,
    draw_legend,
    draw_lines,
    make_panels,
    means,
    most_different,
    name_ends,
    settings_in_words,
)
from pe_lab.results.styles import COLOURS, style
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict
from pe_lab.system.drawing import INK, PAPER, STYLE

MARGIN_BAND = ("#808080", 0.25)  # the margin in a forest; translucent, for light and dark pages
TOKEN_ALONE = "from the token alone"  # in legends
MAX_LINEAR_LOSS = 0.1  # nats, below which the scale of losses over epochs is linear
MAX_TICKS = 8  # measured values that are all named at an axis
LEGEND_HEIGHT = 0.06  # inches for each encoding of a legend below panels
DODGE_FACTOR = 1.08  # factor between neighbours on the axis of epochs, where encodings stand side by side
FLOOR_DASHES: dict[str, Any] = {"position_blind_split_known": "--", "position_blind": "--", "bayes": "-"}  # dashes
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


@mpl.rc_context(STYLE)
def heatmap(rows: pd.DataFrame, metric: str = "loss", lines: pd.DataFrame | None = None) -> Plot:
    """Draw the mean of a test metric: a row per encoding, best first, a column per setting, floors as the last rows.

    Shades are the share of the way from the best loss without position to the best possible loss, from 0 to 1; of a
    metric that is a share, its value; where neither is known, the place between the worst and the best of a column.

    Args:
        lines: comparisons of the cells; where shades run from the worst to the best of a column, a column whose means
            are all within the margin has none. None: there is no margin.
    """
    rows = sort_by_setting(rows, setting_columns(rows))
    data = means(rows.assign(value=rows[f"test_{metric}"]), metric=metric)
    floor_rows = {}
    for floor in floors(rows, metric):
        name = floor.replace("_", "-")
        values = rows.assign(value=rows[f"floor_{floor}_{metric}"], pe=name)
        floor_rows[name] = means(values).set_index("setting")["mean"]
    wide = data.pivot(index="pe", columns="setting", values="mean")
    wide = wide.loc[rows["pe"].unique(), data["setting"].unique()]
    sign = 1 if lower_is_better(metric) else -1
    wide = wide.loc[(sign * wide).rank().mean(axis=1).sort_values(kind="stable").index]
    shown = pd.concat([wide, pd.DataFrame(floor_rows).T.reindex(columns=wide.columns)]) if floor_rows else wide
    figure = Figure(figsize=(max(4.4, 1.8 + 0.85 * len(shown.columns)), 2.6 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    shades, meaning = _shades(wide, floor_rows, sign, _margins_by_setting(rows, lines))
    _draw_cells(axes, shown, shades)
    axes.set_title(f"test {in_words(metric)}, mean over seeds\nshades: {meaning}", fontsize=9, wrap=True)
    levels = [
        {"setting": setting, "pe": floor, "mean": value, "low": np.nan, "high": np.nan}
        for floor, values in floor_rows.items()
        for setting, value in values.dropna().items()
    ]
    return Plot(figure, pd.concat([data, pd.DataFrame(levels)], ignore_index=True) if levels else data)


def _margins_by_setting(rows: pd.DataFrame, lines: pd.DataFrame | None) -> pd.Series:
    """Return the margin of each setting in words, where comparisons have one."""
    names = setting_columns(rows)
    if lines is None or lines.empty or "margin" not in lines:
        return pd.Series(dtype=float)
    words = rows[names].assign(setting=settings_in_words(rows, names)).drop_duplicates()
    return merge_tables(lines[[*names, "margin"]], words, names).groupby("setting")["margin"].max()


def _shades(
    wide: pd.DataFrame, floor_rows: dict[str, pd.Series], sign: int, margins: pd.Series
) -> tuple[pd.DataFrame, str]:
    """Return shades from 0 to 1 of means, brighter is better, and what they mean."""
    floors = pd.DataFrame(floor_rows).T.reindex(columns=wide.columns)
    first = next((floor for floor in BLIND_FLOORS if floor.replace("_", "-") in floors.index), None)
    if sign > 0 and first is not None and "bayes" in floors.index:
        level, best = floors.loc[first.replace("_", "-")], floors.loc["bayes"]
        shares = (level - wide) / (level - best)
        if (level - best > NO_GAP).all() and (shares > 0).any(axis=None):  # otherwise all would be dark
            return shares, f"0 is the {FLOOR_NAMES[first]}, 1 the best possible"
    if sign < 0 and wide.min().min() >= 0 and wide.max().max() <= 1:
        return wide, "the value, from 0 to 1"
    # losses after one epoch and after sixteen are not comparable
    span, least = wide.max() - wide.min(), margins.reindex(wide.columns).fillna(0)
    behind = (wide - wide.min() if sign > 0 else wide.max() - wide) / span.replace(0, 1)
    alike = (least > 0) & (span <= least)
    meaning = f"from the worst to the best of a column{', none where all are within the margin' * bool(alike.any())}"
    meaning = "none: all means of a column are within the margin" if alike.all() else meaning
    return (1 - behind).mask(alike.to_numpy()[None] & wide.notna(), np.nan), meaning


def _contrasting_colour(shade: float) -> str:
    """Return the colour of a text on a shade of cividis; NaN: on the ground of the page."""
    if np.isnan(shade):
        return INK
    return "white" if np.mean(colormaps["cividis"](shade)[:3]) < 0.5 else "black"


def _draw_cells(axes: Axes, shown: pd.DataFrame, shaded: pd.DataFrame) -> None:
    """Draw values as text, on shades in the rows that have some, with a line below these."""
    coloured = len(shaded)
    shades = shaded.clip(0, 1).reindex(shown.index.unique()).loc[shown.index].to_numpy(float, copy=True)
    shades[coloured:] = np.nan
    axes.imshow(shades, cmap=colormaps["cividis"], vmin=0, vmax=1, aspect="auto")
    for (line, column), value in np.ndenumerate(shown.to_numpy(float)):
        shade = shades[line, column]
        text = "" if np.isnan(value) else _format_value(value)
        axes.text(column, line, text, ha="center", va="center", fontsize=8, color=_contrasting_colour(shade))
    axes.set_xticks(range(len(shown.columns)), [_one_part_per_line(name) for name in shown.columns], fontsize=8)
    axes.set_yticks(range(len(shown)), shown.index, fontsize=8)
    axes.axhline(coloured - 0.5, color=INK, linewidth=1)
    axes.xaxis.tick_top()


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
    levels = _floor_levels(rows, metric, names)
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
    highlight = _best_at_the_end(data, along, metric) if highlight is None else highlight
    lines = [name for name in encodings if name in highlight]
    for setting, axes in panels.items():
        _draw_with_intervals(axes, data[data["setting"] == setting], along, lines)
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


def _draw_with_intervals(axes: Axes, data: pd.DataFrame, along: str, lines: list[str]) -> None:
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
            line[along] * _dodge_factor(name, lines), line["mean"], spread, linestyle="none", capsize=2, **drawn
        )


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
            look, factor = style(str(name)), _dodge_factor(name, drawn)
            spread = np.nan_to_num(np.stack([line["mean"] - line["low"], line["high"] - line["mean"]])).clip(min=0)
            axes.errorbar(
                line[along] * factor, line["mean"], spread, color=look.colour, marker=look.marker, ms=5, ls="none"
            )
    columns = {"mean": "difference", "low": "difference_low", "high": "difference_high"}
    return data.drop(columns="seeds").rename(columns=columns)


def _dodge_factor(name: object, drawn: list[str]) -> float:
    """Return the factor by which a mark is moved along a logarithmic axis, to stand beside those of the others."""
    return float(DODGE_FACTOR ** (drawn.index(str(name)) - (len(drawn) - 1) / 2))


def _align_axes(panels: list[Axes]) -> None:
    """Give panels one extent along x, unless that would squeeze one to less than a third of its own."""
    ends = np.array([axes.get_xlim() for axes in panels])
    low, high = ends.min(), ends.max()
    if (high - low) < 3 * np.ptp(ends, axis=1).min():
        for axes in panels:
            axes.set_xlim(low, high)


def _best_at_the_end(data: pd.DataFrame, along: str, metric: str) -> list[str]:
    """Return the encodings to colour where not all can be: those with the best last value, by mean rank."""
    last = data.sort_values(along, kind="stable").drop_duplicates(["setting", "pe"], keep="last")
    order = (last["mean"] if lower_is_better(metric) else -last["mean"]).groupby(last["setting"]).rank()
    return list(order.groupby(last["pe"]).mean().sort_values(kind="stable").index[:MAX_COLOURED_LINES])


def _drawn_floors(names: list[str]) -> list[str]:
    """Return the floors to draw: the lowest that a model without position can reach, and the best possible."""
    blind = [floor for floor in BLIND_FLOORS if floor in names][:1]
    return [*blind, *(floor for floor in ("bayes",) if floor in names)]


def _floor_levels(rows: pd.DataFrame, metric: str, names: list[str]) -> dict[str, pd.Series]:
    """Return the floors to draw, each with its mean by setting.

    Args:
        names: the columns that make a setting.
    """
    columns = {floor: f"floor_{floor}_{metric}" for floor in _drawn_floors(floors(rows, metric))}
    by_setting = rows.assign(setting=settings_in_words(rows, names)).groupby("setting")
    return {floor: by_setting[column].mean() for floor, column in columns.items()}


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
    highlight = _best_at_the_end(data, along, metric) if highlight is None else highlight
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    length = length_column(curves)
    levels = {} if rows is None else _floor_levels(rows[rows[length].isin(curves[length])], metric, names)
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


@mpl.rc_context(STYLE)
def over_rates(rows: pd.DataFrame, metric: str = "loss") -> Plot:
    """Draw a test metric against the learning rate: a panel per setting, means over seeds with their 95 % t intervals.

    Args:
        rows: cells of several rates.
    """
    names = [name for name in setting_columns(rows) if name != LR]
    rows = sort_by_setting(rows, [*names, LR])
    data = means(rows.assign(value=rows[f"test_{metric}"]), [LR], names, metric)
    highlight = most_different(data, LR)
    figure, panels = make_panels(data["setting"].unique(), 2.9, share_y=True)
    for setting, axes in panels.items():
        _draw_with_intervals(axes, data[data["setting"] == setting], LR, highlight)
        axes.set_xscale("log")
        axes.set_xticks(sorted(data[LR].unique()), [f"{rate:g}" for rate in sorted(data[LR].unique())])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="learning rate", title=setting)
    next(iter(panels.values())).set_ylabel(f"test {in_words(metric)}" + " in nats" * (metric == "loss"))
    draw_legend(figure, panels, highlight)
    return Plot(figure, data)


@mpl.rc_context(STYLE)
def forest(compared: pd.DataFrame, metric: str = "loss") -> Plot:
    """Draw paired differences from the baseline with their t intervals, a panel per setting, the best mean first.

    The grey band is the margin on both sides of 0. Marks have a shape and a filling per verdict, named below.

    Args:
        compared: the table of statistics.compare_cells; settings may have different baselines, which are marked at 0.
    """
    columns = list(compared.columns[: list(compared.columns).index("pe")])
    data = sort_by_setting(compared, columns)
    data = data.assign(setting=settings_in_words(data, columns))
    baselines = data.drop_duplicates("setting").set_index("setting")["baseline"]
    zeros = data.assign(pe=data["baseline"], difference=0.0).drop_duplicates(["setting", "pe"])
    shown = pd.concat([data, zeros]) if baselines.nunique() > 1 else data
    effects = shown.groupby("pe", sort=False)["difference"].mean()
    names = list(effects.sort_values(ascending=lower_is_better(metric), kind="stable", na_position="last").index)
    height = 1.1 + 0.22 * len(names)
    figure, panels = make_panels(data["setting"].unique(), height, share_y=True)
    for setting, axes in panels.items():
        _draw_differences(axes, data[data["setting"] == setting], names)
    _align_axes(list(panels.values()))
    for setting, axes in panels.items():
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(setting, fontsize=9)
        unit, better = " in nats" * (metric == "loss"), "left" if lower_is_better(metric) else "right"
        axes.set_xlabel(f"{in_words(metric)} minus that of {baselines[setting]}{unit}\n({better}: better)", fontsize=8)
        if baselines.nunique() > 1:
            axes.plot(0, names.index(baselines[setting]), "|", color=INK, ms=8)
    handles: list[Artist] = [_legend_mark(verdict) for verdict in VERDICT_MARKS if (data["verdict"] == verdict).any()]
    if data["margin"].notna().any():
        handles.append(Patch(color=MARGIN_BAND, label="within the margin"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if len(panels) > 1 else 2, fontsize=8)
    columns = ["setting", "pe", "seeds", "difference", "low", "high", "p_corrected"]
    columns += ["margin", "p_equivalent_corrected", "verdict"]
    return Plot(figure, data[columns].reset_index(drop=True))


@mpl.rc_context(STYLE)
def runs(outcomes: pd.DataFrame, kind: str) -> Plot:
    """Draw what each seed reached, a panel per setting, a row per encoding, the best mean first.

    Args:
        outcomes: a line per cell: pe, y, and solved where the kind is "steps"; before y, the settings: see
            results.tuned_outcomes. Floors of the loss, if there are columns of them, are drawn as lines.
        kind: "steps" (y is their log2) or "loss".
    """
    columns = [name for name in outcomes.columns[: outcomes.columns.get_loc("y")] if name not in ("pe", "seed")]
    data = sort_by_setting(outcomes, columns)
    data = data.assign(setting=settings_in_words(data, columns))
    data = data.assign(value=2 ** data["y"] if kind == "steps" else data["y"])
    data["reached"] = data["solved"].astype(bool) if kind == "steps" else True
    names = list(data.groupby("pe", sort=False)["y"].mean().sort_values(kind="stable").index)
    levels = _floor_levels(outcomes, "loss", columns) if kind == "loss" else {}
    figure, panels = make_panels(data["setting"].unique(), 1.1 + 0.2 * len(names), share_y=True)
    for setting, axes in panels.items():
        part = data[data["setting"] == setting]
        for name, line in part.groupby("pe", sort=False):
            y, look = names.index(name), style(str(name))
            middle = 2 ** line["y"].mean() if kind == "steps" else line["y"].mean()
            axes.plot([middle, middle], [y - 0.35, y + 0.35], color=look.colour, linewidth=2)
            for done in (True, False):
                values = line.loc[line["reached"] == done, "value"]
                face = look.colour if done else PAPER
                axes.plot(values, [y] * len(values), look.marker, color=look.colour, markerfacecolor=face, ms=4)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        if kind == "steps":
            axes.set_xscale("log", base=2)
            low, high = axes.get_xlim()
            if high < 4 * low:  # there may be no power of two
                axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        for floor, values in levels.items():
            drawn = {"color": INK, "linewidth": 1.2, "linestyle": FLOOR_DASHES[floor], "label": FLOOR_NAMES[floor]}
            axes.axvline(values[setting], **drawn)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel("steps to solve" if kind == "steps" else "test loss in nats", fontsize=8)
        axes.set_title(setting, fontsize=9)
    if levels:
        draw_legend(figure, panels, [FLOOR_NAMES[floor] for floor in levels])
    return Plot(figure, data[["setting", "pe", "seed", "value", "reached"]].reset_index(drop=True))


def _legend_mark(verdict: str) -> Line2D:
    """Return the mark of a verdict with its name, for a legend."""
    mark = VERDICT_MARKS[Verdict(verdict)]
    face = mark.colour if mark.filled else PAPER
    return Line2D([], [], marker=mark.shape, color=mark.colour, markerfacecolor=face, ms=5, ls="none", label=verdict)


def _draw_differences(axes: Axes, data: pd.DataFrame, names: list[str]) -> None:
    """Draw the differences of one setting, each at the height of its encoding in `names`, over the margin."""
    if np.isfinite(margin := data["margin"].max()):
        axes.axvspan(-margin, margin, color=MARGIN_BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    for line in data.itertuples():
        if pd.isna(line.difference):
            continue
        y, mark = names.index(line.pe), VERDICT_MARKS[line.verdict]
        if pd.notna(line.low):
            axes.plot([line.low, line.high], [y, y], color=mark.colour, linewidth=1.5)
        face = mark.colour if mark.filled else PAPER
        axes.plot(line.difference, y, mark.shape, color=mark.colour, markerfacecolor=face, ms=5)


@mpl.rc_context(STYLE)
def length_curves(records: pd.DataFrame, metric: str = "loss", highlight: list[str] | None = None) -> Plot:
    """Draw a metric against length, in training lengths, a panel per setting, policy and offset."""
    measured = records[(records["kind"] == "length") & (records["metric"] == metric)]
    names = [*record_settings(measured), "policy", "offset"]
    data = means(sort_by_setting(measured, names), ["length"], names, metric)
    highlight = highlight or most_different(data, "length")
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        draw_lines(axes, data[data["setting"] == setting], "length", highlight)
        if 0 < len(lengths := sorted(data["length"].unique())) <= MAX_TICKS:
            axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.set(xlabel="length / training length", ylabel=f"test {in_words(metric)}", title=setting)
        if not lower_is_better(metric):
            axes.set_ylim(-0.03, 1.03)
    draw_legend(figure, panels, highlight)
    return Plot(figure, data)


@mpl.rc_context(STYLE)
def layer_curves(records: pd.DataFrame, probe: str, metric: str, highlight: list[str] | None = None) -> Plot:
    """Draw a probe's metric against the layer, a panel per setting; heads are averaged.

    A line shows what the probe finds from the tokens alone, where that is measured.
    """
    measured = records[(records["probe"] == probe) & (records["metric"] == metric) & records["layer"].notna()]
    names = [*record_settings(measured), "length"]
    heads = measured.groupby([*names, "pe", "seed", "layer"], sort=False, dropna=False)["value"].mean().reset_index()
    data = means(sort_by_setting(heads, names), ["layer"], names, metric)
    alone = records[(records["probe"] == probe) & (records["metric"] == f"{metric}_from_token")]
    by_token = alone["value"].groupby(np.array(settings_in_words(alone, names), dtype=object)).mean()
    highlight = highlight or most_different(data, "layer")
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        draw_lines(axes, data[data["setting"] == setting], "layer", highlight)
        if setting in by_token:
            axes.axhline(by_token[setting], color=INK, linewidth=1, linestyle=":", label=TOKEN_ALONE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        first = "layer (0: embedding)" if (data["layer"] == 0).any() else "layer"
        axes.set(xlabel=first, ylabel=in_words(metric), title=setting)
    draw_legend(figure, panels, [*highlight, TOKEN_ALONE])
    return Plot(figure, data)


def record_settings(records: pd.DataFrame) -> list[str]:
    """Return the columns of records that make a setting."""
    return [name for name in records.columns[: list(records.columns).index("kind")] if name not in ("pe", "seed")]


@mpl.rc_context(STYLE)
def cost(rows: pd.DataFrame, metric: str = "loss", against: str = "seconds") -> Plot:
    """Draw the mean of a metric, with its 95 % t interval over seeds, against a cost: a panel per setting.

    Panels of one task have one scale of the metric, and one of the cost unless that would squeeze a panel.

    Args:
        against: seconds (in training steps), positional_parameters or flops_per_token.
    """
    rows = sort_by_setting(rows, setting_columns(rows))
    settings = settings_in_words(rows, setting_columns(rows))
    value = means(rows.assign(value=rows[f"test_{metric}"]), metric=metric)
    price = rows.assign(setting=settings).groupby(["setting", "pe"], sort=False)[against].median().reset_index()
    data = value.merge(price, on=["setting", "pe"]).rename(columns={"mean": metric})
    one_task = "data" not in rows or rows["data"].nunique() == 1
    figure, panels = make_panels(data["setting"].unique(), 3.2, share_y=one_task)
    unit, unit_of_cost = " in nats" * (metric == "loss"), " of training" * (against == "seconds")
    for setting, axes in panels.items():
        for line in data[data["setting"] == setting].to_dict("records"):
            look = style(line["pe"])
            axes.plot(line[against], line[metric], look.marker, color=look.colour, ms=5, label=line["pe"])
            if pd.notna(line["low"]):
                axes.vlines(line[against], line["low"], line["high"], color=look.colour, linewidth=1)
        axes.margins(0.1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(setting, fontsize=9)
        axes.set(xlabel=f"{against.replace('_', ' ')}{unit_of_cost}", ylabel=f"test {in_words(metric)}{unit}")
        axes.tick_params(labelsize=8)
    if one_task:
        _align_axes(list(panels.values()))
    names = list(rows["pe"].unique())
    figure.set_figheight(figure.get_figheight() + LEGEND_HEIGHT * len(names))
    draw_legend(figure, panels, names)
    return Plot(figure, data)


@mpl.rc_context(STYLE)
def shares(effects: pd.DataFrame) -> Plot:
    """Draw the shares of statistics.effects, from 0 to 100 %."""
    figure = Figure(figsize=(7, 1 + 0.35 * len(effects)), layout="constrained")
    axes = figure.subplots()
    y = np.arange(len(effects))
    spread = np.stack([effects["share"] - effects["low"].clip(lower=0), effects["high"] - effects["share"]])
    axes.barh(y, effects["share"], color=COLOURS[0], xerr=np.nan_to_num(spread).clip(min=0), ecolor=INK, capsize=3)
    axes.set_yticks(y, effects["effect"].str.replace(r"\bpe\b", "encoding", regex=True), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_xlabel("share of the sum of squares within a seed's grid")
    return Plot(figure, effects)


def _format_value(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.3f}"


def _one_part_per_line(setting: str) -> str:
    return setting.replace(", ", "\n")
