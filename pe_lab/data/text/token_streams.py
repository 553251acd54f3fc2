"""Text as tokens: split, encoded once, kept on disk and read through a memory map."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pe_lab.data.text.cache import cached_folder
from pe_lab.data.text.corpus import Corpus, before_character
from pe_lab.data.text.overlap import find_repeats
from pe_lab.data.text.tokenizer import Tokenizer
from pe_lab.system.files import CHECKSUMS_FILE, digest, read_json, write_json

REVISION = 2  # raised when the tokens or `repeats` change
SPLITS = ("train", "validation", "test")
SPLIT_TWENTIETHS = (18, 19)  # twentieths of the text after which train and validation end
MIN_WHOLE_DOCUMENTS = 100  # least number of documents that are not divided between splits


class TokenStreams:
    """A corpus as three streams of tokens, END after each document, written once for each tokenizer.

    90 % of the text is for training, then 5 % for validation and 5 % for the test. Many documents are divided whole, in
    the order of a hash of their content; a few, or a single file, at these positions of the text. The split does not
    depend on the seed. Equal documents are taken once. No file stays open before `streams`.

    Args:
        corpus: the text.
        tokenizer: the tokenizer, fitted to the training split when the streams are written.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer
        self.mask, self.end = tokenizer.vocabulary - 2, tokenizer.vocabulary - 1

    @cached_property
    def folder(self) -> Path:
        """The folder of the streams, which are written if they are missing or damaged.

        Raises:
            ValueError: the corpus is no text, or gives fewer tokens than the vocabulary was to have.
        """
        key = digest({"documents": self.corpus.documents.digest, "revision": REVISION} | self.tokenizer.identity)
        return cached_folder(self.corpus.cache / "tokens" / key, self._write)

    @cached_property
    def digest(self) -> str:
        """The digest of all tokens and their spelling."""
        return digest(read_json(self.folder / CHECKSUMS_FILE))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of tokens in each split."""
        sizes: dict[str, int] = read_json(self.folder / "sizes.json")
        return sizes

    @cached_property
    def spelling(self) -> list[bytes]:
        """The bytes of every token."""
        return [bytes.fromhex(token) for token in read_json(self.folder / "spelling.json")]

    @cached_property
    def used_tokens(self) -> list[int]:
        """The tokens that occur in the training split, without END, sorted."""
        used: list[int] = read_json(self.folder / "used.json")
        return used

    def stream(self, split: str) -> np.ndarray:
        """Return a new memory map of the tokens of a split."""
        tokens: np.ndarray = np.load(self.folder / f"{split}.npy", mmap_mode="r")
        return tokens

    @cached_property
    def streams(self) -> dict[str, np.ndarray]:
        """The memory maps of all splits, kept open."""
        return {split: self.stream(split) for split in SPLITS}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the memory maps, which another process opens itself: pickled, they are whole."""
        return {name: value for name, value in vars(self).items() if name != "streams"}

    def repeats(self, split: str, length: int) -> np.ndarray:
        """Return the positions in a split whose next `length` tokens occur in an earlier split; computed once."""

        def make(folder: Path) -> None:
            *before, held = (self.folder / f"{other}.npy" for other in SPLITS[: SPLITS.index(split) + 1])
            np.save(folder / "places.npy", find_repeats(before, held, length, self.tokenizer.vocabulary, folder))

        key = digest({"tokens": self.digest, "split": split, "length": length, "revision": REVISION})
        positions: np.ndarray = np.load(cached_folder(self.corpus.cache / "repeats" / key, make) / "places.npy")
        return positions

    def _write(self, folder: Path) -> None:
        self.tokenizer.learn(piece for split, piece, _ in divide_text(self.corpus) if split == "train")
        growing = {split: NpyWriter(folder / f"{split}.npy", self.tokenizer.dtype) for split in SPLITS}
        end = np.array([self.end], self.tokenizer.dtype)
        used = np.zeros(self.tokenizer.vocabulary, bool)
        for split, piece, ends in divide_text(self.corpus):
            tokens = self.tokenizer.encode(piece)
            growing[split].append(tokens)
            if split == "train":
                used[tokens] = True
            if ends:
                growing[split].append(end)
        write_json(folder / "sizes.json", {split: file.close() for split, file in growing.items()})
        write_json(folder / "used.json", used.nonzero()[0].tolist())
        write_json(folder / "spelling.json", [token.hex() for token in self.tokenizer.spelling()])


class NpyWriter:
    """A one-dimensional .npy file written in pieces; its header leaves space for the final length."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.file, self.dtype, self.length = path.open("wb"), dtype, 0
        self._write_header()
        self.begin = self.file.tell()

    def _write_header(self) -> None:
        described = {"shape": (self.length,), "fortran_order": False, "descr": self.dtype.str}
        np.lib.format.write_array_header_1_0(self.file, described)

    def append(self, values: np.ndarray) -> None:
        self.file.write(values.tobytes())
        self.length += len(values)

    def close(self) -> int:
        """Finish the file and return its length."""
        self.file.seek(0)
        self._write_header()
        assert self.file.tell() == self.begin
        self.file.close()
        return self.length


def divide_text(corpus: Corpus) -> Iterator[tuple[str, bytes, bool]]:
    """Yield all text: its split, a piece of it, and whether a document ends there."""
    documents = corpus.documents
    included = np.zeros(len(documents.sizes), bool)
    included[np.unique(documents.hashes, return_index=True)[1]] = True
    included &= documents.sizes > 0
    text = ((number, piece, ends) for number, piece, ends in corpus.pieces() if included[number])
    total = int(documents.sizes[included].sum())
    small = included & (documents.sizes * 20 <= total)  # no larger than a held-out split
    if small.sum() < MIN_WHOLE_DOCUMENTS or documents.sizes[small].sum() * 2 < total:
        yield from _cut_pieces(text, [total * part // 20 for part in SPLIT_TWENTIETHS])
        return
    chosen = included.nonzero()[0]
    chosen = chosen[np.lexsort((documents.hashes[chosen], small[chosen]))]  # large ones first: to the training split
    begins = documents.sizes[chosen].cumsum() - documents.sizes[chosen]
    split_of = np.zeros(len(included), np.int8)
    split_of[chosen] = np.searchsorted(SPLIT_TWENTIETHS, begins * 20 // total, side="right")
    for number, piece, ends in text:
        yield SPLITS[split_of[number]], piece, ends


def _cut_pieces(text: Iterator[tuple[int, bytes, bool]], cuts: list[int]) -> Iterator[tuple[str, bytes, bool]]:
    """Yield all pieces, cut at these bytes or before the character that contains them."""
    split = at = 0
    for _, piece, ends in text:
        while split < len(cuts) and cuts[split] < at + len(piece):
            here = before_character(piece, cuts[split] - at)
            yield SPLITS[split], piece[:here], False
            piece, at, split = piece[here:], at + here, split + 1
        yield SPLITS[split], piece, ends
        at += len(piece)
