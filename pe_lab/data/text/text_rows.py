"""Rows of text in JSON lines, Parquet, and what `datasets` of Hugging Face saves to disk: a row is a document."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

LINE_SUFFIXES = (".jsonl", ".ndjson")
ARROW_SUFFIXES = (".parquet", ".arrow")
ROW_SUFFIXES = (*LINE_SUFFIXES, *ARROW_SUFFIXES)
BATCH_ROWS = 1024  # rows that are in memory at a time


def saved_files(folder: Path) -> list[Path] | None:
    """Return the files of a dataset, or of all its splits, that `save_to_disk` wrote to a folder; None: it did not.

    Raises:
        ValueError: what it wrote is damaged.
    """
    splits, state = folder / "dataset_dict.json", folder / "state.json"
    try:
        if splits.is_file():
            files_of_splits = [saved_files(folder / name) or [] for name in json.loads(splits.read_bytes())["splits"]]
            return [file for files in files_of_splits for file in files]
        if state.is_file():
            return [folder / entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"data.path must be a dataset as save_to_disk writes it, got {folder}") from None
    return None


def read_texts(file: Path, column: str) -> Iterator[str]:
    """Yield the text of each row.

    Args:
        file: a file whose suffix is one of ROW_SUFFIXES.
        column: the name of the column that has the text.

    Raises:
        ValueError: the file is of another format, it has no such column, a row has no text, or pyarrow is missing; in
            one line.
        OSError: the file cannot be read.
    """
    texts = _read_lines(file, column) if file.suffix.lower() in LINE_SUFFIXES else _read_arrow(file, column)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise ValueError(
                f"data.column={column} must be text in every row, got {text!r:.80} in row {number} of {file}"
            )
        yield text


def _read_lines(file: Path, column: str) -> Iterator[Any]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise ValueError(
                    f"data.path must have a JSON object in each line, got another in line {number} of {file}"
                )
            _require_column(column, row, file)
            yield row[column]


def _read_arrow(file: Path, column: str) -> Iterator[Any]:
    arrow = _pyarrow(file)
    try:
        if file.suffix.lower() == ".parquet":
            source = arrow.parquet.ParquetFile(file)
            _require_column(column, source.schema_arrow.names, file)
            batches = source.iter_batches(BATCH_ROWS, columns=[column])
        else:
            batches = arrow.ipc.open_stream(arrow.memory_map(str(file)))
            _require_column(column, batches.schema.names, file)
        for batch in batches:
            yield from batch.column(batch.schema.get_field_index(column)).to_pylist()
    except arrow.ArrowInvalid as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"data.path must be a file in the format of its name, got {file} ({why:.100})") from None


def _require_column(column: str, columns: Any, file: Path) -> None:
    if column not in columns:
        names = ", ".join(list(columns)[:20]) or "none"
        raise ValueError(f"data.column must be one of the columns of {file}, {names}, got {column}")


def _pyarrow(file: Path) -> ModuleType:
    """Return pyarrow.

    Raises:
        ValueError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet

        arrow: ModuleType = pyarrow
    except ImportError:
        raise ValueError(
            f"data.path={file} needs pyarrow, which is not installed: pip install 'pe_lab[text]'"
        ) from None
    return arrow
