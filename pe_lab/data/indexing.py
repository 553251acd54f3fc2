"""Indirect indexing: find the letter at a signed distance from a named one."""

import math
from typing import Annotated, Self

import torch
from torch import Tensor

from pe_lab.data.base import Batch, Floors
from pe_lab.data.copying import SORT_KEYS, shuffle_symbols
from pe_lab.data.problem import RandomProblems
from pe_lab.encodings.options import Count, OptionError, integers

Letters = Annotated[int, integers(2, most=1024)]


class IndirectIndexing(RandomProblems):
    """Find the letter at a signed distance from another one (Gopalakrishnan et al. 2025, arXiv:2509.10534, table 1).

    START n different letters, one of them (the source), a shift, SEP, the letter that stands so many positions to the
    right of the source, END. With n = 5 and the letters a ... z, for instance `START q c x b h c +2 SEP b END`, up to
    T = longest + 6. The source is found by content, its neighbour by position. See RandomProblems for the distribution
    of n and the splits; all pairs of a source and a shift that stays within the letters are equally likely. A shift is
    one token here, of 2 reach + 1; it is written in characters in the paper.

    The prompt determines the letter. Its multiset names the source and the shift, and leaves the other n - 1 letters
    (the source itself, if the shift is 0).

    Args:
        letters: the number of different letters, >= longest, <= 1024; it limits `longer` as well.
        shortest, longest: the range of n in training, 2 <= shortest <= longest.
        reach: the largest shift, >= 1.
        train, validation, test: the number of problems in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    prompt_length = (1, 2)
    answer_length = (0, 1)

    def __init__(
        self,
        seed: int,
        name: str = "indirect_indexing",
        letters: Letters = 12,
        shortest: Letters = 3,
        longest: Letters = 6,
        reach: Annotated[int, integers(1, most=1024)] = 1,
        train: Count = 20_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        if longest > letters:
            raise OptionError(f"longest must be at most letters, {letters}, since no letter comes twice, got {longest}")
        sizes = {"train": train, "validation": validation, "test": test}
        self.letters = letters
        self.reach = reach
        super().__init__(seed, name, letters + 2 * reach + 1, shortest, longest, sizes)

    def longer(self, factor: float) -> Self:
        longer = super().longer(factor)
        if longer.n[-1] > self.letters:
            raise ValueError(
                f"evaluate.lengths must lead to a size of at most data.letters, {self.letters}, for data={self.name}, "
                f"got {factor:g}, which leads to {longer.n[-1]}"
            )
        return longer

    def pairs(self, n: int) -> int:
        """Return the number of pairs of a source and a letter within reach, among n."""
        reach = min(self.reach, n - 1)
        return n + reach * (2 * n - reach - 1)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        letters = shuffle_symbols(len(n), self.letters, source)[:, : self.n[-1]]
        number = torch.randint(SORT_KEYS, (len(n),), generator=source)
        first, second = torch.zeros(2, len(n), dtype=torch.long)
        for size in self.n:
            position = torch.arange(size)
            near = ((position[:, None] - position).abs() <= self.reach).nonzero()
            rows = n == size
            first[rows], second[rows] = near[number[rows] % len(near)].T
        named = letters.gather(1, first[:, None])
        shift = self.letters + self.reach + (second - first)[:, None]
        prompt = torch.nn.functional.pad(letters, (0, 2))
        return prompt.scatter(1, n[:, None], named).scatter(1, n[:, None] + 1, shift)

    def count_prompts(self, n: int) -> int:
        return math.perm(self.letters, n) * self.pairs(n)

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        named, shift = (prompt.gather(1, n[:, None] + more) for more in (0, 1))
        first = (prompt == named).int().argmax(1, keepdim=True)  # before the source is named
        return prompt.gather(1, first + shift - self.letters - self.reach)

    def marginal(self, share: Tensor) -> Tensor:
        return (torch.arange(self.symbols) < self.letters).double() / self.letters

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        # the source is there twice; the answer is another letter, or the source once more
        letters = counts[:, : self.letters]
        still = counts[:, self.letters + self.reach, None] == 1
        done = letters.sum(1, keepdim=True) - (letters > 0).sum(1, keepdim=True) == 2
        possible = torch.where(still, letters == 2, letters == 1).double()
        p = (possible / possible.sum(1, keepdim=True)).where(~done, 0)
        return torch.cat((torch.nn.functional.pad(p, (0, self.symbols - self.letters)), done.double()), 1)

    def floors(self, split: str) -> Floors:
        """Return the floors of Problems, and of two predictors that know when to write a letter and when END.

        "uniform" knows no more; "source" also knows which letter is named, which is right where the shift is 0. Exact
        match is the share of right letters: END is certain.
        """
        batch = self.whole(split)
        share = self.share(batch)
        at_zero = sum(share[n].item() * n / self.pairs(n) for n in self.n)
        named = batch.tokens.gather(1, batch.headline.int().argmax(1, keepdim=True) - 2)
        copied = torch.full((len(batch), self.letters), (1 - at_zero) / (self.letters - 1), dtype=torch.float64)
        floors = super().floors(split) | {
            "uniform": self.letters_then_end(batch, torch.full_like(copied, 1 / self.letters)),
            "source": self.letters_then_end(batch, copied.scatter(1, named, at_zero)),
        }
        for level in ("position_blind", "uniform", "source"):
            floors[level]["exact_match"] = 2 * floors[level]["accuracy"] - 1
        return floors

    def letters_then_end(self, batch: Batch, p: Tensor) -> dict[str, float]:
        """Return the metrics of probabilities p [B, letters] of the letter, where END is certain."""
        both = torch.zeros(len(p), 2, self.symbols + 1, dtype=torch.float64)
        both[:, 0, : self.letters] = p
        both[:, 1, -1] = 1.0
        return self.level(batch, both.flatten(0, 1))
