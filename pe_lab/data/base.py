"""The contract of a dataset: batches, their order, and the floors that results are compared with."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pe_lab.data.metric import Metric
from pe_lab.data.seeding import make_generator
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import CheckedOptions
from pe_lab.encodings.sizes import Sizes

IGNORE = -100  # a target where nothing is asked
BATCH_FIELDS = ("tokens", "targets", "role", "headline", "layout")  # the fields of a batch


@dataclass(frozen=True)
class Task:
    """The properties of a dataset that a model needs.

    Args:
        vocabulary: the number of tokens.
        length: T of the training sequences.
        outputs: the number of answers to choose from.
        causal: whether a slot sees only itself and earlier slots.
        pooled: whether the question is about the whole sequence, answered from the mean over its tokens.
        grid_width: the number of columns, where a sequence is a grid read row by row; None: it is not a grid.
        marks: the largest mark of a token, see Layout; None: tokens are not marked.
    """

    vocabulary: int
    length: int
    outputs: int
    causal: bool
    pooled: bool = False
    grid_width: int | None = None
    marks: int | None = None

    def sizes(self, width: int, num_heads: int, head_dim: int | None = None) -> Sizes:
        """Return the sizes of an encoding for a model of this width; head_dim as in Sizes."""
        return Sizes(
            width, num_heads, self.length, self.causal, self.grid_width, marks=self.marks, given_head_dim=head_dim
        )

    def layout(self, length: Tensor, max_length: int) -> Layout:
        """Return the layout of sequences of lengths [B]; a dataset adds the marks of tokens."""
        return Layout.of_lengths(length, max_length, self.causal, self.grid_width)

    def example(self, length: int, device: torch.device | str | None = None) -> Layout:
        """Return the layout of one sequence, for checks and costs: its tokens have the largest mark, if any."""
        layout = self.layout(torch.tensor([length], device=device), length)
        return layout if self.marks is None else replace(layout, marks=torch.full_like(layout.segment, self.marks))


@dataclass(frozen=True)
class Batch:
    """Sequences and their answers.

    Shapes: S = T where every slot has an answer, S = 1 where the whole sequence has one.

    Args:
        tokens: [B, T] integers, the tokens.
        targets: [B, S] the right answers, IGNORE where there is none.
        role: [B, S] the kind of answer, an index into the dataset's roles.
        headline: [B, S] bool, the answers that the headline loss averages.
        layout: positions and segments of the tokens.
    """

    tokens: Tensor
    targets: Tensor
    role: Tensor
    headline: Tensor
    layout: Layout

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Return the batch on a device.

        Args:
            non_blocking: whether to return before the copy is complete; it must be from pinned memory then.
        """
        return replace(
            self, **{name: getattr(self, name).to(device, non_blocking=non_blocking) for name in BATCH_FIELDS}
        )

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, for asynchronous copies to a GPU."""
        return replace(
            self, **{name: getattr(self, name).pin_memory() for name in BATCH_FIELDS[:-1]}, layout=self.layout.pinned()
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Tensor) -> "Batch":
        """Return the sequences with these indices [N]."""
        chosen = {name: getattr(self, name)[index] for name in ("tokens", "targets", "role", "headline")}
        return Batch(**chosen, layout=self.layout.rows(index))


Floors = dict[str, dict[str, float]]


def flat_floors(floors: Floors) -> dict[str, float]:
    """Return the values by "level/metric"."""
    return {f"{level}/{name}": value for level, values in floors.items() for name, value in values.items()}


class Dataset(CheckedOptions, ABC):
    """Sequences in three splits, made from a seed.

    Attributes:
        revision: the version number of the sequences, raised whenever they change; part of a cell's identity.
        neutral: options that were added later, with the value that keeps the old results, as in PositionalEncoding.
        floors_revision: the version number of the floors, raised whenever floors change while sequences do not.
        name: the file stem in conf/data, used in messages.
        task: the properties that a model must know.
        roles: names of the kinds of answers.
        own_metrics: the metrics that `metrics` returns.
        generates: whether the headline answers of a sequence are its next tokens, so that a model can generate them.
        seeded: whether the seed changes the sequences or the questions; for a fixed text it may change nothing.
        draws: whether training sequences are drawn at random, so that new ones can be drawn: see `with_epoch`.
        few_steps: a training with fewer optimizer steps is pointed out before it begins; 0: none is.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {}
    floors_revision: ClassVar[int] = 1
    own_metrics: tuple[Metric, ...] = ()
    generates = False
    seeded: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    few_steps: ClassVar[int] = 0
    name: str
    task: Task
    roles: tuple[str, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits: train, validation, test, and others for inspection only."""
        return ("train", "validation", "test")

    @abstractmethod
    def size(self, split: str) -> int:
        """Return the number of sequences in a split."""

    @abstractmethod
    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        """Return the sequences of a split with these indices [B].

        Args:
            epoch: the epoch of training, for datasets whose questions change with it.
        """

    @abstractmethod
    def floors(self, split: str) -> Floors:
        """Return the floors of a split: for each level, the value of each metric.

        Losses are mean cross-entropies in nats: "loss" over the headline, "loss_all" over all answers, "loss_<role>".
        Exact floors are "bayes", "position_blind" (of a predictor that sees the unordered tokens and knows how
        sequences are made) and "position_blind_split_known" (of one that also knows the sequences of the split: the
        lowest possible). Other levels are reference levels.
        """

    def longer(self, factor: float) -> "Dataset":
        """Return the same task with test sequences `factor` times as long.

        Args:
            factor: the length of the sequences in training lengths, > 1.

        Raises:
            ValueError: the task has no sequences of that length.
        """
        raise ValueError(f"evaluate.lengths must be 1 for data={self.name}, which has one length, got {factor:g}")

    def strided(self, stride: int) -> "Dataset":
        """Return the same text with test windows `stride` tokens apart, each asked for its last `stride` tokens.

        Raises:
            ValueError: the sequences are not windows of one text, or are shorter.
        """
        raise ValueError(
            f"evaluate.stride must be null for data={self.name}, whose sequences are not read from left to right in "
            f"one text, got {stride}"
        )

    def with_epoch(self, epoch: int) -> "Dataset":
        """Return the same task with new training sequences for this epoch; epoch 0 has the sequences of `self`.

        Validation and test stay as they are, and no training sequence is in them.

        Raises:
            ValueError: the training sequences are a fixed set.
        """
        raise ValueError(f"trainer.fresh=true needs a task whose sequences are drawn, got data={self.name}")

    def content(self) -> dict[str, Any]:
        """Return options whose content, not value, is part of the identity, such as the digest of a path's files."""
        return {}

    def token_texts(self, tokens: Tensor) -> list[str]:
        """Return tokens [T] for people to read: numbers, unless the task has words for them."""
        return [str(token) for token in tokens.tolist()]

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        """Return the metrics that are declared in `own_metrics`, by name.

        Args:
            losses: [B, S] cross-entropy in nats, 0 where nothing is asked.
        """
        return {}


class InMemoryDataset(Dataset):
    """A dataset in memory. Every split is made once, as one batch.

    Attributes:
        epoch: the epoch whose training sequences it has, if it draws them: part of the name of every random draw of
            that split.
    """

    epoch = 0

    @abstractmethod
    def make(self, split: str) -> Batch:
        """Make all sequences of a split."""

    @cached_property
    def _splits(self) -> dict[str, Batch]:
        return {}

    def whole(self, split: str) -> Batch:
        """Return all sequences of a split; they are made at the first call."""
        if split not in self._splits:
            self._splits[split] = self.make(split)
        return self._splits[split]

    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        return self.whole(split)[index]

    def with_epoch(self, epoch: int) -> Self:
        if not self.draws:
            super().with_epoch(epoch)  # refuses
        if epoch == self.epoch:
            return self
        other = copy(self)
        vars(other).pop("_splits", None)  # the copy makes its own sequences
        other.epoch = epoch
        return other

    def draw_name(self, split: str) -> tuple[str | int, ...]:
        """Return the purpose of a split's random draws: the split, and after epoch 0 of training the epoch."""
        return (split, "epoch", self.epoch) if split == "train" and self.epoch else (split,)


def surprisal(batch: Batch, ordered: bool = True) -> Tensor:
    """Return [B, T], -ln P(target | prefix) for equally likely sequences of the batch; 0 where nothing is asked.

    The mean over the batch is the lowest loss that any function of the prefix can have on this batch.

    Args:
        batch: a batch in which a slot is asked about the tokens up to it, and nothing is asked at padding.
        ordered: True: a prefix is the sequence of its tokens; False: the multiset of its tokens.
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
        index = torch.zeros(len(rows), dtype=torch.long)
        for column in prefix.T:
            index = (index * vocabulary + column).unique(return_inverse=True)[1]
        answer = (index * vocabulary + batch.targets[rows, slot]).unique(return_inverse=True)[1]
        loss[rows, slot] = index.bincount()[index].double().log() - answer.bincount()[answer].double().log()
    return loss


def unseen_rows(rows: Tensor, seen: set[bytes]) -> Tensor:
    """Return the indices [N'] of rows [N, T] that are not in `seen` and not repeated; add all rows to `seen`."""
    new = []
    for index, row in enumerate(rows.numpy()):
        key = row.tobytes()
        if key not in seen:
            seen.add(key)
            new.append(index)
    return torch.tensor(new, dtype=torch.long)


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """Return [size], the order of the training sequences in an epoch, which depends only on the seed and the epoch."""
    return torch.randperm(size, generator=make_generator(seed, "order", epoch))


def in_batches(dataset: Dataset, split: str, index: Tensor, batch_size: int, epoch: int = 0) -> Iterator[Batch]:
    """Yield the sequences of a split in the order of index [N]; the last batch may be smaller."""
    for part in index.split(batch_size):
        yield dataset.batch(split, part, epoch)


def mean_metrics(values: Tensor, batch: Batch, roles: tuple[str, ...], name: str = "loss") -> dict[str, float]:
    """Return means of values [B, S]: over the headline, over all answers, and per role.

    A role that does not occur in the batch is left out.
    """
    has_target = batch.targets != IGNORE
    masks = {name: batch.headline & has_target, f"{name}_all": has_target}
    masks |= {f"{name}_{role}": has_target & (batch.role == number) for number, role in enumerate(roles)}
    return {key: values[mask].mean().item() for key, mask in masks.items() if mask.any()}


def predictor_metrics(p: Tensor, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
    """Return the mean losses and accuracies of a predictor on a batch; ties are broken at random.

    Args:
        p: [N, outputs] the predictor's probability of each answer, in the slots with an answer; the last is the
            probability of all tokens from outputs - 1 on.
    """
    has_target = batch.targets != IGNORE
    right = batch.targets[has_target].clamp(max=p.shape[1] - 1)[:, None]
    loss, hit = torch.zeros(2, *has_target.shape, dtype=torch.float64)
    loss[has_target] = -p.gather(1, right)[:, 0].log()
    best = p > p.amax(1, keepdim=True) * (1 - 1e-9)
    hit[has_target] = best.gather(1, right)[:, 0] / best.sum(1).double()
    return mean_metrics(loss, batch, roles) | mean_metrics(hit, batch, (), "accuracy")
