"""What datasets share: batches, their order, and the floors that a result is held against."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pe_lab.data.metric import Metric
from pe_lab.data.seeding import generator
from pe_lab.encodings.base import Sizes
from pe_lab.encodings.layout import Layout

IGNORE = -100  # a target that does not count


@dataclass(frozen=True)
class Task:
    """What a model must know of the data it is for.

    Args:
        vocabulary: number of tokens.
        length: T of the training sequences.
        outputs: number of answers to choose from.
        causal: whether a slot may see only what comes before it.
        pooled: whether the question is about the whole sequence, answered from the mean over its tokens.
        grid_width: of the grid that a sequence is, read row by row; None: it is no grid.
    """

    vocabulary: int
    length: int
    outputs: int
    causal: bool
    pooled: bool = False
    grid_width: int | None = None

    def sizes(self, width: int, num_heads: int) -> Sizes:
        """What an encoding may know of a model of this width for this task."""
        return Sizes(width, num_heads, self.length, self.causal, self.grid_width)

    def layout(self, length: Tensor, max_length: int) -> Layout:
        """Where the tokens of sequences [B] of these lengths are."""
        return Layout.of_lengths(length, max_length, self.causal, self.grid_width)


@dataclass(frozen=True)
class Batch:
    """Sequences with what is asked of them.

    Shapes: S = T where something is asked at every slot, S = 1 where it is asked of the whole sequence.

    Args:
        tokens: [B, T] integers.
        targets: [B, S] the right answers, IGNORE where nothing is asked.
        role: [B, S] index into the dataset's roles of what is asked.
        headline: [B, S] bool, the answers that the headline loss averages.
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

    def __getitem__(self, index: Tensor) -> "Batch":
        """The sequences with these indices [N]."""
        chosen = {name: getattr(self, name)[index] for name in ("tokens", "targets", "role", "headline")}
        layout = self.layout
        pos = layout.pos if len(layout.pos) == 1 else layout.pos[index]
        return Batch(**chosen, layout=replace(layout, pos=pos, segment=layout.segment[index]))


Floors = dict[str, dict[str, float]]


def flat_floors(floors: Floors) -> dict[str, float]:
    """Values by "level/metric"."""
    return {f"{level}/{name}": value for level, of in floors.items() for name, value in of.items()}


class Dataset(ABC):
    """Sequences in three splits, made from a seed.

    Attributes:
        revision: raised whenever the sequences change; part of a cell's identity.
        neutral: as in PositionalEncoding.
        floors_revision: raised whenever what `floors` says of the same sequences changes.
        name: the file stem in conf/data, used in messages.
        task: what a model must know.
        roles: names of the kinds of answers.
        own_metrics: the metrics that `metrics` returns.
    """

    revision = 1
    neutral: dict[str, object] = {}
    floors_revision = 1
    own_metrics: tuple[Metric, ...] = ()
    name: str
    task: Task
    roles: tuple[str, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that there are: the usual three, and others to look at."""
        return ("train", "validation", "test")

    @abstractmethod
    def size(self, split: str) -> int:
        """Sequences in a split."""

    @abstractmethod
    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        """The sequences of a split with these indices [B].

        Args:
            epoch: of training, where what is asked changes with it.
        """

    @abstractmethod
    def floors(self, split: str) -> Floors:
        """What a result on a split is held against: for each level, by name, the values of metrics, by name.

        Losses are mean cross-entropies in nats: "loss" over the headline, "loss_all" over all that is asked,
        "loss_<role>". Exact floors are "bayes", "position_blind" (of the unordered tokens, for who knows how sequences
        are made) and "position_blind_split_known" (the same for who also knows which the split has: the lowest there
        is); others are reference levels.
        """

    def longer(self, factor: float) -> "Dataset":
        """The same task, for a model trained on this one, with a test split of `factor` times the training length.

        Args:
            factor: > 1.

        Raises:
            ValueError: the task has no sequences of that length.
        """
        raise ValueError(f"evaluate.lengths must be 1 for data={self.name}, which has one length, got {factor:g}")

    def content(self) -> dict[str, Any]:
        """Options that are known by what they lead to, as a path by the digest of its files: so they are hashed."""
        return {}

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        """Return the metrics that are declared in `own_metrics`, by name.

        Args:
            losses: [B, S] cross-entropy in nats, 0 where nothing is asked.
        """
        return {}


class InMemory(Dataset):
    """A dataset that fits in memory: every split is made once, as one batch."""

    @abstractmethod
    def make(self, split: str) -> Batch:
        """All sequences of a split."""

    @cached_property
    def _made(self) -> dict[str, Batch]:
        return {}

    def whole(self, split: str) -> Batch:
        """All sequences of a split, made when they are asked for first."""
        if split not in self._made:
            self._made[split] = self.make(split)
        return self._made[split]

    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        return self.whole(split)[index]


def surprise(batch: Batch, ordered: bool = True) -> Tensor:
    """[B, T] -ln P(target | prefix) when every sequence of the batch is equally likely, 0 where nothing is asked.

    Its mean over the batch is the lowest that a function of the prefix can have there, whatever it knows.

    Args:
        batch: something is asked at slots, of the tokens up to them; nothing of padding.
        ordered: whether prefixes are told apart by their tokens in order, or by the multiset of them.
    """
    loss = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    vocabulary = 1 + int(max(batch.tokens.max(), batch.targets.max()))
    for slot in range(batch.tokens.shape[1]):
        rows = (batch.targets[:, slot] != IGNORE).nonzero()[:, 0]
        if not len(rows):
            continue
        prefix = batch.tokens[rows, : slot + 1]
        if not ordered:
            prefix = prefix.sort(1).values
        known = torch.zeros(len(rows), dtype=torch.long)
        for column in prefix.T:
            known = (known * vocabulary + column).unique(return_inverse=True)[1]
        answer = (known * vocabulary + batch.targets[rows, slot]).unique(return_inverse=True)[1]
        loss[rows, slot] = known.bincount()[known].double().log() - answer.bincount()[answer].double().log()
    return loss


def fresh(rows: Tensor, seen: set[bytes]) -> Tensor:
    """[N'] indices of the rows [N, T] that are not in `seen`, where all are put, nor stand here before."""
    new = []
    for index, row in enumerate(rows.numpy()):
        key = row.tobytes()
        if key not in seen:
            seen.add(key)
            new.append(index)
    return torch.tensor(new, dtype=torch.long)


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """[size] the order of the training sequences in one epoch: a function of (seed, epoch) alone."""
    return torch.randperm(size, generator=generator(seed, "order", epoch))


def in_batches(dataset: Dataset, split: str, index: Tensor, batch_size: int, epoch: int = 0) -> Iterator[Batch]:
    """The sequences of a split in the order of index [N]; the last batch may be smaller."""
    for part in index.split(batch_size):
        yield dataset.batch(split, part, epoch)


def averages(values: Tensor, batch: Batch, roles: tuple[str, ...], name: str = "loss") -> dict[str, float]:
    """Means of values [B, S]: over the headline, over all that is asked, and per role.

    A role that the batch does not have is left out.
    """
    asked = batch.targets != IGNORE
    masks = {name: batch.headline & asked, f"{name}_all": asked}
    masks |= {f"{name}_{role}": asked & (batch.role == number) for number, role in enumerate(roles)}
    return {key: values[mask].mean().item() for key, mask in masks.items() if mask.any()}
