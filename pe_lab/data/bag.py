"""The most frequent token: the negative control, in which order carries no information."""

from math import comb
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from pe_lab.data.base import Dataset, Task
from pe_lab.data.labelled import SPLIT_SIZES, SampledLabelled, certain_log_p, token_counts
from pe_lab.encodings.options import Count, FileOrFolder, Length, OptionError, integers


class Bag(SampledLabelled):
    """The class is the most frequent token of the sequence; sequences with a tie are drawn again.

    For instance, with 4 tokens and T = 8: `2 0 3 2 1 2 0 3` is of class 2; `2 0 3 2 1 0 0 2` is not used. Tokens are
    uniform, so classes are equally likely. The unordered tokens determine the class: the position-blind loss is 0, and
    no encoding should be better than none.

    Args:
        seed: the seed of the sequences.
        length: T, >= 1; with a path, the longest sequence there may be.
        vocabulary: the number of tokens, and of classes, >= 1.
        train, validation, test, demo: the sizes of the splits, each >= 1; demo is for looking at.
        path: the path of a CSV file with your own sequences, see Labelled; null: no file.

    Raises:
        ValueError: an option out of range; fewer sequences than asked for; a file that is not of the format.
    """

    purpose = "bag"

    def __init__(
        self,
        seed: int,
        name: str = "bag",
        length: Length = 32,
        vocabulary: Annotated[int, integers(1, most=65_536)] = 10,
        train: Count = SPLIT_SIZES["train"],
        validation: Count = SPLIT_SIZES["validation"],
        test: Count = SPLIT_SIZES["test"],
        demo: Count = SPLIT_SIZES["demo"],
        path: FileOrFolder | None = None,
    ) -> None:
        task = Task(vocabulary, length, outputs=vocabulary, causal=False, pooled=True)
        super().__init__(seed, name, task, {"train": train, "validation": validation, "test": test, "demo": demo}, path)
        needed = train + validation + test + demo
        there = count_majorities(length, vocabulary, enough=2 * needed)  # twice as many as needed, so that drawing ends
        if path is None and there < 2 * needed:
            raise OptionError(
                f"length and vocabulary must allow for {2 * needed:,} sequences with a majority, twice as "
                f"many as are asked for, got {length} and {vocabulary}, which allow for {there:,}"
            )

    def longer(self, factor: float) -> Dataset:
        if self.path is not None:
            return super().longer(factor)
        length = round(factor * self.task.length)
        sizes: dict[str, Any] = self.sizes  # sizes by the names of the options
        return Bag(self.seed, self.name, length, self.task.vocabulary, **sizes)

    def draw(self, number: int, random: Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(self.task.vocabulary, (number, self.task.length), generator=random)
        counts = self.vocabulary_counts(tokens)
        unique = (counts == counts.amax(1, keepdim=True)).sum(1) == 1
        return tokens[unique], counts[unique].argmax(1)

    def classify(self, tokens: Tensor) -> Tensor:
        return self.vocabulary_counts(tokens).argmax(1)

    def position_blind(self, tokens: Tensor) -> Tensor:
        return certain_log_p(self.classify(tokens), self.task.outputs)

    def vocabulary_counts(self, tokens: Tensor) -> Tensor:
        """Return [N, vocabulary], the count of each token in tokens [N, T]."""
        return token_counts(tokens, torch.ones_like(tokens), self.task.vocabulary)


def count_majorities(length: int, vocabulary: int, enough: int) -> int:
    """Count the sequences with a token in more than half of their positions, up to `enough`."""
    there = 0
    for others in range((length + 1) // 2):
        there += vocabulary * comb(length, others) * (vocabulary - 1) ** others
        if there >= enough:
            break
    return there
