"""Figures of results, each with the numbers that it draws. No two encodings differ by colour alone."""

from pe_lab.results.plots.differences import forest
from pe_lab.results.plots.grid import heatmap, shares
from pe_lab.results.plots.measurements import layer_curves, length_curves
from pe_lab.results.plots.plot import Plot
from pe_lab.results.plots.rates import over_rates
from pe_lab.results.plots.seeds import runs
from pe_lab.results.plots.training import learning_curves, over_epochs

__all__ = [
    "Plot",
    "forest",
    "heatmap",
    "layer_curves",
    "learning_curves",
    "length_curves",
    "over_epochs",
    "over_rates",
    "runs",
    "shares",
]
