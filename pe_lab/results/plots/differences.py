"""Paired differences from a baseline."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import in_words, lower_is_better, merge_tables, setting_columns, sort_by_setting
from pe_lab.results.panels import make_panels, settings_in_words
from pe_lab.results.plots.dots import draw_dots, seed_handles, seed_values
from pe_lab.results.plots.plot import Plot, align_axes
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict
from pe_lab.system.drawing import INK, PAPER, STYLE

DOT_SPREAD = 0.5  # rows, over which the dots of an encoding are spread
MARGIN_BAND = ("#808080", 0.25)  # the margin in a forest; translucent, for light and dark pages


@mpl.rc_context(STYLE)
def forest(compared: pd.DataFrame, metric: str = "loss", rows: pd.DataFrame | None = None) -> Plot:
    """Draw paired differences from the baseline with their t intervals, a panel per setting, the best mean first.

    The grey band is the margin on both sides of 0. Marks have a shape and a filling per verdict, named below.

    Args:
        compared: the table of statistics.compare_cells; settings may have different baselines, which are marked at 0.
        rows: the cells that were compared, whose differences are dots, one per seed; None: no dots.
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
    seeds = pd.DataFrame() if rows is None else _seed_differences(data, columns, metric, rows)
    for setting, axes in panels.items():
        if len(seeds):
            here = seeds[seeds["setting"] == setting]
            heights = here["pe"].map(names.index).astype(float)
            draw_dots(axes, here["value"], heights + DOT_SPREAD * here["place"])
        _draw_differences(axes, data[data["setting"] == setting], names)
    align_axes(list(panels.values()))
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
    handles += seed_handles(data, seeds)
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if len(panels) > 1 else 2, fontsize=8)
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
    values = rows[[*keys, "pe"]].assign(value=rows[f"test_{metric}"])
    theirs = values.rename(columns={"pe": "baseline", "value": "theirs"})
    paired = merge_tables(data[[*names, "setting", "pe", "baseline"]], values, [*names, "pe"])
    paired = merge_tables(paired, theirs, [*keys, "baseline"])
    paired["value"] -= paired["theirs"]
    return seed_values(paired, list(paired["setting"]))


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
