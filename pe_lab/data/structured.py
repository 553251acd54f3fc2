"""Arithmetic progressions in two parts: a task in which order matters and the floor is known exactly."""

from collections.abc import Iterable
from functools import cache, cached_property
from itertools import islice
from typing import Annotated

import torch

from pe_lab.data.base import IGNORE, Batch, Floors, InMemoryDataset, Task, mean_metrics, surprisal
from pe_lab.data.seeding import derive_seed
from pe_lab.encodings.options import Length, OptionError, integers

NUM_VALUES = 128  # terms are 0 ... 127
START, MID, END, PAD = range(NUM_VALUES, NUM_VALUES + 4)
STEPS = (*range(-8, 0), *range(1, 9))
HEAD_TERMS = 4  # terms before MID
TAIL_TERMS = range(4, 9)  # terms after MID
FIRST, SECOND, MIDDLE, CONTINUATION, LAST = range(5)

Part = tuple[int, ...]  # first term and step, or these and the number of terms after MID
Parts = dict[str, list[Part]]  # the parts of each split


def term_pairs(terms: int = HEAD_TERMS + max(TAIL_TERMS)) -> list[tuple[int, int]]:
    """Return all (first term, step) whose terms lie in 0 ... 127: 1,256 for 12 terms."""
    return [(a, s) for s in STEPS for a in range(NUM_VALUES) if 0 <= a + (terms - 1) * s < NUM_VALUES]


def every_tail(chosen: Iterable[Part], tails: Iterable[int]) -> list[Part]:
    """Return the sequences of these pairs, each with every number of terms after MID."""
    return [(*pair, tail) for pair in chosen for tail in tails]


@cache  # a study makes the same split in every cell
def split_pairs(seed: int, parts: tuple[Part, ...]) -> Parts:
    """Split pairs or sequences: 20 % for the test, 8 % for validation, 72 % for training.

    They are ordered by a hash of (seed, part), so that the split is the same on every machine.
    """
    train = round(0.8 * len(parts))
    validation = round(0.1 * train)
    rest = iter(sorted(parts, key=lambda part: derive_seed(seed, "structured", *part)))
    sizes = {"validation": validation, "train": train - validation, "test": len(parts) - train}
    return {name: list(islice(rest, size)) for name, size in sizes.items()}


class Structured(InMemoryDataset):
    """Next-token prediction of START, 4 terms, MID, 4 to 8 more terms, END, padded to T.

    The terms are a, a+s, a+2s, ... with values 0 ... 127 and a step s of either sign, for instance with a = 30, s = -2
    and 4 terms after MID: `START 30 28 26 24 MID 22 20 18 16 END PAD PAD PAD PAD PAD`. Only pairs (a, s) whose 12 terms
    stay in range are used, so that every pair comes with every tail length: 1,256 pairs, 6,280 sequences.

    Sequences are split at random: 4,522 for training, 502 for validation, 1,256 for the test. So the test also measures
    memory of progressions: 99.3 % of its sequences (seed 0) have a training sequence of the same progression with
    another number of terms. `StructuredHeldout` holds whole progressions out.

    The headline averages the slots that the prefix determines: terms 3 and 4, MID, the four terms that always follow,
    and END after the eighth. There the Bayes loss is 0, and the position-blind one is not, because an unordered
    prefix does not have the sign of s: 0.36 (seed 0), or 0.23 for a predictor that knows which sequences the test has.

    Longer sequences have longer tails. Their test has the sequences of the test with so many more terms in each, as
    far as the terms stay in range: few sequences at 4 x, none at 16 x.

    Args:
        seed: the seed of the split.
        length: T, >= 15.
        extra: the number of terms after MID beyond 4 to 8, which the sequences of `longer` have.

    Raises:
        ValueError: length < 15 + extra.
    """

    revision = 2
    floors_revision = 2
    roles = ("first", "second", "middle", "continuation", "end")

    def __init__(
        self, seed: int, name: str = "structured", length: Length = 16, extra: Annotated[int, integers(0)] = 0
    ) -> None:
        self.extra = extra
        self.tails = range(min(TAIL_TERMS) + extra, max(TAIL_TERMS) + extra + 1)
        self.terms = HEAD_TERMS + max(self.tails)
        if length < self.terms + 3:
            raise OptionError(f"length must be at least {self.terms + 3}, the longest sequence, got {length}")
        self.name = name
        self.task = Task(vocabulary=NUM_VALUES + 4, length=length, outputs=NUM_VALUES + 4, causal=True)
        self.seed = seed

    def longer(self, factor: float) -> "Structured":
        length = round(factor * self.task.length)
        longer = type(self)(self.seed, self.name, length=length, extra=length - self.task.length)
        if not longer.chosen["test"]:
            raise ValueError(
                f"evaluate.lengths must be smaller for data={self.name}, got {factor:g}: no progression of its test in "
                f"0 ... {NUM_VALUES - 1} has {longer.terms} terms"
            )
        return longer

    def sequences(self) -> Parts:
        """Return the sequences of each split, before any is longer."""
        return split_pairs(self.seed, tuple(every_tail(term_pairs(), TAIL_TERMS)))

    @cached_property
    def chosen(self) -> Parts:
        """The sequences of each split whose progression stays in range with every tail."""
        fits = set(term_pairs(self.terms))
        return {
            name: [(a, s, tail + self.extra) for a, s, tail in chosen if (a, s) in fits]
            for name, chosen in self.sequences().items()
        }

    def make(self, split: str) -> Batch:
        return self._write(self.chosen[split])

    def _write(self, chosen: list[Part]) -> Batch:
        """Return the sequences with these first terms, steps and numbers of terms after MID."""
        a, s, tail = torch.tensor(chosen).T[:, :, None]
        terms = a + s * torch.arange(self.terms)
        size, length = len(terms), self.task.length

        tokens = torch.full((size, length), PAD)
        tokens[:, 0] = START
        tokens[:, 1 : 1 + HEAD_TERMS] = terms[:, :HEAD_TERMS]
        tokens[:, 1 + HEAD_TERMS] = MID
        tokens[:, 2 + HEAD_TERMS : 2 + self.terms] = terms[:, HEAD_TERMS:]
        slot = torch.arange(length)
        end = 2 + HEAD_TERMS + tail
        tokens = tokens.where(slot < end, PAD).where(slot != end, END)

        # slot t asks for token t + 1
        targets = torch.full_like(tokens, IGNORE)
        targets[:, :-1] = tokens[:, 1:].where(tokens[:, 1:] != PAD, IGNORE)
        target_slot = slot + 1
        role = torch.full_like(tokens, CONTINUATION)
        role[:, target_slot == 1] = FIRST
        role[:, target_slot == 2] = SECOND
        role[:, target_slot == 1 + HEAD_TERMS] = MIDDLE
        role = role.where(targets != END, LAST)
        always = (target_slot >= 3) & (target_slot < 2 + HEAD_TERMS + min(self.tails))
        headline = always | ((target_slot == end) & (tail == max(self.tails)))
        return Batch(tokens, targets, role, headline, self.task.layout(end[:, 0] + 1, length))

    def size(self, split: str) -> int:
        return len(self.chosen[split])

    def floors(self, split: str) -> Floors:
        """Return mean losses on a split of predictors that know how sequences are made; exact, by enumeration.

        "bayes" knows the prefix, "position_blind" only which tokens are in it and how often; to both, all sequences of
        this length, 6,280, are equally likely. "position_blind_split_known" knows besides which sequences the split
        has: no function of the unordered tokens has a lower mean loss there. Of "bayes", the losses of what the prefix
        determines, 0, are the lowest that there can be; the others ("first", "second", "all") are not, once it is known
        which sequences are held out.
        """
        everything = self._write(every_tail(term_pairs(self.terms), self.tails))
        chosen = self.whole(split)
        # where the split's sequences stand in the enumeration
        rows = {tuple(row): index for index, row in enumerate(everything.tokens.tolist())}
        index = torch.tensor([rows[tuple(row)] for row in chosen.tokens.tolist()])
        return {
            "bayes": mean_metrics(surprisal(everything)[index], chosen, self.roles),
            "position_blind": mean_metrics(surprisal(everything, ordered=False)[index], chosen, self.roles),
            "position_blind_split_known": mean_metrics(surprisal(chosen, ordered=False), chosen, self.roles),
        }


class StructuredHeldout(Structured):
    """As Structured, but whole progressions are held out: all sequences of a pair (a, s) are in one split.

    No encoding solves it with the models and trainings here: the ranking says how much each one helps on the way. Of
    the 1,256 pairs 905 are for training, 100 for validation, 251 for the test.

    The position-blind loss of the headline is 0.33 (seed 0), or 0.06 for a predictor that knows which pairs are held
    out, since the reverse of a held-out progression is mostly not held out. The loss of second terms on held-out pairs
    rises with training: P(s | a) differs there.

    The test asks for new starting points rather than for new transitions: of its 251 progressions (seed 0) 222 are a
    training progression shifted by one step, and 97 % of their transitions from x to x + s occur in training.

    Args:
        seed, length, extra: the same as in Structured.

    Raises:
        ValueError: length < 15 + extra.
    """

    revision = Structured.revision - 1

    def __init__(self, seed: int, name: str = "structured_heldout", **options: int) -> None:
        super().__init__(seed, name, **options)

    def sequences(self) -> Parts:
        return {
            name: every_tail(chosen, TAIL_TERMS) for name, chosen in split_pairs(self.seed, tuple(term_pairs())).items()
        }
