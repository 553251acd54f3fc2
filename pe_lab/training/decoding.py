"""Evaluate answers that a model generates token by token, without being shown the right tokens before."""

from dataclasses import replace

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, in_batches
from pe_lab.encodings.layout import PADDING
from pe_lab.model import Transformer
from pe_lab.training.metrics import chunk_size, seeded_batch

GENERATED_METRIC = "exact_match_generated"  # the metric
revision = 1  # raised when the numbers of `exact_match_generated` change; part of a record's identity


@torch.no_grad()
def exact_match_generated(
    model: Transformer, dataset: Dataset, split: str, autocast: torch.autocast, offset: int = 0
) -> dict[str, float]:
    """Return the share of a split's sequences whose whole answer the model writes, by greedy decoding.

    Each token is the most likely one after the prompt and the tokens written before. With teacher forcing
    (`exact_match` of metrics.evaluate) the right tokens are shown instead; both are equal for encodings that give a
    token the same position and terms whatever follows.

    Args:
        dataset: a dataset whose `generates` is True.
        offset: a constant added to all positions.

    Raises:
        ValueError: answers are not the next tokens of the sequences.
    """
    device = model.tokens.weight.device
    matches = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        batches = in_batches(dataset, split, torch.arange(dataset.size(split)), chunk_size(dataset))
        for number, batch in enumerate(batches):
            shifted = replace(batch, layout=batch.layout.shifted(offset)).to(device)
            matches.append(_answer_matches(model, seeded_batch(shifted, split, number), autocast))
    return {GENERATED_METRIC: torch.cat(matches).float().mean().item()}


def _answer_matches(model: Transformer, batch: Batch, autocast: torch.autocast) -> Tensor:
    """Return [B] bool: whether all that the model writes after the prompt of a sequence is its answer."""
    is_answer = batch.headline & (batch.targets != IGNORE)
    slot = torch.arange(is_answer.shape[1], device=is_answer.device)
    first, count = is_answer.long().argmax(1, keepdim=True), is_answer.sum(1, keepdim=True)
    if not torch.equal(is_answer, (slot >= first) & (slot < first + count)) or not count.all():
        raise ValueError("answers must be the next tokens of a sequence to be generated, these have gaps")
    longest, most = int(first.max()) + 1, int(count.max())
    source = slot[:longest] - (longest - 1 - first)  # prompts end together: they are padded on the left
    inside, source = source >= 0, source.clamp(min=0)
    pos = batch.layout.pos.expand(*batch.layout.segment.shape, *batch.layout.pos.shape[2:])
    rows = torch.arange(len(source), device=source.device)[:, None]
    layout = replace(
        batch.layout,
        pos=pos[rows, source],
        segment=batch.layout.segment[rows, source].where(inside, PADDING),
        marks=None if batch.layout.marks is None else batch.layout.marks[rows, source],
    )
    step = slot[:most]
    answer = (first + step).clamp(max=is_answer.shape[1] - 1)
    marks = None  # of what is written, as long as it is right
    if batch.layout.marks is not None:
        marks = batch.layout.marks.gather(1, (answer + 1).clamp(max=is_answer.shape[1] - 1))
    with autocast:
        written = model.generate(batch.tokens[rows, source], most, layout, marks=marks)
    targets = batch.targets.gather(1, answer)
    return ((written == targets) | (step >= count)).all(1)
