"""Metrics of a model on a split."""

from dataclasses import replace

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, averages, in_batches
from pe_lab.data.seeding import derive, seed_all
from pe_lab.model.transformer import Transformer

revision = 1  # raised when the numbers of `evaluate` change; part of a record's identity
CHUNK = 128  # sequences at once, at most; more are slower on a CPU, whose cache they do not fit
PAIRS = 2**21  # slots times slots at once, at most, so that attention at great length fits in memory


def slot_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, S] cross-entropy in nats in float32 of every answer, 0 where nothing is asked."""
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="none", ignore_index=IGNORE
    )
    return flat.view(targets.shape)


def batch_metrics(logits: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Of logits [B, S, outputs]: see `summarise`."""
    logits = logits.detach()
    return summarise(slot_losses(logits, batch.targets), logits.argmax(-1) == batch.targets, batch, roles)


def summarise(losses: Tensor, right: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Cross-entropy and accuracy over the headline and over all that is asked; cross-entropy per role; exact match.

    Exact match is the share of sequences whose headline is right as a whole. Where the headline is an answer written
    token by token, that is the share a greedy decoder gets right: until its first mistake it reads what is read here.

    Args:
        losses, right: [B, S].
    """
    metrics = averages(losses, batch, roles) | averages(right.float(), batch, (), "accuracy")
    asked = batch.headline & (batch.targets != IGNORE)
    if asked.any():
        metrics["exact_match"] = (right | ~asked).all(1)[asked.any(1)].float().mean().item()
    return metrics


@torch.no_grad()
def evaluate(
    model: Transformer, dataset: Dataset, split: str, autocast: torch.autocast, offset: int = 0
) -> dict[str, float]:
    """Metrics of the model on all sequences of a split: see `summarise`, and what the dataset adds.

    What an encoding draws at random depends on the split and the batch alone.

    Args:
        offset: added to all positions; on a grid, to the rows.
    """
    device = model.tokens.weight.device
    training = model.training
    model.eval()
    parts, losses, right = [], [], []
    chunk = max(1, min(CHUNK, PAIRS // dataset.task.length**2))
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for number, batch in enumerate(in_batches(dataset, split, torch.arange(dataset.size(split)), chunk)):
                seed = derive(0, "evaluate", split, number)
                batch = replace(batch, layout=replace(batch.layout.shifted(offset), seed=seed))
                here = batch.to(device)
                seed_all(seed, device)
                with autocast:
                    logits = model(here.tokens, here.layout)
                losses.append(slot_losses(logits, here.targets).cpu())
                right.append((logits.argmax(-1) == here.targets).cpu())
                parts.append(batch)
    finally:
        model.train(training)
    whole, loss = _together(parts), torch.cat(losses)
    return summarise(loss, torch.cat(right), whole, dataset.roles) | dataset.metrics(loss, whole)


def _together(parts: list[Batch]) -> Batch:
    """One batch of all; its layout is the first part's, since metrics do not look at it."""
    joined = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "targets", "role", "headline")
    }
    return replace(parts[0], **joined)
