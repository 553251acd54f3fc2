"""Associative recall: attention solves it by content alone; an encoding can only hurt."""

from itertools import count
from math import factorial, prod
from typing import Annotated

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, InMemoryDataset, Task, mean_metrics
from pe_lab.data.problem import BLOCK_PROBLEMS, MIN_PROBLEMS, hash_split
from pe_lab.data.seeding import make_generator
from pe_lab.encodings.options import Count, Length, OptionError, Range, integers, is_number

BLANK_TOKEN = 0
WEIGHT_SCALE = 2**20  # weights of gaps as integers


class MQAR(InMemoryDataset):
    """Multi-query associative recall (Arora et al. 2023, arXiv:2312.04927, after the generator published with it).

    Pairs of a key and a value, then every key once more, where its value is asked; slots between are blank. With
    T = 16, 2 pairs and vocabulary 12, for instance (tokens, and answers below them):

        2 8 4 7 0 0 4 0 0 0 0 0 2 0 0 0
                    7           8

    Keys are 1 ... V/2 - 1, values V/2 ... V - 1, different within a sequence and uniform. A query stands at slot
    2 pairs + 2g. Each key in turn draws its gap g with a weight (g + 1)^(power - 1) among those not yet taken: with a
    power of 0.01 most gaps are short, with 1 all are equally likely. A hash of (seed, pairs, gaps) decides the split:
    a tenth of the sequences go to the test, a tenth to validation. `longer` has more of both: (T, pairs) = (64, 4)
    becomes (128, 8) at 2 and (256, 16) at 4.

    The pairs determine every answer. Without order any matching of keys to values is equally likely, so the
    position-blind loss is ln(pairs), and 1 / pairs! of the sequences are right as a whole.

    Args:
        length: T, even, >= 4 pairs.
        pairs: the number of pairs, >= 1, <= the number of keys.
        vocabulary: V, the number of tokens, even.
        power: the exponent in the distribution of gaps, in (0, 1].
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or fewer than 500 different lists of pairs.
    """

    roles = ("value",)
    draws = True

    def __init__(
        self,
        seed: int,
        name: str = "mqar",
        length: Length = 64,
        pairs: Count = 4,
        vocabulary: Annotated[int, integers(1, most=65_536)] = 256,
        power: Annotated[float, Range("in (0, 1]", lambda x: is_number(x) and 0 < x <= 1)] = 0.01,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        sizes = {"train": train, "validation": validation, "test": test}
        self.sizes = sizes
        self.pairs = pairs
        self.power = power
        if length % 2 or length < 4 * pairs:
            raise OptionError(f"length must be even and at least 4 x pairs, {4 * pairs}, got {length}")
        values = vocabulary // 2
        keys = values - 1
        if vocabulary % 2 or keys < pairs:
            raise OptionError(f"vocabulary must be even and at least 2 x pairs + 2, {2 * pairs + 2}, got {vocabulary}")
        if prod((keys - i) * (values - i) for i in range(pairs)) < MIN_PROBLEMS:
            raise OptionError(
                f"vocabulary must leave at least {MIN_PROBLEMS} lists of pairs to split, got {vocabulary}"
            )
        self.seed = seed
        self.name = name
        self.keys, self.values = keys, values
        self.task = Task(vocabulary=vocabulary, length=length, outputs=vocabulary, causal=True)

    def longer(self, factor: float) -> "MQAR":
        """Multiply T and pairs by the factor, and round T to an even number and pairs to an integer (half to even)."""
        length, pairs = 2 * round(factor * self.task.length / 2), round(factor * self.pairs)
        if length <= self.task.length:
            raise ValueError(
                f"evaluate.lengths must lead to sequences longer than data.length, {self.task.length}, for "
                f"data={self.name}, got {factor:g}, which leads to {length}"
            )
        if pairs > self.keys:
            raise ValueError(
                f"evaluate.lengths must lead to at most {self.keys} pairs, the number of keys, for data={self.name}, "
                f"got {factor:g}, which leads to {pairs}"
            )
        if length < 4 * pairs:
            raise ValueError(
                f"evaluate.lengths must lead to at least 4 slots per pair for data={self.name}, got {factor:g}, which "
                f"leads to {length} slots and {pairs} pairs"
            )
        return MQAR(self.seed, self.name, length, pairs, self.task.vocabulary, self.power, **self.sizes)

    def token_texts(self, tokens: Tensor) -> list[str]:
        return ["·" if token == BLANK_TOKEN else str(token) for token in tokens.tolist()]

    def size(self, split: str) -> int:
        return self.sizes[split]

    def make(self, split: str) -> Batch:
        blocks: list[tuple[Tensor, Tensor, Tensor]] = []
        for block in count():
            source = make_generator(self.seed, self.name, *self.draw_name(split), self.task.length, self.pairs, block)
            keys = 1 + _different(torch.ones(self.keys, dtype=torch.long), self.pairs, source)
            values = 1 + self.keys + _different(torch.ones(self.values, dtype=torch.long), self.pairs, source)
            gaps = _different(self.weights, self.pairs, source)
            rows = torch.cat((keys, values, gaps), 1).tolist()
            members = torch.tensor([hash_split(self.seed, self.name, row) == split for row in rows])
            blocks.append((keys[members], values[members], gaps[members]))
            if sum(len(keys) for keys, _, _ in blocks) >= self.size(split):
                break
        return self.write(*(torch.cat(parts)[: self.size(split)] for parts in zip(*blocks, strict=True)))

    @property
    def weights(self) -> Tensor:
        """[G] integers proportional to the weights of the gaps."""
        gaps = self.task.length // 2 - self.pairs
        return torch.tensor([round(WEIGHT_SCALE * (g + 1) ** (self.power - 1)) for g in range(gaps)])

    def write(self, keys: Tensor, values: Tensor, gaps: Tensor) -> Batch:
        """Return the sequences with these keys, values and gaps, [N, pairs] each."""
        size, length, context = len(keys), self.task.length, 2 * self.pairs
        tokens = torch.full((size, length), BLANK_TOKEN)
        tokens[:, :context:2], tokens[:, 1:context:2] = keys, values
        queries = context + 2 * gaps
        tokens.scatter_(1, queries, keys)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, queries, values)
        whole = torch.full((size,), length)
        return Batch(tokens, targets, torch.zeros_like(tokens), targets != IGNORE, self.task.layout(whole, length))

    def floors(self, split: str) -> Floors:
        """Return exact floors of predictors that know how sequences are made; the same for every sequence.

        "bayes" sees the prefix, "position_blind" its multiset of tokens, "prior" knows the set of values.
        """
        batch = self.whole(split)

        def level(equal: int) -> dict[str, float]:
            """Return the metrics for a number of equally likely answers."""
            hit = torch.full(batch.targets.shape, 1 / equal, dtype=torch.float64)
            return mean_metrics(-hit.log(), batch, self.roles) | mean_metrics(hit, batch, (), "accuracy")

        return {
            "bayes": level(1) | {"exact_match": 1.0},
            "position_blind": level(self.pairs) | {"exact_match": 1 / factorial(self.pairs)},
            "prior": level(self.values),
        }


def _different(weights: Tensor, number: int, source: torch.Generator) -> Tensor:
    """Draw [BLOCK_PROBLEMS, number] indices by integer weights, without repetition within a row."""
    ends = weights.cumsum(0)
    drawn = torch.full((BLOCK_PROBLEMS, 0), -1)
    for _ in range(number):
        index = torch.full((BLOCK_PROBLEMS, 1), -1)
        again = torch.ones(BLOCK_PROBLEMS, dtype=torch.bool)
        while again.any():
            fresh = torch.searchsorted(
                ends, torch.randint(int(ends[-1]), (BLOCK_PROBLEMS, 1), generator=source), right=True
            )
            index = index.where(~again[:, None], fresh)
            again = (index == drawn).any(1)
        drawn = torch.cat((drawn, index), 1)
    return drawn
