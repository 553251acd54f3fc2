"""The base of causal and masked language modelling."""

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Batch, Dataset, Floors, Task, mean_metrics
from pe_lab.data.metric import Metric
from pe_lab.data.text import levels
from pe_lab.data.text.cache import cache_folder, cached_folder
from pe_lab.data.text.corpus import Corpus
from pe_lab.data.text.token_streams import SPLITS, TokenStreams
from pe_lab.data.text.tokenizer import BPE, Bytes, FromFile
from pe_lab.data.text.windows import Windows, packed_layout, place_windows
from pe_lab.encodings.options import (
    MAX_LENGTH,
    Count,
    FileOrFolder,
    Folder,
    NonEmpty,
    OptionError,
    Range,
    integers,
    is_integer,
    is_text,
)
from pe_lab.system.files import digest, read_json, write_json

VOCABULARY_SIZES = Range("an integer from 259 to 2^20", lambda x: is_integer(x) and 259 <= x <= 2**20)
TOKENIZERS = Range(
    "bytes, bpe, or a tokenizer.json or its folder that is there",
    lambda x: x in ("bytes", "bpe") or (is_text(x) and Path(x).expanduser().exists()),
    names=("bytes", "bpe"),
)
MAX_COUNTED_TOKENS = 2**23  # most tokens of the training split that reference levels count, to bound their memory


class Text(Dataset):
    """Consecutive windows of `length` tokens of a corpus.

    Documents are packed: a window may hold several, or parts of them. Each is a segment of its own, so they do not see
    each other, and positions start at 0 at the first token of each in the window: see `windows.packed_layout`.

    A window of validation or test that occurs anywhere in the text of an earlier split is left out: none of
    "tinyshakespeare"; of "stdlib" 6 % of the test windows of 256 bytes, and more of shorter ones. The others may share
    shorter pieces with an earlier split: of "stdlib" 7 of 256 share a half of 128 bytes.

    Args:
        seed: the seed of random draws; the text and its splits do not depend on it.
        corpus: the name of a text: "tinyshakespeare", 1.1 MB of Shakespeare's plays, comes with the package; "stdlib"
            is the source of the running Python's standard library, another text for every version; "enwik8" is
            downloaded.
        path: the path of a plain text file, or of a folder of them, where source code and markup are text, and data
            formats such as JSON and CSV are not; wins over `corpus`. With a column also JSON lines, Parquet, and a
            folder to which `datasets` of Hugging Face saved a dataset or its splits, which are divided anew; the last
            two need pyarrow.
        column: the column with the text in the rows of these files: a row is a document. None: the files are plain
            text.
        separator: text between the documents of a file; None: a file is one document.
        tokenizer: "bytes"; "bpe", learned from the training split; or the path of a tokenizer.json, or of a folder with
            one, as `AutoTokenizer` saves it.
        vocabulary_size: the number of tokens of "bpe", 259 to 2^20: 256 bytes, learned tokens, MASK and END.
        length: T, >= 2.
        train_sequences: the largest number of windows of the training split, taken evenly over it; None: all.
        test_sequences: the largest number of windows of the validation and of the test split, likewise.
        cache: folder for downloads, tokens and reference levels; None: the user's cache folder. Not in the identity.

    Attributes:
        causal: whether a slot sees only itself and earlier slots.
        following: the number of tokens after a window that are asked for.

    Raises:
        ValueError: an option out of range; when sequences are first used: a file that is not text, or a corpus that
            is empty, not available, or shorter than one window in some split.
    """

    floors_revision = levels.REVISION
    neutral = {"column": None}
    few_steps = 500  # small models have hardly learned what follows the last byte by then
    own_metrics = (Metric("bits_per_byte", "min", "bits"),)
    causal: bool
    following: int

    def __init__(
        self,
        seed: int,
        name: str,
        corpus: Literal["tinyshakespeare", "stdlib", "enwik8"] = "tinyshakespeare",
        path: FileOrFolder | None = None,
        separator: NonEmpty | None = None,
        tokenizer: Annotated[str, TOKENIZERS] = "bytes",
        vocabulary_size: Annotated[int, VOCABULARY_SIZES] = 4096,
        length: Annotated[int, integers(2, most=MAX_LENGTH)] = 256,
        train_sequences: Count | None = None,
        test_sequences: Count | None = 256,
        cache: Folder | None = None,
        column: NonEmpty | None = None,
    ) -> None:
        if column is not None and path is None:
            raise OptionError(f"column={column} needs path, a file or folder of rows, got none")
        if column is not None and separator is not None:
            raise OptionError(f"separator must be null beside column={column}, a row is a document, got {separator!r}")
        self.seed, self.name = seed, name
        self.length, self.factor = length, 1.0
        self.stride: int | None = None  # the stride of held-out windows; None: their length
        self.train_sequences, self.held_out = train_sequences, test_sequences
        fixed = Bytes() if tokenizer == "bytes" else None
        encoder = fixed or (BPE(vocabulary_size) if tokenizer == "bpe" else FromFile(tokenizer))
        self.text = TokenStreams(Corpus(corpus, path, separator, cache_folder(cache), column), encoder)
        self.task = Task(encoder.vocabulary, length, encoder.vocabulary, self.causal)

    def content(self) -> dict[str, Any]:
        """Return the corpus by the digest of its tokens, and the size of the vocabulary only where one is learned."""
        content: dict[str, Any] = {"corpus": self.text.digest}
        content |= {"path": None, "separator": None, "cache": None}
        content |= {} if self.text.corpus.column is None else {"column": None}
        content |= {"tokenizer": "file"} if isinstance(self.text.tokenizer, FromFile) else {}
        return content if isinstance(self.text.tokenizer, BPE) else content | {"vocabulary_size": None}

    def longer(self, factor: float) -> "Text":
        """Return the same text with longer, and fewer, windows of validation and test.

        A window is left out if a piece of it, of the training length, occurs in an earlier split.
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
        """The windows of each split."""
        longer = "" if self.factor == 1 else f"evaluate.lengths={self.factor:g}"
        setting = longer or f"data.length={self.length}"
        of_train, of_held_out = (self.length, self.train_sequences), (self.task.length, self.held_out)
        return {
            split: place_windows(self.text, split, *taken, self.length, self.following, setting, self.stride)
            for split, taken in zip(SPLITS, (of_train, of_held_out, of_held_out), strict=True)
        }

    def size(self, split: str) -> int:
        return self.windows[split].size

    def rows(self, split: str, index: np.ndarray) -> np.ndarray:
        """Return [B, T + following], the windows with these indices [B] and the tokens after them."""
        return self.windows[split].read(self.text.streams[split], index, self.following)

    @abstractmethod
    def ask(self, split: str, index: Tensor, epoch: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, targets and roles [B, T] of windows [B, T + following]."""

    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        rows = torch.from_numpy(self.rows(split, index.numpy()).astype(np.int64))
        tokens, targets, role = self.ask(split, index, epoch, rows)
        text = rows[:, : tokens.shape[1]]
        return Batch(tokens, targets, role, targets != IGNORE, packed_layout(text == self.text.end, self.causal))

    def token_texts(self, tokens: Tensor) -> list[str]:
        """Return the text of tokens [T], with signs for spaces and ends of lines."""
        words = (self.text.spelling[token].decode(errors="backslashreplace") for token in tokens.tolist())
        return [word.replace(" ", "␣").replace("\n", "↵") for word in words]

    @cached_property
    def bytes_per_token(self) -> Tensor:
        """The number of bytes of each token, [vocabulary]; END counts as one."""
        return torch.tensor([len(token) for token in self.text.spelling])

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        """Return bits per byte of the answers, which are comparable between tokenizers."""
        number = self.bytes_per_token[batch.targets[batch.targets != IGNORE]].sum().item()
        return {"bits_per_byte": losses.double().sum().item() / log(2) / number}

    @abstractmethod
    def levels(self, split: str, batch: Batch, counted: np.ndarray) -> Floors:
        """Return the reference levels of a split.

        Args:
            batch: the whole split.
            counted: [N, T + following] windows of the training split.
        """

    def level(self, losses: np.ndarray, batch: Batch, roles: tuple[str, ...]) -> dict[str, float]:
        """Return the metrics of the losses [Q] in nats of all answers."""
        whole = torch.zeros(batch.targets.shape, dtype=torch.float64)
        whole[batch.targets != IGNORE] = torch.from_numpy(losses)
        return mean_metrics(whole, batch, roles) | self.metrics(whole, batch)

    def floors(self, split: str) -> Floors:
        """Return reference levels: the metrics of simple statistics of the training sequences. They are not floors.

        They are computed once and kept in the cache folder.
        """
        depends: dict[str, Any] = {"task": type(self).__name__, "revision": [self.revision, levels.REVISION]}
        depends |= {"tokens": self.text.digest, "split": split}
        depends |= {"seed": self.seed if self.seeded else None, "length": [self.length, self.task.length]}
        depends |= {"sequences": [self.train_sequences, self.held_out]}

        def make(folder: Path) -> None:
            batch = self.batch(split, torch.arange(self.size(split)))
            number = max(1, min(self.size("train"), MAX_COUNTED_TOKENS // self.length))
            counted = self.windows["train"].read_evenly(self.text, "train", number, self.following)
            write_json(folder / "levels.json", self.levels(split, batch, counted))

        folder = cached_folder(self.text.corpus.cache / "levels" / digest(depends), make)
        floors: Floors = read_json(folder / "levels.json")
        return floors
