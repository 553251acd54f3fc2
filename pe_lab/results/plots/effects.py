"""Shares of effects."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_lab.results.plots.plot import Plot
from pe_lab.results.styles import COLOURS
from pe_lab.system.drawing import INK, STYLE


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
