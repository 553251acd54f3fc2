"""What a grid of settings and encodings holds: means as a table with shades, and shares of effects."""

import textwrap

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_lab.data.score import BLIND_FLOORS, LEVEL_FLOORS, NO_GAP
from pe_lab.results.columns import (
    floors,
    in_words,
    lower_is_better,
    merge_tables,
    metric_column,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.learned import filter_learned_cells
from pe_lab.results.panels import GREY, means, settings_in_words
from pe_lab.results.plots.plot import FLOOR_NAMES, Plot
from pe_lab.results.styles import COLOURS
from pe_lab.system.drawing import INK, STYLE

TITLE_LETTER = 0.064  # inches of a letter of the title
MIN_HEIGHT = 3.5  # inches, of a heat map with its title
FLOOR_MEANINGS = {floor: f"the {name}" for floor, name in FLOOR_NAMES.items()} | {
    "prior": "a guess by the frequency of answers"
}


@mpl.rc_context(STYLE)
def heatmap(rows: pd.DataFrame, metric: str = "loss", lines: pd.DataFrame | None = None) -> Plot:
    """Draw the mean of a test metric: a row per encoding, best first, a column per setting, floors as the last rows.

    Shades are the share of the way from the best loss without position to the best possible loss, from 0 to 1; of a
    metric that is a share, its value; where neither is known, the place between the worst and the best of a column.
    Settings in which no encoding has learned the task have no column, unless they are all: see
    `learned.filter_learned_cells`.

    Args:
        lines: comparisons of the cells; where shades run from the worst to the best of a column, a column whose means
            are all within the margin has none. None: there is no margin.
    """
    rows = sort_by_setting(rows, names := setting_columns(rows))
    words = pd.Series(settings_in_words(rows, names), rows.index)
    settings = words[filter_learned_cells(rows).index].unique()
    left_out = words.nunique() - len(settings)
    data = means(rows.assign(value=rows[metric_column(rows, metric)]), metric=metric)
    data = data[data["setting"].isin(settings)]
    floor_rows = {}
    for floor in floors(rows, metric):
        name = floor.replace("_", "-")
        values = rows.assign(value=rows[f"floor_{floor}_{metric}"], pe=name)
        floor_rows[name] = means(values).set_index("setting")["mean"].reindex(settings)
    wide = data.pivot(index="pe", columns="setting", values="mean")
    wide = wide.loc[rows.loc[words.isin(settings), "pe"].unique(), data["setting"].unique()]
    sign = 1 if lower_is_better(metric) else -1
    wide = wide.loc[(sign * wide).rank().mean(axis=1).sort_values(kind="stable").index]
    shown = pd.concat([wide, pd.DataFrame(floor_rows).T.reindex(columns=wide.columns)]) if floor_rows else wide
    shades, meaning = _shades_of_means(wide, floor_rows, sign, _margins_by_setting(rows, lines))
    titles = [f"test {in_words(metric)}, mean over seeds", f"shades: {meaning}"]
    if np.isfinite(shades.to_numpy(float)).any():
        titles[1] = f"yellow: best; {titles[1]}"
    if left_out:
        titles.append(f"left out: {left_out} of {words.nunique()} settings, in which no encoding has learned the task")
    width = max(4.4, 1.8 + 0.85 * len(shown.columns))
    title = [line for text in titles for line in textwrap.wrap(text, int(width / TITLE_LETTER))]
    lines_above = len(title) + max(name.count(", ") + 1 for name in shown.columns)
    height = max(MIN_HEIGHT, 0.9 + 0.16 * lines_above + 0.27 * len(shown))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _draw_cells(axes, shown, shades)
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=9)  # as wide as the figure
    levels = [
        {"setting": setting, "pe": floor, "mean": value, "low": np.nan, "high": np.nan}
        for floor, values in floor_rows.items()
        for setting, value in values.dropna().items()
    ]
    return Plot(figure, pd.concat([data, pd.DataFrame(levels)], ignore_index=True) if levels else data)


def _margins_by_setting(rows: pd.DataFrame, lines: pd.DataFrame | None) -> pd.Series:
    """Return the margin of each setting in words, where comparisons have one."""
    names = setting_columns(rows)
    if lines is None or lines.empty or "margin" not in lines:
        return pd.Series(dtype=float)
    words = rows[names].assign(setting=settings_in_words(rows, names)).drop_duplicates()
    return merge_tables(lines[[*names, "margin"]], words, names).groupby("setting")["margin"].max()


def _shades_of_means(
    wide: pd.DataFrame, floor_rows: dict[str, pd.Series], sign: int, margins: pd.Series
) -> tuple[pd.DataFrame, str]:
    """Return shades from 0 to 1 of means, brighter is better, and what they mean."""
    floors = pd.DataFrame(floor_rows).T.reindex(columns=wide.columns)
    known = [
        floor for floor in dict.fromkeys([*BLIND_FLOORS, *LEVEL_FLOORS]) if floor.replace("_", "-") in floors.index
    ]
    for first in known if sign > 0 and "bayes" in floors.index else []:
        level, best = floors.loc[first.replace("_", "-")], floors.loc["bayes"]
        if not (level - best > NO_GAP).all():  # position does not matter: from what the most frequent answers give
            continue
        shares = (level - wide) / (level - best)
        if (shares > 0).any(axis=None):  # otherwise all would be dark
            return shares, f"0 is {FLOOR_MEANINGS[first]}, 1 the best possible"
        break
    if sign < 0 and wide.min().min() >= 0 and wide.max().max() <= 1:
        return wide, "the value, from 0 to 1"
    # losses after one epoch and after sixteen are not comparable
    span, least = wide.max() - wide.min(), margins.reindex(wide.columns).fillna(0)
    behind = (wide - wide.min() if sign > 0 else wide.max() - wide) / span.replace(0, 1)
    alike = (least > 0) & (span <= least)
    meaning = f"from the worst to the best of a column{', none where all are within the margin' * bool(alike.any())}"
    meaning = "none: all means of a column are within the margin" if alike.all() else meaning
    return (1 - behind).mask(alike.to_numpy()[None] & wide.notna(), np.nan), meaning


def _contrasting_colour(shade: float) -> str:
    """Return the colour of a text on a shade of cividis; NaN: on the ground of the page."""
    if np.isnan(shade):
        return INK
    return "white" if np.mean(colormaps["cividis"](shade)[:3]) < 0.5 else "black"


def _draw_cells(axes: Axes, shown: pd.DataFrame, shaded: pd.DataFrame) -> None:
    """Draw values as text, on shades in the rows that have some, with a line below these."""
    coloured = len(shaded)
    shades = shaded.clip(0, 1).reindex(shown.index.unique()).loc[shown.index].to_numpy(float, copy=True)
    shades[coloured:] = np.nan
    axes.imshow(shades, cmap=colormaps["cividis"], vmin=0, vmax=1, aspect="auto")
    for (line, column), value in np.ndenumerate(shown.to_numpy(float)):
        shade = shades[line, column]
        text = "" if np.isnan(value) else _format_value(value)
        axes.text(column, line, text, ha="center", va="center", fontsize=8, color=_contrasting_colour(shade))
    axes.set_xticks(range(len(shown.columns)), [_one_part_per_line(name) for name in shown.columns], fontsize=8)
    axes.set_yticks(range(len(shown)), shown.index, fontsize=8)
    axes.axhline(coloured - 0.5, color=INK, linewidth=1)
    axes.xaxis.tick_top()
    if np.isnan(shades).all():  # a table, in which lines take the place of shades
        for line in range(1, len(shown)):
            axes.axhline(line - 0.5, color=GREY, linewidth=0.6, zorder=0)


def _format_value(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.3f}"


def _one_part_per_line(setting: str) -> str:
    return setting.replace(", ", "\n")


@mpl.rc_context(STYLE)
def shares(effects: pd.DataFrame) -> Plot:
    """Draw the shares of statistics.effects, from 0 to 100 %."""
    figure = Figure(figsize=(7, 1 + 0.35 * len(effects)), layout="constrained")
    axes = figure.subplots()
    y = np.arange(len(effects))
    spread = np.stack([effects["share"] - effects["low"].clip(lower=0), effects["high"] - effects["share"]])
    axes.barh(y, effects["share"], color=COLOURS[0], xerr=np.nan_to_num(spread).clip(min=0), ecolor=INK, capsize=3)
    axes.set_yticks(y, effects["effect"].str.replace(r"\bpe\b", "encoding", regex=True), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_xlabel("share of the sum of squares within a seed's grid")
    return Plot(figure, effects)
