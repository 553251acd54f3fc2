"""Arithmetic progressions in two parts: a task in which order matters and the floor is known exactly."""

from functools import cached_property
from itertools import islice
from typing import Annotated

import torch

from pe_lab.data.base import IGNORE, Batch, Floors, InMemory, Task, averages, surprise
from pe_lab.data.seeding import derive
from pe_lab.encodings.options import Length, OptionError, whole

VALUES = 128  # terms are 0 ... 127
START, MID, END, PAD = range(VALUES, VALUES + 4)
STEPS = (*range(-8, 0), *range(1, 9))
HEAD = 4  # terms before MID
TAILS = range(4, 9)  # terms after MID
FIRST, SECOND, MIDDLE, CONTINUATION, LAST = range(5)


def pairs(terms: int = HEAD + max(TAILS)) -> list[tuple[int, int]]:
    """Return the (first term, step) whose terms all lie in 0 ... 127: 1,256 of them for 12 terms."""
    return [(a, s) for s in STEPS for a in range(VALUES) if 0 <= a + (terms - 1) * s < VALUES]


def split_pairs(seed: int) -> dict[str, list[tuple[int, int]]]:
    """Split the pairs: 20 % for the test, 8 % for validation, 72 % for training.

    They are ordered by a hash of (seed, pair), so that the split is the same on every machine.
    """
    rest = iter(sorted(pairs(), key=lambda pair: derive(seed, "structured", *pair)))
    return {split: list(islice(rest, size)) for split, size in split_sizes(len(pairs())).items()}


def split_sizes(total: int) -> dict[str, int]:
    """Return the number of pairs in each split."""
    train = round(0.8 * total)
    validation = round(0.1 * train)
    return {"validation": validation, "train": train - validation, "test": total - train}


class Structured(InMemory):
    """Next-token prediction of START, 4 terms, MID, 4 to 8 more terms, END, padded to T.

    The terms are a, a+s, a+2s, ... with values 0 ... 127 and a step s of either sign, for instance with a = 30, s = -2
    and 4 terms after MID: `START 30 28 26 24 MID 22 20 18 16 END PAD PAD PAD PAD PAD`. Only pairs (a, s) whose 12 terms
    stay in range are used, so that every pair comes with every tail length; pairs are held out, never lengths.

    The headline averages the slots that the prefix determines: terms 3 and 4, MID, the four terms that always follow,
    and END after the eighth. There the Bayes loss is 0, and the position-blind one is not, because an unordered
    prefix does not have the sign of s: 0.33 (seed 0), or 0.06 for a predictor that knows which pairs are held out,
    since the reverse of a held-out progression is mostly not held out. The loss of second terms on held-out pairs
    rises with training: P(s | a) differs there.

    The test asks for new starting points rather than for new transitions: of its 251 progressions (seed 0) 222 are a
    training progression shifted by one step, and 97 % of their transitions from x to x + s occur in training.

    Longer sequences have longer tails, of those held-out pairs whose terms stay in range: few at 4 x, none at 16 x.

    Args:
        seed: of the split.
        length: T, >= 15.
        extra: terms after MID beyond 4 to 8, which the sequences of `longer` have.

    Raises:
        ValueError: length < 15 + extra.
    """

    floors_revision = 2
    roles = ("first", "second", "middle", "continuation", "end")

    def __init__(
        self, seed: int, name: str = "structured", length: Length = 16, extra: Annotated[int, whole(0)] = 0
    ) -> None:
        self.tails = range(min(TAILS) + extra, max(TAILS) + extra + 1)
        self.terms = HEAD + max(self.tails)
        if length < self.terms + 3:
            raise OptionError(f"length must be at least {self.terms + 3}, the longest sequence, got {length}")
        self.name = name
        self.task = Task(vocabulary=VALUES + 4, length=length, outputs=VALUES + 4, causal=True)
        self.seed = seed

    def longer(self, factor: float) -> "Structured":
        length = round(factor * self.task.length)
        longer = Structured(self.seed, self.name, length, extra=length - self.task.length)
        if not longer.chosen["test"]:
            raise ValueError(
                f"evaluate.lengths must leave a progression in 0 ... {VALUES - 1} for data={self.name}: there is none "
                f"among those held out with {longer.terms} terms, got {factor:g}"
            )
        return longer

    @cached_property
    def chosen(self) -> dict[str, list[tuple[int, int]]]:
        """Return the pairs of every split whose terms all stay in range."""
        fits = set(pairs(self.terms))
        splits = split_pairs(self.seed).items()
        return {split: [pair for pair in chosen if pair in fits] for split, chosen in splits}

    def make(self, split: str) -> Batch:
        return self._write(self.chosen[split])

    def _write(self, chosen: list[tuple[int, int]]) -> Batch:
        """Return all sequences of these pairs: every pair with every tail length."""
        a, s = torch.tensor(chosen).T[:, :, None]
        terms = (a + s * torch.arange(self.terms)).repeat_interleave(len(self.tails), 0)
        tail = torch.tensor(list(self.tails)).repeat(len(chosen))[:, None]
        size, length = len(terms), self.task.length

        tokens = torch.full((size, length), PAD)
        tokens[:, 0] = START
        tokens[:, 1 : 1 + HEAD] = terms[:, :HEAD]
        tokens[:, 1 + HEAD] = MID
        tokens[:, 2 + HEAD : 2 + self.terms] = terms[:, HEAD:]
        slot = torch.arange(length)
        end = 2 + HEAD + tail
        tokens = tokens.where(slot < end, PAD).where(slot != end, END)

        # slot t asks for token t + 1
        targets = torch.full_like(tokens, IGNORE)
        targets[:, :-1] = tokens[:, 1:].where(tokens[:, 1:] != PAD, IGNORE)
        asked = slot + 1
        role = torch.full_like(tokens, CONTINUATION)
        role[:, asked == 1] = FIRST
        role[:, asked == 2] = SECOND
        role[:, asked == 1 + HEAD] = MIDDLE
        role = role.where(targets != END, LAST)
        always = (asked >= 3) & (asked < 2 + HEAD + min(self.tails))
        headline = always | ((asked == end) & (tail == max(self.tails)))
        return Batch(tokens, targets, role, headline, self.task.layout(end[:, 0] + 1, length))

    def size(self, split: str) -> int:
        return len(self.chosen[split]) * len(self.tails)

    def floors(self, split: str) -> Floors:
        """Return mean losses on a split of predictors that know how sequences are made; exact, by enumeration.

        "bayes" knows the prefix, "position_blind" only which tokens are in it and how often; to both, all sequences of
        this length, 6,280, are equally likely. "position_blind_split_known" knows besides which pairs the split has:
        no function of the unordered tokens has a lower mean loss there. Of "bayes", the losses of what the prefix
        determines, 0, are the lowest that there can be; the others ("first", "second", "all") are not, once it is known
        which pairs are held out.
        """
        everything = self._write(pairs(self.terms))
        chosen = self.whole(split)
        # where the split's sequences stand in the enumeration
        rows = {tuple(row): index for index, row in enumerate(everything.tokens.tolist())}
        index = torch.tensor([rows[tuple(row)] for row in chosen.tokens.tolist()])
        return {
            "bayes": averages(surprise(everything)[index], chosen, self.roles),
            "position_blind": averages(surprise(everything, ordered=False)[index], chosen, self.roles),
            "position_blind_split_known": averages(surprise(chosen, ordered=False), chosen, self.roles),
        }
