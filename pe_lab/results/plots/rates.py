"""A metric against the learning rate."""

import matplotlib as mpl
import pandas as pd
from matplotlib.ticker import NullFormatter

from pe_lab.config import LR
from pe_lab.results.columns import in_words, setting_columns, sort_by_setting
from pe_lab.results.panels import draw_legend, make_panels, means, most_different
from pe_lab.results.plots.plot import Plot, draw_with_intervals
from pe_lab.system.drawing import STYLE


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
        draw_with_intervals(axes, data[data["setting"] == setting], LR, highlight)
        axes.set_xscale("log")
        axes.set_xticks(sorted(data[LR].unique()), [f"{rate:g}" for rate in sorted(data[LR].unique())])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="learning rate", title=setting)
    next(iter(panels.values())).set_ylabel(f"test {in_words(metric)}" + " in nats" * (metric == "loss"))
    draw_legend(figure, panels, highlight)
    return Plot(figure, data)
