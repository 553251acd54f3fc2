"""Induction: find the token that followed an earlier occurrence."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, Task
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.problem import BLOCK_PROBLEMS
from pe_lab.encodings.options import Count, Length, OptionError, integers


class Induction(HashSplitDataset):
    """Predict the token that followed the previous occurrence of the current one (after Olsson et al. 2022).

    With asked = repeated, tokens are uniform, and every token that came before asks what followed its last occurrence
    (arXiv:2209.11895 measures this on repeated random tokens). With the answers below, for instance:

        2 5 1 2 5 5 1 2
              5 1 5 2 5

    With asked = last, one token is special: it stands at a uniform position among the first T - 2, and at the end,
    where the token after its first occurrence is asked (Gu & Dao 2023, arXiv:2312.00752, as others' code has it).

    A hash of (seed, sequence) decides the split: a tenth of the sequences go to the test, a tenth to validation; there
    none comes twice. `longer` has more tokens.

    The prefix determines every answer. The multiset of n tokens does not say which one is present: it is q with a
    probability P(q) proportional to its count c_q among the tokens that came twice, and the answer is v with
    probability (c_v - P(v)) / (n - 1).

    Args:
        length: T; above the vocabulary, or >= 4 with asked = last.
        vocabulary: the number of tokens, >= 2; the special token is the last.
        asked: the tokens that ask: repeated or last.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, fewer than 500 different sequences, or fewer than 20 times as many as
            are asked for in validation or test.
    """

    roles = ("follower",)

    def __init__(
        self,
        seed: int,
        name: str = "induction",
        length: Length = 32,
        vocabulary: Annotated[int, integers(2, most=65_536)] = 16,
        asked: Literal["repeated", "last"] = "repeated",
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        special = asked == "last"
        if special and length < 4:
            raise OptionError(f"length must be at least 4, so that one token can be asked for, got {length}")
        if not special and length <= vocabulary:
            raise OptionError(f"length must be above vocabulary, {vocabulary}, so that tokens repeat, got {length}")
        super().__init__(seed, name, {"train": train, "validation": validation, "test": test})
        usual, positions = (vocabulary - 1, length - 2) if special else (vocabulary, length)
        self.require_room(usual ** min(positions, 64) * (positions if special else 1), "length", length)
        self.special = special
        self.drawn = (length,)
        self.task = Task(vocabulary=vocabulary, length=length, outputs=vocabulary, causal=True)

    def longer(self, factor: float) -> "Induction":
        """Multiply T by the factor, rounded half to even."""
        length = round(factor * self.task.length)
        self.require_longer(factor, length, "length", self.task.length)
        asked: Literal["repeated", "last"] = "last" if self.special else "repeated"
        return Induction(self.seed, self.name, length, self.task.vocabulary, asked, **self.sizes)

    def draw(self, source: torch.Generator) -> Tensor:
        """Draw BLOCK_PROBLEMS sequences of tokens."""
        length, last = self.task.length, self.task.vocabulary - 1
        tokens = torch.randint(last + 1 - self.special, (BLOCK_PROBLEMS, length), generator=source)
        if self.special:
            first = torch.randint(length - 2, (BLOCK_PROBLEMS, 1), generator=source)
            tokens = tokens.scatter(1, first, last)
            tokens[:, -1] = last
        return tokens

    def write(self, tokens: Tensor) -> Batch:
        """Return the sequences with their answers: the token after the previous occurrence of each."""
        size, length = tokens.shape
        before = torch.full((size, self.task.vocabulary), -1)  # the last slot of each token so far
        targets = torch.full_like(tokens, IGNORE)
        for slot in range(length):
            now = tokens[:, slot, None]
            previous = before.gather(1, now)
            follower = tokens.gather(1, previous + 1)
            targets[:, slot, None] = follower.where(previous >= 0, IGNORE)
            before = before.scatter(1, now, slot)
        if self.special:
            targets[:, :-1] = IGNORE
        layout = self.task.layout(torch.full((size,), length), length)
        return Batch(tokens, targets, torch.zeros_like(tokens), targets != IGNORE, layout)

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how sequences are drawn.

        "bayes" sees the prefix, "position_blind" its multiset of tokens, "prior" knows how often each token is right.
        Exact match of these two is left out.
        """
        batch = self.whole(split)
        has_target = batch.targets != IGNORE
        counts = (batch.tokens[..., None] == torch.arange(self.task.vocabulary)).cumsum(1)[has_target].double()
        others = counts.sum(1, keepdim=True) - 1
        prior = torch.ones_like(counts)
        if self.special:
            prior[:, -1] = 0
            blind = counts * prior / (others - 1)
        else:
            present = counts.where(counts >= 2, 0)
            blind = (counts - present / present.sum(1, keepdim=True)) / others
        sure = torch.zeros_like(counts).scatter(1, batch.targets[has_target][:, None], 1.0)
        return {
            "bayes": self.level(batch, sure) | {"exact_match": 1.0},
            "position_blind": self.level(batch, blind),
            "prior": self.level(batch, prior / prior.sum(1, keepdim=True)),
        }
