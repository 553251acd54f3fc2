"""Retrieval from a long text: needles in a haystack, and chains of assignments."""

import math
from abc import abstractmethod
from typing import Annotated

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors, Task
from pe_lab.data.copying import shuffle_symbols
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.problem import BLOCK_PROBLEMS
from pe_lab.data.sequence import MAX_COUNTED_SYMBOLS, half_written
from pe_lab.encodings.options import Count, Length, OptionError, integers

BLOCK_ENTRIES = 2**22  # most tokens of a block of sequences
Tokens = Annotated[int, integers(1, most=4096)]


class QuestionAnswering(HashSplitDataset):
    """Base of tasks with a text, a question about it and the answer: the last A of T tokens, which alone are asked for.

    The token before the answer is the last of the question. The text determines the answer: the Bayes loss is 0. See
    HashSplitDataset for the splits. `longer` has a longer text with the same question.

    Args:
        sizes: the number of sequences in each split, by its name.
        vocabulary: the number of tokens.
        length: T, the number of tokens in a sequence.
        answer: A, the number of tokens in the answer.
    """

    roles = ("answer",)
    generates = True

    def __init__(self, seed: int, name: str, sizes: dict[str, int], vocabulary: int, length: int, answer: int) -> None:
        super().__init__(seed, name, sizes)
        self.answer = answer
        self.drawn = (length,)
        self.task = Task(vocabulary, length, outputs=vocabulary, causal=True)

    @abstractmethod
    def at_length(self, length: int) -> "QuestionAnswering":
        """Return the task with sequences of another length."""

    @abstractmethod
    def blind(self, counts: Tensor, step: Tensor) -> Tensor | None:
        """Return [N, V], P(next token of the answer | multiset of the tokens so far).

        Args:
            counts: [N, V] how often each token is in the prefix.
            step: [N] how many tokens of the answer are in the prefix.

        Returns:
            The probabilities; None where there are too many cases to count.
        """

    @property
    @abstractmethod
    def possible(self) -> slice:
        """The tokens of which answers consist; each is equally likely."""

    @property
    def rows(self) -> int:
        """The number of sequences that are drawn together."""
        return max(1, min(BLOCK_PROBLEMS, BLOCK_ENTRIES // self.task.length))

    def longer(self, factor: float) -> "QuestionAnswering":
        """Multiply T by the factor, rounded half to even."""
        length = round(factor * self.task.length)
        self.require_longer(factor, length, "length", self.task.length)
        try:
            return self.at_length(length)
        except OptionError as error:
            raise ValueError(
                f"evaluate.lengths must lead to a length that data={self.name} can have, got {factor:g}: {error}"
            ) from None

    def write(self, tokens: Tensor) -> Batch:
        """Return the sequences with their answers."""
        return self.with_targets_from(tokens, tokens.shape[1] - 1 - self.answer)

    def floors(self, split: str) -> Floors:
        """Return exact mean losses on a split of predictors that know how sequences are drawn.

        "bayes" sees the prefix, "position_blind" its multiset of tokens, "prior" knows how often each token is right.
        Exact match of these two is left out.
        """
        batch = self.whole(split)
        has_target = batch.targets != IGNORE
        right = torch.nn.functional.one_hot(batch.targets[has_target], self.task.vocabulary).double()
        text = batch.tokens[:, : -self.answer]
        counts = torch.zeros(len(batch), 1, self.task.vocabulary, dtype=torch.long)
        counts = counts.scatter_add(2, text[:, None], torch.ones_like(text)[:, None])
        answers = torch.nn.functional.one_hot(batch.tokens[:, -self.answer :], self.task.vocabulary)
        step = torch.arange(self.answer).repeat(len(batch))
        floors = {"bayes": self.level(batch, right) | {"exact_match": 1.0}}
        blind = self.blind((counts + answers.cumsum(1) - answers).flatten(0, 1), step)
        if blind is not None:
            floors["position_blind"] = self.level(batch, blind)
        prior = torch.zeros_like(right)
        prior[:, self.possible] = 1
        return floors | {"prior": self.level(batch, prior / prior.sum(1, keepdim=True))}


class Needle(QuestionAnswering):
    """Find the values of keys in a long text: needles in a haystack, after RULER (Hsieh et al. 2024, arXiv:2404.06654).

    A needle is a key and a value of `digits` symbols. Each of `keys` different keys has `values` needles, which stand
    in a random order at random positions among fillers. Then a mark and `queries` of the keys ask for all their values:
    key by key, those of a key in the order of the text. With 2 keys, 2 values, 2 digits and 1 query, for instance,
    where fillers are dots:

        . . b 3 1 a 4 1 . b 5 9 . . . a 2 6 . ? a 4 1 2 6

    Keys, symbols and fillers are uniform and different tokens, as in RULER, whose text is noise, essays or other
    needles, and whose score does not ask for the order of values. With one key this is the passkey of Mohtashami &
    Jaggi 2023 (arXiv:2305.16300, after the code published with it), which has the digits twice. `longer` has more
    fillers.

    The multiset of a prefix says which symbols are in the values, and how many of each are still to come, as far as it
    is certain which were written: it is that of Copy with one size. With one digit of one needle it says everything.
    The position-blind floor is left out where values have more than 128 symbols.

    Args:
        length: T; what is not needle, question or answer is filler.
        keys: the number of different keys in a text, >= 1.
        values: the number of needles for each key, >= 1.
        queries: the number of keys that are asked for, <= keys.
        digits: the number of symbols in a value, >= 1.
        names: the number of keys to choose from, >= keys.
        symbols: the number of different symbols of values, >= 2.
        fillers: the number of different tokens of the haystack, >= 1.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few different sequences, see HashSplitDataset.
    """

    def __init__(
        self,
        seed: int,
        name: str = "needle",
        length: Length = 64,
        keys: Tokens = 4,
        values: Tokens = 1,
        queries: Tokens = 1,
        digits: Tokens = 1,
        names: Tokens = 64,
        symbols: Annotated[int, integers(2, most=4096)] = 64,
        fillers: Tokens = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        if keys > names:
            raise OptionError(f"keys must be at most names, {names}, since they are different, got {keys}")
        if queries > keys:
            raise OptionError(f"queries must be at most keys, {keys}, got {queries}")
        self.needles = keys * values
        least = self.needles * (1 + digits) + 1 + queries + queries * values * digits
        if length < least:
            raise OptionError(
                f"length must be at least {least}, the needles, the question and the answer, got {length}"
            )
        sizes = {"train": train, "validation": validation, "test": test}
        self.options = {"keys": keys, "values": values, "queries": queries, "digits": digits}
        self.options |= {"names": names, "symbols": symbols, "fillers": fillers, **sizes}
        self.keys, self.values, self.queries, self.digits = keys, values, queries, digits
        self.names, self.symbols, self.fillers = names, symbols, fillers
        self.room = length - least  # fillers in a sequence
        super().__init__(seed, name, sizes, fillers + names + symbols + 1, length, queries * values * digits)
        orders = math.factorial(self.needles) // math.factorial(values) ** keys
        chosen = math.comb(names, keys) * math.perm(keys, queries)
        text = (
            symbols ** (self.needles * digits) * fillers**self.room * math.comb(self.room + self.needles, keys * values)
        )
        self.require_room(orders * chosen * text, "length", length)

    def at_length(self, length: int) -> "Needle":
        return Needle(self.seed, self.name, length, **self.options)

    @property
    def possible(self) -> slice:
        return slice(self.fillers + self.names, self.fillers + self.names + self.symbols)

    def draw(self, source: torch.Generator) -> Tensor:
        rows, number = self.rows, self.needles
        names = self.fillers + shuffle_symbols(rows, self.names, source)[:, : self.keys]
        owner = shuffle_symbols(rows, number, source) // self.values  # the first keys are those asked for
        digits = self.possible.start + torch.randint(self.symbols, (rows, number, self.digits), generator=source)
        needles = torch.cat((names.gather(1, owner)[..., None], digits), 2)
        text = scatter_pieces(needles, self.room, self.fillers, source)
        of_keys = owner.argsort(dim=1, stable=True)[:, : self.queries * self.values, None]
        answer = digits.gather(1, of_keys.expand(-1, -1, self.digits)).flatten(1)
        mark = torch.full((rows, 1), self.task.vocabulary - 1)
        return torch.cat((text, mark, names[:, : self.queries], answer), 1)

    def blind(self, counts: Tensor, step: Tensor) -> Tensor | None:
        size = self.needles * self.digits
        if size > MAX_COUNTED_SYMBOLS:
            return None
        share = torch.eye(size + 1, dtype=torch.float64)[size]
        p = torch.zeros(counts.shape, dtype=torch.float64)
        p[:, self.possible] = half_written(counts[:, self.possible], share)[:, :-1]
        return p


class VariableTracking(QuestionAnswering):
    """Find all variables with a value through chains of assignments, after RULER (Hsieh et al. 2024, arXiv:2404.06654).

    An assignment is a mark, a variable, and what it is given: in each chain first a value, then the variable of the
    assignment before. Chains have `hops` + 1 variables, all different; their assignments stand in their order, mixed at
    random, at random positions among fillers. At the end a value asks for the variables of its chain, in their order.
    With 2 chains of 1 hop, for instance, where fillers are dots, and `=` marks an assignment:

        . = c 8 . . = a 5 = d c . = b a . ? 8 c d

    Values of chains are different, which is nearly certain in RULER. `longer` has more fillers.

    A variable that is given to another one occurs once more than the last of a chain. So the multiset leaves chains x
    hops - t possible answers at step t < hops, and as many as there are chains in the end, all equally likely.

    Args:
        length: T; what is not assignment, question or answer is filler.
        chains: the number of chains, >= 1.
        hops: the number of assignments of a variable to another one in each chain, >= 0.
        names: the number of variables to choose from, >= chains x (hops + 1).
        values: the number of values to choose from, >= chains.
        fillers: the number of different tokens of the haystack, >= 1.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few different sequences, see HashSplitDataset.
    """

    def __init__(
        self,
        seed: int,
        name: str = "variable_tracking",
        length: Length = 64,
        chains: Tokens = 2,
        hops: Annotated[int, integers(0, most=4096)] = 2,
        names: Tokens = 64,
        values: Tokens = 64,
        fillers: Tokens = 16,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        number = chains * (hops + 1)
        if names < number:
            raise OptionError(f"names must be at least chains x (hops + 1), {number}, all different, got {names}")
        if values < chains:
            raise OptionError(f"values must be at least chains, {chains}, since they are different, got {values}")
        least = 3 * number + 2 + hops + 1
        if length < least:
            raise OptionError(f"length must be at least {least}, assignments, question and answer, got {length}")
        sizes = {"train": train, "validation": validation, "test": test}
        self.options = {"chains": chains, "hops": hops, "names": names, "values": values, "fillers": fillers, **sizes}
        self.chains, self.hops, self.names, self.values, self.fillers = chains, hops, names, values, fillers
        self.room = length - least
        super().__init__(seed, name, sizes, fillers + names + values + 2, length, hops + 1)
        # the chains that are not asked for have no order
        orders = math.factorial(number) // math.factorial(hops + 1) ** chains
        text = math.perm(names, number) * math.perm(values, chains) * fillers**self.room
        total = orders * text * math.comb(self.room + number, number) // math.factorial(chains - 1)
        self.require_room(total, "length", length)

    def at_length(self, length: int) -> "VariableTracking":
        return VariableTracking(self.seed, self.name, length, **self.options)

    @property
    def possible(self) -> slice:
        return slice(self.fillers, self.fillers + self.names)

    def draw(self, source: torch.Generator) -> Tensor:
        rows, number = self.rows, self.chains * (self.hops + 1)
        variable = self.fillers + shuffle_symbols(rows, self.names, source)[:, :number]
        value = self.fillers + self.names + shuffle_symbols(rows, self.values, source)[:, : self.chains]
        values = variable.roll(1, 1)
        values[:, :: self.hops + 1] = value
        equals, mark = (torch.full((rows, number), self.task.vocabulary - last) for last in (2, 1))
        # the assignment at a position of the text is the next one of the chain there
        chain = shuffle_symbols(rows, number, source) // (self.hops + 1)
        order = chain.argsort(dim=1, stable=True).argsort(1)[..., None].expand(-1, -1, 3)
        assignments = torch.stack((equals, variable, values), 2).gather(1, order)
        text = scatter_pieces(assignments, self.room, self.fillers, source)
        return torch.cat((text, mark[:, :1], value[:, :1], variable[:, : self.hops + 1]), 1)

    def blind(self, counts: Tensor, step: Tensor) -> Tensor:
        times = torch.where(step < self.hops, 2, 1)[:, None]
        left = torch.zeros(counts.shape, dtype=torch.float64)
        left[:, self.possible] = (counts[:, self.possible] == times).double()
        return left / left.sum(1, keepdim=True)


def scatter_pieces(pieces: Tensor, room: int, fillers: int, source: torch.Generator) -> Tensor:
    """Return texts [B, N L + room]: N pieces [B, N, L] in their order, at random positions among random fillers."""
    rows, number, size = pieces.shape
    text = torch.randint(fillers, (rows, number * size + room), generator=source)
    before = shuffle_symbols(rows, room + number, source)[:, :number].sort(1).values  # fillers and pieces
    start = before + (size - 1) * torch.arange(number)
    return text.scatter(1, (start[..., None] + torch.arange(size)).flatten(1), pieces.flatten(1))
