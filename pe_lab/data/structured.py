"""Arithmetic progressions, told in two runs: the task whose order matters and whose floor is known."""

from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, averages
from pe_lab.encodings.base import Layout
from pe_lab.ranges import require
from pe_lab.seeding import derive

VALUES = 128  # terms are 0 ... 127
START, MID, END, PAD = range(VALUES, VALUES + 4)
STEPS = (*range(-8, 0), *range(1, 9))
HEAD = 4  # terms before MID
TAILS = range(4, 9)  # terms after MID
FIRST, SECOND, MIDDLE, CONTINUATION, LAST = range(5)


def pairs() -> list[tuple[int, int]]:
    """The (first term, step) whose 12 terms all lie in 0 ... 127: 1,256 of them."""
    longest = HEAD + max(TAILS) - 1
    return [(a, s) for s in STEPS for a in range(VALUES) if 0 <= a + longest * s < VALUES]


def split_pairs(seed: int) -> dict[str, list[tuple[int, int]]]:
    """80 % of the pairs to train, 20 % held out for the test; a tenth of train for validation.

    Ordered by a hash of (seed, pair), so that the split is the same on every machine.
    """
    rest = iter(sorted(pairs(), key=lambda pair: derive(seed, "structured", *pair)))
    return {split: list(islice(rest, size)) for split, size in split_sizes(len(pairs())).items()}


def split_sizes(total: int) -> dict[str, int]:
    """How many of the pairs go to each split."""
    train = round(0.8 * total)
    validation = round(0.1 * train)
    return {"validation": validation, "train": train - validation, "test": total - train}


class Structured(Dataset):
    """Next-token prediction of START, 4 terms, MID, 4 to 8 more terms, END, padded to T.

    The terms are a, a+s, a+2s, ... with values 0 ... 127 and a step s of either sign, for instance with a = 30, s = -2
    and 4 terms after MID: `START 30 28 26 24 MID 22 20 18 16 END PAD PAD PAD PAD PAD`. Only pairs (a, s) whose 12 terms
    stay in range are used, so that every pair comes with every tail length; pairs are held out, never lengths.

    The headline averages the slots that the prefix determines: terms 3 and 4, MID, the four terms that always follow,
    and END after the eighth. There the Bayes loss is 0, and the position-blind one is not, because an unordered
    prefix does not tell the sign of s. Second terms on held-out pairs get worse with training: P(s | a) differs there.

    Args:
        seed: of the split.
        length: T, >= 15.

    Raises:
        ValueError: length < 15.
    """

    causal = True
    vocabulary = VALUES + 4
    roles = ("first", "second", "middle", "continuation", "end")
    shortest = 1 + HEAD + 1 + max(TAILS) + 1

    def __init__(self, seed: int, name: str = "structured", length: int = 16) -> None:
        if require("data.length", length) < self.shortest:
            raise ValueError(f"data.length must be at least {self.shortest}, the longest sequence, got {length}")
        self.name = name
        self.length = length
        self.seed = seed

    @cached_property
    def _sequences(self) -> dict[str, Batch]:
        return {split: self._write(chosen) for split, chosen in split_pairs(self.seed).items()}

    def _write(self, chosen: list[tuple[int, int]]) -> Batch:
        """All sequences of these pairs: every pair with every tail length."""
        a, s = torch.tensor(chosen).T[:, :, None]
        step = torch.arange(HEAD + max(TAILS))
        terms = (a + s * step).repeat_interleave(len(TAILS), 0)
        tail = torch.tensor(list(TAILS)).repeat(len(chosen))[:, None]
        size = len(terms)

        tokens = torch.full((size, self.length), PAD)
        tokens[:, 0] = START
        tokens[:, 1 : 1 + HEAD] = terms[:, :HEAD]
        tokens[:, 1 + HEAD] = MID
        tokens[:, 2 + HEAD : self.shortest - 1] = terms[:, HEAD:]
        slot = torch.arange(self.length)
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
        always = (asked >= 3) & (asked < 2 + HEAD + min(TAILS))
        headline = always | ((asked == end) & (tail == max(TAILS)))
        return Batch(tokens, targets, role, headline, Layout.of_lengths(end[:, 0] + 1, self.length, causal=True))

    def size(self, split: str) -> int:
        return split_sizes(len(pairs()))[split] * len(TAILS)

    def batch(self, split: str, index: Tensor) -> Batch:
        whole = self._sequences[split]
        layout = whole.layout
        return Batch(
            whole.tokens[index],
            whole.targets[index],
            whole.role[index],
            whole.headline[index],
            Layout(layout.pos, layout.segment[index], layout.length[index], layout.causal),
        )

    def floors(self, split: str) -> dict[str, dict[str, float]]:
        """Mean loss on a split of two predictors that know how all 6,280 sequences are made.

        "bayes" knows the prefix, "position_blind" only which tokens are in it and how often. Enumerated exactly.
        """
        everything = self._write(pairs())
        chosen = self._sequences[split]
        # where the split's sequences stand in the enumeration
        rows = {tuple(row): index for index, row in enumerate(everything.tokens.tolist())}
        index = torch.tensor([rows[tuple(row)] for row in chosen.tokens.tolist()])
        return {
            floor: averages(_surprise(everything, ordered)[index], chosen, self.roles)
            for floor, ordered in (("bayes", True), ("position_blind", False))
        }


def _surprise(batch: Batch, ordered: bool) -> Tensor:
    """[B, T] -ln P(target | prefix) when every sequence of the batch is equally likely, 0 where nothing is asked.

    Prefixes are told apart by their tokens in order, or by the multiset of them.
    """
    loss = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for slot in range(batch.tokens.shape[1]):
        rows = (batch.targets[:, slot] != IGNORE).nonzero()[:, 0]
        if not len(rows):
            continue
        prefix = batch.tokens[rows, : slot + 1]
        if not ordered:
            prefix = prefix.sort(1).values
        known = torch.zeros(len(rows), dtype=torch.long)
        for column in prefix.T:
            known = (known * (VALUES + 4) + column).unique(return_inverse=True)[1]
        answer = (known * (VALUES + 4) + batch.targets[rows, slot]).unique(return_inverse=True)[1]
        loss[rows, slot] = known.bincount()[known].double().log() - answer.bincount()[answer].double().log()
    return loss
