"""Scales of losses that span decades, and ticks at measured values."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter

from pe_lab.results.columns import lower_is_better, possible_range
from pe_lab.results.panels import GREY, limit_axis

MIN_LINEAR_LOSS = 1e-3  # below which the scale of a loss is always linear
MIN_SPAN = 10.0  # factor between the lowest and the highest loss from which their scale is logarithmic
MIN_TICK_GAP = 0.09  # share of an axis between two ticks at measured values


def loss_scale(metric: str, values: pd.Series) -> float | None:
    """Return the loss below which a scale is linear and above which it is logarithmic; None: all of it is linear.

    It is logarithmic where the highest value is at least MIN_SPAN times the lowest, down to the power of ten below the
    lowest, at least MIN_LINEAR_LOSS. Below that it is linear, so that a best possible loss of 0 can be drawn.

    Args:
        metric: the metric; only those that are best at 0 have such a scale.
        values: the means that are drawn.
    """
    values = values[np.isfinite(values)]
    if not lower_is_better(metric) or possible_range(metric)[0] != 0 or values.empty:
        return None
    lowest = max(MIN_LINEAR_LOSS, values.min())
    return float(10 ** np.floor(np.log10(lowest) + 1e-9)) if values.max() >= MIN_SPAN * lowest else None


def scale_losses(axes: Axes, linear: float | None, ends: tuple[float, float]) -> None:
    """Give the y axis the scale of `loss_scale`, from 0 to above the highest value, with a dotted line where it ends.

    Args:
        linear: the value of `loss_scale`; None: the axis only ends at `ends`.
        ends: what is to be seen, see `panels.ends_of`.
    """
    if linear is None:
        limit_axis(axes, ends)
        return
    highest = ends[1]
    powers = linear * 10.0 ** np.arange(int(np.log10(max(highest, linear) / linear)) + 1)
    between = [3 * power for power in powers if 3 * power <= 1.3 * highest] if len(powers) <= 3 else []
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5)
    axes.axhline(linear, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks([0, *sorted([*powers, *between])])
    axes.set_ylim(-0.15 * linear, 1.3 * highest)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def scale_in_words(linear: float | None) -> str:
    """Return what the label of an axis says of the scale of `loss_scale`."""
    return "" if linear is None else f"\n(linear below {linear:g}, dotted)"


def tick_measured(axes: Axes, values: Iterable[float], form: str = "g") -> None:
    """Put the ticks of the x axis at measured values, the first, the last and as many as fit between these."""
    to = axes.xaxis.get_transform().transform
    low, high = to(np.array(axes.get_xlim()))
    kept: list[tuple[float, float]] = []
    for value in sorted(set(values)):
        place = float((to(np.array([value]))[0] - low) / (high - low))
        if not kept or place - kept[-1][1] >= MIN_TICK_GAP:
            kept.append((value, place))
    if kept and kept[-1][0] != (last := max(values)):
        kept[-1 if len(kept) > 1 else len(kept) :] = [(last, 1.0)]
    axes.xaxis.set_major_locator(FixedLocator([value for value, _ in kept]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:{form}}")
    axes.xaxis.set_minor_locator(FixedLocator([]))
