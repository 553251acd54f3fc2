"""What was measured after training: at other lengths, and in layers."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import in_words, lower_is_better, record_settings, sort_by_setting
from pe_lab.results.panels import draw_legend, draw_lines, make_panels, means, most_different, settings_in_words
from pe_lab.results.plots.plot import Plot
from pe_lab.system.drawing import INK, STYLE

TOKEN_ALONE = "from the token alone"  # in legends
MAX_TICKS = 8  # measured values that are all named at an axis


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
