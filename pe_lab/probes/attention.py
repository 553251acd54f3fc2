"""Entropy, distance and mass of attention weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from pe_lab.attention import reference
from pe_lab.data.base import Batch, Dataset
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Stick, Terms
from pe_lab.model import Transformer
from pe_lab.model.blocks import MultiHeadAttention
from pe_lab.probes.base import Probe, ProbeRow, make_row
from pe_lab.probes.hidden_states import evaluation_mode, sample_batches


class AttentionProbe(Probe):
    """Summarises the attention weights of every head on the test split, averaged over queries that are not padding.

    The reference implementation computes the weights from the inputs, terms and layout that each layer received.

    Rows, for layers 1 ... depth and heads 0 ... num_heads - 1:
        entropy: the entropy of a query's weights, in nats (for instance Zhai et al. 2023, arXiv:2303.06296), from 0
            (all on one key) to ln of the number of outcomes. An outcome is a key that the query may see. Where the
            remainder of stick-breaking attention is dropped, the remainder is one more outcome.
        entropy_normalised: entropy / ln of the number of outcomes, from 0 to 1 (uniform), over the queries that have
            more than one outcome.
        distance: mean distance from query to key, weighted by attention (as Dosovitskiy et al. 2021, arXiv:2010.11929,
            figure 7), in slots of the sequence (on a grid, Euclidean, in cells), >= 0. Dropped weight does not count.
        mass: sum of a query's weights: 1, or less where a stick's remainder is dropped.

    A number that no query and no weight contributes to has no row.
    """

    def __call__(self, model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
        num_heads = model.layer(0).attention.num_heads
        sums = [torch.zeros(6, num_heads, dtype=torch.float64) for _ in model.layers]
        with torch.no_grad(), evaluation_mode(model):
            for batch in sample_batches(model, dataset, "test", seed):
                distance = slot_distances(batch.layout)
                for total, (weight, terms, layout) in zip(sums, layer_weights(model, batch), strict=True):
                    drops = isinstance(terms.normalizer, Stick) and terms.normalizer.remainder == "drop"
                    total += measure_weights(weight, layout, distance, drops).cpu()
        return [
            line
            for layer, total in enumerate(sums, 1)
            for head in range(total.shape[1])
            for line in _rows(total[:, head], layer, head)
        ]


def layer_weights(model: Transformer, batch: Batch) -> Iterator[tuple[Tensor, Terms, Layout]]:
    """Yield the attention weights [B, H, T, T] of each layer, with the terms and the layout they come from."""
    with _inputs_of_attention(model) as calls:
        model(batch.tokens, batch.layout)
    for layer, inputs in calls:
        q, k, _ = layer.project(inputs["h_qk"], inputs["h_v"])
        terms, layout = inputs["terms"], inputs["layout"]
        yield reference.attention_weights(q, k, terms, layout), terms, layout


def measure_weights(weight: Tensor, layout: Layout, distance: Tensor, drops: bool) -> Tensor:
    """Return sums over the queries that are not padding.

    Args:
        weight: [B, H, T, T] attention weights.
        layout: the layout of the batch, which says which keys a query may see.
        distance: [B|1, T, T] distances from query to key.
        drops: whether 1 minus the sum of a row is the probability of one more outcome.

    Returns:
        [6, H] sums of entropy, normalised entropy, weight times distance and weight; the numbers of queries and of
        queries that have more than one outcome.
    """
    weight = weight.double()
    mass = weight.sum(-1)
    entropy = torch.special.entr(weight).sum(-1)
    outcomes = layout.allowed.sum(-1) + int(drops)  # [B, 1, T]
    if drops:
        entropy = entropy + torch.special.entr((1 - mass).clamp(min=0))
    is_token = (layout.segment != PADDING)[:, None].expand_as(mass)
    several = is_token & (outcomes > 1)
    normalised = entropy / outcomes.clamp(min=2).log()
    far = (weight * distance[:, None]).sum(-1)
    parts = (entropy * is_token, normalised * several, far * is_token, mass * is_token, is_token, several)
    return torch.stack([part.double().sum((0, 2)) for part in parts])


def slot_distances(layout: Layout) -> Tensor:
    """Return distances [B|1, T, T] between the slots of a sequence, or Euclidean between the cells of a grid."""
    if layout.pos.dim() == 2:
        slot = torch.arange(layout.segment.shape[1], device=layout.segment.device, dtype=torch.float64)
        return (slot[:, None] - slot).abs()[None]
    pos = layout.pos.double()
    return (pos[:, :, None] - pos[:, None]).square().sum(-1).sqrt()


def _rows(sums: Tensor, layer: int, head: int) -> list[ProbeRow]:
    """Return the means of one head, from its sums [6]."""
    entropy, normalised, far, mass, queries, several = sums.tolist()
    totals = {
        "entropy": (entropy, queries),
        "entropy_normalised": (normalised, several),
        "distance": (far, mass),
        "mass": (mass, queries),
    }
    return [make_row(metric, total / count, layer, head) for metric, (total, count) in totals.items() if count]


@contextmanager
def _inputs_of_attention(model: Transformer) -> Iterator[list[tuple[MultiHeadAttention, dict[str, Any]]]]:
    """Yield a list that receives each attention layer as it runs, with its arguments by name."""
    calls: list[tuple[MultiHeadAttention, dict[str, Any]]] = []

    def note(layer: MultiHeadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((layer, signature(layer.forward).bind(*args, **kwargs).arguments))

    attentions = [model.layer(index).attention for index in range(len(model.layers))]
    handles = [attention.register_forward_pre_hook(note, with_kwargs=True) for attention in attentions]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
