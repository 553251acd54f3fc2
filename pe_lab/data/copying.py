"""Copies of symbols that are all different, also in ascending order, and of the symbols among blanks."""

import math
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from pe_lab.data.sequence import Copy, sort_prompts
from pe_lab.encodings.options import Count, Length, OptionError, PositionCount, integers

SORT_KEYS = 2**62  # to sort by: two of them are equal once in 10^15 sequences of a hundred tokens


class UniqueCopy(Copy):
    """Copy n symbols that are all different: START prompt SEP answer END (Huang et al. 2024, arXiv:2410.02140).

    With n = 3, for instance `START 3 1 4 SEP 3 1 4 END PAD PAD ...` up to T = 2 longest + 3. Each symbol names its
    place, so that the next one can be found by its content. See RandomProblems for the distribution of n and the
    splits.

    The multiset of a prefix says which symbols are written, those that it has twice, and leaves the order of the
    others: the position-blind loss is ln(n!) / (n + 1), the mean of ln(b) for b symbols left, and of 0 for END.

    Args:
        symbols: the number of different symbols, >= longest, <= 4096; it limits `longer` as well.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.
        bands: whether tests at more than the training length have all sizes of a band, see `longer`.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    def __init__(
        self,
        seed: int,
        name: str = "unique_copy",
        symbols: Annotated[int, integers(2, most=4096)] = 64,
        shortest: Length = 1,
        longest: PositionCount = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        if longest > symbols:
            raise OptionError(f"longest must be at most symbols, {symbols}, since no symbol comes twice, got {longest}")
        super().__init__(seed, name, symbols, shortest, longest, train, validation, test, bands)

    def longer(self, factor: float) -> Self:
        longer = super().longer(factor)
        if longer.n[-1] > self.symbols:
            raise ValueError(
                f"evaluate.lengths must lead to a size of at most data.symbols, {self.symbols}, for data={self.name}, "
                f"got {factor:g}, which leads to {longer.n[-1]}"
            )
        return longer

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        return shuffle_symbols(len(n), self.symbols, source)[:, : self.n[-1]]

    def count_prompts(self, n: int) -> int:
        return math.perm(self.symbols, n)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        left = (counts == 1).double()
        number = left.sum(1, keepdim=True)
        return torch.cat((left / number.clamp(min=1), (number == 0).double()), 1)


class UniqueSort(UniqueCopy):
    """Write n different symbols in ascending order; otherwise like UniqueCopy (arXiv:2410.02140).

    With n = 3, for instance `START 3 1 4 SEP 1 3 4 END PAD PAD ...`. Prompts with the same symbols in another order are
    in the same split. Order does not matter here: the symbols that occur once in a prefix are those to come, and the
    smallest of them is next, so that the position-blind loss is 0.
    """

    def __init__(self, seed: int, name: str = "unique_sort", **options: Any) -> None:
        super().__init__(seed, name, **options)

    def different(self, n: int) -> int:
        return math.comb(self.symbols, n)

    def key(self, prompt: list[int]) -> list[int]:
        return sorted(prompt)

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return sort_prompts(n, prompt, self.symbols)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        left = torch.cat((counts == 1, torch.ones(len(counts), 1, dtype=torch.bool)), 1)  # END where none is left
        return torch.nn.functional.one_hot(left.int().argmax(1), left.shape[1]).double()


class SelectiveCopy(Copy):
    """Copy the n symbols that stand among blanks: START prompt SEP answer END (arXiv:2405.18719).

    The prompt has n symbols and blanks n + extra blanks, in every order equally likely. With n = 3 and a blank for
    each, for instance `START 3 _ _ 1 4 _ SEP 3 1 4 END PAD PAD ...`. See RandomProblems for the distribution of n and
    the splits. The place of a symbol is the number of symbols before it, not of tokens. The published numbers of
    blanks in docs/tasks.md are from its abstract and from a table that quotes it; its section on the task was not read.

    The position-blind predictor knows n if n follows from the number of blanks. The floor is left out if n is above
    128.

    Args:
        symbols: the number of different symbols, >= 2, each equally likely; the blank is one more.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        blanks: the number of blanks for each symbol, >= 0.
        extra: the number of blanks beside them, >= 0; `blanks` and `extra` are not both 0.
        train, validation, test: the number of problems in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    def __init__(
        self,
        seed: int,
        name: str = "selective_copy",
        symbols: Annotated[int, integers(2, most=65_535)] = 10,  # and the blank
        shortest: Length = 1,
        longest: PositionCount = 16,
        blanks: Annotated[int, integers(0, most=1024)] = 1,
        extra: Annotated[int, integers(0, most=65_536)] = 0,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        if blanks + extra == 0:
            raise OptionError("blanks must be at least 1 where extra is 0, got 0")
        self.blank = symbols
        self.blanks = blanks
        self.prompt_length = (1 + blanks, extra)
        super().__init__(seed, name, symbols + 1, shortest, longest, train, validation, test)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        per_n, more = self.prompt_length
        most = per_n * self.n[-1] + more
        symbols = torch.randint(self.blank, (len(n), most), generator=source)
        key = torch.randint(SORT_KEYS, (len(n), most), generator=source)
        beyond = torch.arange(most) >= (per_n * n + more)[:, None]
        rank = key.masked_fill(beyond, SORT_KEYS).argsort(dim=1, stable=True).argsort(1)
        return symbols.where(rank < n[:, None], self.blank)

    def count_prompts(self, n: int) -> int:
        per_n, more = self.prompt_length
        prompts: int = self.blank**n * math.comb(per_n * n + more, n)
        return prompts

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        # symbols before blanks, in their order; what stands beyond the prompt comes after its n symbols
        return prompt.gather(1, (prompt == self.blank).long().argsort(dim=1, stable=True))

    def marginal(self, share: Tensor) -> Tensor:
        expected = super().marginal(share) * self.symbols / self.blank
        return expected.where(torch.arange(self.symbols) < self.blank, 0.0)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor | None:
        symbols, blanks = counts[:, : self.blank], counts[:, self.blank]
        p = torch.zeros(len(counts), self.blank + 1, dtype=torch.float64)
        shares = [(torch.ones_like(blanks, dtype=torch.bool), share)]
        if self.blanks:  # their number says n
            per_n, more = self.prompt_length
            shares = [(blanks == (per_n - 1) * n + more, one_hot(n)) for n in self.n]
        for rows, sizes in shares:
            if not rows.any():
                continue
            blind = super().blind(symbols[rows], sizes)
            if blind is None:
                return None
            p[rows] = blind
        return torch.cat((p[:, :-1], torch.zeros(len(p), 1, dtype=torch.float64), p[:, -1:]), 1)


def one_hot(n: int) -> Tensor:
    """Return [n + 1], the shares of sizes if all are n."""
    return torch.eye(n + 1, dtype=torch.float64)[n]


def shuffle_symbols(rows: int, symbols: int, source: torch.Generator) -> Tensor:
    """Draw all symbols in a random order, [rows, symbols]."""
    return torch.randint(SORT_KEYS, (rows, symbols), generator=source).argsort(dim=1, stable=True)
