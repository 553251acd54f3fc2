"""Flip-flop: recall the bit that was written last, ignoring others."""

import math
from dataclasses import replace
from functools import cache
from math import comb
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, Task, mean_metrics
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.metric import Metric
from pe_lab.data.problem import BLOCK_PROBLEMS, MIN_PROBLEMS
from pe_lab.encodings.options import Count, Length, OptionError, Range, is_number

WRITE, READ, PASS, ZERO, ONE = range(5)
PROBABILITY_SCALE = 2**20  # the scale of probabilities as integers
PUBLISHED_SPLITS = {"sparse": 0.98, "dense": 0.1}  # probability to ignore, of the parts of the published tests


class FlipFlop(HashSplitDataset):
    """Flip-flop language modelling (Liu et al. 2023, arXiv:2306.00946; the proportions of its published data).

    Instructions of two tokens: w (write), i (ignore) or r (read), and a bit. The bit after r is the one that was
    written last, and it alone is asked for; the others are uniform. The first instruction writes, the last one reads,
    each between is i with probability `ignore`, w and r with half of the rest each. For instance, with the answers
    below the tokens:

        w 1 i 0 r 1 i 0 w 0 i 1 i 1 r 0
                1                   0

    A hash of (seed, sequence) decides the split: a tenth of the sequences go to the test, a tenth to validation; there
    none comes twice. `longer` has more instructions: T = 64 becomes 128 at 2.

    The prefix determines every answer. The position-blind predictor sees only the multiset of the tokens. Bits that
    were written and read are more frequent in it, so it is better than chance: with 256 instructions and `ignore` = 0.8
    it is wrong in 42 of 100 reads.

    Args:
        length: T, even, >= 12: twice the number of instructions.
        ignore: the probability of i, in [0, 1). Published: 0.8 in training, 0.98 and 0.1 in tests, with T = 512.
        train, validation, test: the number of sequences in each split, >= 1.
        published_tests: whether the test has, beside its sequences, as many with `ignore` = 0.98 (sparse) and as many
            with 0.1 (dense). The metrics `error`, `error_sparse` and `error_dense` are then the shares of reads whose
            right bit has a probability of 1/2 or less; all others but the losses of these roles are of the first part.

    Raises:
        ValueError: an option out of its range.
    """

    roles: tuple[str, ...] = ("read",)
    neutral: ClassVar[dict[str, object]] = {"published_tests": False}

    def __init__(
        self,
        seed: int,
        name: str = "flip_flop",
        length: Length = 64,
        ignore: Annotated[float, Range("in [0, 1)", lambda x: is_number(x) and 0 <= x < 1)] = 0.8,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        published_tests: bool = False,
    ) -> None:
        instructions = length // 2
        if length % 2 or 2 * 5 ** (instructions - 2) < MIN_PROBLEMS:
            raise OptionError(f"length must be even and at least 12, so that sequences can be split, got {length}")
        super().__init__(seed, name, {"train": train, "validation": validation, "test": test})
        self.ignore = ignore
        self.instructions = instructions
        self.drawn = (instructions,)
        self.task = Task(vocabulary=5, length=length, outputs=5, causal=True)
        self.published_tests = published_tests
        if published_tests:
            self.roles = ("read", *(f"read_{part}" for part in PUBLISHED_SPLITS))
            names = ("error", *(f"error_{part}" for part in PUBLISHED_SPLITS))
            self.own_metrics = tuple(Metric(metric, "min", "share") for metric in names)

    def size(self, split: str) -> int:
        parts = 1 + len(PUBLISHED_SPLITS) if self.published_tests and split == "test" else 1
        return parts * super().size(split)

    def make(self, split: str) -> Batch:
        if not self.published_tests:
            return super().make(split)
        parts = [self.ignore, *PUBLISHED_SPLITS.values()] if split == "test" else [self.ignore]
        batches = [self._alike(ignore=ignore).with_epoch(self.epoch).whole(split) for ignore in parts]
        batch = self.write(torch.cat([part.tokens for part in batches]))
        number = torch.arange(len(batches)).repeat_interleave(len(batches[0]))[:, None]
        return replace(batch, role=number.expand_as(batch.role).clone(), headline=batch.headline & (number == 0))

    def _alike(self, **changed: Any) -> "FlipFlop":
        """Return a dataset with other options, and with one part in its test."""
        options = {"length": self.task.length, "ignore": self.ignore, **self.sizes}
        return FlipFlop(self.seed, self.name, **(options | changed))

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        if not self.published_tests:
            return {}
        has_target, wrong = batch.targets != IGNORE, losses >= math.log(2)
        parts = [(metric.name, has_target & (batch.role == number)) for number, metric in enumerate(self.own_metrics)]
        return {name: wrong[mask].double().mean().item() for name, mask in parts if mask.any()}

    def longer(self, factor: float) -> "FlipFlop":
        """Multiply the number of instructions by the factor, rounded half to even."""
        length = 2 * round(factor * self.instructions)
        self.require_longer(factor, length, "length", self.task.length)
        return self._alike(length=length, published_tests=self.published_tests)

    def token_texts(self, tokens: Tensor) -> list[str]:
        return ["wri01"[token] for token in tokens.tolist()]  # in the order of WRITE, READ, PASS, ZERO, ONE

    def draw(self, source: torch.Generator) -> Tensor:
        """Draw BLOCK_PROBLEMS sequences of tokens."""
        shape = BLOCK_PROBLEMS, self.instructions
        passed = torch.randint(PROBABILITY_SCALE, shape, generator=source) < round(PROBABILITY_SCALE * self.ignore)
        kind = torch.randint(2, shape, generator=source).masked_fill(passed, PASS)
        kind[:, 0], kind[:, -1] = WRITE, READ
        bit = torch.randint(2, shape, generator=source)
        slot = torch.arange(self.instructions)
        written = slot.where(kind == WRITE, 0).cummax(1).values  # the last write so far
        bit = bit.where(kind != READ, bit.gather(1, written))
        return torch.stack((kind, ZERO + bit), -1).flatten(1)

    def write(self, tokens: Tensor) -> Batch:
        """Return the sequences with their answers: the token after each r."""
        has_target = tokens == READ
        targets = tokens.roll(-1, 1).where(has_target, IGNORE)
        layout = self.task.layout(torch.full((len(tokens),), self.task.length), self.task.length)
        return Batch(tokens, targets, torch.zeros_like(tokens), has_target, layout)

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how sequences are drawn.

        "bayes" sees the prefix, "position_blind" its multiset of tokens, "prior" knows that bits are equally likely.
        Exact match of these two is left out: it is the exact match of all reads of a sequence together.
        """
        batch = self.whole(split)
        has_target = batch.targets != IGNORE
        right = batch.targets[has_target] == ONE

        def level(probability: Tensor) -> dict[str, float]:
            """Return the metrics of probabilities [N] of a 1; ties are broken at random."""
            loss, hit = torch.zeros(2, *has_target.shape, dtype=torch.float64)
            p = probability.where(right, 1 - probability)
            loss[has_target] = -p.log()
            hit[has_target] = (p > 0.5).double() + 0.5 * (p == 0.5)
            return mean_metrics(loss, batch, self.roles) | mean_metrics(hit, batch, (), "accuracy")

        counts = torch.stack([(batch.tokens == token).cumsum(1)[has_target] for token in (WRITE, READ, PASS, ONE)], 1)
        kinds, index = counts.unique(dim=0, return_inverse=True)
        blind = torch.tensor([blind_one(*row) for row in kinds.tolist()], dtype=torch.float64)[index]
        return {
            "bayes": level(right.double()) | {"exact_match": 1.0},
            "position_blind": level(blind),
            "prior": level(torch.full_like(blind, 0.5)),
        }


def blind_one(writes: int, reads: int, ignored: int, ones: int) -> float:
    """Return P(the bit that was written last is 1 | the multiset of the tokens up to an r).

    Args:
        writes, reads, ignored: how often w, r and i occur, the last r included.
        ones: how often the bit 1 occurs.
    """
    both = joint_probabilities(writes, reads - 1)
    likely = [
        sum(both[k][bit] * comb(ignored, ones - k) for k in range(len(both)) if 0 <= ones - k <= ignored)
        for bit in (0, 1)
    ]
    return float(likely[1] / sum(likely))


@cache
def joint_probabilities(writes: int, reads: int) -> tuple[tuple[float, float], ...]:
    """Return P(k of the bits are 1, the last one written is b) for b = 0, 1 and each k, given the numbers of w and r.

    All orders that begin with w are equally likely: the last instruction is one of the other writes with probability
    (writes - 1) / (writes - 1 + reads).
    """
    chances = [[0.0, 0.0] for _ in range(writes + reads + 1)]
    others = writes - 1 + reads
    if others == 0:
        return (0.5, 0.0), (0.0, 0.5)
    if writes > 1:
        for k, (p0, p1) in enumerate(joint_probabilities(writes - 1, reads)):
            for bit in (0, 1):
                chances[k + bit][bit] += (writes - 1) / others * (p0 + p1) / 2
    if reads:
        for k, before in enumerate(joint_probabilities(writes, reads - 1)):
            for bit in (0, 1):
                chances[k + bit][bit] += reads / others * before[bit]
    return tuple((p0, p1) for p0, p1 in chances)
