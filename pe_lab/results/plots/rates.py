"""A metric against the learning rate."""

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from pe_lab.config import LR
from pe_lab.results.columns import in_words, merge_tables, metric_column, setting_columns, sort_by_setting
from pe_lab.results.panels import (
    draw_legend,
    ends_of,
    limit_axis,
    make_panels,
    means,
    most_different,
    settings_in_words,
)
from pe_lab.results.plots.differences import MINUS
from pe_lab.results.plots.dots import DOT_COLOUR, seed_handles, seed_values
from pe_lab.results.plots.lines import draw_with_intervals, side_by_side
from pe_lab.results.plots.plot import Plot
from pe_lab.results.plots.scales import MIN_SPAN, tick_measured
from pe_lab.system.drawing import INK, STYLE

LINEAR_EXCESS = 0.1  # nats, up to which the scale is linear where a mean is MIN_SPAN times that
SPREAD = 0.25  # share of the distance between two rates over which encodings stand side by side
UNTRIED, OUTSIDE = 1.4, 2.1  # factors from the outermost rates to where hatching begins, and to the axis's ends
CHOSEN, NOT_TRIED = "chosen by validation", "not tried"  # in legends


@mpl.rc_context(STYLE)
def over_rates(rows: pd.DataFrame, rates: pd.DataFrame, metric: str = "loss") -> Plot:
    """Draw by how much a test metric is above that at the chosen learning rate, against the rate: a panel per setting.

    Differences are paired by seed: means with 95 % t intervals, and small marks for the seeds. The chosen rate, at
    which the difference is 0, has a ring. Rates below the lowest and above the highest that was tried are hatched, so
    that a choice at the edge shows. The scale is logarithmic above LINEAR_EXCESS where a mean is MIN_SPAN times that.

    Args:
        rows: cells of several rates.
        rates: the chosen rates, see `swept_rates.SweptRates`; encodings without one in a setting are not drawn there.
    """
    names = [name for name in setting_columns(rows) if name != LR]
    rows = _add_excess(sort_by_setting(rows, [*names, LR]), rates, names, metric)
    rows["setting"] = settings_in_words(rows, names)
    data, seeds = (
        means(rows, [LR], names),
        seed_values(rows[~rows["chosen"]], list(rows.loc[~rows["chosen"], "setting"]), [LR]),
    )
    data = data.merge(rows[["setting", "pe", LR, "chosen"]].drop_duplicates())
    highlight = most_different(data, LR)
    figure, panels = make_panels(data["setting"].unique(), 2.9, share_y=True)
    for setting, axes in panels.items():
        here = data[data["setting"] == setting]
        axes.set_xscale("log")
        axes.axhline(0, color=INK, linewidth=0.8, zorder=0.5)
        draw_with_intervals(axes, here, LR, highlight, seeds[seeds["setting"] == setting], SPREAD)
        for line in here[here["chosen"] & here["pe"].isin(highlight)].to_dict("records"):
            x = side_by_side(axes, pd.Series([line[LR]]), line["pe"], highlight, here[LR], spread=SPREAD)
            axes.plot(x, [line["mean"]], "o", ms=8, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.9)
        _hatch_untried(axes, here[LR])
        axes.set(xlabel="learning rate")
        axes.set_title(setting, fontsize=9)
    with_intervals, dots = (table[table["pe"].isin(highlight)] for table in (data, seeds))
    ends = ends_of([0.0, *data["mean"], *dots["value"]], with_intervals)
    logarithmic = bool(data["mean"].max() >= MIN_SPAN * LINEAR_EXCESS)
    if logarithmic:
        for axes in panels.values():
            axes.set_yscale("symlog", linthresh=LINEAR_EXCESS, linscale=0.6)
            axes.set_yticks([-1, -0.3, -0.1, 0, 0.1, 0.3, 1, 3])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", MINUS))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(1.5 * ends[0], -LINEAR_EXCESS / 2), 1.3 * ends[1])
    else:
        limit_axis(axes, ends)
    unit = " in nats" * (metric == "loss") + f"\n(linear up to {LINEAR_EXCESS:g})" * logarithmic
    next(iter(panels.values())).set_ylabel(f"test {in_words(metric)} above that\nat the chosen rate{unit}")
    handles: list[Artist] = [
        Line2D([], [], marker="o", ms=8, markerfacecolor="none", markeredgecolor=INK, ls="none", label=CHOSEN),
        *seed_handles(data, seeds, bar=True),
        Patch(facecolor="none", edgecolor=DOT_COLOUR, linewidth=0, hatch="////", label=NOT_TRIED),
    ]
    draw_legend(figure, panels, highlight, handles)
    return Plot(figure, data, seeds)


def _add_excess(rows: pd.DataFrame, rates: pd.DataFrame, names: list[str], metric: str) -> pd.DataFrame:
    """Return cells with what their metric is above that of their seed at the chosen rate: columns value and chosen.

    Args:
        rates: the chosen rates.
        names: the columns of a setting, without the rate.
    """
    rows = rows.assign(value=rows[metric_column(rows, metric)])
    at_best = merge_tables(rows, rates[[*names, "pe", LR]], [*names, "pe", LR])
    at_best = at_best.rename(columns={LR: "best_rate", "value": "best"})
    keys = [*names, "pe", "seed"]
    rows = merge_tables(rows, at_best[[*keys, "best_rate", "best"]], keys)
    return rows.assign(value=rows["value"] - rows["best"], chosen=rows[LR] == rows["best_rate"])


def _hatch_untried(axes: Axes, tried: pd.Series) -> None:
    """Hatch what is below the lowest and above the highest rate that was tried."""
    low, high = tried.min(), tried.max()
    axes.set_xlim(low / OUTSIDE, high * OUTSIDE)
    tick_measured(axes, tried)
    for ends in ((low / OUTSIDE, low / UNTRIED), (high * UNTRIED, high * OUTSIDE)):
        axes.axvspan(*ends, facecolor="none", edgecolor=DOT_COLOUR, linewidth=0, hatch="////", zorder=0)
