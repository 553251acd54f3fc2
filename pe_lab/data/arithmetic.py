"""Arithmetic on written numbers: sums, and parities of bits."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pe_lab.data.majority import shuffle_ones
from pe_lab.data.problem import RandomProblems
from pe_lab.encodings.layout import UNMARKED
from pe_lab.encodings.options import Count, Length, PositionCount

PLUS_SYMBOL = 10  # the symbol after the digits
END_INDEX = PLUS_SYMBOL + 1  # index of END among the possible next tokens
MAX_LISTED_DIGITS = 3  # most digits of numbers whose pairs are enumerated: a million pairs


class Addition(RandomProblems):
    """The sum of two numbers of n digits each: START a + b SEP sum END.

    The sum is written with n + 1 digits; both numbers and the sum may begin with 0. The least significant digit comes
    first by default: then each digit of the sum depends on two digits and on a carry that has just been found, while
    the most significant one depends on all. With n = 2, for instance, 58 + 67 = 125 is
    `START 8 5 + 7 6 SEP 5 2 1 END PAD PAD ...`, and with order = big `START 5 8 + 6 7 SEP 1 2 5 END PAD PAD ...`,
    up to T = 3 longest + 5. See RandomProblems for the distribution of n and the splits. a + b is in the same split as
    b + a, but 15 % of the test's problems are in training with the digits of a column exchanged, which has the same
    sum. The position-blind floor is left out where numbers have more than 3 digits.

    Tokens are marked, for encodings that read marks: a digit by its significance, 1 for ones, 2 for tens, 3 for
    hundreds; + and SEP by 0; START, END and padding by UNMARKED.

    Args:
        order: the order of digits: little (least significant first) or big.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    prompt_length = (2, 1)
    answer_length = (1, 1)

    def __init__(
        self,
        seed: int,
        name: str = "addition",
        order: Literal["little", "big"] = "little",
        shortest: Length = 1,
        longest: PositionCount = 3,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        sizes = {"train": train, "validation": validation, "test": test}
        self.little = order == "little"
        super().__init__(seed, name, PLUS_SYMBOL + 1, shortest, longest, sizes)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        digits = torch.randint(10, (len(n), 2 * self.n[-1] + 1), generator=source)
        return digits.where(torch.arange(digits.shape[1]) != n[:, None], PLUS_SYMBOL)

    def largest_mark(self, n: int) -> int:
        return n + 1  # the mark of the sum's first or last digit

    def marks(self, n: Tensor) -> Tensor:
        slot, n = torch.arange(self.task.length), n[:, None]
        plus, sep, end = n + 1, 2 * n + 2, 3 * n + 4
        begins = torch.where(slot <= plus, 0, torch.where(slot <= sep, plus, sep))  # the slot before the number
        digits = torch.where(begins == sep, n + 1, n)
        place = slot - begins
        place = place if self.little else digits + 1 - place
        place = place.where((slot != plus) & (slot != sep), 0)
        return place.where((slot > 0) & (slot < end), UNMARKED)

    def count_prompts(self, n: int) -> int:
        prompts: int = 100**n
        return prompts

    def different(self, n: int) -> int:
        pairs: int = 10**n * (10**n + 1) // 2
        return pairs

    def key(self, prompt: list[int]) -> list[int]:
        n = len(prompt) // 2
        first, second = sorted((prompt[:n], prompt[n + 1 :]))
        return first + second

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        most = self.n[-1]
        digits, carry = [], torch.zeros_like(n)
        for column in range(most + 1):
            at = torch.full_like(n, column) if self.little else n - 1 - column
            inside = column < n
            pair = [prompt.gather(1, (at + shift).clamp(0, 2 * most)[:, None])[:, 0] for shift in (0, n + 1)]
            total = (pair[0] + pair[1]).where(inside, 0) + carry
            digits.append(total % 10)
            carry = total // 10
        written = torch.stack(digits, 1)
        return written if self.little else written.gather(1, (n[:, None] - torch.arange(most + 1)).clamp(min=0))

    def marginal(self, share: Tensor) -> Tensor:
        # all digits but the most significant are uniform; that one is the last carry, which is 1 with probability
        # (1 - 10^-n) / 2
        expected = torch.zeros(PLUS_SYMBOL + 1, dtype=torch.float64)
        for n in self.n:
            carry = (1 - 10.0**-n) / 2
            expected[:PLUS_SYMBOL] += n / 10 * share[n]
            expected[:2] += torch.tensor([1 - carry, carry], dtype=torch.float64) * share[n]
        return expected

    def blind(self, counts: Tensor, share: Tensor) -> Tensor | None:
        """Enumerate all problems, and count the next tokens after each multiset of digits."""
        if self.n[-1] > MAX_LISTED_DIGITS:
            return None
        base = 16 ** torch.arange(PLUS_SYMBOL)  # a digit occurs at most 3 MAX_LISTED_DIGITS + 1 times
        prefixes, row = (counts[:, :PLUS_SYMBOL] @ base).unique(return_inverse=True)
        weights = torch.zeros(len(prefixes), END_INDEX + 1, dtype=torch.float64)
        most = self.n[-1]
        for n in self.n:
            digits = torch.arange(100**n)[:, None] // 10 ** torch.arange(2 * n) % 10
            prompt = torch.full((len(digits), 2 * most + 1), PLUS_SYMBOL)
            prompt[:, :n], prompt[:, n + 1 : 2 * n + 1] = digits[:, :n], digits[:, n:]
            answer = self.answer(torch.full((len(digits),), n), prompt)
            seen = base[digits].sum(1)
            for slot in range(n + 2):
                follows = answer[:, slot] if slot <= n else torch.full_like(seen, END_INDEX)
                place = torch.searchsorted(prefixes, seen).clamp(max=len(prefixes) - 1)
                cell = (place * (END_INDEX + 1) + follows)[prefixes[place] == seen]
                weights += cell.bincount(minlength=weights.numel()).view_as(weights) * (share[n] * 100 ** (most - n))
                if slot <= n:
                    seen = seen + base[follows]
        return (weights / weights.sum(1, keepdim=True))[row]


class Parity(RandomProblems):
    """Whether the number of ones among n bits is odd: START bits SEP parity END.

    With n = 5, for instance `START 1 0 1 1 0 SEP 1 END PAD PAD ...` up to T = longest + 4. How n is distributed, and
    split, is said in RandomProblems. Order does not matter here: what a position-blind model lacks is only whether the
    last of its bits is the answer, and on longer problems not even that. Every string of the test is in training with
    its bits in another order.

    Args:
        ones: the distribution of the number of ones: `bits`, each bit is 0 or 1 with equal probability; `uniform`, 0 to
            n are equally likely (Huang et al. 2024, arXiv:2410.02140).
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.
        bands: whether tests at more than the training length have all sizes of a band, see `longer`.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    neutral: ClassVar[dict[str, object]] = {"ones": "bits", "bands": False}
    answer_length = (0, 1)

    def __init__(
        self,
        seed: int,
        name: str = "parity",
        ones: Literal["bits", "uniform"] = "bits",
        shortest: Length = 1,
        longest: PositionCount = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        self.uniform = ones == "uniform"
        self.bands = bands
        sizes = {"train": train, "validation": validation, "test": test}
        super().__init__(seed, name, 2, shortest, longest, sizes)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        if self.uniform:
            ones = (torch.rand(len(n), dtype=torch.float64, generator=source) * (n + 1)).long()
            return shuffle_ones(ones, n, self.n[-1], source)
        return torch.randint(2, (len(n), self.n[-1]), generator=source)

    def count_prompts(self, n: int) -> int:
        prompts: int = 2**n
        return prompts

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        inside = torch.arange(prompt.shape[1]) < n[:, None]
        return (prompt * inside).sum(1, keepdim=True) % 2

    def marginal(self, share: Tensor) -> Tensor:
        n = torch.arange(len(share), dtype=torch.float64)
        odd = ((n + 1) / 2).floor() / (n + 1) if self.uniform else torch.full_like(n, 0.5)
        return torch.stack((share @ (1 - odd), share @ odd))

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        # k bits are the prompt, or k - 1 are and the answer is there: then their ones, with it, are even
        k, ones = counts.sum(1), counts[:, 1]
        even = ones % 2 == 0
        share = torch.cat((share, torch.zeros(1, dtype=torch.float64)))  # the answer may follow the most bits
        if self.uniform:
            prompt = share[k] / (k + 1)
            answered = share[k - 1] / k * ((ones > 0).long() + (ones < k).long())  # the answer is a one, or a zero
        else:  # as many prompts have these counts with the answer as without, of half as many
            prompt, answered = share[k], 2 * share[k - 1]
        weights = torch.stack((prompt * even, prompt * ~even, answered * even), 1)
        return weights / weights.sum(1, keepdim=True)
