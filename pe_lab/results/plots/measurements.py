"""What was measured after training: at other lengths, and in layers."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import in_words, lower_is_better, record_settings, sort_by_setting
from pe_lab.results.panels import (
    MAX_COLOURED_LINES,
    draw_legend,
    make_panels,
    means,
    most_different,
    settings_in_words,
)
from pe_lab.results.plots.dots import seed_handles, seed_values
from pe_lab.results.plots.lines import draw_lines
from pe_lab.results.plots.plot import Plot
from pe_lab.results.plots.scales import loss_scale, scale_in_words, scale_losses, tick_measured
from pe_lab.system.drawing import INK, STYLE

TOKEN_ALONE = "from the token alone"  # in legends
DIRECTION_SHARE = "direction_share"  # a metric of layers, made of the stable rank


@mpl.rc_context(STYLE)
def length_curves(records: pd.DataFrame, metric: str = "loss") -> Plot:
    """Draw a metric against length, in training lengths, a panel per setting, policy and offset.

    Lines are means over seeds, bands their 95 % t intervals, small marks beside them the seeds. Losses have the scale
    of `loss_scale`; where it is logarithmic, there are no bands, as one that reaches 0 would cover all others.
    """
    measured = records[(records["kind"] == "length") & (records["metric"] == metric)]
    names = [*record_settings(measured), "policy", "offset"]
    measured = sort_by_setting(measured, names)
    data = means(measured, ["length"], names, metric)
    seeds = seed_values(measured, settings_in_words(measured, names), ["length"])
    highlight, linear = most_different(data, "length"), loss_scale(metric, data["mean"])
    bands = data["pe"].nunique() <= MAX_COLOURED_LINES and (linear is None or seeds.empty)
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        here = data[data["setting"] == setting]
        draw_lines(axes, here, "length", highlight, seeds[seeds["setting"] == setting], bands)
        tick_measured(axes, here["length"])
        scale_losses(axes, linear, data["high"].fillna(data["mean"]).max())
        label = f"test {in_words(metric)}{' in nats' * (metric == 'loss')}{scale_in_words(linear)}"
        axes.set(xlabel="length / training length", ylabel=label)
        axes.set_title(setting, fontsize=9)
        if not lower_is_better(metric):
            axes.set_ylim(-0.03, 1.03)
    draw_legend(figure, panels, highlight, seed_handles(data, seeds, band=bands))
    return Plot(figure, data, seeds, bands)


@mpl.rc_context(STYLE)
def layer_curves(records: pd.DataFrame, probe: str, metric: str, below: tuple[str, str] | None = None) -> Plot:
    """Draw a probe's metric against the layer, a panel per setting; heads are averaged.

    Lines are means over seeds, bands their 95 % t intervals, small marks beside them the seeds. A dotted line shows
    what the probe finds from the tokens alone, where that is measured. The metric `direction_share` is one over the
    stable rank: the largest share of the variance that a direction has.

    Args:
        below: a second probe and its metric, in panels below those of the first, with the same x axis.
    """
    shown = [(probe, metric), *([below] if below else [])]
    parts = [_over_layers(records, *pair).assign(metric=pair[1]) for pair in shown]
    names = [*record_settings(parts[0]), "length"]
    data = pd.concat([means(part, ["metric", "layer"], names, part["metric"].iloc[0]) for part in parts])
    dots = [seed_values(part, settings_in_words(part, names), ["metric", "layer"]) for part in parts]
    seeds = pd.concat(dots, ignore_index=True)
    alone = records[(records["probe"] == probe) & (records["metric"] == f"{metric}_from_token")]
    by_token = alone["value"].groupby(np.array(settings_in_words(alone, names), dtype=object)).mean()
    highlight = most_different(data[data["metric"] == metric], "layer")
    figure, grid = _panels_of([name for _, name in shown], list(data["setting"].unique()))
    for (name, setting), axes in grid.items():
        here, of_seeds = (table[(table["setting"] == setting) & (table["metric"] == name)] for table in (data, seeds))
        draw_lines(axes, here, "layer", highlight, of_seeds)
        if setting in by_token and name == metric:
            axes.axhline(by_token[setting], color=INK, linewidth=1, linestyle=":", label=TOKEN_ALONE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        first = "layer (0: embedding)" if (data["layer"] == 0).any() else "layer"
        axes.set_xlabel(first)
        if axes.yaxis.get_tick_params()["labelleft"]:
            axes.set_ylabel(in_words(name))
        axes.set_title(setting, fontsize=9)
    panels = {f"{name}, {setting}": axes for (name, setting), axes in grid.items()}
    bands = data["pe"].nunique() <= MAX_COLOURED_LINES
    draw_legend(figure, panels, [*highlight, TOKEN_ALONE], seed_handles(data, seeds, band=bands))
    data = data if below else data.drop(columns="metric")
    return Plot(figure, data.reset_index(drop=True), seeds, bands)


def _over_layers(records: pd.DataFrame, probe: str, metric: str) -> pd.DataFrame:
    """Return the means of a metric over heads: a line per setting, encoding, seed and layer."""
    derived = metric == DIRECTION_SHARE and not (records["metric"] == DIRECTION_SHARE).any()
    stored = "stable_rank" if derived else metric
    measured = records[(records["probe"] == probe) & (records["metric"] == stored) & records["layer"].notna()]
    if derived:
        measured = measured.assign(value=1 / measured["value"])
    names = record_settings(measured)
    keys = [*names, "pe", "seed", "kind", "length", "layer"]
    heads = measured.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    return sort_by_setting(heads, [*names, "length"])


def _panels_of(metrics: list[str], settings: list[str]) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """Return a figure with a panel per metric and setting; of two metrics, each has a row."""
    if len(metrics) == 1:
        figure, panels = make_panels(settings, 2.9)
        return figure, {(metrics[0], setting): axes for setting, axes in panels.items()}
    figure = Figure(figsize=(0.8 + 3.6 * len(settings), 0.6 + 2.7 * len(metrics)), layout="constrained")
    grid = figure.subplots(len(metrics), len(settings), squeeze=False, sharey="row")
    return figure, {
        (name, setting): grid[row, column]
        for row, name in enumerate(metrics)
        for column, setting in enumerate(settings)
    }
