"""Read CSV files of sequences with one class each; errors name every malformed row."""

import csv
import io
import reprlib

import torch
from torch import Tensor

from pe_lab.data.base import Task

SPLITS = ("train", "validation", "test", "demo")
COLUMNS = ["split", "tokens", "label"]
MAX_LISTED_ROWS = 20  # most malformed rows that a message names

Rows = tuple[Tensor, Tensor, Tensor]  # tokens [N, T], labels [N], tokens that count [N]


def read_splits(content: bytes, source: str, task: Task) -> dict[str, Rows]:
    """Return the splits of a CSV with the columns split, tokens, label, as `export` writes it.

    Empty lines are skipped. Sequences may be shorter than the task's length.

    Args:
        content: the content of the file.
        source: the file's name, for messages.

    Raises:
        ValueError: the file is not of the format: one line, with malformed rows named by their number, the header being
            row 1.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"data.path must be text in UTF-8, got {source}, whose byte {error.start} is not") from None
    rows = [(number, line) for number, line in enumerate(io.StringIO(text, newline=None), 1) if line.strip(" \t\r\n,")]
    if not rows:
        raise ValueError(f"data.path must have the columns {','.join(COLUMNS)}, got {source}, which is empty")
    try:
        header = [name.strip() for name in _fields(rows[0][1])]
    except _MalformedError:
        header = [rows[0][1].strip()]
    if header != COLUMNS:
        raise ValueError(
            f"data.path must have the columns {','.join(COLUMNS)}, got {reprlib.repr(','.join(header))} in {source}"
        )

    form = _Form(task)
    for number, line in rows[1:]:
        form.add(number, line)
    if form.malformed:
        more = len(form.malformed) - MAX_LISTED_ROWS
        raise ValueError(
            f"data.path must have rows of {','.join(COLUMNS)}, got {len(form.malformed)} malformed in {source}: "
            + "; ".join(form.malformed[:MAX_LISTED_ROWS])
            + (f"; and {more} more" if more > 0 else "")
        )
    for split in SPLITS[:3]:
        if split not in form.taken:
            raise ValueError(f"data.path must have rows of train, validation and test, got none of {split} in {source}")
    return {split: _pad_rows(form.taken[split], task.length) for split in SPLITS if split in form.taken}


def _fields(line: str) -> list[str]:
    """Return the fields of a line."""
    try:
        return next(csv.reader([line.rstrip("\n")], strict=True))
    except csv.Error as error:
        raise _MalformedError(str(error)) from None


class _MalformedError(ValueError):
    """A row is malformed."""


class _Form:
    """Checks rows and collects the errors of malformed ones."""

    def __init__(self, task: Task) -> None:
        self.length = task.length
        # a look-up, so that anything but a plain number in range is an error
        self.tokens = {str(token): token for token in range(task.vocabulary)}
        self.labels = {str(label): label for label in range(task.outputs)}
        self.taken: dict[str, list[tuple[list[int], int]]] = {}
        self.malformed: list[str] = []
        self.first: dict[str, tuple[str, int]] = {}  # the first row of each sequence

    def add(self, number: int, line: str) -> None:
        try:
            self._add(number, _fields(line))
        except _MalformedError as reason:
            self.malformed.append(f"row {number}: {reason}")

    def _add(self, number: int, fields: list[str]) -> None:
        if len(fields) != len(COLUMNS):
            raise _MalformedError(f"{len(fields)} fields instead of {len(COLUMNS)}")
        split, tokens, label = (field.strip() for field in fields)
        if split not in SPLITS:
            raise _MalformedError(f"split {reprlib.repr(split)} is not one of {', '.join(SPLITS)}")
        texts = tokens.split()
        if not texts:
            raise _MalformedError("no tokens")
        if len(texts) > self.length:
            raise _MalformedError(f"{len(texts)} tokens, more than data.length={self.length}")
        for text in texts:
            if text not in self.tokens:
                raise _MalformedError(f"token {reprlib.repr(text)} is not in 0 ... {len(self.tokens) - 1}")
        row = [self.tokens[text] for text in texts]
        if label not in self.labels:
            raise _MalformedError(f"label {reprlib.repr(label)} is not in 0 ... {len(self.labels) - 1}")
        where, first = self.first.setdefault(" ".join(texts), (split, number))
        if where != split:
            raise _MalformedError(f"its sequence is in {where} too, in row {first}")
        self.taken.setdefault(split, []).append((row, self.labels[label]))


def _pad_rows(rows: list[tuple[list[int], int]], length: int) -> Rows:
    counts = [len(tokens) for tokens, _ in rows]
    tokens = [tokens + [0] * (length - len(tokens)) for tokens, _ in rows]
    return torch.tensor(tokens), torch.tensor([label for _, label in rows]), torch.tensor(counts)
