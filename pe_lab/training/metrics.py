"""Metrics of a model on a split."""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pe_lab.data.base import IGNORE, Batch, Dataset, in_batches, mean_metrics
from pe_lab.data.metric import Metric
from pe_lab.data.seeding import derive_seed, seed_all
from pe_lab.model import Transformer

METRICS = (  # of every dataset; a dataset declares more in `own_metrics`
    Metric("loss", "min", "nats"),
    Metric("accuracy", "max", "share"),
    Metric("exact_match", "max", "share"),
)
revision = 2  # raised when the numbers of `evaluate` change; part of a record's identity
MAX_BATCH_SEQUENCES = 128  # sequences of a batch, at most; larger ones are slower on a CPU, whose cache they do not fit
MAX_BATCH_PAIRS = 2**21  # sequences x tokens^2 of a batch, at most, so that attention on long sequences fits in memory


def metric_directions(dataset: Dataset | type[Dataset]) -> dict[str, Literal["min", "max"]]:
    """Return which value of each metric is the best, by its name."""
    return {metric.name: metric.better for metric in (*METRICS, *dataset.own_metrics)}


def answer_logits(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits [N, outputs] and targets [N] of the slots with an answer.

    On a GPU, which would have to wait until they are counted, those of all slots, [B, S, outputs] and [B, S].
    """
    if batch.targets.device.type != "cpu":
        return model(batch.tokens, batch.layout), batch.targets
    slot = _answer_slots(batch.targets)
    return model.answers(batch.tokens, batch.layout, slot), batch.targets.flatten()[slot]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of `answer_logits`, in float32."""
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORE)


def slot_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return [B, S] cross-entropies in nats, in float32; 0 where nothing is asked.

    Args:
        logits: the logits of all slots, [B, S, outputs], or of the slots with an answer, [N, outputs].
        targets: the targets of all slots, [B, S].
    """
    flat = targets.flatten() if logits.dim() == 3 else targets.flatten()[_answer_slots(targets)]
    logits = logits.flatten(0, -2).float()
    losses = nn.functional.cross_entropy(logits, flat, reduction="none", ignore_index=IGNORE)
    return _spread_over_slots(losses, targets)


def slot_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return [B, S], whether the likeliest answer is the right one; False where nothing is asked.

    Args:
        logits, targets: see `slot_losses`.
    """
    chosen = _spread_over_slots(logits.argmax(-1).flatten(), targets)
    return (chosen == targets) & (targets != IGNORE)


def _answer_slots(targets: Tensor) -> Tensor:
    """Return the slots [N] with an answer, of targets [B, S] as one row."""
    return (targets != IGNORE).flatten().nonzero()[:, 0]


def _spread_over_slots(values: Tensor, targets: Tensor) -> Tensor:
    """Return values as [B, S]: of all slots, or of those with an answer and 0 elsewhere."""
    if len(values) == targets.numel():
        return values.view(targets.shape)
    return values.new_zeros(targets.numel()).index_copy_(0, _answer_slots(targets), values).view(targets.shape)


def batch_metrics(logits: Tensor, batch: Batch, roles: tuple[str, ...], ranks: int = 1) -> dict[str, float]:
    """Return the metrics of the logits of `answer_logits`; see `summarise_losses`.

    Args:
        ranks: the number of devices over which the batch is split; the metrics are of all of it.
    """
    logits = logits.detach()
    losses, hits = slot_losses(logits, batch.targets), slot_hits(logits, batch.targets)
    if ranks > 1:
        parts: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(parts, (losses.cpu(), hits.cpu(), batch.to("cpu")))
        losses, hits = (torch.cat(values) for values in list(zip(*parts, strict=True))[:2])
        batch = _concatenate([part[2] for part in parts])
    return summarise_losses(losses, hits, batch, roles)


def summarise_losses(losses: Tensor, hits: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Return METRICS over the headline answers and over all answers, and the loss per role.

    Exact match is the share of sequences whose headline answers are all right. Where these spell an answer token by
    token, it equals the share that greedy decoding gets right: up to its first mistake the decoder has the same input.

    Args:
        losses, hits: [B, S] tensors of `slot_losses` and `slot_hits`.
    """
    metrics = mean_metrics(losses, batch, roles) | mean_metrics(hits.float(), batch, (), "accuracy")
    is_answer = batch.headline & (batch.targets != IGNORE)
    if is_answer.any():
        metrics["exact_match"] = (hits | ~is_answer).all(1)[is_answer.any(1)].float().mean().item()
    return metrics


def chunk_size(dataset: Dataset) -> int:
    """Return the number of sequences that are evaluated together."""
    return max(1, min(MAX_BATCH_SEQUENCES, MAX_BATCH_PAIRS // dataset.task.length**2))


class MetricSums:
    """Sums up the metrics of a split, batch by batch.

    Args:
        dataset: the dataset, which has the roles and may have metrics of its own.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.parts: list[Batch] = []
        self.losses: list[Tensor] = []
        self.hits: list[Tensor] = []

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Add a batch with the logits of `answer_logits`."""
        self.losses.append(slot_losses(logits, batch.targets).cpu())
        self.hits.append(slot_hits(logits, batch.targets).cpu())
        self.parts.append(batch if batch.tokens.device.type == "cpu" else batch.to("cpu"))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all batches: see `summarise_losses`, and the dataset's own.

        Raises:
            ValueError: the dataset returns a metric that it does not declare.
        """
        batch, losses = _concatenate(self.parts), torch.cat(self.losses)
        return summarise_losses(losses, torch.cat(self.hits), batch, self.dataset.roles) | self._dataset_metrics(
            losses, batch
        )

    def _dataset_metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        """Return the metrics that only this dataset has."""
        metrics = self.dataset.metrics(losses, batch)
        declared = {metric.name for metric in self.dataset.own_metrics}
        for name in metrics:
            if name not in declared:
                name_of_class = type(self.dataset).__name__
                raise ValueError(f"own_metrics of {name_of_class} must declare each of its metrics, got {name}")
        return metrics


def seeded_batch(batch: Batch, split: str, number: int) -> Batch:
    """Return a batch to evaluate whose random draws depend only on the split and the number of the batch.

    The global generators are seeded too.
    """
    seed = derive_seed(0, "evaluate", split, number)
    seed_all(seed, batch.tokens.device)
    return replace(batch, layout=replace(batch.layout, seed=seed))


@torch.no_grad()
def evaluate(
    model: Transformer, dataset: Dataset, split: str, autocast: torch.autocast, offset: int = 0
) -> dict[str, float]:
    """Return the metrics of the model on all sequences of a split: see `MetricSums`.

    Args:
        offset: a constant added to all positions; on a grid, to the rows.

    Raises:
        ValueError: the dataset returns a metric that it does not declare.
    """
    device = model.tokens.weight.device
    training = model.training
    model.eval()
    measured, index = MetricSums(dataset), torch.arange(dataset.size(split))
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for number, batch in enumerate(in_batches(dataset, split, index, chunk_size(dataset))):
                batch = replace(batch, layout=batch.layout.shifted(offset))
                batch = seeded_batch(batch.to(device), split, number)
                with autocast:
                    logits, _ = answer_logits(model, batch)
                measured.add(logits, batch)
    finally:
        model.train(training)
    return measured.metrics()


def _concatenate(parts: list[Batch]) -> Batch:
    """Return one batch of all sequences. Its layout is that of the first part: metrics do not read it."""
    return replace(
        parts[0],
        tokens=torch.cat([part.tokens for part in parts]),
        targets=torch.cat([part.targets for part in parts]),
        role=torch.cat([part.role for part in parts]),
        headline=torch.cat([part.headline for part in parts]),
    )
