"""Sequences with one class each, drawn without repetition or read from a CSV, and their floors."""

import hashlib
from abc import abstractmethod
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from pe_lab.data.base import Batch, Dataset, Floors, InMemoryDataset, Task, unseen_rows
from pe_lab.data.labelled_csv import Rows, read_splits
from pe_lab.data.seeding import make_generator
from pe_lab.encodings.layout import PADDING
from pe_lab.encodings.options import FileOrFolder, OptionError

SPLIT_SIZES = {"train": 5000, "validation": 1000, "test": 1000, "demo": 100}
MAX_DRAWN_SEQUENCES = 4096  # most sequences of a draw
MAX_DRAWN_TOKENS = 2**24  # most tokens of a draw


class Labelled(InMemoryDataset):
    """Sequences with one class each, asked of the whole sequence.

    For instance 13 2 19 5 0 ... 6 -> class 0: the batch has targets [[0]], and every answer is in the headline. "demo"
    is a fourth split, for inspection: nothing is trained or measured on it.

    With a path, the sequences are read from a CSV file with the columns split, tokens, label, as
    `pe-lab data export` writes it:

        split,tokens,label
        train,13 2 19 5 0,0
        validation,4 4 17,2
        test,0 1 2 3,1

    Splits are train, validation, test and, if wanted, demo; tokens and labels must be in the task's range. Shorter
    sequences are padded. Such data has reference levels instead of floors: see `reference_levels`.

    Args:
        seed: the seed of sequences that are made; a file does not depend on it.
        task: the numbers of tokens and classes, and the largest length.
        sizes: the number of sequences in each split that is made, by its name.
        path: the path of a file to read instead; null: no file.

    Raises:
        ValueError: the file cannot be read, or is not of the format: every malformed row is named.
    """

    roles = ("label",)

    def __init__(
        self, seed: int, name: str, task: Task, sizes: dict[str, int], path: FileOrFolder | None = None
    ) -> None:
        self.seed, self.name, self.task, self.sizes = seed, name, task, sizes
        self.path = path
        self.file: dict[str, Rows] = {}
        if path is not None:
            try:
                if any(test(Path(path)) for test in (Path.is_fifo, Path.is_char_device, Path.is_block_device)):
                    raise OSError(None, "Not a file")  # it might never end
                content = Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"data.path must be a file to read, got {path!r} ({error.strerror})") from None
            self.digest = hashlib.sha256(content).hexdigest()
            self.file = read_splits(content, path, task)
            self.sizes = {split: len(tokens) for split, (tokens, _, _) in self.file.items()}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def size(self, split: str) -> int:
        return self.sizes[split]

    @abstractmethod
    def sequences(self, split: str) -> tuple[Tensor, Tensor]:
        """Make the tokens [N, T] and labels [N] of a split."""

    def make(self, split: str) -> Batch:
        if self.path is not None:
            tokens, labels, length = self.file[split]
        else:
            tokens, labels = self.sequences(split)
            length = torch.full((len(tokens),), self.task.length)
        targets = labels[:, None]
        layout = self.task.layout(length, self.task.length)
        return Batch(tokens, targets, torch.zeros_like(targets), torch.ones_like(targets, dtype=torch.bool), layout)

    def longer(self, factor: float) -> Dataset:
        if self.path is not None:
            raise ValueError(f"evaluate.lengths must be 1 with data.path, whose sequences end, got {factor:g}")
        return super().longer(factor)

    def content(self) -> dict[str, Any]:
        return {} if self.path is None else {"path": self.digest}

    def floors(self, split: str) -> Floors:
        return reference_levels(self.whole("train"), self.whole(split), self.task)


class SampledLabelled(Labelled):
    """Labelled sequences drawn at random, none of them twice, in the same or another split.

    Splits are drawn one after the other, in blocks; a sequence that was drawn before is passed over. For instance, if
    test is A C B and the draws for validation are D A D E, validation is D E. The test split does not depend on the
    size of the others, and a larger split begins with the smaller one.

    Where a sequence determines its class, the Bayes loss is 0.

    Args:
        sizes: the number of sequences in each split, by its name, each >= 1.
        seed, name, task, path: the same as in Labelled.

    Raises:
        ValueError: a size out of range, or changed although the file at the path has its own.
    """

    order = ("test", "validation", "train", "demo")
    purpose: str  # the name of the random draws, a part of their seed

    def __init__(
        self, seed: int, name: str, task: Task, sizes: dict[str, int], path: FileOrFolder | None = None
    ) -> None:
        for split, size in sizes.items():
            if path is not None and size != SPLIT_SIZES[split]:
                raise OptionError(
                    f"{split} must be left at {SPLIT_SIZES[split]} with path, whose rows name their splits, got {size}"
                )
        super().__init__(seed, name, task, sizes, path)

    @abstractmethod
    def draw(self, number: int, random: Generator) -> tuple[Tensor, Tensor]:
        """Return tokens [N, T] and labels [N] of a number of draws, without those that are rejected."""

    @abstractmethod
    def classify(self, tokens: Tensor) -> Tensor:
        """Return the classes [N] of tokens [N, T]."""

    @abstractmethod
    def position_blind(self, tokens: Tensor) -> Tensor:
        """Return ln P(class | unordered tokens), [N, classes] in float64."""

    def sequences(self, split: str) -> tuple[Tensor, Tensor]:
        seen: set[bytes] = set()
        for earlier in self.order[: self.order.index(split)]:
            unseen_rows(self.whole(earlier).tokens, seen)
        parts: list[tuple[Tensor, Tensor]] = []
        missing = self.sizes[split]
        rows = max(1, min(MAX_DRAWN_SEQUENCES, MAX_DRAWN_TOKENS // self.task.length))
        for block in count():
            tokens, labels = self.draw(rows, make_generator(self.seed, self.purpose, self.task.length, split, block))
            new = unseen_rows(tokens, seen)[:missing]
            parts.append((tokens[new], labels[new]))
            missing -= len(new)
            if not missing:
                break
        tokens, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        return tokens, labels

    def floors(self, split: str) -> Floors:
        """Return exact floors: "bayes" sees the sequence, "position_blind" its unordered tokens, "prior" nothing.

        With a path, reference levels: see `reference_levels`.
        """
        if self.path is not None:
            return super().floors(split)
        batch = self.whole(split)
        tokens, labels, classes = batch.tokens, batch.targets[:, 0], self.task.outputs
        levels = {
            "bayes": certain_log_p(self.classify(tokens), classes),
            "position_blind": self.position_blind(tokens),
            "prior": uniform_log_p(len(tokens), classes),
        }
        return {name: class_metrics(log_p, labels) for name, log_p in levels.items()}


def certain_log_p(labels: Tensor, classes: int) -> Tensor:
    """Return ln P [N, classes] of a predictor that knows the labels [N]."""
    return torch.full((len(labels), classes), -torch.inf, dtype=torch.float64).scatter_(1, labels[:, None], 0)


def uniform_log_p(number: int, classes: int) -> Tensor:
    """Return ln P [N, classes] of the uniform distribution."""
    return torch.full((number, classes), 1 / classes, dtype=torch.float64).log()


def token_counts(tokens: Tensor, is_token: Tensor, vocabulary: int) -> Tensor:
    """Return [N, vocabulary], the count of each token in tokens [N, T] where is_token [N, T]."""
    return torch.zeros(len(tokens), vocabulary, dtype=torch.long).scatter_add_(1, tokens, is_token.long())


def class_metrics(log_p: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of a predictor with ln P [N, classes] on labels [N].

    It picks at random between equally likely classes; accuracy is the expected one.
    """
    loss = (-log_p.gather(1, labels[:, None])).mean().item() + 0.0  # not -0.0
    best = log_p == log_p.amax(1, keepdim=True)
    accuracy = (best.gather(1, labels[:, None])[:, 0].double() / best.sum(1)).mean().item()
    losses = dict.fromkeys(("loss", "loss_all", *(f"loss_{role}" for role in Labelled.roles)), loss)
    return losses | dict.fromkeys(("accuracy", "accuracy_all", "exact_match"), accuracy)


def reference_levels(train: Batch, batch: Batch, task: Task) -> Floors:
    """Return the metrics on a batch of two predictors without positions, fitted to the training sequences.

    "prior" is the frequency of the classes, "histogram" is logistic regression on the counts of tokens. Both are mixed
    with the uniform distribution, as if each class had occurred once more, so that the loss of a class that is not in
    training is finite. Neither is a bound.
    """
    from pe_lab.data.linear_models import class_probabilities  # loads scikit-learn

    seen, classes = train.targets[:, 0], task.outputs
    share = (seen.bincount(minlength=classes).double() / len(seen)).expand(len(batch), classes)
    likely = {"prior": share, "histogram": share}
    if len(seen.unique()) > 1:
        features, new = (
            token_counts(source.tokens, source.layout.segment != PADDING, task.vocabulary).numpy()
            for source in (train, batch)
        )
        likely["histogram"] = torch.from_numpy(class_probabilities(features, seen.numpy(), new, classes))
    return {
        name: class_metrics(((len(seen) * p + 1) / (len(seen) + classes)).log(), batch.targets[:, 0])
        for name, p in likely.items()
    }
