"""Base of datasets of many random sequences, which a hash assigns to the splits."""

from abc import abstractmethod

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, InMemoryDataset, predictor_metrics, unseen_rows
from pe_lab.data.problem import MIN_PROBLEMS, draw_until, hash_split, require_unique
from pe_lab.data.seeding import make_generator
from pe_lab.encodings.options import MAX_LENGTH, OptionError


class HashSplitDataset(InMemoryDataset):
    """Base of datasets whose sequences are drawn and assigned to a split by a hash of (seed, sequence).

    A tenth of the sequences go to the test, a tenth to validation; there none comes twice. Training draws with
    repetition.

    Args:
        sizes: the number of sequences in each split, by its name.

    Attributes:
        drawn: the numbers that name the random draws, with the seed, the name and the split.
    """

    draws = True
    drawn: tuple[int, ...]

    def __init__(self, seed: int, name: str, sizes: dict[str, int]) -> None:
        self.seed = seed
        self.name = name
        self.sizes = sizes

    @abstractmethod
    def draw(self, source: torch.Generator) -> Tensor:
        """Draw a block of sequences [N, T]."""

    @abstractmethod
    def write(self, tokens: Tensor) -> Batch:
        """Return sequences [N, T] with their answers."""

    def size(self, split: str) -> int:
        return self.sizes[split]

    def make(self, split: str) -> Batch:
        seen: set[bytes] = set()

        def draw(block: int) -> tuple[Tensor]:
            tokens = self.draw(make_generator(self.seed, self.name, *self.draw_name(split), *self.drawn, block))
            tokens = tokens[torch.tensor([hash_split(self.seed, self.name, row) == split for row in tokens.tolist()])]
            return (tokens if split == "train" else tokens[unseen_rows(tokens, seen)],)

        (tokens,) = draw_until(self.size(split), draw, f"data.{split}", f"sequences found for data={self.name}")
        return self.write(tokens)

    def require_room(self, total: int, option: str, value: int) -> None:
        """Check that there are enough different sequences for splits without repeats.

        Args:
            total: the number of different sequences.
            option: the name of an option that gives more different sequences.
            value: the value of that option.

        Raises:
            OptionError: fewer than 500 different sequences, or fewer than 20 times the size of validation or test.
        """
        if total < MIN_PROBLEMS:
            raise OptionError(f"{option} must leave at least {MIN_PROBLEMS} different sequences to split, got {value}")
        require_unique([total], f"sequences of {self.name}", self.sizes)

    def level(self, batch: Batch, p: Tensor) -> dict[str, float]:
        """Return the metrics of a predictor on a batch; ties are broken at random.

        Args:
            p: [N, outputs] the predictor's probability of each answer, in the slots with an answer.
        """
        return predictor_metrics(p, batch, self.roles)

    def with_targets_from(self, tokens: Tensor, first: int) -> Batch:
        """Return sequences [N, T] that ask for the next token, from the slot `first` on."""
        length = tokens.shape[1]
        slot = torch.arange(length).expand_as(tokens)
        has_target = (slot >= first) & (slot < length - 1)
        targets = tokens.roll(-1, 1).where(has_target, IGNORE)
        layout = self.task.layout(torch.full((len(tokens),), length), length)
        return Batch(tokens, targets, torch.zeros_like(tokens), has_target, layout)

    def require_longer(self, factor: float, length: int, option: str, now: int) -> None:
        """Check the length that a factor leads to.

        Args:
            option: the name of the option that sets the length.
            now: the value of that option in training.

        Raises:
            ValueError: the length is not above the one in training, or is more than 131,072 tokens.
        """
        if length <= now:
            raise ValueError(
                f"evaluate.lengths must lead to sequences longer than data.{option}, {now}, for data={self.name}, got "
                f"{factor:g}, which leads to {length}"
            )
        if length > MAX_LENGTH:
            raise ValueError(
                f"evaluate.lengths must lead to at most {MAX_LENGTH} tokens for data={self.name}, got {factor:g}, "
                f"which leads to {length}"
            )
