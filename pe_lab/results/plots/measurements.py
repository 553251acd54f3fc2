"""What was measured after training: at other lengths, and in layers."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from pe_lab.results.columns import in_words, lower_is_better, record_settings, sort_by_setting
from pe_lab.results.panels import (
    MAX_COLOURED_LINES,
    draw_legend,
    ends_of,
    label_rows,
    limit_axis,
    make_panels,
    means,
    most_different,
    settings_in_words,
)
from pe_lab.results.plots.dots import seed_handles, seed_values
from pe_lab.results.plots.lines import draw_lines
from pe_lab.results.plots.plot import FLOOR_DASHES, FLOOR_NAMES, Plot, floor_curves
from pe_lab.results.plots.scales import loss_scale, scale_in_words, scale_losses, tick_measured
from pe_lab.system.drawing import INK, STYLE

REFERENCES = {  # of a probe's metric: the dashes of their lines, and their names in legends
    "from_token": (":", "from the token alone"),
    "permuted": ("-.", "control: positions permuted"),
}
DIRECTION_SHARE = "direction_share"  # a metric of layers, made of the stable rank
TOKEN_COSINE = "token_cosine"  # a metric of layers
UNIT_AXES = (TOKEN_COSINE, "r2")  # metrics whose axis goes to 1
UNIT_RANGE = (-0.03, 1.03)  # of their axes, at least


@mpl.rc_context(STYLE)
def length_curves(records: pd.DataFrame, metric: str = "loss") -> Plot:
    """Draw a metric against length, in training lengths, a panel per setting, policy and offset.

    Lines are means over seeds, bands their 95 % t intervals, small marks beside them the seeds. Losses have the scale
    of `loss_scale`; where it is logarithmic, there are no bands, as one that reaches 0 would cover all others. Floors
    that were measured at these lengths are lines without marks.
    """
    measured = records[(records["kind"] == "length") & (records["metric"] == metric)]
    names = [*record_settings(measured), "policy", "offset"]
    measured = sort_by_setting(measured, names)
    data = means(measured, ["length"], names, metric)
    places = (pd.factorize(data[name])[0] for name in ("pe", "setting"))
    data = data.iloc[np.lexsort((data["length"], *places))].reset_index(drop=True)  # measured at several times
    seeds = seed_values(measured, settings_in_words(measured, names), ["length"])
    highlight, linear = most_different(data, "length"), loss_scale(metric, data["mean"])
    bands = data["pe"].nunique() <= MAX_COLOURED_LINES and (linear is None or seeds.empty)
    levels = floor_curves(records[records["kind"] == "length"], metric, names)
    figure, panels = make_panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        here, dots, floors = (table[table["setting"] == setting] for table in (data, seeds, levels))
        draw_lines(axes, here, "length", highlight, dots, bands)
        for floor, line in floors.groupby("floor", sort=False):
            look = {"linestyle": FLOOR_DASHES[str(floor)], "label": FLOOR_NAMES[str(floor)]}
            axes.plot(line["length"], line["value"], color=INK, linewidth=1.2, zorder=1.2, **look)
        tick_measured(axes, here["length"])
        ends = ends_of([*here["mean"], *dots["value"], *floors["value"]], here if bands else None)
        scale_losses(axes, linear, ends)
        label = f"test {in_words(metric)}{' in nats' * (metric == 'loss')}{scale_in_words(linear)}"
        axes.set(xlabel="length / training length", ylabel=label)
        axes.set_title(setting, fontsize=9)
        if not lower_is_better(metric):
            highest = min(1.0, ends[1]) or 1.0
            axes.set_ylim(-0.03 * highest, 1.03 * highest)
    labels = [*highlight, *(FLOOR_NAMES[floor] for floor in FLOOR_NAMES if floor in set(levels["floor"]))]
    draw_legend(figure, panels, labels, seed_handles(data, seeds, band=bands))
    return Plot(figure, data, seeds, bands)


@mpl.rc_context(STYLE)
def layer_curves(records: pd.DataFrame, probe: str, metric: str) -> Plot:
    """Draw a probe's metric against the layer, a panel per setting, all with one y axis; heads are averaged.

    Lines are means over seeds, bands their 95 % t intervals, small marks beside them the seeds. Where they
    are measured, lines without marks show what the probe finds from the tokens alone, and with permuted positions, the
    mean over layers. The metric `direction_share` is one over the stable rank: the largest share of the variance that a
    direction has. The axes of `token_cosine`, at 1 if all tokens are alike, and of `r2` go to 1.
    """
    measured = _over_layers(records, probe, metric)
    names = [*record_settings(measured), "length"]
    data = means(measured, ["layer"], names, metric)
    seeds = seed_values(measured, settings_in_words(measured, names), ["layer"])
    references = {}
    for suffix, (dashes, label) in REFERENCES.items():
        rows = records[(records["probe"] == probe) & (records["metric"] == f"{metric}_{suffix}")]
        levels = rows["value"].groupby(np.array(settings_in_words(rows, names), dtype=object)).mean()
        references[label] = dashes, levels
    highlight = most_different(data, "layer")
    figure, panels = make_panels(data["setting"].unique(), 2.9, share_y=True)
    for setting, axes in panels.items():
        here, of_seeds = (table[table["setting"] == setting] for table in (data, seeds))
        draw_lines(axes, here, "layer", highlight, of_seeds)
        for label, (dashes, levels) in references.items():
            if setting in levels:
                axes.axhline(levels[setting], color=INK, linewidth=1, linestyle=dashes, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        first = "layer (0: embedding)" if (data["layer"] == 0).any() else "layer"
        axes.set_xlabel(first)
        axes.set_title(setting, fontsize=9)
    points = [*data["mean"], *seeds.loc[seeds["pe"].isin(highlight), "value"]]
    points += [level for _, levels in references.values() for level in levels]
    limit_axis(axes, ends_of(points, data if len(highlight) == data["pe"].nunique() else None))  # shared by all
    label_rows(panels, in_words(metric))
    if metric in UNIT_AXES:
        axes.set_ylim(min(axes.get_ylim()[0], UNIT_RANGE[0]), UNIT_RANGE[1])
    bands = data["pe"].nunique() <= MAX_COLOURED_LINES
    draw_legend(figure, panels, [*highlight, *references], seed_handles(data, seeds, band=bands))
    return Plot(figure, data, seeds, bands)


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
