"""Figures of one trained model: the attention of every head, and how well position can be read off each layer."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pe_lab.data.base import Batch, Dataset
from pe_lab.data.seeding import derive_seed, seed_all
from pe_lab.encodings.layout import PADDING
from pe_lab.model import Transformer
from pe_lab.probes.attention import layer_weights
from pe_lab.probes.hidden_states import evaluation_mode
from pe_lab.probes.position import PositionProbe
from pe_lab.system.drawing import STYLE

MAX_DRAWN_TOKENS = 512  # tokens of a sequence whose attention is drawn
MAX_LABELLED_TOKENS = 40  # tokens of the longest sequence whose tokens are written at the axes
SIDE, OF_TOKEN = 1.25, 0.11  # inches of a head's map, at least, and of a token that is written
MAX_WIDTH = 8.0  # inches of the maps side by side
HEADS_IN_A_ROW = 4  # heads of a layer that stand in one row; more may stand in several
MAX_TICKS = 4  # on an axis without tokens
HIDDEN_COLOUR = (0.5, 0.5, 0.5, 0.3)  # keys that a query may not see
# rows of the position probe: their colours, markers and names; the last is one number for all layers
LINES = {
    "r2": ("#0072B2", "o", "position"),
    "r2_permuted": ("#D55E00", "s", "control: positions permuted"),
    "r2_from_token": ("#7F7F7F", "", "from the token alone"),
}


def attention_maps(model: Transformer, dataset: Dataset, seed: int, sequence: int = 0) -> list[np.ndarray]:
    """Return the attention weights of every layer on one sequence of the test split.

    Args:
        seed: the seed of what an encoding draws at random.
        sequence: the number of the sequence in the test split, from 0.

    Returns:
        For each layer an array [H, T, T] of heads, queries and keys, without padding; NaN where a query may not see a
        key.

    Raises:
        ValueError: there is no such sequence.
    """
    if not 0 <= sequence < dataset.size("test"):
        raise ValueError(f"sequence must be in 0 ... {dataset.size('test') - 1} of the test split, got {sequence}")
    device = model.tokens.weight.device
    batch, is_token = _sequence(dataset, sequence, device)
    maps = []
    with torch.no_grad(), evaluation_mode(model):
        seed_all(derive_seed(seed, "picture"), device)
        for weights, _, layout in layer_weights(model, batch):
            shown = weights[0][:, is_token][:, :, is_token].double().clamp(0, 1)
            hidden = ~layout.allowed[0, 0][is_token][:, is_token]
            maps.append(shown.masked_fill(hidden, torch.nan).cpu().numpy())
    return maps


def _sequence(dataset: Dataset, sequence: int, device: torch.device) -> tuple[Batch, torch.Tensor]:
    """Return a batch of one sequence of the test split, and the indices of its tokens that are not padding."""
    batch = dataset.batch("test", torch.tensor([sequence])).to(device)
    return batch, (batch.layout.segment[0] != PADDING).nonzero()[:, 0]


def attention_heads(model: Transformer, dataset: Dataset, seed: int = 0, sequence: int = 0, title: str = "") -> Figure:
    """Draw the attention of every head on one sequence, layer by layer; layers and heads count from 1.

    Shades are attention weights from 0 to 1 on a square-root scale, one for all maps. Queries run down, keys to the
    right; the numbers of the tokens stand at the axes if there are at most 40, and if up to 4 heads of a layer then
    fit in one row. Grey marks keys that a query may not see.

    Args:
        seed, sequence: see `attention_maps`.
        title: the title of the figure; empty: the encoding, the task and the sequence.
    """
    title = title or f"Attention of {model.encodings[0].name} on {dataset.name}, test sequence {sequence}"
    return draw_maps(attention_maps(model, dataset, seed, sequence), dataset, sequence, title)


@mpl.rc_context(STYLE)
def draw_maps(maps: list[np.ndarray], dataset: Dataset, sequence: int = 0, title: str = "") -> Figure:
    """Draw what `attention_maps` has returned for this sequence, as `attention_heads` does."""
    batch, is_token = _sequence(dataset, sequence, torch.device("cpu"))
    tokens = batch.tokens[0, is_token].tolist()
    heads = len(maps[0])
    fits = min(heads, HEADS_IN_A_ROW) * OF_TOKEN * len(tokens) <= MAX_WIDTH
    labelled = len(tokens) <= MAX_LABELLED_TOKENS and fits
    side = max(SIDE, OF_TOKEN * len(tokens)) if labelled else SIDE
    lines = -(-heads // int(MAX_WIDTH / side))  # of panels, for each layer
    across = -(-heads // lines)
    figure = Figure(figsize=(1.5 + side * across, 1.0 + (side + 0.15) * lines * len(maps)), layout="compressed")
    colours = mpl.colormaps["cividis"].with_extremes(bad=HIDDEN_COLOUR)
    norm = mpl.colors.PowerNorm(0.5, 0, 1)
    grid = figure.subplots(lines * len(maps), across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat:
        axes.set_visible(False)
    for layer, weights_of_heads in enumerate(maps):
        for head, weights in enumerate(weights_of_heads):
            axes = grid[layer * lines + head // across, head % across]
            axes.set_visible(True)
            image = axes.imshow(weights, cmap=colours, norm=norm, interpolation="nearest")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
            axes.tick_params(labelsize=6 if labelled else 7, pad=1 if labelled else 3)
            if labelled:
                axes.set_xticks(range(len(tokens)), tokens, rotation=90 if max(tokens) > 9 else 0)
                axes.set_yticks(range(len(tokens)), tokens)
            else:
                axes.xaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
                axes.yaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
            if head % across == 0:
                axes.set_ylabel("query: token" if labelled else "query: position", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("key: token" if labelled else "key: position", fontsize=8)
    bar = figure.colorbar(image, ax=grid, ticks=[0, 0.05, 0.25, 0.5, 1], fraction=0.04, aspect=30)
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    bar.set_label("attention weight (square-root scale)", fontsize=8)
    if any(np.isnan(weights).any() for weights in maps):
        hidden = Patch(facecolor=HIDDEN_COLOUR, label="grey: keys that the query may not see")
        figure.legend(handles=[hidden], loc="outside lower left", fontsize=8)
    figure.suptitle(title, fontsize=9)
    return figure


@mpl.rc_context(STYLE)
def position_by_layer(
    model: Transformer, dataset: Dataset, seed: int = 0, title: str = "Position in the hidden states"
) -> tuple[Figure, pd.DataFrame]:
    """Draw how well the position can be read off the hidden states: R² of the position probe against the layer.

    Args:
        seed: the seed that chooses sequences and permutes positions for the control.
        title: the title of the figure.

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
        of_metric = rows[rows["metric"] == metric]
        if marker:
            axes.plot(of_metric["layer"], of_metric["value"], color=colour, marker=marker, label=name)
        else:
            axes.axhline(of_metric["value"].iloc[0], color=colour, linestyle="--", label=name)
    layers = sorted(rows["layer"].dropna().astype(int).unique())
    axes.set_xticks(layers, ["embedding", *map(str, layers[1:])])
    axes.set(xlabel="layer", ylabel="R²", title=title)
    axes.title.set_fontsize(9)
    axes.set_ylim(min(-0.05, *axes.get_ylim()), 1.05)
    figure.legend(loc="outside right center", fontsize=8)
    return figure, rows
