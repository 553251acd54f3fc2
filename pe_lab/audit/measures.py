"""Measure the properties of an encoding that do not depend on the machine.

Each column of the audit is a function; its docstring is the column's legend. A measure that does not apply raises
ValueError with the reason, and the cell stays empty. Of an encoding whose layers differ, all layers of a round count.
"""

import math
from collections.abc import Callable

import torch
from scipy import stats
from torch import Tensor

from pe_lab.audit.audited_encoding import (
    HEADS,
    LENGTH,
    SEED,
    VOCABULARY,
    AuditedEncoding,
    equal_tokens,
    random_vectors,
    squared_distances,
)
from pe_lab.data.seeding import make_generator

REACH_LENGTH = 16
REACHES = (1, 2, 4, 8, 16, 32, 64)
EDGE = 8
MANY_POSITIONS = 512  # positions: more than dimensions, so that a linear map cannot fit arbitrary vectors


def uniqueness(subject: AuditedEncoding) -> float:
    """Smallest distance between the signatures of two of 64 positions, all tokens equal; 0: two positions are the same.
    The signature of a position: its token vector, its attention inputs, and its logits (weights for stick-breaking) to
    and from every token that both positions may see. The output of attention is left out, so that the causal mask
    alone distinguishes nothing. Where layers differ: the root of the mean over a round of layers."""
    views = subject.views(equal_tokens(LENGTH))
    *_, squared = squared_distances(views)
    return smallest_distance(squared / len(views))


def smallest_distance(squared: Tensor) -> float:
    """Return the distance between the two closest positions."""
    return squared.clone().fill_diagonal_(torch.inf).min().clamp(min=0).sqrt().item()


def consistency(subject: AuditedEncoding) -> float:
    """Largest distance between the signatures of one position in sequences of 64 and of 128 equal tokens; 0: a position
    has the same signature in both."""
    squared = []
    for short, long in zip(*(subject.views(equal_tokens(count)) for count in (LENGTH, 2 * LENGTH)), strict=True):
        score = (short.score - long.score[..., :LENGTH, :LENGTH])[0].square().sum(0)
        vectors = (short.vectors() - long.vectors()[:LENGTH]).square().sum(-1)
        squared.append(vectors + score.sum(0) + score.sum(1))
    return torch.stack(squared).mean(0).max().sqrt().item()


def order_causal(subject: AuditedEncoding) -> float:
    """Change of the last output of two causal layers when the 63 tokens before it are shuffled, over its change when
    they are replaced; 0: blind to order."""
    return _order(subject, causal=True)


def order_bidirectional(subject: AuditedEncoding) -> float:
    """The same without a causal mask."""
    if subject.causal_only:
        raise ValueError("defined under a causal mask only")
    return _order(subject, causal=False)


def _order(subject: AuditedEncoding, causal: bool) -> float:
    """Return the effect of shuffling over that of replacing."""
    model, draw = subject.model(depth=2, causal=causal), make_generator(SEED, "order")
    tokens, replacements = torch.randint(VOCABULARY, (2, 16, LENGTH), generator=draw)
    replacements[:, -1] = tokens[:, -1]
    shuffled = tokens[:, [*torch.randperm(LENGTH - 1, generator=draw), LENGTH - 1]]
    last, after_shuffle, replaced = (subject.run(model, t, causal)[:, -1] for t in (tokens, shuffled, replacements))
    return float((after_shuffle - last).norm() / (replaced - last).norm())


def reach(subject: AuditedEncoding) -> float:
    """Largest of 1, 2, 4 ... 64 times a training length of 16 up to which, in float32, all values are finite and all
    positions have distinct signatures (at least 1e-5 of their size apart); 0: not even at the training length."""
    reached = 0
    for times in REACHES:
        try:
            views = subject.views(equal_tokens(times * REACH_LENGTH, dtype=torch.float32), length=REACH_LENGTH)
        except ValueError:
            break
        squares = [view.vectors().square().sum() + 2 * view.score[0].double().square().sum() for view in views]
        size = math.sqrt(sum(map(float, squares)) / (times * REACH_LENGTH))
        if not (math.isfinite(size) and all(view.out.isfinite().all() for view in views)):
            break
        if not any(smallest_distance(squared) > 1e-5 * size for squared in squared_distances(views)):
            break
        reached = times
    return reached


def size(subject: AuditedEncoding) -> float:
    """RMS of the change of random token vectors N(0, 1), or of the attention's input, over their own RMS; 0: neither is
    changed."""
    views = subject.views(random_vectors(LENGTH, batch=4))
    pairs = [pair for view in views for pair in ((view.x, view.embedded), (view.h, view.h_qk), (view.h, view.h_v))]
    return max(float((after - before).norm() / before.norm()) for before, after in pairs)


def translation(subject: AuditedEncoding) -> float:
    """Share of the attention within a phrase of 16 random tokens (rows scaled to 1, causal) that changes when the
    phrase is shifted from position 16 to 32 among equal tokens; 0: attention follows the content; at most 1."""
    filler, phrase = equal_tokens(LENGTH), random_vectors(16, batch=8)
    inside = []
    for start in (16, 32):
        x = filler.repeat(len(phrase), 1, 1)
        x[:, start : start + 16] = phrase
        weights = torch.cat([view.weights for view in subject.views(x)])[..., start : start + 16, start : start + 16]
        mass = weights.sum(-1, keepdim=True)
        inside.append((weights / mass).where(mass > 1e-12, 0))  # with stick-breaking a first token may see nothing
    return float((inside[0] - inside[1]).abs().sum(-1).mean() / 2)


def linear_shift(subject: AuditedEncoding) -> float:
    """Residual of the best affine map from a position's vector to that of the position k further on, over 512
    positions, relative to the spread of the vectors, the worse of k = 8 and 64; the property claimed for sinusoids.
    The vector is what is added to equal tokens or to the attention's input, or else a rotated query."""
    marks = subject.view(equal_tokens(MANY_POSITIONS)).marks()
    if marks is None:
        raise ValueError("no vector belongs to a position")
    vectors, residuals = marks[1], []
    for k in (8, 64):
        source, target = torch.nn.functional.pad(vectors[:-k], (0, 1), value=1.0), vectors[k:]
        spread = (target - target.mean(0)).norm()
        if spread < 1e-9 * vectors.norm():
            raise ValueError("all positions but the first have the same vector")
        fit = source @ torch.linalg.lstsq(source, target, driver="gelsd").solution
        residuals.append(float((fit - target).norm() / spread))
    return max(residuals)


def distance_decay(subject: AuditedEncoding) -> float:
    """Rank correlation (Spearman) of distance with the mean logit (weight for stick-breaking) between equal tokens,
    keys projected like queries, the first 8 positions left out; -1: it only falls with distance."""
    _, scores = scores_by_distance(subject)
    mean = scores.mean(0)
    if mean.max() - mean.min() < 1e-9 * mean.abs().max():
        raise ValueError("the same at every distance")
    return float(stats.spearmanr(range(len(mean)), mean).statistic)


def scores_by_distance(subject: AuditedEncoding) -> tuple[Tensor, Tensor]:
    """Return the distances [n] of pairs, and the mean score [H, n] of equal tokens at each; keys are projected like
    queries, and the first positions are left out."""
    pos = subject.layout(LENGTH).pos.reshape(LENGTH, -1)
    view = subject.view(equal_tokens(LENGTH, batch=16), tied=True)
    pairs = view.allowed & (torch.arange(LENGTH) >= EDGE)
    distance = (pos[:, None] - pos).abs().sum(-1)[pairs]
    total = torch.zeros(HEADS, int(distance.max()) + 1, dtype=torch.float64)
    total.index_add_(1, distance, view.score.mean(0)[:, pairs])
    return torch.arange(total.shape[1]), total / distance.bincount()


def causality_leak(subject: AuditedEncoding) -> float:
    """Largest change of an output of two causal layers when later tokens change at equal length; must be 0."""
    model, draw = subject.model(depth=2), make_generator(SEED, "leak")
    tokens = torch.randint(VOCABULARY, (4, LENGTH), generator=draw)
    before, leak = subject.run(model, tokens), 0.0
    for start in (1, LENGTH // 2, LENGTH - 1):
        changed = torch.cat((tokens[:, :start], (tokens[:, start:] + 1) % VOCABULARY), 1)
        leak = max(leak, (subject.run(model, changed) - before)[:, :start].abs().max().item())
    return leak


def row_mass_low(subject: AuditedEncoding) -> float:
    """Smallest sum of a token's attention weights, random tokens, causal mask: 1 for a softmax, less where
    stick-breaking drops the remainder."""
    return min(view.weights.sum(-1).min().item() for view in subject.views(random_vectors(LENGTH, batch=4)))


def row_mass_high(subject: AuditedEncoding) -> float:
    """Largest such sum: never above 1."""
    return max(view.weights.sum(-1).max().item() for view in subject.views(random_vectors(LENGTH, batch=4)))


def norm_change(subject: AuditedEncoding) -> float:
    """Largest relative change of the norm of a token vector, an attention input, a query or a key; 0 for a rotation,
    and where none is changed."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for view in subject.views(random_vectors(LENGTH, batch=4)):
        pairs += (view.x, view.embedded), (view.h, view.h_qk), (view.h, view.h_v)
        pairs += (view.q, view.q_scored), (view.k, view.k_scored)
    return max(float((after.norm(dim=-1) / before.norm(dim=-1) - 1).abs().max()) for before, after in pairs)


def parameters(subject: AuditedEncoding) -> int:
    """Trained numbers that it adds to a model of one layer (of one round, where layers differ), width 64, 4 heads, with
    the options in conf/pe."""
    return subject.model().positional_parameters()


def parameters_per_layer(subject: AuditedEncoding) -> float:
    """Trained numbers that every further layer adds; where layers differ, on average over a round."""
    first = subject.model()
    depth = len(first.layers)
    added = subject.model(depth=2 * depth).positional_parameters() - first.positional_parameters()
    return added // depth if added % depth == 0 else added / depth


MEASURES: tuple[Callable[[AuditedEncoding], float], ...] = (
    uniqueness,
    consistency,
    order_causal,
    order_bidirectional,
    reach,
    size,
    translation,
    linear_shift,
    distance_decay,
    causality_leak,
    row_mass_low,
    row_mass_high,
    norm_change,
    parameters,
    parameters_per_layer,
)


def measure_properties(subject: AuditedEncoding) -> tuple[dict[str, float], dict[str, str]]:
    """Return the property columns of one row, and the reason for each empty one."""
    cells, reasons = {}, {}
    for column in MEASURES:
        try:
            cells[column.__name__] = column(subject)
        except ValueError as error:
            reasons[column.__name__] = str(error)
    return cells, reasons
