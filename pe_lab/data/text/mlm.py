"""Masked language modelling."""

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors
from pe_lab.data.seeding import derive_seed
from pe_lab.data.text.base import Text
from pe_lab.data.text.levels import Neighbours, neighbours, unigram

DRAW_LIMIT = 2**32  # draws are integers below this
CHOSEN_LIMIT = DRAW_LIMIT * 15 // 100
MASKED, RANDOM = (
    DRAW_LIMIT * 8 // 10,
    DRAW_LIMIT * 9 // 10,
)  # below the first MASK, below the second another token, above it the same


class MLM(Text):
    """Predict hidden tokens of text from the tokens around them in the window and the document (BERT).

    15 % of the tokens, never END, and at least one of a window, are asked; 80 % of these are shown as MASK, 10 % as a
    token drawn evenly from those of the training text, 10 % as they are. Other tokens are hidden in every epoch of
    training: they are a function of (seed, epoch, sequence), in validation and test of (seed, sequence).

        text     t    h    e         c    a    t    END
        shown    t    MASK e         q    a    t    END
        asked    -    h    -    -    c    a    -    -
        role          masked         random kept

    Reference levels: "unigram" knows how often each token is asked in training; "neighbours" also what is shown left
    and right of it and, where it does not show MASK, that what it shows is either right or drawn.
    """

    roles = ("masked", "random", "kept")
    causal, seeded, following = False, True, 0

    def ask(self, split: str, index: Tensor, epoch: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        purpose = ("mask", split, epoch) if split == "train" else ("mask", split)
        keys = np.array([derive_seed(self.seed, *purpose, sequence) for sequence in index.tolist()], np.uint64)
        slots = np.arange(rows.shape[1], dtype=np.uint64)
        choice = torch.from_numpy(random_integers(keys[:, None], 3 * slots)).where(rows != self.text.end, DRAW_LIMIT)
        least = choice.amin(1, keepdim=True)
        row, slot = (choice <= least.clamp(min=CHOSEN_LIMIT - 1)).nonzero(as_tuple=True)
        key, number = keys[row.numpy()], 3 * slots[slot.numpy()]
        kind, other = (torch.from_numpy(random_integers(key, number + np.uint64(extra))) for extra in (1, 2))
        used = torch.tensor(self.text.used_tokens)
        original = rows[row, slot]
        drawn = used[other * len(used) // DRAW_LIMIT]
        shown = drawn.where(kind >= MASKED, self.text.mask).where(kind < RANDOM, original)
        tokens, targets, role = rows.clone(), torch.full_like(rows, IGNORE), torch.zeros_like(rows)
        tokens[row, slot], targets[row, slot] = shown, original
        role[row, slot] = (kind >= MASKED).long() + (kind >= RANDOM)
        return tokens, targets, role

    def levels(self, split: str, batch: Batch, counted: np.ndarray) -> Floors:
        mask = self.text.mask
        estimates = Neighbours(counted, self.text.end, mask, self.task.vocabulary)
        has_target = batch.targets.numpy() != IGNORE
        left, right = (side[has_target] for side in neighbours(batch.tokens.numpy(), self.text.end, mask))
        token, shown = batch.targets.numpy()[has_target], batch.tokens.numpy()[has_target]
        around = estimates.estimate(left, right, token)
        # Bayes: a slot that does not show MASK shows what is asked, or as often one of the tokens in use
        drawn = np.isin(shown, self.text.used_tokens) / len(self.text.used_tokens)
        shown_or_drawn = around * ((shown == token) + drawn) / (estimates.estimate(left, right, shown) + drawn)
        return {
            "unigram": self.level(-np.log(unigram(estimates.alone, token, self.task.vocabulary)), batch, self.roles),
            "neighbours": self.level(-np.log(np.where(shown == mask, around, shown_or_drawn)), batch, self.roles),
        }


def random_integers(key: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return integers below 2^32, each a function of key and number, by SplitMix64 (Steele et al. 2014)."""
    step, first, second = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    z = key + (number + np.uint64(1)) * step
    z = (z ^ (z >> np.uint64(30))) * first
    z = (z ^ (z >> np.uint64(27))) * second
    drawn: np.ndarray = ((z ^ (z >> np.uint64(31))) >> np.uint64(32)).astype(np.int64)
    return drawn
