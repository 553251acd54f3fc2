"""Alternating blocks of a and b; mark the last block: a task of depth."""

from math import comb
from typing import Annotated

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, Task
from pe_lab.data.copying import SORT_KEYS
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.problem import BLOCK_PROBLEMS
from pe_lab.encodings.options import Count, Length, OptionError, integers

A, B, START, PAD = range(4)


class Alternation(HashSplitDataset):
    """Mark the tokens of the last of k alternating blocks of a and b (Yang et al. 2025, arXiv:2506.16055, section 5).

    START and n tokens, of which the first are a: n is uniform in shortest ... longest, and then all positions of the
    k - 1 switches are equally likely. For instance, with k = 3, and the answers below:

        START a a a b b a a a a PAD ...
              0 0 0 0 0 1 1 1 1

    A transformer without positions needs depth for k: each switch is found by counting, after the one before it. A hash
    of (seed, sequence) decides the split: a tenth of the sequences go to the test, a tenth to validation; there none
    comes twice. `longer` has sequences of one length, round(factor * longest).

    The number of switches so far determines every answer. The position-blind floor sees the numbers of a and b.

    Args:
        blocks: k, the number of blocks, >= 2.
        shortest, longest: the range of n in training, k <= shortest <= longest.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, fewer than 500 different sequences, or fewer than 20 times as many as
            are asked for in validation or test.
    """

    roles = ("before", "last")

    def __init__(
        self,
        seed: int,
        name: str = "alternation",
        blocks: Annotated[int, integers(2, most=64)] = 8,
        shortest: Length = 24,
        longest: Length = 36,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        if shortest > longest:
            raise OptionError(f"shortest must be at most longest, {longest}, got {shortest}")
        if shortest < blocks:
            raise OptionError(f"shortest must be at least blocks, {blocks}, got {shortest}")
        super().__init__(seed, name, {"train": train, "validation": validation, "test": test})
        self.require_room(comb(longest, blocks) - comb(shortest - 1, blocks), "longest", longest)
        self.blocks = blocks
        self.n = range(shortest, longest + 1)
        self.drawn = (shortest, longest)
        self.task = Task(vocabulary=4, length=longest + 1, outputs=2, causal=True)

    def longer(self, factor: float) -> "Alternation":
        """Return the same task with sequences of length round(factor * longest), half to even."""
        n = round(factor * self.n[-1])
        self.require_longer(factor, n, "longest", self.n[-1])
        return Alternation(self.seed, self.name, self.blocks, n, n, **self.sizes)

    def draw(self, source: torch.Generator) -> Tensor:
        """Draw BLOCK_PROBLEMS sequences of tokens."""
        n = torch.randint(self.n[0], self.n[-1] + 1, (BLOCK_PROBLEMS, 1), generator=source)
        position = torch.arange(self.n[-1])
        key = torch.randint(SORT_KEYS, (BLOCK_PROBLEMS, self.n[-1]), generator=source)
        key = key.masked_fill((position == 0) | (position >= n), SORT_KEYS)
        switch = key.argsort(dim=1, stable=True).argsort(1) < self.blocks - 1
        tokens = (switch.cumsum(1) % 2).where(position < n, PAD)
        return torch.nn.functional.pad(tokens, (1, 0), value=START)

    def write(self, tokens: Tensor) -> Batch:
        """Return the sequences with their answers: whether each token is in the last block."""
        is_symbol = tokens < START
        switch = is_symbol & (tokens != tokens.roll(1, 1))
        switch[:, :2] = False
        last = (switch.cumsum(1) == self.blocks - 1).long()
        targets = last.where(is_symbol, IGNORE)
        layout = self.task.layout(1 + is_symbol.sum(1), self.task.length)
        return Batch(tokens, targets, last, is_symbol, layout)

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how sequences and their lengths are drawn.

        "bayes" sees the prefix, "position_blind" its numbers of a and b, "prior" knows that a block in k is the last.
        Exact match of these two is left out.
        """
        batch = self.whole(split)
        has_target = batch.targets != IGNORE
        counts = torch.stack([(batch.tokens == token).cumsum(1)[has_target] for token in (A, B)], 1)
        blind = self.blind_last(counts, has_target.sum(1).bincount().double() / len(batch))

        def level(p: Tensor) -> dict[str, float]:
            return self.level(batch, torch.stack((1 - p, p), 1))

        return {
            "bayes": level(batch.targets[has_target].double()) | {"exact_match": 1.0},
            "position_blind": level(blind),
            "prior": level(torch.full_like(blind, 1 / self.blocks)),
        }

    def blind_last(self, counts: Tensor, share: Tensor) -> Tensor:
        """Return [N], P(a token is in the last block | the numbers of a and b up to it).

        j switches among m tokens leave comb(n - m, k - 1 - j) ways to place the others up to length n, each with the
        weight share[n] / comb(n - 1, k - 1).

        Args:
            counts: [N, 2] the numbers of a and b.
            share: [n + 1] the share of the sequences of each length, from 0 to the longest, n.
        """
        k, shares = self.blocks, [(n, p) for n, p in enumerate(share.tolist()) if p]

        def rest(m: int, j: int) -> float:
            total: float = sum(p * (comb(n - m, k - 1 - j) / comb(n - 1, k - 1)) for n, p in shares if n >= m)
            return total

        def ways(x: int, y: int) -> int:
            """Return in how many ways x tokens make y blocks that are not empty."""
            return comb(x - 1, y - 1) if x and y else int(x == y)

        m, j = range(len(share)), torch.arange(k)
        after = torch.tensor([[rest(x, y) for y in range(k)] for x in m], dtype=torch.float64)
        before = torch.tensor([[ways(x, y) for y in range(k // 2 + 2)] for x in m], dtype=torch.float64)
        weights = before[counts[:, :1], j // 2 + 1] * before[counts[:, 1:], (j + 1) // 2] * after[counts.sum(1)]
        return weights[:, -1] / weights.sum(1)
