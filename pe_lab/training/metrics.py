"""Metrics of a model on a split."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, averages, in_batches
from pe_lab.data.metric import Metric
from pe_lab.data.seeding import derive, seed_all
from pe_lab.model import Transformer

METRICS = (  # of every dataset; a dataset declares more in `own_metrics`
    Metric("loss", "min", "nats"),
    Metric("accuracy", "max", "share"),
    Metric("exact_match", "max", "share"),
)
revision = 2  # raised when the numbers of `evaluate` change; part of a record's identity
CHUNK = 128  # sequences of a batch, at most; larger ones are slower on a CPU, whose cache they do not fit
PAIRS = 2**21  # sequences x tokens^2 of a batch, at most, so that attention on long sequences fits in memory


def directions(dataset: Dataset | type[Dataset]) -> dict[str, Literal["min", "max"]]:
    """Return which value of each metric is the best, by its name."""
    return {metric.name: metric.better for metric in (*METRICS, *dataset.own_metrics)}


def asked(targets: Tensor) -> Tensor | None:
    """Return the slots [N] with an answer, of targets [B, S] as one row; None on a GPU, which would wait to count them.

    Their logits are what training and evaluation compute.
    """
    return (targets != IGNORE).flatten().nonzero()[:, 0] if targets.device.type == "cpu" else None


def answers(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits [N, outputs] and targets [N] of the slots that are `asked`, or of all."""
    slot, targets = asked(batch.targets), batch.targets.flatten()
    if slot is None:
        return model(batch.tokens, batch.layout).flatten(0, 1), targets
    return model.answers(batch.tokens, batch.layout, slot), targets[slot]


def slot_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return [B, S] cross-entropies in nats, in float32; 0 where nothing is asked.

    Args:
        logits: [B, S, outputs], or those of `answers`.
        targets: [B, S].
    """
    slot = asked(targets) if logits.dim() == 2 else None
    flat = targets.flatten() if slot is None else targets.flatten()[slot]
    logits = logits.flatten(0, -2).float()
    losses = torch.nn.functional.cross_entropy(logits, flat, reduction="none", ignore_index=IGNORE)
    return _in_slots(losses, slot, targets)


def slots_right(logits: Tensor, targets: Tensor) -> Tensor:
    """Return [B, S], whether the likeliest answer is the right one, for the logits of `answers`."""
    slot = asked(targets)
    chosen = _in_slots(logits.argmax(-1), slot, targets)
    right = chosen == targets
    return right if slot is None else right & (targets != IGNORE)


def _in_slots(values: Tensor, slot: Tensor | None, targets: Tensor) -> Tensor:
    """Return values [N] of slots as [B, S], 0 elsewhere."""
    if slot is None:
        return values.view(targets.shape)
    return values.new_zeros(targets.numel()).index_copy_(0, slot, values).view(targets.shape)


def batch_metrics(logits: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of the logits of `answers`; see `summarise`."""
    logits = logits.detach()
    return summarise(slot_losses(logits, batch.targets), slots_right(logits, batch.targets), batch, roles)


def summarise(losses: Tensor, right: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Return METRICS over the headline answers and over all answers, and the loss per role.

    Exact match is the share of sequences whose headline answers are all right. Where these spell an answer token by
    token, it equals the share that greedy decoding gets right: up to its first mistake the decoder has the same input.

    Args:
        losses, right: [B, S].
    """
    metrics = averages(losses, batch, roles) | averages(right.float(), batch, (), "accuracy")
    asked = batch.headline & (batch.targets != IGNORE)
    if asked.any():
        metrics["exact_match"] = (right | ~asked).all(1)[asked.any(1)].float().mean().item()
    return metrics


def chunk_size(dataset: Dataset) -> int:
    """Return the number of sequences that are evaluated together."""
    return max(1, min(CHUNK, PAIRS // dataset.task.length**2))


@torch.no_grad()
def evaluate(
    model: Transformer, dataset: Dataset, split: str, autocast: torch.autocast, offset: int = 0
) -> dict[str, float]:
    """Return the metrics of the model on all sequences of a split: see `summarise`, and the dataset's own.

    Random draws of an encoding depend only on the split and the number of the batch.

    Args:
        offset: added to all positions; on a grid, to the rows.

    Raises:
        ValueError: the dataset returns a metric that it does not declare.
    """
    device = model.tokens.weight.device
    training = model.training
    model.eval()
    parts, losses, right = [], [], []
    chunk = chunk_size(dataset)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for number, batch in enumerate(in_batches(dataset, split, torch.arange(dataset.size(split)), chunk)):
                seed = derive(0, "evaluate", split, number)
                batch = replace(batch, layout=replace(batch.layout.shifted(offset), seed=seed))
                here = batch.to(device)
                seed_all(seed, device)
                with autocast:
                    logits, _ = answers(model, here)
                losses.append(slot_losses(logits, here.targets).cpu())
                right.append(slots_right(logits, here.targets).cpu())
                parts.append(batch)
    finally:
        model.train(training)
    whole, loss = _concatenated(parts), torch.cat(losses)
    return summarise(loss, torch.cat(right), whole, dataset.roles) | _own_metrics(dataset, loss, whole)


def _own_metrics(dataset: Dataset, losses: Tensor, batch: Batch) -> dict[str, float]:
    """Return the metrics that only this dataset has."""
    metrics = dataset.metrics(losses, batch)
    declared = {metric.name for metric in dataset.own_metrics}
    for name in metrics:
        if name not in declared:
            raise ValueError(f"own_metrics of {type(dataset).__name__} must declare each of its metrics, got {name}")
    return metrics


def _concatenated(parts: list[Batch]) -> Batch:
    """Return one batch of all sequences. Its layout is that of the first part: metrics do not read it."""
    joined = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "targets", "role", "headline")
    }
    return replace(parts[0], **joined)
