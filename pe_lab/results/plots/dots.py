"""Seeds as dots beside their means."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pe_lab.results.number_text import range_in_words
from pe_lab.results.styles import style
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS
from pe_lab.system.drawing import INK

MAX_DOTS = 12  # seeds of a mean that are drawn as dots
DOTS = "_seeds"  # the label of dots, which no legend shows
DOT: dict[str, Any] = {"ms": 3.2, "markeredgewidth": 0, "linestyle": "none"}
DOT_COLOUR = "#7F7F7F"  # of what a legend says for all encodings
INTERVAL = "95 % interval of the mean"  # in legends


def seed_values(rows: pd.DataFrame, settings: list[str], along: Sequence[str] = ()) -> pd.DataFrame:
    """Return the values of the seeds of each mean over 2 to MAX_DOTS of them: setting, pe, `along`, seed, value, place.

    The place of a seed among all seeds, from -0.5 to 0.5, is where its dot stands beside the mean.

    Args:
        rows: a line per encoding, setting and seed, with the columns pe, seed and value.
        settings: the setting of each row in words.
        along: further columns by which means differ, such as the x axis of a curve.
    """
    rows = rows.assign(setting=settings, place=seed_places(rows["seed"]))
    rows = rows[np.isfinite(rows["value"].astype(float))]
    count = rows.groupby(["setting", "pe", *along])["seed"].transform("size")
    kept = rows[count.between(2, MAX_DOTS)]
    return kept[["setting", "pe", *along, "seed", "value", "place"]].reset_index(drop=True)


def seed_places(seeds: pd.Series) -> pd.Series:
    """Return a place from -0.5 to 0.5 for each seed, by its order among all."""
    order = seeds.rank(method="dense") - 1
    return order / max(1.0, order.max()) - 0.5 * (order.max() > 0)


def draw_dots(axes: Axes, x: pd.Series, y: pd.Series, name: str | None = None) -> None:
    """Draw seeds as small marks behind means: those of an encoding, or dots in the colour of texts."""
    colour, marker = (INK, "o") if name is None else (style(name).colour, style(name).marker)
    axes.plot(x, y, marker, color=colour, alpha=0.6, zorder=1.5, label=DOTS, **DOT)


def seed_handles(data: pd.DataFrame, seeds: pd.DataFrame, band: bool = False, bar: bool = False) -> list[Artist]:
    """Return what a legend says of dots and intervals, as far as they are drawn.

    Args:
        data: the means, with their number of seeds and the ends of their intervals.
        seeds: the table of `seed_values` that is drawn; may be empty.
        band: whether bands are intervals.
        bar: whether bars are.
    """
    handles: list[Artist] = []
    if len(seeds):
        label = f"one of {range_in_words(data['seeds'], 'g', ' to ')} seeds"
        label += " (too few for an interval)" * bool(data["seeds"].max() < MIN_SHOWN_SEEDS)
        handles.append(Line2D([], [], marker="o", color=DOT_COLOUR, label=label, **DOT))
    if data["low"].notna().any():
        handles += [Patch(color=(DOT_COLOUR, 0.25), label=INTERVAL)] * band
        handles += [Line2D([], [], color=DOT_COLOUR, marker="|", ms=7, linestyle="none", label=INTERVAL)] * bar
    return handles
