"""Language modelling on text: what the causal and the masked task share."""

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, Floors, Task, averages
from pe_lab.data.metric import Metric
from pe_lab.data.text import levels
from pe_lab.data.text.cache import cache_folder, kept
from pe_lab.data.text.corpus import Corpus
from pe_lab.data.text.encoded import SPLITS, Encoded
from pe_lab.data.text.tokenizer import BPE, Bytes
from pe_lab.encodings.layout import Layout
from pe_lab.ranges import require
from pe_lab.system.files import digest, read_json, write_json

COUNTED = 2**23  # tokens of the training split that reference levels count at most, evenly; to bound their memory


class Text(Dataset):
    """Windows of `length` tokens, one after the other, of the documents of a corpus.

    Documents are packed: a window may hold several, or parts of them. They do not see each other (a segment each), and
    positions start at 0 in each, as far as the window shows it. For instance, two documents "cat" and "dog!", the
    first begun in the window before:

        token     a    t    END  d    o    g    !    END
        segment   0    0    0    1    1    1    1    1
        position  0    1    2    0    1    2    3    4

    A window of validation or test that is found anywhere in the text of a split before it is left out: of the standard
    library 6 % of the test windows of 256 bytes, and more of shorter ones. Those that stay may have shorter pieces in
    common with a split before: 7 of 256 a half of 128 bytes.

    Args:
        seed: of what is drawn; the text and its split do not depend on it.
        corpus: "stdlib", the source of Python's own standard library; "tinyshakespeare" and "enwik8" are downloaded.
        path: of a text file, or of a folder of them; wins over `corpus`.
        separator: what stands between documents in a file; None: a file is one document.
        tokenizer: "bytes", or "bpe", learned from the training split.
        vocabulary_size: tokens of "bpe", 259 to 65,536: 256 bytes, what is learned, and the two marks MASK and END.
        length: T, >= 2.
        train_sequences: windows of the training split, at most, taken evenly over it; None: all.
        test_sequences: the same for validation and test, each.
        cache: folder for downloads, tokens and reference levels; None: the user's cache folder. Not in the identity.

    Attributes:
        causal: whether a slot may see only what comes before it.
        seeded: whether what is asked depends on the seed.
        following: how many tokens after a window are asked for.

    Raises:
        ValueError: an option out of range; and, as soon as sequences are asked for: a file that is no text, a corpus
            that is empty, cannot be had, or is shorter than one window in some split.
    """

    floors_revision = levels.REVISION
    own_metrics = (Metric("bits_per_byte", "min", "bits"),)
    causal: bool
    seeded: bool
    following: int

    def __init__(
        self,
        seed: int,
        name: str,
        corpus: str = "stdlib",
        path: str | None = None,
        separator: str | None = None,
        tokenizer: str = "bytes",
        vocabulary_size: int = 4096,
        length: int = 256,
        train_sequences: int | None = None,
        test_sequences: int | None = 256,
        cache: str | None = None,
    ) -> None:
        given = {
            "corpus": corpus,
            "path": path,
            "separator": separator,
            "tokenizer": tokenizer,
            "vocabulary_size": vocabulary_size,
            "length": length,
            "train_sequences": train_sequences,
            "test_sequences": test_sequences,
            "cache": cache,
        }
        for option, value in given.items():
            require(f"data.{option}", value)
        if length < 2:
            raise ValueError(f"data.length must be at least 2 for data={name}, got {length}")
        self.seed, self.name = seed, name
        self.length, self.factor = length, 1.0
        self.train_sequences, self.held_out = train_sequences, test_sequences
        own = BPE(vocabulary_size) if tokenizer == "bpe" else Bytes()
        self.text = Encoded(Corpus(corpus, path, separator, cache_folder(cache)), own)
        self.task = Task(own.vocabulary, length, own.vocabulary, self.causal)

    def content(self) -> dict[str, Any]:
        """The corpus by its tokens, wherever they are; the size of a vocabulary only where one is learned."""
        known: dict[str, Any] = {"corpus": self.text.digest}
        known |= {"path": None, "separator": None, "cache": None}
        return known if isinstance(self.text.tokenizer, BPE) else known | {"vocabulary_size": None}

    def longer(self, factor: float) -> "Text":
        """The same text with longer windows of validation and test, fewer of them by the same factor.

        A window is left out if anything in it is known from a split before, as long as a sequence of training.
        """
        longer = copy(self)
        vars(longer).pop("windows", None)
        longer.factor = factor
        longer.task = replace(self.task, length=round(factor * self.length))
        if self.held_out is not None:
            longer.held_out = max(1, int(self.held_out / factor))
        longer.size("test")
        return longer

    @cached_property
    def windows(self) -> dict[str, "Windows"]:
        """Where the sequences of each split are.

        Raises:
            ValueError: as the class.
        """
        windows = {}
        for split in SPLITS:
            held_out = split != "train"
            length, cap = (self.task.length, self.held_out) if held_out else (self.length, self.train_sequences)
            total = max(0, self.text.sizes[split] - self.following) // length
            self._require_sequences(total, split)
            places = None
            if held_out:
                places = np.arange(total) * length
                known = self.text.repeats(split, self.length)
                last = np.searchsorted(known, places + length - self.length, side="right")
                places = places[last == np.searchsorted(known, places)]
                total = len(places)
                self._require_sequences(total, split, ", all known from the splits before")
            size = total if cap is None else min(cap, total)
            if places is not None:
                places = places[np.arange(size) * total // size]
            windows[split] = Windows(length, size, total, places)
        return windows

    def _require_sequences(self, number: int, split: str, why: str = "") -> None:
        if not number:
            setting = f"data.length={self.length}" if self.factor == 1 else f"evaluate.lengths={self.factor:g}"
            raise ValueError(
                f"{setting} must leave a sequence in every split of {self.text.corpus}, got none of "
                f"{self.task.length} tokens in the {self.text.sizes[split]} for {split}{why}"
            )

    def size(self, split: str) -> int:
        return self.windows[split].size

    def rows(self, split: str, index: np.ndarray) -> np.ndarray:
        """[B, T + following] the windows with these indices [B], and the tokens after them."""
        return self.windows[split].read(self.text.streams[split], index, self.following)

    @abstractmethod
    def ask(self, split: str, index: Tensor, epoch: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, targets and roles [B, T] of windows [B, T + following]."""

    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        rows = torch.from_numpy(self.rows(split, index.numpy()).astype(np.int64))
        tokens, targets, role = self.ask(split, index, epoch, rows)
        text = rows[:, : tokens.shape[1]]
        return Batch(tokens, targets, role, targets != IGNORE, packed(text == self.text.end, self.causal))

    @cached_property
    def bytes_of(self) -> Tensor:
        """[vocabulary] how many bytes of text a token is; END counts as one."""
        return torch.tensor([len(token) for token in self.text.spelling])

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        """Return the bits for each byte of the answers, which are comparable between tokenizers."""
        number = self.bytes_of[batch.targets[batch.targets != IGNORE]].sum().item()
        return {"bits_per_byte": losses.double().sum().item() / log(2) / number}

    @abstractmethod
    def levels(self, split: str, batch: Batch, counted: np.ndarray) -> Floors:
        """Reference levels of a split.

        Args:
            batch: the whole split.
            counted: [N, T + following] windows of the training split.
        """

    def level(self, losses: np.ndarray, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
        """The metrics of the losses [Q] in nats of all that is asked."""
        whole = torch.zeros(batch.targets.shape, dtype=torch.float64)
        whole[batch.targets != IGNORE] = torch.from_numpy(losses)
        return averages(whole, batch, roles) | self.metrics(whole, batch)

    def floors(self, split: str) -> Floors:
        """Reference levels, no floors: what simple statistics of the training sequences reach on the same questions.

        Computed once, and kept in the cache folder.
        """
        depends: dict[str, Any] = {"task": type(self).__name__, "revision": [self.revision, levels.REVISION]}
        depends |= {"tokens": self.text.digest, "split": split}
        depends |= {"seed": self.seed if self.seeded else None, "length": [self.length, self.task.length]}
        depends |= {"sequences": [self.train_sequences, self.held_out]}

        def make(folder: Path) -> None:
            batch = self.batch(split, torch.arange(self.size(split)))
            number = max(1, min(self.size("train"), COUNTED // self.length))
            chosen = np.arange(number) * self.size("train") // number
            blocks = np.split(chosen, range(levels.BLOCK, number, levels.BLOCK))
            # a new map for each block: what has been read does not stay in memory
            parts = [self.windows["train"].read(self.text.stream("train"), block, self.following) for block in blocks]
            write_json(folder / "levels.json", self.levels(split, batch, np.concatenate(parts)))

        return read_json(kept(self.text.corpus.cache / "levels" / digest(depends), make) / "levels.json")


@dataclass(frozen=True)
class Windows:
    """Sequences in a stream of tokens.

    Args:
        length: in tokens.
        size: how many are taken.
        total: how many there are, one after the other, to take evenly from.
        places: [size] where those that are taken begin; None: at multiples of the length.
    """

    length: int
    size: int
    total: int
    places: np.ndarray | None = None

    def read(self, stream: np.ndarray, index: np.ndarray, following: int) -> np.ndarray:
        """[B, length + following] the tokens of the sequences with these indices [B], and those after them."""
        begin = index * self.total // self.size * self.length if self.places is None else self.places[index]
        rows = np.empty((len(index), self.length + following), stream.dtype)
        whole = np.asarray(stream)  # a slice of it is ten times faster than one of a memory map
        for row, place in zip(rows, begin.tolist(), strict=True):
            row[:] = whole[place : place + rows.shape[1]]
        return rows


def packed(ends: Tensor, causal: bool) -> Layout:
    """Where tokens are in windows of packed documents.

    Args:
        ends: [B, T] bool, the last token of a document.
    """
    segment = ends.cumsum(1) - ends.long()
    begins = torch.nn.functional.pad(ends[:, :-1], (1, 0))
    slot = torch.arange(ends.shape[1])
    pos = slot - slot.where(begins, 0).cummax(1).values
    return Layout(pos, segment, causal)
