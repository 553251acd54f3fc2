"""PosGen: sequences whose terms are a function of others at fixed positions, equally hard at any length."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, Task
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.problem import BLOCK_PROBLEMS
from pe_lab.data.seeding import make_generator
from pe_lab.encodings.options import Count, Length, OptionError, integers

MAX_LISTED_SEQUENCES = 2**18  # sequences, at most, where prefixes are counted


class PosGen(HashSplitDataset):
    """Compute each term from the last ones and from some at fixed positions (Wang et al. 2024, arXiv:2403.00071).

    After a start token and near + far random terms, each term is the sum of the last `near` terms and of `far` others,
    modulo `modulus`, and is asked for. In the code published with it, the others are

    - recurrent: the terms just before the last `near`;
    - cot: the first terms of the sequence;
    - semirecurrent: those from the position i on for the computed terms 2i and 2i + 1, so that their distance grows.

    Later terms are no harder than earlier ones, but their positions are new in `longer` sequences. First terms are
    uniform; in the published code they ascend, and tests have first terms of the training.

    The prefix determines every answer. The position-blind floor is low all the same: few sequences have the multiset
    of a long prefix, so that a predictor that knows all of them knows which one it is. It counts all sequences, and is
    left out where there are more than 2^18 of them.

    Args:
        length: T, the start token included, > near + far + 1. Published: 64 terms in training, 256 in tests.
        modulus: the modulus of the sums, >= 2. Published: 17.
        near, far: the numbers of terms in a sum, >= 1. Published code: 3 and 1.
        kind: the positions of the others: recurrent, cot or semirecurrent.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few different sequences, see HashSplitDataset.
    """

    roles = ("term",)
    generates = True

    def __init__(
        self,
        seed: int,
        name: str = "posgen",
        length: Length = 64,
        modulus: Annotated[int, integers(2, most=4096)] = 17,
        near: Annotated[int, integers(1, most=64)] = 3,
        far: Annotated[int, integers(1, most=64)] = 1,
        kind: Literal["recurrent", "cot", "semirecurrent"] = "semirecurrent",
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        if length < near + far + 2:
            raise OptionError(f"length must be at least near + far + 2, {near + far + 2}, got {length}")
        super().__init__(seed, name, {"train": train, "validation": validation, "test": test})
        self.modulus, self.near, self.far, self.kind = modulus, near, far, kind
        self.drawn = (length,)
        self.task = Task(modulus + 1, length, outputs=modulus + 1, causal=True)
        self.require_room(modulus ** (near + far), "modulus", modulus)

    def longer(self, factor: float) -> "PosGen":
        """Return the dataset with T multiplied by the factor, rounded half to even."""
        length = round(factor * self.task.length)
        self.require_longer(factor, length, "length", self.task.length)
        return PosGen(self.seed, self.name, length, self.modulus, self.near, self.far, self.kind, **self.sizes)

    def draw(self, source: torch.Generator) -> Tensor:
        return self.continued(torch.randint(self.modulus, (BLOCK_PROBLEMS, self.near + self.far), generator=source))

    def continued(self, first: Tensor) -> Tensor:
        """Return the sequences [N, T] with these first terms [N, near + far]."""
        count = self.near + self.far
        terms = [*first.T]
        for number in range(self.task.length - 1 - count):
            start = {"recurrent": number, "cot": 0, "semirecurrent": number // 2}[self.kind]
            terms.append(sum(terms[start : start + self.far] + terms[-self.near :]) % self.modulus)
        return torch.stack((torch.full_like(terms[0], self.modulus), *terms), 1)

    def write(self, tokens: Tensor) -> Batch:
        """Return the sequences with their answers: all terms that are computed."""
        return self.with_targets_from(tokens, self.near + self.far)

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how sequences are drawn.

        "bayes" sees the prefix, "position_blind" its multiset of tokens, "prior" knows how often each term is right.
        Exact match of these two is left out.
        """
        batch = self.whole(split)
        has_target = batch.targets != IGNORE
        right = torch.nn.functional.one_hot(batch.targets[has_target], self.task.vocabulary).double()
        floors = {"bayes": self.level(batch, right) | {"exact_match": 1.0}}
        if self.modulus ** (self.near + self.far) <= MAX_LISTED_SEQUENCES:
            floors["position_blind"] = self.level(batch, self._blind(batch)[has_target])
        return floors | {"prior": self.level(batch, self._prior().expand_as(right))}

    def _prior(self) -> Tensor:
        """Return [V], how often each term is right.

        A term is a sum of multiples of the first ones, so it is uniform among the multiples of what these and the
        modulus have in common.
        """
        count = self.near + self.far
        multiples = self.continued(torch.eye(count, dtype=torch.long))[:, count + 1 :]
        common = torch.full_like(multiples[0], self.modulus)
        for row in multiples:
            common = torch.gcd(common, row)
        possible = torch.arange(self.task.vocabulary)[:, None] % common == 0
        possible[-1] = False
        return (possible.double() / possible.sum(0)).mean(1)

    def _blind(self, batch: Batch) -> Tensor:
        """Return [B, T, V], P(next term | multiset of the tokens so far), 0 where nothing is asked."""
        count = self.near + self.far
        first = torch.cartesian_prod(*[torch.arange(self.modulus)] * count)
        every = self.continued(first).T.contiguous()
        # multisets are told apart by sums of random weights: two are taken for one once in 10^8 floors
        weights = torch.randint(2**62, (self.task.vocabulary,), generator=make_generator(0, "multisets"))
        blind = torch.zeros(*batch.tokens.shape, self.task.vocabulary, dtype=torch.float64)
        sums, prefix = torch.zeros(len(first), dtype=torch.long), torch.zeros(len(batch), dtype=torch.long)
        for slot in range(self.task.length - 1):
            sums, prefix = sums + weights[every[slot]], prefix + weights[batch.tokens[:, slot]]
            if slot < count:
                continue
            multisets, row = prefix.unique(return_inverse=True)
            index = torch.searchsorted(multisets, sums).clamp(max=len(multisets) - 1)
            same = multisets[index] == sums
            joint = index[same] * self.task.vocabulary + every[slot + 1, same]
            counts = joint.bincount(minlength=len(multisets) * self.task.vocabulary).view(len(multisets), -1).double()
            blind[:, slot] = (counts / counts.sum(1, keepdim=True))[row]
        return blind
