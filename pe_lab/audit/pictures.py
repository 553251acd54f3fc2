"""Draw one figure per encoding.

It shows values, similarity of positions, score against distance, the distances that it tells apart, and attention with
and without the encoding. Colours are distinguishable for all: cividis, PuOr, Okabe and Ito's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor
from torch.nn.functional import normalize

from pe_lab.audit.audited_encoding import LENGTH, AuditedEncoding, LayerView, equal_tokens, random_vectors
from pe_lab.audit.measures import MANY_POSITIONS, scores_by_distance
from pe_lab.encodings.terms import Stick

HEAD_LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#7F7F7F", ":"))  # a head each
SHOWN_TOKENS = 24  # shown in attention matrices
PANELS = (("values", "similarity"), ("score", "distances"), ("without", "with"))  # of a figure, row by row


def save_picture(subject: AuditedEncoding, none: AuditedEncoding, path: Path) -> None:
    """Save the figure of an encoding beside `none`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_picture(subject, none).savefig(path)


def draw_picture(
    subject: AuditedEncoding,
    none: AuditedEncoding,
    layout: Literal["constrained"] | None = "constrained",
    panels: Sequence[Sequence[str]] = PANELS,
) -> Figure:
    """Return the figure of an encoding beside `none`.

    Args:
        layout: the layout engine of the figure; None leaves the panels where `Figure.subplots_adjust` puts them, which
            takes half the time.
        panels: the names of the panels, row by row, of those in `PANELS`.
    """
    figure = Figure(figsize=(10, 4 * len(panels)), dpi=80, layout=layout)
    figure.suptitle(subject.name + (f", layer {subject.shown + 1}" if subject.shown else ""), fontsize=16)
    view = subject.view(equal_tokens(LENGTH), causal=subject.causal_only)
    draw: dict[str, Callable[[Axes], None]] = {
        "values": lambda axes: _values(axes, view),
        "similarity": lambda axes: _similarity(axes, view),
        "score": lambda axes: _against_distance(axes, subject, view),
        "distances": lambda axes: _distinguished(axes, subject),
        "without": lambda axes: _attention(axes, none, "without it"),
        "with": lambda axes: _attention(axes, subject, "with it"),
    }
    for name, axes in figure.subplot_mosaic([list(row) for row in panels]).items():
        draw[name](axes)
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
    title = "Mean weight of equal tokens" if sticks else "Mean logit of equal tokens,\nminus that at distance 0"
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
        axes.yaxis.set_major_formatter(
            "{x:.0e}"
        )  # others are mathematical text, which not every style of figures reads
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    # between the title and the curves, which it would cover elsewhere
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=len(scores),
        frameon=False,
        borderaxespad=0.1,
        columnspacing=0.8,
        handlelength=1.6,
        handletextpad=0.3,
    )


def _attention(axes: Axes, subject: AuditedEncoding, title: str) -> None:
    """Draw attention between random tokens."""
    view = subject.view(random_vectors(SHOWN_TOKENS))
    axes.set(title=f"Attention {title}, mean of heads", xlabel="key", ylabel="query")
    _draw_weights(axes, view.weights[0].mean(0).masked_fill(~view.allowed, torch.nan))


def _distinguished(axes: Axes, subject: AuditedEncoding) -> None:
    """Draw, for each query and key, the smallest distance that the encoding treats as theirs."""
    title = "Distances that it tells apart"
    if subject.on_grid:
        _does_not_apply(axes, title, "distances have two axes")
        return
    causal, pos = subject.causal_only, torch.arange(MANY_POSITIONS)
    offset = pos[:, None] - pos
    hidden = (offset < 0) & causal
    try:
        seen = effective_distance(subject.view(equal_tokens(MANY_POSITIONS), causal=causal).score[0], causal)
    except ValueError as error:
        _does_not_apply(axes, title, "\n".join(wrap(str(error), 30)))
        return
    axes.set(title=f"{title}:\n{len(seen.unique())} of {len(seen)}", xlabel="key", ylabel="query")
    _draw_signed(axes, seen[offset + len(seen) - MANY_POSITIONS].double().masked_fill(hidden, torch.nan))


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
    """Draw a heatmap with 0 in the middle of the colours; NaN is left out."""
    limit = limit or values.nan_to_num().abs().max().item()
    image = axes.imshow(values.numpy(), cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _draw_weights(axes: Axes, weights: Tensor) -> None:
    """Draw a heatmap of attention weights, from 0 to 1; NaN is left out."""
    scale = PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(weights.numpy(), cmap="cividis", norm=scale, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _does_not_apply(axes: Axes, title: str, reason: str) -> None:
    """Write a reason in place of a panel."""
    axes.set(title=title, xticks=[], yticks=[])
    axes.text(0.5, 0.5, f"does not apply:\n{reason}", ha="center", va="center", transform=axes.transAxes, fontsize=12)
