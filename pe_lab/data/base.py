"""What datasets share: batches, their order, and the floors that a result is held against."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pe_lab.encodings.base import Layout
from pe_lab.seeding import generator

IGNORE = -100  # a target that does not count


@dataclass(frozen=True)
class Batch:
    """Sequences with what is to be predicted at every slot.

    Args:
        tokens: [B, T] integers.
        targets: [B, T] the right token at each slot, IGNORE where nothing is asked.
        role: [B, T] index into the dataset's roles of what is asked.
        headline: [B, T] bool, the slots that the headline loss averages.
        layout: where the tokens are.
    """

    tokens: Tensor
    targets: Tensor
    role: Tensor
    headline: Tensor
    layout: Layout

    def to(self, device: torch.device | str) -> "Batch":
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "targets", "role", "headline", "layout")}
        return replace(self, **moved)

    def __len__(self) -> int:
        return len(self.tokens)


class Dataset(ABC):
    """Sequences in three splits, made from a seed.

    Attributes:
        revision: raised whenever the sequences change; part of a cell's identity.
        neutral: as in PositionalEncoding.
        vocabulary: number of tokens.
        length: T.
        causal: whether a slot may see only what comes before it.
        grid_width: of the grid that a sequence is, read row by row; None: it is no grid.
        roles: names of what can be asked at a slot.
    """

    revision = 1
    neutral: dict[str, object] = {}
    vocabulary: int
    length: int
    causal: bool
    grid_width: int | None = None
    roles: tuple[str, ...]

    @abstractmethod
    def size(self, split: str) -> int:
        """Sequences in a split: "train", "validation" or "test"."""

    @abstractmethod
    def batch(self, split: str, index: Tensor) -> Batch:
        """The sequences of a split with these indices [B]."""

    @abstractmethod
    def floors(self, split: str) -> dict[str, dict[str, float]]:
        """For each floor, by name, the mean cross-entropy in nats: headline, all slots, per role."""


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """[size] the order of the training sequences in one epoch: a function of (seed, epoch) alone."""
    return torch.randperm(size, generator=generator(seed, "order", epoch))


def in_batches(dataset: Dataset, split: str, index: Tensor, batch_size: int) -> Iterator[Batch]:
    """The sequences of a split in the order of index [N]; the last batch may be smaller."""
    for part in index.split(batch_size):
        yield dataset.batch(split, part)


def averages(values: Tensor, batch: Batch, roles: tuple[str, ...], name: str = "loss") -> dict[str, float]:
    """Means of values [B, T]: over the headline's slots, over all slots that are asked, and per role.

    A role that the batch does not have is left out.
    """
    asked = batch.targets != IGNORE
    masks = {name: batch.headline & asked, f"{name}_all": asked}
    masks |= {f"{name}_{role}": asked & (batch.role == number) for number, role in enumerate(roles)}
    return {key: values[mask].mean().item() for key, mask in masks.items() if mask.any()}
