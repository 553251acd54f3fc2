"""Classes defined by two tokens at two positions; a bag of tokens solves them partly or not at all."""

from typing import Any

import torch
from torch import Generator, Tensor

from pe_lab.data.base import Dataset, Task
from pe_lab.data.labelled import SPLIT_SIZES, SampledLabelled, uniform_log_p
from pe_lab.encodings.options import Count, FileOrFolder, Length, OptionError

VOCABULARY = 20
CLASS_TOKENS = torch.tensor([[5, 8], [3, 9], [7, 4]])  # the two tokens of each class
CLASS_POSITIONS = torch.tensor([[3, 7], [5, 10], [15, 20]])  # and their positions, from 0
NUM_CLASSES = len(CLASS_TOKENS)
FILLER_TOKENS = torch.tensor([token for token in range(VOCABULARY) if token not in CLASS_TOKENS])


class Pattern(SampledLabelled):
    """The class is the pair of tokens that is in place: 5 at 3 and 8 at 7, 3 at 5 and 9 at 10, or 7 at 15 and 4 at 20.

    Positions count from 0. All other tokens are uniform over the 20 of the vocabulary, marked ones and 0 included; a
    sequence with two pairs in place is drawn again. Classes are equally likely. For instance, of class 1:

        position   0  1  2  3  4 [5] 6  7  8  9[10]11 12 13 14 15 16 17 18 19 20 21 ... 31
        token     11  4  0  5 19 [3] 2 16  7  7 [9] 1 14  0  3 12  6  8  8 10 17  0 ... 13

    (5 stands at 3, but without 8 at 7.) A bag of tokens is informative, because marked tokens are rarer elsewhere: the
    best position-blind predictor is right for 69.0 % of all sequences.

    In longer sequences the pairs have the same positions, followed by more of the other tokens.

    Args:
        seed: the seed of the sequences.
        length: T, >= 21; with a path, the longest sequence there may be, >= 1.
        train, validation, test, demo: the sizes of the splits, each >= 1; demo is for looking at.
        path: the path of a CSV file with your own sequences, see Labelled; null: no file.

    Raises:
        ValueError: an option out of range; a file that is not of the format.
    """

    purpose = "pattern"

    def __init__(
        self,
        seed: int,
        name: str = "pattern",
        length: Length = 32,
        train: Count = SPLIT_SIZES["train"],
        validation: Count = SPLIT_SIZES["validation"],
        test: Count = SPLIT_SIZES["test"],
        demo: Count = SPLIT_SIZES["demo"],
        path: FileOrFolder | None = None,
    ) -> None:
        if length <= CLASS_POSITIONS.max() and path is None:
            raise OptionError(f"length must be at least {CLASS_POSITIONS.max() + 1}, to hold every pair, got {length}")
        task = Task(VOCABULARY, length, outputs=NUM_CLASSES, causal=False, pooled=True)
        super().__init__(seed, name, task, {"train": train, "validation": validation, "test": test, "demo": demo}, path)

    def longer(self, factor: float) -> Dataset:
        if self.path is not None:
            return super().longer(factor)
        sizes: dict[str, Any] = self.sizes  # sizes by the names of the options
        return type(self)(self.seed, self.name, length=round(factor * self.task.length), **sizes)

    def draw(self, number: int, random: Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCABULARY, (number, self.task.length), generator=random)
        labels = torch.randint(NUM_CLASSES, (number,), generator=random)
        tokens.scatter_(1, CLASS_POSITIONS[labels], CLASS_TOKENS[labels])
        unique = pairs_present(tokens).sum(1) == 1
        return tokens[unique], labels[unique]

    def classify(self, tokens: Tensor) -> Tensor:
        return pairs_present(tokens).long().argmax(1)

    def position_blind(self, tokens: Tensor) -> Tensor:
        """Count the orders of the tokens in which only pair c is in place.

        Of the T! orders, a share of m_a m_b / (T (T - 1)) has the tokens a and b, which the sequence has m_a and m_b
        times, in two given positions; of four tokens in four positions, the product of their counts over T (T - 1)
        (T - 2) (T - 3), and so on, since all six marked tokens differ. Those with other pairs in place too are
        subtracted.
        """
        often = (tokens[:, :, None, None] == CLASS_TOKENS).sum(1).double().prod(2)  # [N, classes] m_a m_b
        T = self.task.length
        four = (T - 2) * (T - 3)
        six = four * (T - 4) * (T - 5)
        other, third = often.roll(1, 1), often.roll(2, 1)
        # less one other pair or the third, plus both, which was subtracted twice; all over T (T - 1)
        alone = often * (1 - (other + third) / four + other * third / six)
        return (alone / alone.sum(1, keepdim=True)).log()


class PatternHard(Pattern):
    """The same classes, where the unordered tokens carry no information.

    Every sequence holds each of the six marked tokens 5 8, 3 9, 7 4 exactly once; one pair is in its place, the other
    four tokens are anywhere, except that neither other pair is in place. The rest is uniform over the other 14 tokens.
    For instance, of class 1:

        position   0  1  2  3  4 [5] 6  7  8  9[10]11 12 13 14 15 16 17 18 19 20 21 ... 31
        token     11  8  0  5 19 [3] 2 16  7 12 [9] 1 14  0 15 12  6  4 18 10 17  0 ... 13

    Whatever the tokens, each class can be made of them in equally many orders: a position-blind predictor is right by
    chance, a third of the time.

    Args:
        seed, length, train, validation, test, demo, path: the same as in Pattern.

    Raises:
        ValueError: an option out of range; a file that is not of the format.
    """

    purpose = "pattern_hard"

    def __init__(self, seed: int, name: str = "pattern_hard", **options: Any) -> None:
        super().__init__(seed, name, **options)

    def draw(self, number: int, random: Generator) -> tuple[Tensor, Tensor]:
        size = (number, self.task.length)
        tokens = FILLER_TOKENS[torch.randint(len(FILLER_TOKENS), size, generator=random)]
        labels = torch.randint(NUM_CLASSES, (number,), generator=random)
        # a random order of the positions, the class's own two first
        rank = torch.randint(2**62, size, generator=random).scatter_(1, CLASS_POSITIONS[labels], -1)
        elsewhere = rank.argsort(dim=1, stable=True)[:, 2:6]
        others = torch.stack([CLASS_TOKENS.roll(-label, 0)[1:].flatten() for label in range(NUM_CLASSES)])
        tokens.scatter_(1, elsewhere, others[labels]).scatter_(1, CLASS_POSITIONS[labels], CLASS_TOKENS[labels])
        unique = pairs_present(tokens).sum(1) == 1
        return tokens[unique], labels[unique]

    def position_blind(self, tokens: Tensor) -> Tensor:
        return uniform_log_p(len(tokens), NUM_CLASSES)


def pairs_present(tokens: Tensor) -> Tensor:
    """Return [N, classes] bool: whether each pair is in its place in tokens [N, T]."""
    return (tokens[:, CLASS_POSITIONS] == CLASS_TOKENS).all(-1)
