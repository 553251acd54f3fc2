"""Text as documents that are read in pieces."""

import hashlib
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pe_lab.data.text.cache import cached_folder
from pe_lab.data.text.sources import (
    CHECKSUMS,
    download_corpus,
    own_files,
    refuse_wrapped,
    shipped_file,
    standard_library,
)
from pe_lab.data.text.text_rows import read_texts
from pe_lab.system.files import digest

REVISION = 2  # raised when the separation of documents, their digest or what is refused changes
CHUNK_BYTES = 2**18  # bytes of a read
DOCUMENTS_FILE = "documents.npz"


@dataclass(frozen=True)
class Documents:
    """Hashes and sizes of all documents, in order.

    Args:
        digest: the digest of all documents.
        hashes: the hash of the content of each document, [N] uint64.
        sizes: the size of each document in bytes, [N] int64.
    """

    digest: str
    hashes: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Corpus:
    """UTF-8 documents in the order of their files' paths. The text is never in memory as a whole.

    Args:
        name: a key of CHECKSUMS or of DOWNLOADS, or "stdlib", the .py files of Python's modules without their tests.
        path: the path of a file, or of a folder whose files are documents, hidden ones left out; wins over the name.
        separator: text between the documents of a file; None: a file is one document.
        column: the column with the text in the rows of the files, each a document; None: the files are plain text.
        cache: folder for downloads, and for hashes and sizes, so that unchanged files are read once.
    """

    name: str
    path: str | None
    separator: str | None
    cache: Path
    column: str | None = None

    @property
    def setting(self) -> str:
        return "data.corpus" if self.path is None else "data.path"

    def __str__(self) -> str:
        return f"{self.setting}={self.path or self.name}"

    @cached_property
    def files(self) -> list[Path]:
        """The files, sorted.

        Raises:
            ValueError: there are none; they cannot be downloaded; a shipped one is damaged.
        """
        if self.path is not None:
            with self._readable():
                files = own_files(Path(self.path).expanduser(), self.column)
        elif self.name in CHECKSUMS:
            files = [shipped_file(self.name)]
        elif self.name == "stdlib":
            files = standard_library()
        else:
            files = [download_corpus(self.name, self.cache / "downloads")]
        if not files:
            raise ValueError(f"{self.setting} must have a file in it, got none in {self.path or self.name}")
        return files

    @cached_property
    def documents(self) -> Documents:
        """Hash and size of every document; files are read only if they have changed.

        Raises:
            ValueError: a file is no text, or JSON lines, or there is no text at all.
        """
        with self._readable():
            stats = [(os.path.abspath(file), file.stat()) for file in self.files]
        state = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
        column = {} if self.column is None else {"column": self.column}
        key = digest({"files": state, "separator": self.separator, "revision": REVISION} | column)

        def make(folder: Path) -> None:
            documents = self._read()
            np.savez(folder / DOCUMENTS_FILE, digest=documents.digest, hashes=documents.hashes, sizes=documents.sizes)

        with np.load(cached_folder(self.cache / "documents" / key, make) / DOCUMENTS_FILE) as arrays:
            return Documents(str(arrays["digest"]), arrays["hashes"], arrays["sizes"])

    def _read(self) -> Documents:
        total = hashlib.sha256()
        hashes, sizes = array("Q"), array("q")
        for file in self.files:
            content, size = hashlib.blake2b(digest_size=8), 0
            with self._readable():
                if self.path is not None and self.column is None and is_json_lines(file):
                    refuse_wrapped(file, "JSON lines")
            for piece, ends in self._file_pieces(file):
                self._require_text(piece, file)
                total.update(piece)
                content.update(piece)
                size += len(piece)
                if ends:
                    total.update(size.to_bytes(8, "big"))
                    hashes.append(int.from_bytes(content.digest(), "big"))
                    sizes.append(size)
                    content, size = hashlib.blake2b(digest_size=8), 0
        if not any(sizes):
            raise ValueError(f"{self.setting} must have text in it, got nothing in {self.path or self.name}")
        return Documents(total.hexdigest()[:16], np.array(hashes, np.uint64), np.array(sizes, np.int64))

    def _require_text(self, piece: bytes, file: Path) -> None:
        if b"\0" in piece:
            raise ValueError(
                f"{self.setting} must be text in UTF-8, a file or a folder with nothing else, got {file} with NUL "
                f"bytes{self._remedy}"
            )
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.end]
            raise ValueError(
                f"{self.setting} must be text in UTF-8, got {file} with {wrong!r} in it{self._remedy}"
            ) from None

    @property
    def _remedy(self) -> str:
        """What to do about a file that is no text, where others are beside it."""
        if len(self.files) < 2:
            return ""
        return ": give a folder with the text files only, or one file; files whose names begin with a dot are skipped"

    def pieces(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield all text: the number of the document, a piece of it, and whether the document ends there."""
        number = 0
        for file in self.files:
            for piece, ends in self._file_pieces(file):
                yield number, piece, ends
                number += ends

    def _file_pieces(self, file: Path) -> Iterator[tuple[bytes, bool]]:
        with self._readable():
            if self.column is None:
                yield from document_pieces(file, self.separator)
            else:
                yield from ((_encode(text, file), True) for text in read_texts(file, self.column))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"{self.setting} must be text that can be read, got {error.filename} ({error.strerror})"
            ) from None


def _encode(text: str, file: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can write half of a surrogate pair
        raise ValueError(f"data.path must be text that UTF-8 can write, got half of a character in {file}") from None


def document_pieces(file: Path, separator: str | None) -> Iterator[tuple[bytes, bool]]:
    """Yield the documents of a file in pieces of about CHUNK_BYTES bytes, and whether the document ends there.

    A piece that is not a document's last ends with a line, or with a character where lines are longer than a chunk.
    """
    mark = separator.encode() if separator else None
    with file.open("rb") as opened:
        rest = b""
        while chunk := opened.read(CHUNK_BYTES):
            rest += chunk
            if mark:
                *whole, rest = rest.split(mark)
                for document in whole:
                    yield document, True
            # keep what may be the beginning of a separator
            safe = max(0, len(rest) - (len(mark) - 1 if mark else 0))
            cut = rest.rfind(b"\n", 0, safe) + 1 or before_character(rest, safe)
            yield rest[:cut], False
            rest = rest[cut:]
        yield rest, True


def is_json_lines(file: Path) -> bool:
    """Return whether the lines in the first CHUNK_BYTES bytes of a file, two or more, are JSON objects."""
    with file.open("rb") as opened:
        head = opened.read(CHUNK_BYTES)
    lines = [line for line in head.splitlines() if line.strip()]
    if len(head) == CHUNK_BYTES:
        lines = lines[:-1]  # which may be cut
    return len(lines) > 1 and all(map(_is_json_object, lines))


def _is_json_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def before_character(text: bytes, index: int) -> int:
    """Return the start of the UTF-8 character that contains the byte at this index, or the last byte."""
    index = min(index, len(text) - 1)
    for _ in range(3):
        if index > 0 and text[index] & 0xC0 == 0x80:
            index -= 1
    return index
