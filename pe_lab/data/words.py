"""The most frequent words of a list: a task of counting, in which order carries no information."""

import math
from abc import abstractmethod
from typing import Annotated

import torch
from scipy.special import zeta
from torch import Tensor

from pe_lab.data.copying import shuffle_symbols
from pe_lab.data.retrieval import QuestionAnswering
from pe_lab.encodings.options import Count, Length, OptionError, Range, integers, is_number

NOISE_WORD = 0
Words = Annotated[int, integers(2, most=65_536)]


class MostFrequent(QuestionAnswering):
    """Base of lists of words in a random order, with fixed numbers of occurrences; the most frequent are asked for.

    The answer has them by falling frequency, in ascending order where it is equal. The multiset of a prefix says
    everything: the position-blind loss is 0.

    Args:
        length: T, the number of tokens in the list, a mark and the answer.
        words: the number of words to choose from.
        asked: the number of words that are asked for.
        noise: whether the list is filled with a token that is no word.
    """

    noise = False

    def __init__(self, seed: int, name: str, sizes: dict[str, int], length: int, words: int, asked: int) -> None:
        super().__init__(seed, name, sizes, self.noise + words + 1, length, asked)
        self.words = words
        size = length - 1 - asked
        self.times = self.occurrences(size)
        different_words = len(self.times)
        least, following = (self.times[rank] if rank < different_words else 0 for rank in (asked - 1, asked))
        if least == following:
            raise OptionError(
                f"length must be such that the words that are asked for, {asked}, are more frequent than all others, "
                f"got {length}"
            )
        if words < different_words:
            raise OptionError(f"words must be at least {different_words}, the different words of a list, got {words}")
        ties = math.prod(math.factorial(self.times.count(number)) for number in set(self.times))
        orders = math.perm(size, sum(self.times)) // math.prod(map(math.factorial, self.times))
        self.require_room(orders * math.perm(words, different_words) // ties, "length", length)

    @abstractmethod
    def occurrences(self, size: int) -> list[int]:
        """Return how often each word is in a list of `size` tokens, by falling frequency."""

    @property
    def possible(self) -> slice:
        return slice(self.noise, self.noise + self.words)

    def draw(self, source: torch.Generator) -> Tensor:
        rows, size = self.rows, self.task.length - 1 - self.answer
        times = torch.tensor(self.times)
        chosen = self.noise + shuffle_symbols(rows, self.words, source)[:, : len(times)]
        sorted_text = chosen.repeat_interleave(times, 1)
        sorted_text = torch.nn.functional.pad(sorted_text, (0, size - sorted_text.shape[1]), value=NOISE_WORD)
        text = sorted_text.gather(1, shuffle_symbols(rows, size, source))
        answer = chosen[:, : self.answer].sort(1)
        by_frequency = (-times)[answer.indices].argsort(dim=1, stable=True)
        mark = torch.full((rows, 1), self.task.vocabulary - 1)
        return torch.cat((text, mark, answer.values.gather(1, by_frequency)), 1)

    def blind(self, counts: Tensor, step: Tensor) -> Tensor:
        # a word that is written has one occurrence more than in the list, and at least as many as the next before
        words = counts[:, self.possible]
        following = (words == torch.tensor(self.times)[step][:, None]).int().argmax(1)
        return torch.nn.functional.one_hot(self.noise + following, counts.shape[1]).double()


class CommonWords(MostFrequent):
    """Name the common words of a list, after RULER (Hsieh et al. 2024, arXiv:2404.06654, common words extraction).

    `asked` words occur `common` times each, as many others as there is room for once. The mark `?` asks for the
    common ones, in ascending order; RULER's score does not ask for an order. With 2 common words, for instance:

        7 3 9 3 5 7 7 1 3 ? 3 7

    `longer` has more of the words that occur once.

    Args:
        length: T, the number of tokens in a sequence.
        words: the number of words to choose from, no less than the number of different words in a list.
        asked: the number of common words, >= 1.
        common: the number of occurrences of each, >= 2. RULER: 6 in lists of less than 4,096 tokens, 30 for 3 of others
            beyond.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few different sequences, see HashSplitDataset.
    """

    def __init__(
        self,
        seed: int,
        name: str = "common_words",
        length: Length = 64,
        words: Words = 256,
        asked: Count = 3,
        common: Annotated[int, integers(2, most=65_536)] = 6,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        self.common = common
        least = asked * common + 2 + asked
        if length < least:
            raise OptionError(
                f"length must be at least {least}, the common words, another one and the end, got {length}"
            )
        sizes = {"train": train, "validation": validation, "test": test}
        super().__init__(seed, name, sizes, length, words, asked)

    def occurrences(self, size: int) -> list[int]:
        return [self.common] * self.answer + [1] * (size - self.answer * self.common)

    def at_length(self, length: int) -> "CommonWords":
        return CommonWords(self.seed, self.name, length, self.words, self.answer, self.common, **self.sizes)


class FrequentWords(MostFrequent):
    """Name the most frequent words of a list, after RULER (Hsieh et al. 2024, arXiv:2404.06654, frequent words).

    In a list of W tokens, the word of rank k occurs W k^-alpha / zeta(alpha) times, rounded down (Zipf's law). Rank 1
    is noise, a token that is no word and fills the list. The mark `?` asks for the `asked` most frequent words, by
    falling frequency. With W = 16, alpha = 2 and asked = 1, for instance, where the noise is a dot:

        . 4 . 9 . . . . . . . . 4 . . . ? 4

    `longer` has more occurrences of each, and more words.

    Args:
        length: T, the number of tokens in a sequence.
        words: the number of words to choose from, no less than the number of different words in a list.
        asked: the number of words that are asked for, >= 1.
        alpha: the exponent of Zipf's law, > 1.
        train, validation, test: the number of sequences in each split, >= 1.

    Raises:
        ValueError: an option out of its range, or too few different sequences, see HashSplitDataset.
    """

    noise = True

    def __init__(
        self,
        seed: int,
        name: str = "frequent_words",
        length: Length = 64,
        words: Words = 64,
        asked: Count = 3,
        alpha: Annotated[float, Range("above 1", lambda x: is_number(x) and x > 1)] = 2.0,
        train: Count = 10_000,
        validation: Count = 1000,
        test: Count = 1000,
    ) -> None:
        self.alpha = alpha
        if length < asked + 2:
            raise OptionError(f"length must be at least {asked + 2}, got {length}")
        sizes = {"train": train, "validation": validation, "test": test}
        super().__init__(seed, name, sizes, length, words, asked)

    def occurrences(self, size: int) -> list[int]:
        ranks = range(2, self.words + 2)
        counts = [int(size * rank**-self.alpha / zeta(self.alpha)) for rank in ranks]
        return [number for number in counts if number]

    def at_length(self, length: int) -> "FrequentWords":
        return FrequentWords(self.seed, self.name, length, self.words, self.answer, self.alpha, **self.sizes)
