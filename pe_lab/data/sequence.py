"""Sequences to copy, reverse, sort and repeat: tasks for generalisation to longer sequences."""

import math
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from pe_lab.data.base import Floors, mean_metrics, surprisal
from pe_lab.data.problem import NUM_SHARES, Problems, RandomProblems
from pe_lab.data.seeding import derive_seed
from pe_lab.encodings.options import Count, Length, OptionError, PositionCount, integers

Symbols = Annotated[int, integers(2, most=65_536)]
CHUNK_MULTISETS = 4096  # multisets counted together
MAX_COUNTED_SYMBOLS = 128  # symbols of a prompt, at most, where multisets are counted: the work grows with the cube


class Copy(RandomProblems):
    """Copy n symbols: START prompt SEP answer END.

    With n = 3, for instance `START 3 1 4 SEP 3 1 4 END PAD PAD ...` up to T = 2 longest + 3. See RandomProblems for the
    distribution of n and the splits. The position-blind floor is left out where prompts have more than 128 symbols.

    Args:
        symbols: the number of different symbols, >= 2, each equally likely.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.
        train, validation, test: the number of problems in each split, >= 1.
        bands: whether tests at more than the training length have all sizes of a band, see `longer`.

    Raises:
        ValueError: an option out of its range, or too few problems, see RandomProblems.
    """

    neutral: ClassVar[dict[str, object]] = {"bands": False}

    def __init__(
        self,
        seed: int,
        name: str = "copy",
        symbols: Symbols = 10,
        shortest: Length = 1,
        longest: PositionCount = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
        bands: bool = False,
    ) -> None:
        sizes = {"train": train, "validation": validation, "test": test}
        self.bands = bands
        super().__init__(seed, name, symbols, shortest, longest, sizes)

    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        return torch.randint(self.symbols, (len(n), self.n[-1]), generator=source)

    def count_prompts(self, n: int) -> int:
        prompts: int = self.symbols**n
        return prompts

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return prompt

    def marginal(self, share: Tensor) -> Tensor:
        return _expected_counts(share, self.symbols)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor | None:
        if self.n[-1] > MAX_COUNTED_SYMBOLS:
            return None
        order = counts.sum(1).argsort()  # multisets of about the same size are counted together: small ones are fast
        parts = [half_written(part, share) for part in counts[order].split(CHUNK_MULTISETS)]
        return torch.cat(parts)[order.argsort()]


class Reverse(Copy):
    """Write n symbols from the last to the first; otherwise as Copy.

    With n = 3, for instance `START 3 1 4 SEP 4 1 3 END PAD PAD ...`.
    """

    def __init__(self, seed: int, name: str = "reverse", **options: Any) -> None:
        super().__init__(seed, name, **options)

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return prompt.gather(1, (n[:, None] - 1 - torch.arange(prompt.shape[1])).clamp(min=0))


class Sort(Copy):
    """Write n symbols in ascending order; otherwise as Copy.

    With n = 4, for instance `START 3 1 4 1 SEP 1 1 3 4 END PAD PAD ...`. Prompts with the same symbols in another order
    are in the same split. The position-blind floor is 0 on longer problems: order does not matter, n is known.
    """

    def __init__(self, seed: int, name: str = "sort", **options: Any) -> None:
        super().__init__(seed, name, **options)

    def different(self, n: int) -> int:
        return math.comb(n + self.symbols - 1, n)

    def key(self, prompt: list[int]) -> list[int]:
        return sorted(prompt)

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return sort_prompts(n, prompt, self.symbols)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        return half_sorted(counts, share)


def sort_prompts(n: Tensor, prompt: Tensor, symbols: int) -> Tensor:
    """Return prompts [N, longest] with their first n [N] entries sorted; `symbols`, larger than all, stands beyond."""
    beyond = torch.arange(prompt.shape[1]) >= n[:, None]
    return prompt.masked_fill(beyond, symbols).sort(1).values


class Repeat(Problems):
    """Repeat one symbol n times: a task of counting only (Kazemnejad et al. 2023, arXiv:2305.19466).

    With n = 3, for instance `START 7 7 7 SEP 7 7 7 END PAD PAD ...` up to T = 2 longest + 3. Every (symbol, n) is in
    one split, once: a tenth in the test, a tenth in validation, by the order of a hash; so n is about uniform in each,
    and training has every n, with other symbols.
    The position-blind floor is 0 on longer problems, whose one n it knows. There are few problems: of a predictor that
    knows which are in the test it is 0.05 instead of 0.24, see `floors`.

    Args:
        symbols: the number of different symbols, >= 2.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.

    Raises:
        ValueError: an option out of its range, or fewer than 10 problems.
    """

    floors_revision = 2

    def __init__(
        self, seed: int, name: str = "repeat", symbols: Symbols = 100, shortest: Length = 1, longest: PositionCount = 16
    ) -> None:
        super().__init__(seed, name, symbols, shortest, longest)
        if not self.size("test"):
            raise OptionError(f"longest must leave at least {NUM_SHARES} problems to split, got {longest}")

    def size(self, split: str) -> int:
        return len(self._indices(split))

    def _indices(self, split: str) -> range:
        """Return the range of a split in the order of the hash."""
        total = self.symbols * len(self.n)
        if self.beyond:
            return range(total if split == "test" else 0)
        share = total // NUM_SHARES
        return {"test": range(share), "validation": range(share, 2 * share), "train": range(2 * share, total)}[split]

    def problems(self, split: str) -> tuple[Tensor, Tensor]:
        everything = [(n, symbol) for n in self.n for symbol in range(self.symbols)]
        everything.sort(key=lambda problem: derive_seed(self.seed, self.name, *problem))
        mine = [everything[index] for index in self._indices(split)]
        n, symbol = torch.tensor(mine, dtype=torch.long).view(-1, 2).T
        return n, symbol[:, None].expand(-1, self.n[-1])

    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        return prompt

    def marginal(self, share: Tensor) -> Tensor:
        return _expected_counts(share, self.symbols)

    def blind(self, counts: Tensor, share: Tensor) -> Tensor:
        # k symbols are n in the prompt and k - n <= n in the answer; END comes next if both are k / 2
        k = counts.sum(1, keepdim=True)
        n = torch.arange(len(share))
        possible = share * ((n <= k) & (k <= 2 * n))
        done = (share * (2 * n == k)).sum(1, keepdim=True) / possible.sum(1, keepdim=True)
        return torch.cat(((counts > 0) * (1 - done), done), 1)

    def floors(self, split: str) -> Floors:
        """Return the floors of Problems, and "position_blind_split_known", which also knows the problems of the split.

        No function of the unordered tokens has a lower mean loss on the split.
        """
        batch = self.whole(split)
        level = mean_metrics(surprisal(batch, ordered=False), batch, self.roles)
        return super().floors(split) | {"position_blind_split_known": level}


def _expected_counts(share: Tensor, symbols: int) -> Tensor:
    """Return [symbols], expected counts among n equally likely symbols, where size n has share [n + 1]."""
    return (share @ torch.arange(len(share)).double() / symbols).expand(symbols)


def half_written(counts: Tensor, share: Tensor) -> Tensor:
    """Return P(next token) [N, S + 1], END last, given the multiset of n symbols and of the a that are copied so far.

    The prompt is A + B, where A has been written and B has not: counts = 2A + B. So the weight of (n, a) is
    P(n) S^-n a! b! times the coefficient of z^a in prod_s sum_i z^i / (i! (counts_s - 2i)!), with b = n - a, and the
    next symbol is s with probability E[B_s] / b. These are sums of positive terms only; factors u^a v^b, the same for
    all multisets of a size, keep them within range.

    Args:
        counts: [N, S] how often each symbol occurs.
        share: [n + 1] the probability P(n) of each n, from 0 to the largest.
    """
    S = counts.shape[1]
    counts, order = counts.sort(1)  # products stay short for long
    k = counts.sum(1, keepdim=True)
    a = torch.arange(int(k.max()) // 2 + 1)
    b = k - 2 * a  # n - a, where n + a = k
    likely = _size_probability(share, k - a)
    possible = (b >= 0) & (likely > 0)
    middle = (a * possible).sum(1, keepdim=True) / possible.sum(1, keepdim=True).double()
    u, v = middle / S, (k - 2 * middle) / S

    factors, products = [], [torch.ones_like(middle)]
    for c in counts.T[..., None]:
        size = a[: int(c.max()) // 2 + 1]
        rest = (c - 2 * size).clamp(min=0)
        log = torch.xlogy(size, u) + torch.xlogy(rest, v) - _log_factorial(size) - _log_factorial(rest)
        log = log.masked_fill(2 * size > c, -torch.inf)
        factors.append((log - log.amax(1, keepdim=True)).exp())
        products.append(_polynomial_product(products[-1], factors[-1], len(a)))
    last = torch.nn.functional.pad(products[-1], (0, len(a) - products[-1].shape[1]))

    weight = _log_factorial(a) + _log_factorial(b.clamp(min=0)) - (k - a).double() * math.log(S) + likely.log()
    weight = weight - torch.xlogy(a, u) - torch.xlogy(b.clamp(min=0), v)
    total = (weight + last.log()).masked_fill(~possible, -torch.inf).logsumexp(1, keepdim=True)
    weight = (weight - total).exp().where(possible, 0)
    done = (weight * last).where(b == 0, 0).sum(1, keepdim=True)

    follows = _expected_rest((weight / b).where(b > 0, 0), counts, factors, products)
    return torch.cat((torch.zeros_like(follows).scatter(1, order, follows), done), 1)


def _expected_rest(weight: Tensor, counts: Tensor, factors: list[Tensor], products: list[Tensor]) -> Tensor:
    """Return [N, S], the sums over a of the weight of a times the expected count of each symbol in B.

    Args:
        weight: [N, A] the weights of the coefficients of z^a in the last product.
        counts: [N, S] how often each symbol occurs.
        factors: [N, F] for each symbol, a polynomial in z, whose power is the count in A.
        products: [N, C] for each symbol, the product of the factors before it.
    """
    # slope: of the weighted sum by the coefficients of each product, from the last to the first
    slope = weight
    follows = torch.zeros(counts.shape, dtype=torch.float64)
    for s in reversed(range(counts.shape[1])):
        factor, product = factors[s], products[s]
        shifted = torch.nn.functional.pad(slope, (0, factor.shape[1])).unfold(1, product.shape[1], 1)
        slope = torch.zeros_like(product)
        for i in range(factor.shape[1]):
            b_s = counts[:, s] - 2 * i
            follows[:, s] += factor[:, i] * b_s * (shifted[:, i] * product).sum(1)
            slope += factor[:, i, None] * shifted[:, i]
    return follows


def _polynomial_product(product: Tensor, factor: Tensor, terms: int) -> Tensor:
    """Return the first D coefficients of products of polynomials with coefficients [N, C] and [N, F]."""
    out = product.new_zeros(len(product), min(terms, product.shape[1] + factor.shape[1] - 1))
    for i in range(factor.shape[1]):
        out[:, i : i + product.shape[1]] += product[:, : out.shape[1] - i] * factor[:, i, None]
    return out


def half_sorted(counts: Tensor, share: Tensor) -> Tensor:
    """Return P(next token) [N, S + 1], END last, given the multiset of n symbols and of their a smallest.

    If j of symbol s and all smaller ones are written, the prompt has half the counts below s, counts_s - j of s, and
    the counts above: n and the prompt are known, and its weight is P(n) S^-n times its number of orders.

    Args:
        counts: [N, S] how often each symbol occurs.
        share: [n + 1] the probability P(n) of each n, from 0 to the largest.
    """
    S = counts.shape[1]
    k = counts.sum(1)
    even = torch.nn.functional.pad((counts % 2 == 0).long(), (1, 0), value=1).cumprod(1).bool()
    below = torch.nn.functional.pad(counts // 2, (1, 0)).cumsum(1)
    halves = torch.nn.functional.pad(_log_factorial(counts // 2), (1, 0)).cumsum(1)
    above = torch.nn.functional.pad(_log_factorial(counts), (0, 1)).flip(1).cumsum(1).flip(1)

    def weight(a: Tensor, possible: Tensor, orders: Tensor) -> Tensor:
        size = k - a
        weights = _log_factorial(size) - orders - size.double() * math.log(S) + _size_probability(share, size).log()
        return weights.masked_fill(~possible, -torch.inf)

    logs = torch.full((len(k), S + 1), -torch.inf, dtype=torch.float64)
    for s, c in enumerate(counts.T):
        for j in range((int(c.max()) + 1) // 2):
            orders = halves[:, s] + _log_factorial((c - j).clamp(min=0)) + above[:, s + 1]
            term = weight(below[:, s] + j, even[:, s] & (2 * j < c), orders)
            logs[:, s] = logs[:, s].logaddexp(term)
    logs[:, S] = weight(below[:, S], even[:, S], halves[:, S])
    return logs.softmax(1)


def _size_probability(share: Tensor, n: Tensor) -> Tensor:
    """Return P(n), 0 for sizes without a share."""
    return share[n.clamp(max=len(share) - 1)].where(n < len(share), 0.0)


def _log_factorial(x: Tensor) -> Tensor:
    return (x + 1).double().lgamma()
