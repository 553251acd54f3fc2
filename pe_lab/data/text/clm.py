"""Causal language modelling."""

from copy import copy
from math import log

import numpy as np
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Floors
from pe_lab.data.text.base import Text
from pe_lab.data.text.levels import XZ_WINDOW, ngram, unigram, xz


class CLM(Text):
    """Predict the next token of text from the tokens before it in the window and the document.

    Nothing is asked at END, which another document follows. The last slot asks for the token after the window, so
    every token is asked once, except the first of a document. Two documents "cat" and "dog!" in a window of 8:

        token     a    t    END  d    o    g    !    END
        position  0    1    2    0    1    2    3    4
        asked     t    END  -    o    g    !    END  -

    Reference levels: "unigram" knows how often each token is asked in training; "ngram" counts it after up to 7 bytes,
    or as many tokens as 64 bits hold (modified Kneser-Ney); "xz" compresses the windows of the split after 8 MiB of
    training windows and, unlike a model, also learns from one of them for the next.
    """

    roles = ("text", "end")
    causal, seeded, following = True, False, 1

    def strided(self, stride: int) -> "CLM":
        """Return the same text with overlapping windows of validation and test, each asked for its last tokens only.

        Every answer has at least `length - stride` tokens before it in its window, so the loss is that of a window that
        slides over the text, instead of one whose first tokens have no context. The first `length - stride` tokens of a
        split are not asked. About as many tokens are asked as without a stride, in `length / stride` as many windows.

        Args:
            stride: the number of tokens from one window to the next, 1 ... length.
        """
        length = self.task.length
        if not 1 <= stride <= length:
            raise ValueError(f"evaluate.stride must be in 1 ... {length}, the tokens of a window, got {stride}")
        strided = copy(self)
        vars(strided).pop("windows", None)
        strided.stride = stride
        if self.held_out is not None:
            strided.held_out = self.held_out * length // stride
        return strided

    def ask(self, split: str, index: Tensor, epoch: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, targets = rows[:, :-1], rows[:, 1:]
        role = (targets == self.text.end).long()
        targets = targets.where(tokens != self.text.end, IGNORE)
        if self.stride is not None and split != "train":
            targets[:, : -self.stride] = IGNORE
        return tokens, targets, role

    def levels(self, split: str, batch: Batch, counted: np.ndarray) -> Floors:
        end, vocabulary = self.text.end, self.task.vocabulary
        rows = self.rows(split, np.arange(len(batch)))
        has_target = batch.targets.numpy() != IGNORE
        token = batch.targets.numpy()[has_target]
        alone = unigram(counted[:, 1:][counted[:, :-1] != end], token, vocabulary)
        before = ngram(counted, rows, end, vocabulary)[has_target]
        train = [self.spell(row) for row in counted[:, :-1]]
        fit = min(len(train), len(train) * XZ_WINDOW // sum(map(len, train)))
        evenly = b"".join(train[number * len(train) // fit] for number in range(fit))
        bits = xz(evenly, b"".join(self.spell(row) for row in rows[:, :-1]))
        return {
            "unigram": self.level(-np.log(alone), batch, self.roles),
            "ngram": self.level(-np.log(before), batch, self.roles),
            "xz": self.level(bits * log(2) * self.bytes_per_token.numpy()[token], batch, ()),
        }

    def spell(self, tokens: np.ndarray) -> bytes:
        """Return the text of a window, with END as a byte."""
        return b"".join(self.text.spelling[token] for token in tokens.tolist())
