"""The symbol that occurs most often: counting alone, at any length."""

import math
from functools import cache
from typing import Annotated

import torch
from torch import Tensor

from pe_lab.data.problem import RandomProblems
from pe_lab.encodings.options import Count, Length, PositionCount, integers


class Majority(RandomProblems):
    """The symbol that occurs most often among n: START prompt SEP symbol END (Huang et al. 2024, arXiv:2410.02140).

    With n = 5, for instance `START 3 1 4 1 5 SEP 1 END PAD PAD ...` up to T = longest + 4. Prompts are uniform among
    those in which one symbol occurs more often than any other. See RandomProblems for the distribution of n and the
    splits.

    Order does not matter: what a position-blind model lacks is only whether the last of its symbols is the answer.

    Args:
        symbols: the number of different symbols, >= 2.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.
        bands: whether tests at more than the training length have all sizes of a band, see `longer`.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    answer_length = (0, 1)

    def __init__(
        self,
        seed: int,
        name: str = "majority",
        symbols: Annotated[int, integers(2, most=4096)] = 26,
        shortest: Length = 1,
        longest: PositionCount = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        self.bands = bands
        sizes = {"train": train, "validation": validation, "test": test}
        super().__init__(seed, name, symbols, shortest, longest, sizes)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        prompt = torch.randint(self.symbols, (len(n), self.n[-1]), generator=source)
        tied = torch.arange(len(n))
        while len(tied := tied[self._lead(n[tied], prompt[tied]) == 0]):
            prompt[tied] = torch.randint(self.symbols, (len(tied), self.n[-1]), generator=source)
        return prompt

    def count_prompts(self, n: int) -> int:
        return count_pluralities(self.symbols, n)

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return self._counts(n, prompt).argmax(1, keepdim=True)

    def marginal(self, share: Tensor) -> Tensor:
        return torch.full((self.symbols,), 1 / self.symbols, dtype=torch.float64)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        # k symbols are the prompt, or k - 1 are and the answer, the most frequent, is there
        k = counts.sum(1)
        top, most = counts.topk(2, dim=1)
        share = torch.cat((share, torch.zeros(1, dtype=torch.float64)))  # the answer may follow the most symbols
        prompt, answered = share[k] * self._probability_of_counts(k, counts), torch.zeros(len(k), dtype=torch.float64)
        rows = top[:, 0] - top[:, 1] > 1  # the prompt had a majority without it
        before = counts[rows] - torch.nn.functional.one_hot(most[rows, 0], self.symbols)
        answered[rows] = share[k[rows] - 1] * self._probability_of_counts(k[rows] - 1, before)
        p = torch.zeros(len(k), self.symbols + 1, dtype=torch.float64)
        p[torch.arange(len(k)), most[:, 0]], p[:, -1] = prompt, answered
        return p / p.sum(1, keepdim=True)

    def _probability_of_counts(self, k: Tensor, counts: Tensor) -> Tensor:
        """Return [N], the probability of the counts among prompts of size k: k! / (counts! prompts(k))."""
        scale = torch.zeros(int(k.max()) + 1 if len(k) else 1, dtype=torch.float64)
        for size in k.unique().tolist():
            if size:
                scale[size] = math.log(self.count_prompts(size))
        orders = (k + 1).double().lgamma() - (counts + 1).double().lgamma().sum(1)
        return (orders - scale[k]).exp()

    def _counts(self, n: Tensor, prompt: Tensor) -> Tensor:
        """Return [N, symbols], how often each symbol is in the first n of a prompt."""
        inside = (torch.arange(prompt.shape[1]) < n[:, None]).long()
        return torch.zeros(len(n), self.symbols, dtype=torch.long).scatter_add_(1, prompt, inside)

    def _lead(self, n: Tensor, prompt: Tensor) -> Tensor:
        """Return [N], by how much the most frequent symbol is ahead of the next."""
        top = self._counts(n, prompt).topk(2, dim=1).values
        return top[:, 0] - top[:, 1]


class BinaryMajority(Majority):
    """Whether n bits have more ones or more zeros: START bits SEP bit END (Huang et al. 2024, arXiv:2410.02140).

    With n = 5, for instance `START 1 0 1 1 0 SEP 1 END PAD PAD ...`. The number of ones is uniform, half of n excluded,
    and so few prompts are close. Otherwise as Majority.
    """

    def __init__(
        self,
        seed: int,
        name: str = "binary_majority",
        shortest: Length = 1,
        longest: PositionCount = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        super().__init__(seed, name, 2, shortest, longest, train, validation, test, bands)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        return _without_tie(n, self.n[-1], source)

    def _probability_of_counts(self, k: Tensor, counts: Tensor) -> Tensor:
        return 1 / (k + (k % 2)).clamp(min=1).double()  # of as many numbers of ones, one


class InterleavedMajority(RandomProblems):
    """The majorities of several streams of n bits, written in turn (Huang et al. 2024, arXiv:2410.02140).

    START bits SEP majorities END. With 3 streams of n = 3 bits, 1 0 1, 0 0 1 and 1 1 1, for instance
    `START 1 0 1 0 0 1 1 1 1 SEP 1 0 1 END PAD PAD ...`, up to T = streams longest + streams + 3. Each stream is drawn
    as the bits of BinaryMajority. To count a stream one must know its bits by their positions.

    Args:
        streams: the number of streams, 2 <= streams <= 8.
        shortest, longest: the range of n, the bits of a stream, in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.
        bands: whether tests at more than the training length have all sizes of a band, see `longer`.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    def __init__(
        self,
        seed: int,
        name: str = "interleaved_majority",
        streams: Annotated[int, integers(2, most=8)] = 3,
        shortest: Length = 1,
        longest: PositionCount = 8,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        self.streams = streams
        self.bands = bands
        self.prompt_length, self.answer_length = (streams, 0), (0, streams)
        sizes = {"train": train, "validation": validation, "test": test}
        super().__init__(seed, name, 2, shortest, longest, sizes)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        return torch.stack([_without_tie(n, self.n[-1], source) for _ in range(self.streams)], 2).flatten(1)

    def count_prompts(self, n: int) -> int:
        prompts: int = count_pluralities(2, n) ** self.streams
        return prompts

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        bits = prompt.view(len(n), -1, self.streams)
        inside = torch.arange(bits.shape[1]) < n[:, None]
        return (2 * (bits * inside[..., None]).sum(1) > n[:, None]).long()

    def marginal(self, share: Tensor) -> Tensor:
        return torch.full((2,), self.streams / 2, dtype=torch.float64)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        # the first tokens of an answer may be there; all that have as many tokens, and as many ones, are weighed
        distinct, row = counts.unique(dim=0, return_inverse=True)
        chances = cache(self._chances)
        p = torch.zeros(len(distinct), 3, dtype=torch.float64)
        for index, (zeros, ones) in enumerate(distinct.tolist()):
            for answered in range(self.streams + 1):
                n, rest = divmod(zeros + ones - answered, self.streams)
                if rest == 0 and n in self.n:
                    p[index] += share[n] * chances(n, answered)[:, ones]
        return (p / p.sum(1, keepdim=True))[row]

    def _chances(self, n: int, answered: int) -> Tensor:
        """Return [3, streams n + answered + 1]: P(ones among prompt and the first answers, next token), by ones."""
        many = torch.arange(n + 1)
        less, more = (2 * many < n).double(), (2 * many > n).double()
        less, more = less / (less.sum() + more.sum()), more / (less.sum() + more.sum())
        none = torch.zeros(1, dtype=torch.float64)
        with_answer = torch.cat((less, none)) + torch.cat((none, more))
        before = [with_answer] * answered
        if answered == self.streams:
            end = _sum_distribution(before)
            return torch.stack((torch.zeros_like(end), torch.zeros_like(end), end))
        after = [less + more] * (self.streams - answered - 1)
        p0, p1 = (_sum_distribution([*before, next_one, *after]) for next_one in (less, more))
        return torch.stack((p0, p1, torch.zeros_like(p1)))


def shuffle_ones(ones: Tensor, n: Tensor, width: int, source: torch.Generator) -> Tensor:
    """Return bits [N, width] of which the first n [N] have so many ones [N], in a random order; the others are 0."""
    key = torch.rand(len(n), width, dtype=torch.float64, generator=source)
    beyond = torch.arange(width) >= n[:, None]
    rank = key.masked_fill(beyond, 2.0).argsort(dim=1, stable=True).argsort(1)
    return (rank < ones[:, None]).long()


def _without_tie(n: Tensor, width: int, source: torch.Generator) -> Tensor:
    """Return bits [N, width]: the number of ones among the first n [N] is uniform, half of n excluded."""
    even = n % 2 == 0
    drawn = torch.rand(len(n), dtype=torch.float64, generator=source)
    ones = (drawn * (n + 1 - even.long())).long()
    return shuffle_ones(ones + (even & (ones >= n // 2)), n, width, source)


def _sum_distribution(distributions: list[Tensor]) -> Tensor:
    """Return the distribution of the sum of independent counts."""
    total = torch.ones(1, dtype=torch.float64)
    for each in distributions:
        total = torch.stack(
            [torch.nn.functional.pad(total * p, (k, len(each) - 1 - k)) for k, p in enumerate(each)]
        ).sum(0)
    return total


@cache
def count_pluralities(symbols: int, n: int) -> int:
    """Return how many sequences of n symbols have one that occurs more often than any other."""
    if symbols == 2:
        sequences: int = 2**n - (math.comb(n, n // 2) if n % 2 == 0 else 0)
        return sequences
    return symbols * sum(
        math.comb(n, most) * _count_at_most(symbols - 1, n - most, most - 1) for most in range(1, n + 1)
    )


@cache
def _count_at_most(symbols: int, n: int, most: int) -> int:
    """Return how many sequences of n symbols have none that occurs more than `most` times."""
    if n == 0:
        return 1
    if symbols == 0 or most <= 0 or n > symbols * most:
        return 0
    half, rest = symbols // 2, symbols - symbols // 2
    if symbols == 1:
        return 1
    return sum(
        math.comb(n, first) * _count_at_most(half, first, most) * _count_at_most(rest, n - first, most)
        for first in range(n + 1)
    )
