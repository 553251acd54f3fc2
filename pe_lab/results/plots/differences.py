"""Paired differences from a baseline."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import (
    in_words,
    lower_is_better,
    merge_tables,
    metric_column,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.panels import draw_legend, ends_of, make_panels, settings_in_words, without_wide_intervals
from pe_lab.results.plots.dots import DOT_COLOUR, draw_dots, seed_handles, seed_values
from pe_lab.results.plots.plot import Plot
from pe_lab.results.tuned_outcomes import is_lower_bound
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict
from pe_lab.system.drawing import INK, PAPER, STYLE

OUTLYING, MIN_OUTLYING = 2.0, 4  # see `are_outlying`
MAX_OUTLYING = 0.5  # share of the rows of a panel
SQUEEZED = 1.5  # factor by which an axis is wider, from which what an outlying seed causes is beyond its edge
EDGE = 0.05  # share of what an axis shows that is free at both ends
ABOVE = 0.33  # rows above its mean, at which it is written what is beyond the axis
MINUS = "\N{MINUS SIGN}"
BEYOND = "_beyond"  # the label of arrows, which no legend shows
BOUND_LENGTH = 12  # points, of the arrow of a lower bound
DOT_SPREAD = 0.5  # rows, over which the dots of an encoding are spread
MARGIN_BAND = ("#808080", 0.25)  # the margin in a forest; translucent, for light and dark pages


@mpl.rc_context(STYLE)
def forest(compared: pd.DataFrame, metric: str = "loss", rows: pd.DataFrame | None = None) -> Plot:
    """Draw paired differences from the baseline with their t intervals, a panel per setting, the best mean first.

    The grey band is the margin on both sides of 0. Marks have a shape and a filling per verdict, named below; see
    `verdict_marks`. Panels of one task have one x axis. A seed that is farther from the median of the
    others of its encoding than OUTLYING times their range does not widen it, nor does the interval of that encoding,
    where they would by a factor of SQUEEZED, except in a panel with a larger share of such rows than MAX_OUTLYING.
    What is beyond the axis is an arrow at its edge, with its value. A difference that is a lower bound, since one of
    the two encodings has runs that did not solve the task, has an arrow at its end.

    Args:
        compared: the table of statistics.compare_cells; settings may have different baselines, which are marked at 0.
        rows: the cells that were compared, whose differences are dots, one per seed; None: no dots.
    """
    compared = without_wide_intervals(compared)
    columns = list(compared.columns[: list(compared.columns).index("pe")])
    data = sort_by_setting(compared, columns)
    data = data.assign(setting=settings_in_words(data, columns))
    data["bound"] = [is_lower_bound(line) for line in data.to_dict("records")]
    baselines = data.drop_duplicates("setting").set_index("setting")["baseline"]
    zeros = data.assign(pe=data["baseline"], difference=0.0).drop_duplicates(["setting", "pe"])
    shown = pd.concat([data, zeros]) if baselines.nunique() > 1 else data
    effects = shown.groupby("pe", sort=False)["difference"].mean()
    names = list(effects.sort_values(ascending=lower_is_better(metric), kind="stable", na_position="last").index)
    height = 1.1 + 0.22 * len(names)
    figure, panels = make_panels(data["setting"].unique(), height, share_y=True)
    seeds = pd.DataFrame() if rows is None else _seed_differences(data, columns, metric, rows)
    tasks = data.drop_duplicates("setting").set_index("setting")["data"] if "data" in data else {}
    groups: dict[str, list[str]] = {}
    for setting in panels:
        groups.setdefault(str(tasks.get(setting, "")), []).append(setting)
    extents: dict[str, tuple[float, float]] = {}
    for settings in groups.values():
        extent = _extent(data[data["setting"].isin(settings)], _in_settings(seeds, settings))
        extents |= dict.fromkeys(settings, extent)
    for setting, axes in panels.items():
        here, of_seeds = data[data["setting"] == setting], _in_settings(seeds, [setting])
        axes.set_xlim(*extents[setting])
        if len(of_seeds):
            heights = of_seeds["pe"].map(names.index).astype(float) + DOT_SPREAD * of_seeds["place"]
            inside = of_seeds["value"].between(*axes.get_xlim())
            draw_dots(axes, of_seeds.loc[inside, "value"], heights[inside])
        _draw_differences(axes, here, names)
        _name_what_is_beyond(axes, here, of_seeds, names)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(setting, fontsize=9)
        unit, better = " in nats" * (metric == "loss"), "left" if lower_is_better(metric) else "right"
        axes.set_xlabel(f"{in_words(metric)} minus that of {baselines[setting]}{unit}\n({better}: better)", fontsize=8)
        if baselines.nunique() > 1:
            axes.plot(0, names.index(baselines[setting]), "|", color=INK, ms=8)
    handles: list[Artist] = legend_marks(data)
    if data["margin"].notna().any():
        handles.append(Patch(color=MARGIN_BAND, label="within the margin"))
    if data["bound"].any():
        handles.append(Line2D([], [], color=DOT_COLOUR, marker=">", ms=5, label="at least: some runs are unsolved"))
    handles += seed_handles(data, seeds)
    draw_legend(figure, panels, [], handles)
    columns = ["setting", "pe", "seeds", "difference", "low", "high", "p_corrected"]
    columns += ["margin", "p_equivalent_corrected", "verdict"]
    return Plot(figure, data[columns].reset_index(drop=True), seeds)


def _seed_differences(data: pd.DataFrame, names: list[str], metric: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the difference of each seed from the baseline, as in `seed_values`.

    Args:
        data: comparisons, with their setting in words.
        names: the columns of a setting in the comparisons.
        rows: the cells that were compared.
    """
    keys = [*setting_columns(rows), "seed"]
    values = rows[[*keys, "pe"]].assign(value=rows[metric_column(rows, metric)])
    theirs = values.rename(columns={"pe": "baseline", "value": "theirs"})
    paired = merge_tables(data[[*names, "setting", "pe", "baseline"]], values, [*names, "pe"])
    paired = merge_tables(paired, theirs, [*keys, "baseline"])
    paired["value"] -= paired["theirs"]
    return seed_values(paired, list(paired["setting"]))


def _in_settings(seeds: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    return seeds[seeds["setting"].isin(settings)] if len(seeds) else seeds


def are_outlying(seeds: pd.DataFrame) -> pd.Series:
    """Return whether each seed is farther from the median of the others of its mean than OUTLYING times their range.

    Args:
        seeds: the table of `seed_values`; means of fewer than MIN_OUTLYING seeds have no such seed.
    """
    found = pd.Series(False, seeds.index)
    for _, values in seeds.groupby(["setting", "pe"])["value"] if len(seeds) else ():
        for seed in (values.idxmin(), values.idxmax()) if len(values) >= MIN_OUTLYING else ():
            others = values.drop(seed)
            found[seed] = abs(values[seed] - others.median()) > OUTLYING * np.ptp(others)
    return found


def _extent(data: pd.DataFrame, seeds: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the x axis of the panels of a task, see `forest`."""
    margin = data["margin"].max()
    always = [0.0, *data["difference"].dropna(), *([-margin, margin] if np.isfinite(margin) else [])]
    apart = are_outlying(seeds)
    if len(seeds):  # a seed of the baseline is in all rows
        share = apart.groupby(seeds["setting"]).sum() / data.groupby("setting")["pe"].size()
        apart &= seeds["setting"].map(share) <= MAX_OUTLYING
    lost = set(seeds.loc[apart, ["setting", "pe"]].itertuples(index=False, name=None)) if len(seeds) else set()
    kept = [pair not in lost for pair in zip(data["setting"], data["pe"], strict=True)]
    ends = [
        ends_of([*always, *(dots["value"] if len(dots) else [])], lines)
        for lines, dots in ((data, seeds), (data[kept], seeds[~apart]))
    ]
    (low, high), inner = ends
    if high - low >= SQUEEZED * (inner[1] - inner[0]):
        low, high = inner
    room = EDGE * (high - low) or 1.0
    return low - room, high + room


def _name_what_is_beyond(axes: Axes, data: pd.DataFrame, seeds: pd.DataFrame, names: list[str]) -> None:
    """Mark intervals and seeds of a setting that go beyond its axis with an arrow at the edge, and their ends."""
    low, high = axes.get_xlim()
    for line in data.itertuples():
        y = names.index(line.pe)
        values = seeds.loc[seeds["pe"] == line.pe, "value"] if len(seeds) else pd.Series(dtype=float)
        sides = (
            (low, "<", 1, f"from {line.low:.2g}" * bool(line.low < low), values[values < low]),
            (high, ">", -1, f"to {line.high:.2g}" * bool(line.high > high), values[values > high]),
        )
        for edge, arrow, inwards, end, beyond in sides:
            if end:
                mark = VERDICT_MARKS[Verdict(line.verdict)]
                axes.plot(edge, y, arrow, color=mark.colour, ms=5, label=BEYOND, clip_on=False)
            if len(beyond):
                axes.plot(edge, y - ABOVE, arrow, color=INK, ms=3.5, label=BEYOND, clip_on=False)
            if end or len(beyond):
                told = [f"seed {value:.2g}" for value in beyond] + [f"interval {end}"] * bool(end)
                axes.annotate(
                    ", ".join(told).replace("-", MINUS),
                    (edge, y - ABOVE),
                    (5 * inwards, 0),
                    textcoords="offset points",
                    ha="left" if inwards > 0 else "right",
                    va="center",
                    fontsize=7,
                )


def legend_marks(data: pd.DataFrame) -> list[Artist]:
    """Return the marks of the comparisons of a figure with their names, for a legend.

    Args:
        data: comparisons with the column verdict.
    """
    return [
        Line2D(
            [],
            [],
            marker=mark.shape,
            color=mark.colour,
            markerfacecolor=mark.colour if mark.filled else PAPER,
            ms=5,
            ls="none",
            label=str(verdict),
        )
        for verdict, mark in VERDICT_MARKS.items()
        if (data["verdict"] == verdict).any()
    ]


def _draw_bound(axes: Axes, line: Any, y: float, colour: str) -> None:
    """Draw an arrow away from 0 at the end of a difference that is a lower bound, where that is within the axis."""
    sign = 1 if line.difference > 0 else -1
    end = np.nan_to_num((line.low, line.high)[sign > 0], nan=line.difference)
    low, high = axes.get_xlim()
    if low <= end <= high:
        look = {"arrowstyle": "<|-", "color": colour, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
        axes.annotate("", (end, y), (BOUND_LENGTH * sign, 0), textcoords="offset points", arrowprops=look)


def _draw_differences(axes: Axes, data: pd.DataFrame, names: list[str]) -> None:
    """Draw the differences of one setting, each at the height of its encoding in `names`, over the margin."""
    if np.isfinite(margin := data["margin"].max()):
        axes.axvspan(-margin, margin, color=MARGIN_BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    for line in data.itertuples():
        if pd.isna(line.difference):
            continue
        y, mark = names.index(line.pe), VERDICT_MARKS[Verdict(line.verdict)]
        if pd.notna(line.low):
            axes.plot([line.low, line.high], [y, y], color=mark.colour, linewidth=1.5)
        if line.bound:
            _draw_bound(axes, line, y, mark.colour)
        face = mark.colour if mark.filled else PAPER
        axes.plot(line.difference, y, mark.shape, color=mark.colour, markerfacecolor=face, ms=5)
