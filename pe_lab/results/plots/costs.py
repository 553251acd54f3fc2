"""A metric against a cost."""

import matplotlib as mpl
import pandas as pd
from matplotlib.ticker import EngFormatter, MaxNLocator

from pe_lab.results.columns import in_words, setting_columns, sort_by_setting
from pe_lab.results.panels import draw_legend, make_panels, means, settings_in_words
from pe_lab.results.plots.plot import Plot, align_axes
from pe_lab.results.styles import style
from pe_lab.system.drawing import STYLE

LEGEND_HEIGHT = 0.06  # inches for each encoding of a legend below panels


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
        align_axes(list(panels.values()))
    names = list(rows["pe"].unique())
    figure.set_figheight(figure.get_figheight() + LEGEND_HEIGHT * len(names))
    draw_legend(figure, panels, names)
    return Plot(figure, data)
