"""Figures of one trained model: the attention of every head, and how well position can be read off each layer."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_lab.data.base import Dataset
from pe_lab.data.seeding import derive, seed_all
from pe_lab.encodings.layout import PADDING
from pe_lab.model import Transformer
from pe_lab.probes.attention import layer_weights
from pe_lab.probes.position import PositionProbe
from pe_lab.probes.states import at_rest

LONGEST = 512  # tokens of a sequence whose attention is drawn
SIDE = 1.25  # inches of a head's map
MOST_TICKS = 4  # on an axis of a head's map
HIDDEN = "#D9D9D9"  # keys that a query may not see
# rows of the position probe: their colours, markers and names; the last is one number for all layers
LINES = {
    "r2": ("#0072B2", "o", "position"),
    "r2_permuted": ("#D55E00", "s", "control: positions permuted"),
    "r2_from_token": ("#595959", "", "from the token alone"),
}


def attention_maps(model: Transformer, dataset: Dataset, seed: int, sequence: int = 0) -> list[np.ndarray]:
    """Return the attention weights of every layer on one sequence of the test split.

    Args:
        seed: of what an encoding draws at random.
        sequence: its number in the test split.

    Returns:
        For each layer an array [H, T, T] of heads, queries and keys, without padding; NaN where a query may not see a
        key.

    Raises:
        ValueError: there is no such sequence.
    """
    if not 0 <= sequence < dataset.size("test"):
        raise ValueError(f"sequence must be in 0 ... {dataset.size('test') - 1} of the test split, got {sequence}")
    device = model.tokens.weight.device
    batch = dataset.batch("test", torch.tensor([sequence])).to(device)
    real = (batch.layout.segment[0] != PADDING).nonzero()[:, 0]
    maps = []
    with torch.no_grad(), at_rest(model):
        seed_all(derive(seed, "picture"), device)
        for weights, _, layout in layer_weights(model, batch):
            shown = weights[0][:, real][:, :, real].double().clamp(0, 1)
            hidden = ~layout.allowed[0, 0][real][:, real]
            maps.append(shown.masked_fill(hidden, torch.nan).cpu().numpy())
    return maps


@mpl.rc_context({"text.parse_math": False})  # names may contain dollar signs
def attention_heads(
    model: Transformer, dataset: Dataset, seed: int = 0, sequence: int = 0, title: str = "Attention"
) -> Figure:
    """Draw the attention of every head on one sequence: a row per layer, a column per head.

    Shades are attention weights from 0 to 1 on a square-root scale, one for all maps. Queries run down, keys to the
    right. Grey marks keys that a query may not see.

    Args:
        seed, sequence: as for `attention_maps`.
        title: of the figure.
    """
    maps = attention_maps(model, dataset, seed, sequence)
    down, across = len(maps), len(maps[0])
    figure = Figure(figsize=(1.5 + SIDE * across, 0.9 + SIDE * down), layout="constrained")
    colours = mpl.colormaps["cividis"].with_extremes(bad=HIDDEN)
    norm = mpl.colors.PowerNorm(0.5, 0, 1)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for layer, heads in enumerate(maps):
        for head, weights in enumerate(heads):
            axes = grid[layer, head]
            image = axes.imshow(weights, cmap=colours, norm=norm, interpolation="nearest")
            axes.tick_params(labelsize=7)
            axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
            if layer == 0:
                axes.set_title(f"head {head}", fontsize=8)
            if head == 0:
                axes.set_ylabel(f"layer {layer + 1}\nquery", fontsize=8)
            if layer == down - 1:
                axes.set_xlabel("key", fontsize=8)
    bar = figure.colorbar(image, ax=grid, ticks=[0, 0.05, 0.25, 0.5, 1], fraction=0.04)
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    bar.set_label("attention weight", fontsize=8)
    figure.suptitle(title, fontsize=9)
    return figure


def position_by_layer(
    model: Transformer, dataset: Dataset, seed: int = 0, title: str = "Position in the hidden states"
) -> tuple[Figure, pd.DataFrame]:
    """Draw how well the position can be read off the hidden states: R² of the position probe against the layer.

    Args:
        seed: chooses sequences, and permutes positions for the control.
        title: of the figure.

    Returns:
        The figure, and the rows of the probe: layer, head, metric, value.

    Raises:
        ValueError: all tokens have the same position.
    """
    rows = pd.DataFrame(PositionProbe()(model, dataset, seed))
    if rows.empty:
        raise ValueError(f"data={dataset.name} must have several positions, got sequences with one")
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    axes = figure.subplots()
    for metric, (colour, marker, name) in LINES.items():
        found = rows[rows["metric"] == metric]
        if marker:
            axes.plot(found["layer"], found["value"], color=colour, marker=marker, label=name)
        else:
            axes.axhline(found["value"].iloc[0], color=colour, linestyle="--", label=name)
    layers = sorted(rows["layer"].dropna().astype(int).unique())
    axes.set_xticks(layers, ["embedding", *map(str, layers[1:])])
    axes.set(xlabel="layer", ylabel="R²", title=title)
    axes.title.set_fontsize(9)
    axes.set_ylim(min(-0.05, *axes.get_ylim()), 1.05)
    figure.legend(loc="outside right center", fontsize=8)
    return figure, rows
