"""Metrics of a model on a split."""

from dataclasses import replace

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, averages, in_batches
from pe_lab.model import Transformer
from pe_lab.seeding import derive, seed_all

CHUNK = 128  # sequences at once; more are slower on a CPU, whose cache they do not fit


def slot_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, T] cross-entropy in nats in float32 at every slot, 0 where nothing is asked."""
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="none", ignore_index=IGNORE
    )
    return flat.view(targets.shape)


def batch_metrics(logits: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Cross-entropy and accuracy over the headline's slots and over all; cross-entropy per role."""
    logits = logits.detach()
    loss = averages(slot_losses(logits, batch.targets), batch, roles)
    accuracy = averages((logits.argmax(-1) == batch.targets).float(), batch, (), "accuracy")
    return loss | accuracy


@torch.no_grad()
def evaluate(model: Transformer, dataset: Dataset, split: str, autocast: torch.autocast) -> dict[str, float]:
    """Metrics of the model on all sequences of a split: see batch_metrics.

    What an encoding draws at random depends on the split and the batch alone.
    """
    device = model.tokens.weight.device
    training = model.training
    model.eval()
    parts, losses, correct = [], [], []
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for number, batch in enumerate(in_batches(dataset, split, torch.arange(dataset.size(split)), CHUNK)):
                here = batch.to(device)
                seed_all(derive(0, "evaluate", split, number), device)
                with autocast:
                    logits = model(here.tokens, here.layout)
                losses.append(slot_losses(logits, here.targets).cpu())
                correct.append((logits.argmax(-1) == here.targets).float().cpu())
                parts.append(batch)
    finally:
        model.train(training)
    whole = _together(parts)
    loss = averages(torch.cat(losses), whole, dataset.roles)
    return loss | averages(torch.cat(correct), whole, (), "accuracy")


def _together(parts: list[Batch]) -> Batch:
    """One batch of all; its layout is the first part's, since metrics do not look at it."""
    joined = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "targets", "role", "headline")
    }
    return replace(parts[0], **joined)
