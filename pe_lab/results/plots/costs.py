"""A metric against a cost."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter, MaxNLocator

from pe_lab.results.columns import column_in_words, in_words, setting_columns, sort_by_setting
from pe_lab.results.panels import draw_legend, make_panels, means, settings_in_words
from pe_lab.results.plots.dots import draw_dots, seed_handles, seed_values
from pe_lab.results.plots.plot import Plot, align_axes
from pe_lab.results.plots.scales import tick_measured
from pe_lab.results.styles import style
from pe_lab.system.drawing import STYLE

DODGE = 0.035  # share of the range of costs between two encodings of one cost


@mpl.rc_context(STYLE)
def cost(rows: pd.DataFrame, metric: str = "loss", against: str = "flops_per_token") -> Plot:
    """Draw the mean of a metric, with its 95 % t interval and the seeds, against a cost: a panel per setting.

    Panels of one task have one scale of the metric, and one of the cost unless that would squeeze a panel. Encodings
    of one cost stand side by side.

    Args:
        against: positional_parameters, flops_per_token or another column with a number for each cell.
    """
    rows = sort_by_setting(rows, setting_columns(rows))
    settings = settings_in_words(rows, setting_columns(rows))
    rows = rows.assign(value=rows[f"test_{metric}"])
    value, seeds = means(rows, metric=metric), seed_values(rows, settings)
    price = rows.assign(setting=settings).groupby(["setting", "pe"], sort=False)[against].median().reset_index()
    data = value.merge(price, on=["setting", "pe"]).rename(columns={"mean": metric})
    one_task = "data" not in rows or rows["data"].nunique() == 1
    figure, panels = make_panels(data["setting"].unique(), 2.7, share_y=one_task)
    unit, gap = " in nats" * (metric == "loss"), DODGE * np.ptp(data[against])
    same = data.groupby(["setting", against])["pe"]
    data["place"] = gap * (same.cumcount() - (same.transform("size") - 1) / 2)
    seeds = seeds.merge(data[["setting", "pe", against]].assign(shift=data["place"]), on=["setting", "pe"])
    for setting, axes in panels.items():
        for line in data[data["setting"] == setting].to_dict("records"):
            look, x = style(line["pe"]), line[against] + line["place"]
            dots = seeds[(seeds["setting"] == setting) & (seeds["pe"] == line["pe"])]
            draw_dots(axes, dots[against] + dots["shift"] + 0.6 * gap * dots["place"], dots["value"], line["pe"])
            axes.plot(x, line[metric], look.marker, color=look.colour, ms=5, label=line["pe"])
            if pd.notna(line["low"]):
                axes.vlines(x, line["low"], line["high"], color=look.colour, linewidth=1)
        axes.margins(0.1)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(setting, fontsize=9)
        axes.set_xlabel(column_in_words(against))
        if axes.yaxis.get_tick_params()["labelleft"]:
            axes.set_ylabel(f"test {in_words(metric)}{unit}")
        axes.tick_params(labelsize=8)
    if one_task:
        align_axes(list(panels.values()))
    for setting, axes in panels.items():
        tick_measured(axes, data.loc[data["setting"] == setting, against])
        axes.xaxis.set_major_formatter(lambda value, _: EngFormatter(sep="")(float(f"{value:.3g}")))
    names = list(rows["pe"].unique())
    draw_legend(figure, panels, names, seed_handles(data, seeds, bar=True))
    return Plot(figure, data.drop(columns="place"), seeds.drop(columns="shift"))
