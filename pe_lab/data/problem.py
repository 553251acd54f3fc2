"""Problems of many sizes: START prompt SEP answer END, with the answer predicted token by token."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, InMemoryDataset, Task, predictor_metrics, unseen_rows
from pe_lab.data.seeding import derive_seed, make_generator
from pe_lab.encodings.options import OptionError

NUM_SHARES = 10  # one share of the problems is for the test, one for validation, the others for training
MIN_PROBLEMS = 500  # different problems to draw from: then a split without any has a chance below 1e-22
PROBLEMS_PER_SEQUENCE = (
    20  # problems for each that is asked of a split without copies: about half of its share are drawn
)
BLOCK_PROBLEMS = 4096  # problems of a draw
MAX_IDLE_DRAWS = 100  # draws in a row without a new problem, after which a split is complete
ANSWER, LAST = range(2)
MARKERS = ("START", "SEP", "END", "PAD")  # the tokens after the symbols


class Problems(InMemoryDataset):
    """Base of tasks with problems of size n and their answers: START prompt SEP answer END, then padding.

    The headline is the answer with END; nothing else is asked. The prompt determines it: the Bayes loss is 0.

    Args:
        symbols: the number of tokens that prompts and answers are written with; START, SEP, END and PAD come after
            them.
        shortest, longest: the range of n in training, 1 <= shortest <= longest.

    Attributes:
        prompt_length, answer_length: the lengths in tokens, as (a, b) for a n + b.
        n: the range of the sizes.
        bands: whether longer problems have all sizes of a band as wide as the range in training, instead of one size.

    Raises:
        ValueError: an option out of its range.
    """

    roles = ("answer", "end")
    generates = True
    prompt_length = (1, 0)
    answer_length = (1, 0)
    bands = False

    def __init__(self, seed: int, name: str, symbols: int, shortest: int, longest: int) -> None:
        if shortest > longest:
            raise OptionError(f"shortest must be at most longest, {longest}, got {shortest}")
        self.seed = seed
        self.name = name
        self.symbols = symbols
        self.longest = longest
        self._set_sizes(range(shortest, longest + 1))

    def _set_sizes(self, n: range) -> None:
        """Set the sizes of the problems."""
        self.n = n
        length = 3 + sum(per_n * n[-1] + more for per_n, more in (self.prompt_length, self.answer_length))
        vocabulary = self.symbols + len(MARKERS)
        self.task = Task(vocabulary, length, outputs=vocabulary, causal=True, marks=self.largest_mark(n[-1]))

    @abstractmethod
    def problems(self, split: str) -> tuple[Tensor, Tensor]:
        """Return sizes [N] and prompts [N, P] of a split; entries beyond a prompt's length are not read."""

    @abstractmethod
    def answer(self, n: Tensor, prompt: Tensor) -> Tensor:
        """Return answers [N, A] to prompts [N, P] of sizes [N]; entries beyond an answer's length are not read."""

    @abstractmethod
    def marginal(self, share: Tensor) -> Tensor:
        """Return [symbols], the expected count of each symbol in an answer; `share` [n + 1] of problems have size n."""

    @abstractmethod
    def blind(self, counts: Tensor, share: Tensor) -> Tensor | None:
        """Return [N, symbols + 1], P(next symbol or END | multiset of the tokens so far).

        Args:
            counts: [N, symbols] how often each symbol is in the prompt and the answer so far; SEP is there.
            share: [n + 1] the share of the problems of each size, from 0 to the largest, n.

        Returns:
            The probabilities; None where there are too many cases to count.
        """

    def largest_mark(self, n: int) -> int | None:
        """Return the largest mark of a token in problems of size n; None: tokens are not marked."""
        return None

    def marks(self, n: Tensor) -> Tensor | None:
        """Return the marks [N, T] of the tokens of problems of sizes [N], see Layout; None: tokens are not marked."""
        return None

    def longer(self, factor: float) -> Self:
        """Return the same task with test problems of size round(factor * longest), half to even.

        With `bands`, of this size and of smaller ones, `longest` in all: with longest = 50, 51 ... 100 at factor 2.
        """
        n = round(factor * self.longest)
        if n <= self.longest:
            raise ValueError(
                f"evaluate.lengths must lead to a size above data.longest, {self.longest}, for data={self.name}, got "
                f"{factor:g}, which leads to {n}"
            )
        longer = copy(self)
        vars(longer).pop("_splits", None)  # the copy makes its own sequences
        longer._set_sizes(range(max(self.longest + 1, n - self.longest + 1) if self.bands else n, n + 1))
        return longer

    @property
    def beyond(self) -> bool:
        """Whether the problems are longer than those of training; then all are in the test split."""
        return self.n[0] > self.longest

    def token_texts(self, tokens: Tensor) -> list[str]:
        words = [*map(str, range(self.symbols)), *MARKERS]
        return [words[token] for token in tokens.tolist()]

    def make(self, split: str) -> Batch:
        return self.write(*self.problems(split))

    def write(self, n: Tensor, prompt: Tensor) -> Batch:
        """Return problems, sizes [N] and prompts [N, P], with their answers as sequences."""
        start, sep, end, pad = range(self.symbols, self.symbols + len(MARKERS))
        slot = torch.arange(self.task.length).expand(len(n), -1)
        at_sep = 1 + _length(self.prompt_length, n)[:, None]
        at_end = at_sep + 1 + _length(self.answer_length, n)[:, None]
        tokens = torch.where(slot == at_end, end, pad)
        tokens = tokens.where(slot >= at_end, _values_at(self.answer(n, prompt), slot - at_sep - 1))
        tokens = tokens.where(slot != at_sep, sep)
        tokens = tokens.where(slot >= at_sep, _values_at(prompt, slot - 1))
        tokens = tokens.where(slot != 0, start)

        # slot t asks for token t + 1
        has_target = (slot >= at_sep) & (slot < at_end)
        targets = tokens.roll(-1, 1).where(has_target, IGNORE)
        role = torch.where(targets == end, LAST, ANSWER)
        layout = self.task.layout(at_end[:, 0] + 1, self.task.length)
        return Batch(tokens, targets, role, has_target, replace(layout, marks=self.marks(n)))

    def share(self, batch: Batch) -> Tensor:
        """Return [n + 1], the probability of each size up to the largest in a split; sizes are equally likely."""
        share = torch.zeros(self.n[-1] + 1, dtype=torch.float64)
        share[self.n[0] :] = 1 / len(self.n)
        return share

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how problems and sizes are drawn.

        "bayes" sees the prefix. "position_blind" sees the multiset of its tokens, so not how many belong to the prompt
        (unless there is one size only), and does not know which problems are in the split. "prior" knows how often each
        answer is right. Exact match of these two is left out: the best tokens one by one need not make the best
        answer.
        """
        batch = self.whole(split)
        share = self.share(batch)
        has_target = batch.targets != IGNORE
        right = batch.targets[has_target].clamp(max=self.symbols)[:, None]  # END comes after the symbols

        sure = torch.zeros(len(right), self.symbols + 1, dtype=torch.float64).scatter(1, right, 1.0)
        floors = {"bayes": self.level(batch, sure) | {"exact_match": 1.0}}
        blind = self.blind(self.counts(batch), share)
        if blind is not None:
            floors["position_blind"] = self.level(batch, blind)
        expected = torch.cat((self.marginal(share), torch.ones(1, dtype=torch.float64)))
        return floors | {"prior": self.level(batch, (expected / expected.sum()).expand(len(right), -1))}

    def level(self, batch: Batch, p: Tensor) -> dict[str, float]:
        """Return the metrics of a predictor on a batch; ties are broken at random.

        Args:
            p: [N, symbols + 1] the predictor's probability of each symbol and of END, in the slots with an answer.
        """
        return predictor_metrics(p, batch, self.roles)

    def counts(self, batch: Batch) -> Tensor:
        """Return [N, symbols], the count of each symbol in the prefix of every slot with an answer."""
        each = batch.tokens[..., None] == torch.arange(self.symbols)
        return each.cumsum(1)[batch.targets != IGNORE]


class RandomProblems(Problems):
    """Random problems: n uniform in shortest ... longest, then a problem of size n, uniform.

    A hash of (seed, problem) gives each problem to one split, and a split is drawn among its own problems. In
    validation and test a problem that was drawn before is passed over: none comes twice, sizes with few problems have
    all that there are (or none), and the others are equally likely. Training draws with repetition. Longer problems
    have one size and are all for the test.

    The position-blind floor is for a predictor that does not know which problems are in training. For one that does it
    is lower by at most 0.005 nats (seed 0, defaults) on copy, reverse, sort and parity, and by 0.037 on addition.

    Args:
        sizes: the number of problems in each split, by its name, each >= 1.

    Raises:
        ValueError: an option out of its range, fewer than 500 different problems, or fewer than 20 times as many as are
            asked for in validation or test.
    """

    revision = 2
    draws = True

    def __init__(self, seed: int, name: str, symbols: int, shortest: int, longest: int, sizes: dict[str, int]) -> None:
        super().__init__(seed, name, symbols, shortest, longest)
        self.sizes = sizes
        if not any(total >= MIN_PROBLEMS for total in accumulate(map(self.different, self.n))):
            raise OptionError(f"longest must leave at least {MIN_PROBLEMS} different problems to split, got {longest}")
        require_unique(accumulate(map(self.count_prompts, self.n)), f"problems of {name}", sizes)

    @abstractmethod
    def draw(self, n: Tensor, source: torch.Generator) -> Tensor:
        """Draw prompts [N, P] of sizes [N], uniformly."""

    @abstractmethod
    def count_prompts(self, n: int) -> int:
        """Return the number of problems of this size."""

    def different(self, n: int) -> int:
        """Return the number of different keys of problems of this size."""
        return self.count_prompts(n)

    def key(self, prompt: list[int]) -> list[int]:
        """Return the hash key of a problem; problems with the same key are in the same split."""
        return prompt

    def size(self, split: str) -> int:
        return 0 if self.beyond and split != "test" else self.sizes[split]

    def problems(self, split: str) -> tuple[Tensor, Tensor]:
        seen: set[bytes] = set()

        def draw(block: int) -> tuple[Tensor, Tensor]:
            source = make_generator(self.seed, self.name, *self.draw_name(split), self.n[0], self.n[-1], block)
            n = torch.randint(self.n[0], self.n[-1] + 1, (BLOCK_PROBLEMS,), generator=source)
            prompt = self.draw(n, source)
            if not self.beyond:
                keys = map(self.key, self._trimmed_prompts(n, prompt))
                members = torch.tensor([hash_split(self.seed, self.name, key) == split for key in keys])
                n, prompt = n[members], prompt[members]
            if split != "train":
                beyond = torch.arange(prompt.shape[1]) >= _length(self.prompt_length, n)[:, None]
                new = unseen_rows(prompt.masked_fill(beyond, -1), seen)
                n, prompt = n[new], prompt[new]
            return n, prompt

        sizes, prompts = draw_until(self.size(split), draw, f"data.{split}", f"problems found for data={self.name}")
        return sizes, prompts

    def share(self, batch: Batch) -> Tensor:
        """Return the shares of sizes in the split; they are unequal where some sizes have few problems."""
        per_n, more = self.prompt_length
        at_sep = batch.headline.int().argmax(1)
        return ((at_sep - 1 - more) // per_n).bincount(minlength=self.n[-1] + 1).double() / len(batch)

    def _trimmed_prompts(self, n: Tensor, prompt: Tensor) -> list[list[int]]:
        """Return the prompts without the entries beyond their length."""
        length = _length(self.prompt_length, n).tolist()
        return [row[:end] for row, end in zip(prompt.tolist(), length, strict=True)]


def require_unique(totals: Iterable[int], what: str, sizes: dict[str, int]) -> None:
    """Check that validation and test need not repeat a sequence.

    Args:
        totals: rising counts of different sequences, of which the last is their number; read up to one that suffices.
        what: the sequences, for the error.
        sizes: the number of sequences in each split, by its name.

    Raises:
        OptionError: fewer than 20 times as many as are asked for in validation or test.
    """
    largest = max(sizes["validation"], sizes["test"])
    for total in totals:
        if total >= PROBLEMS_PER_SEQUENCE * largest:
            return
    for split in ("validation", "test"):
        if total < PROBLEMS_PER_SEQUENCE * sizes[split]:
            raise OptionError(
                f"{split} must be at most {total // PROBLEMS_PER_SEQUENCE}, a twentieth of the {total:,} {what}, so "
                f"that none comes twice, got {sizes[split]}"
            )


def draw_until(size: int, draw: Callable[[int], tuple[Tensor, ...]], option: str, what: str) -> tuple[Tensor, ...]:
    """Return the first `size` rows of tensors that are drawn in blocks.

    Args:
        draw: a function that returns the new rows of a block, tensors [N, ...], by the block's number.
        option: the setting of the size, for the error.
        what: the rows, for the error.

    Raises:
        ValueError: MAX_IDLE_DRAWS blocks in a row have no new row.
    """
    blocks: list[tuple[Tensor, ...]] = []
    total = idle = 0
    while not blocks or total < size:
        if idle == MAX_IDLE_DRAWS:
            raise ValueError(f"{option} must be at most {total}, the different {what}, got {size}")
        blocks.append(draw(len(blocks)))
        new = len(blocks[-1][0])
        total, idle = total + new, 0 if new else idle + 1
    return tuple(torch.cat(parts)[:size] for parts in zip(*blocks, strict=True))


def hash_split(seed: int, name: str, key: list[int]) -> str:
    """Return the split of a sequence by a hash: a tenth are in the test, a tenth in validation, others in training.

    Args:
        name: the name of the dataset.
        key: the numbers that are hashed; sequences with the same key are in the same split.
    """
    return {0: "test", 1: "validation"}.get(derive_seed(seed, name, "split", *key) % NUM_SHARES, "train")


def _length(form: tuple[int, int], n: Tensor) -> Tensor:
    return form[0] * n + form[1]


def _values_at(values: Tensor, index: Tensor) -> Tensor:
    """Return [N, T], values [N, V] at an index that may be out of range where the result is not read."""
    return values.gather(1, index.clamp(0, values.shape[1] - 1))
