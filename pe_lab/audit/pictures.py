"""Draw one figure per encoding.

It shows values, similarity of positions, score against distance, attention with and without the encoding, and distances
before and after clipping. Colours are distinguishable for all: cividis, PuOr, Okabe and Ito's.
"""

from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize

from pe_lab.audit.audited_encoding import LENGTH, AuditedEncoding, LayerView, equal_tokens, random_vectors
from pe_lab.audit.measures import MANY_POSITIONS, scores_by_distance
from pe_lab.encodings.terms import Stick

HEAD_LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#7F7F7F", ":"))  # a head each
SHOWN_TOKENS = 24  # shown in attention matrices


def save_picture(subject: AuditedEncoding, none: AuditedEncoding, path: Path) -> None:
    """Save the figure of an encoding beside `none`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_picture(subject, none).savefig(path)


def draw_picture(
    subject: AuditedEncoding, none: AuditedEncoding, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Return the figure of an encoding beside `none`.

    Args:
        layout: the layout engine of the figure; None leaves the panels where `Figure.subplots_adjust` puts them, which
            takes half the time.
    """
    figure = Figure(figsize=(10, 15), dpi=80, layout=layout)
    figure.suptitle(subject.name + (f", layer {subject.shown + 1}" if subject.shown else ""), fontsize=16)
    axes = figure.subplot_mosaic(
        [["values", "similarity"], ["score", "score"], ["without", "with"], ["before", "after"]], empty_sentinel=None
    )
    view = subject.view(equal_tokens(LENGTH), causal=subject.causal_only)
    _values(axes["values"], view)
    _similarity(axes["similarity"], view)
    _against_distance(axes["score"], subject, view)
    _attention(axes["without"], axes["with"], subject, none)
    _draw_clipping(axes["before"], axes["after"], subject)
    return figure


def _values(axes: Axes, view: LayerView) -> None:
    """Draw the vectors that mark positions, or else the scores between equal tokens."""
    marks, sticks = view.marks(), isinstance(view.terms.normalizer, Stick)
    if marks is not None:
        axes.set(title=f"Values: {marks[0]}", xlabel="position", ylabel="dimension")
        _draw_signed(axes, marks[1].T)
    elif view.distinguishes_positions():
        score = view.score[0, 0] - (0 if sticks else view.score[0, 0][view.allowed].mean())
        axes.set(title=f"Values: {'weights' if sticks else 'logits around their mean'},\nequal tokens, head 1")
        axes.set(xlabel="key position", ylabel="query position")
        (_draw_weights if sticks else _draw_signed)(axes, score.masked_fill(~view.allowed, torch.nan))
    else:
        _does_not_apply(axes, "Values", "equal tokens are treated\nalike at all positions")


def _similarity(axes: Axes, view: LayerView) -> None:
    """Draw the cosine similarity of every two positions."""
    marks, title = view.marks(), "Cosine similarity of positions"
    if marks is not None:
        vectors = normalize(marks[1] - marks[1].mean(0))
        similarity, title = vectors @ vectors.T, f"{title}:\ncentred values"
    elif view.distinguishes_positions():
        similarity, title = view.score_similarity(), f"{title}:\nscores to and from tokens seen by both"
    else:
        _does_not_apply(axes, title, "positions are not distinguished")
        return
    axes.set(title=title, xlabel="position", ylabel="position")
    _draw_signed(axes, similarity, limit=1)


def _against_distance(axes: Axes, subject: AuditedEncoding, view: LayerView) -> None:
    """Draw the mean score between equal tokens against their distance, a line per head."""
    distances, scores = scores_by_distance(subject)
    sticks = isinstance(view.terms.normalizer, Stick)
    title = "Mean weight of two equal tokens" if sticks else "Mean logit of two equal tokens, minus that at distance 0"
    if not sticks:
        scores = scores - scores[:, :1]
    if scores.max() - scores.min() < 1e-9:
        _does_not_apply(axes, title, "the same at every distance")
        return
    for head, (score, (colour, style)) in enumerate(zip(scores, HEAD_LINES, strict=True)):
        axes.plot(distances.numpy(), score.numpy(), style, color=colour, label=f"head {head + 1}")
    axes.set(xlabel="distance", ylabel="weight" if sticks else "logit")
    axes.set_title(title, pad=26)
    if sticks:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    # between the title and the curves, which it would cover elsewhere
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(scores), frameon=False, borderaxespad=0.1)


def _attention(without: Axes, with_it: Axes, subject: AuditedEncoding, none: AuditedEncoding) -> None:
    """Draw attention between random tokens without and with the encoding."""
    x = random_vectors(SHOWN_TOKENS)
    views = none.view(x), subject.view(x)
    weights = [view.weights[0].mean(0).masked_fill(~view.allowed, torch.nan) for view in views]
    for axes, weight, title in zip((without, with_it), weights, ("without it", "with it"), strict=True):
        axes.set(title=f"Attention {title}, mean of heads", xlabel="key", ylabel="query")
        _draw_weights(axes, weight)


def _draw_clipping(before: Axes, after: Axes, subject: AuditedEncoding) -> None:
    """Draw distances, and those that the encoding distinguishes."""
    title = "Distances after clipping"
    if subject.on_grid:
        pos = subject.layout(LENGTH).pos[0]
        before.set(title="Distances on the grid,\nrows and columns together", xlabel="key", ylabel="query")
        _draw_signed(before, (pos[:, None] - pos).abs().sum(-1).double())
        _does_not_apply(after, title, "distances have two axes")
        return
    causal, pos = subject.causal_only, torch.arange(MANY_POSITIONS)
    offset = pos[:, None] - pos
    hidden = (offset < 0) & causal
    before.set(title=f"Distances of {MANY_POSITIONS} positions,\nbefore clipping", xlabel="key", ylabel="query")
    _draw_signed(before, offset.double().masked_fill(hidden, torch.nan))
    try:
        seen = effective_distance(subject.view(equal_tokens(MANY_POSITIONS), causal=causal).score[0], causal)
    except ValueError as error:
        _does_not_apply(after, title, "\n".join(wrap(str(error), 30)))
        return
    after.set(title=f"{title}:\n{len(seen.unique())} of {len(seen)} distinguished", xlabel="key", ylabel="query")
    _draw_signed(after, seen[offset + len(seen) - MANY_POSITIONS].double().masked_fill(hidden, torch.nan))


def effective_distance(score: Tensor, causal: bool) -> Tensor:
    """Return the distance nearest to 0 that has the same score as each distance, [2T-1] or [T] if causal, largest last.

    Args:
        score: the scores of equal tokens, [H, T, T].

    Raises:
        ValueError: the score is not a function of distance alone, or is the same at all of them.
    """
    size = score.shape[-1]
    back, ahead = score[:, -1].flip(-1).T, score[:, 0].T  # [T, H] at distances 0, 1 ...; 0, -1 ...
    middle = size // 2
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12 * score.abs().max().item()}
    same = torch.allclose(score[:, middle, : middle + 1].flip(-1).T, back[: middle + 1], **close)
    if not causal:
        same = same and torch.allclose(score[:, middle, middle:].T, ahead[: size - middle], **close)
    if not same:
        raise ValueError("its effect is not a function of distance alone")

    def nearest(values: Tensor) -> Tensor:
        """Return [T] the first distance with the same score."""
        return torch.isclose(values[:, None], values[None], rtol=1e-9, atol=0).all(-1).long().argmax(-1)

    seen = nearest(back) if causal else torch.cat((-nearest(ahead)[1:].flip(0), nearest(back)))
    if not seen.any():
        raise ValueError("it treats all distances alike")
    return seen


def _draw_signed(axes: Axes, values: Tensor, limit: float | None = None) -> None:
    """Draw a heatmap with 0 in the middle of the colours; NaN is left white."""
    limit = limit or values.nan_to_num().abs().max().item()
    image = axes.imshow(values.numpy(), cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _draw_weights(axes: Axes, weights: Tensor) -> None:
    """Draw a heatmap of attention weights, from 0 to 1; NaN is left white."""
    scale = PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(weights.numpy(), cmap="cividis", norm=scale, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _does_not_apply(axes: Axes, title: str, reason: str) -> None:
    """Write a reason in place of a panel."""
    axes.set(title=title, xticks=[], yticks=[])
    axes.text(0.5, 0.5, f"does not apply:\n{reason}", ha="center", va="center", transform=axes.transAxes, fontsize=12)
