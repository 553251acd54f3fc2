"""What each seed reached."""

import matplotlib as mpl
import pandas as pd
from matplotlib.ticker import MaxNLocator, NullFormatter

from pe_lab.results.columns import sort_by_setting
from pe_lab.results.panels import draw_legend, make_panels, settings_in_words
from pe_lab.results.plots.dots import seed_places
from pe_lab.results.plots.plot import FLOOR_DASHES, FLOOR_NAMES, Plot, floor_levels
from pe_lab.results.styles import style
from pe_lab.system.drawing import INK, PAPER, STYLE


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
    data["place"] = seed_places(data["seed"])
    data["reached"] = data["solved"].astype(bool) if kind == "steps" else True
    names = list(data.groupby("pe", sort=False)["y"].mean().sort_values(kind="stable").index)
    levels = floor_levels(outcomes, "loss", columns) if kind == "loss" else {}
    figure, panels = make_panels(data["setting"].unique(), 1.1 + 0.2 * len(names), share_y=True)
    for setting, axes in panels.items():
        part = data[data["setting"] == setting]
        for name, line in part.groupby("pe", sort=False):
            y, look = names.index(name), style(str(name))
            middle = 2 ** line["y"].mean() if kind == "steps" else line["y"].mean()
            axes.plot([middle, middle], [y - 0.35, y + 0.35], color=look.colour, linewidth=2)
            for done in (True, False):
                runs_of = line[line["reached"] == done]
                face = look.colour if done else PAPER
                heights = y + 0.3 * runs_of["place"]
                axes.plot(runs_of["value"], heights, look.marker, color=look.colour, markerfacecolor=face, ms=4)
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
