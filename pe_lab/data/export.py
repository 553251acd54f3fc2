"""Write datasets to files: a CSV, the same content as NPZ, and a schema that describes them."""

import csv
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pe_lab.data.base import IGNORE, Batch, Dataset, Task, in_batches
from pe_lab.encodings.layout import PADDING

MAX_SPLIT_SIZE = 100_000, 5_000_000  # most sequences and tokens of a split that is written
CHUNK_SEQUENCES = 4096  # sequences of a batch
NO_TARGET = "-"  # in the CSV, for a target where nothing is asked


def write_dataset(dataset: Dataset, folder: Path, seed: int, settings: dict[str, Any]) -> list[Path]:
    """Write <name>.csv, <name>.npz and schema.json; they replace earlier files when all are complete.

    For `pattern` the CSV begins

        split,tokens,label
        train,13 2 19 5 0 7 18 8 ... 6,0

    with the tokens without padding, separated by spaces. Where every slot has an answer, "label" is "targets": a target
    or `-` for each token. A dataset that packs documents into a sequence also has a column "documents": a number for
    each token.

    Args:
        seed, settings: the seed and the settings that the dataset was made from, for the schema.

    Returns:
        The paths of the files.

    Raises:
        ValueError: a split has more than 100,000 sequences or 5,000,000 tokens, as text has.
    """
    _require_exportable(dataset)
    arrays, packed = _arrays(dataset)
    schema = _schema(dataset, seed, settings, arrays, packed)
    header = [field["name"] for field in schema["fields"]]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        names = [f"{dataset.name}.csv", f"{dataset.name}.npz", "schema.json"]
        table, archive, description = (Path(temporary) / name for name in names)
        with table.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *_lines(dataset, arrays, packed)])
        archived: dict[str, Any] = arrays  # none has the name of another argument
        np.savez_compressed(archive, **archived)
        description.write_text(json.dumps(schema, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        for name in names:
            os.replace(Path(temporary) / name, folder / name)
    return [folder / name for name in names]


def split_sizes(dataset: Dataset) -> dict[str, int]:
    """Return the number of sequences of each split; `Labelled` may have others than the usual three."""
    return {split: dataset.size(split) for split in dataset.splits}


def _require_exportable(dataset: Dataset) -> None:
    """Raise ValueError if a split is too large to be written."""
    for split, size in split_sizes(dataset).items():
        if size > MAX_SPLIT_SIZE[0] or size * dataset.task.length > MAX_SPLIT_SIZE[1]:
            raise ValueError(
                f"data must have at most {MAX_SPLIT_SIZE[0]:,} sequences and {MAX_SPLIT_SIZE[1]:,} tokens in a split "
                f"to be exported, got {size:,} of {dataset.task.length} in {split} of data={dataset.name}"
            )


def _arrays(dataset: Dataset) -> tuple[dict[str, np.ndarray], bool]:
    """Return the arrays of all splits, and whether any sequence packs several documents."""
    arrays: dict[str, np.ndarray] = {}
    packed = False
    for split, size in split_sizes(dataset).items():
        parts = list(in_batches(dataset, split, torch.arange(size), CHUNK_SEQUENCES))
        packed = packed or any(part.layout.packed for part in parts)
        arrays |= {f"{split}_{name}": array for name, array in _arrays_of_split(parts, dataset.task).items()}
    return arrays, packed


def _arrays_of_split(parts: list[Batch], task: Task) -> dict[str, np.ndarray]:
    """Return a split as arrays."""
    arrays = {
        "tokens": torch.cat([part.tokens for part in parts]),
        "documents": torch.cat([part.layout.segment for part in parts]),
    }
    targets = torch.cat([part.targets for part in parts])
    arrays |= {"label": targets[:, 0]} if task.pooled else {"targets": targets}
    return {name: tensor.numpy().astype(np.int32) for name, tensor in arrays.items()}


def _lines(dataset: Dataset, arrays: dict[str, np.ndarray], packed: bool) -> Iterator[list[str | int]]:
    """Yield the rows of the CSV below its header."""
    for split in split_sizes(dataset):
        columns = [arrays[f"{split}_{name}"] for name in ("tokens", "documents")]
        columns.append(arrays[f"{split}_label" if dataset.task.pooled else f"{split}_targets"])
        for tokens, documents, targets in zip(*columns, strict=True):
            yield _line(split, tokens, documents, targets, packed)


def _line(split: str, tokens: np.ndarray, documents: np.ndarray, targets: np.ndarray, packed: bool) -> list[str | int]:
    """Return a sequence as a row of the CSV."""
    counts = documents != PADDING
    line: list[str | int] = [split, " ".join(map(str, tokens[counts].tolist()))]
    if packed:
        line.append(" ".join(map(str, documents[counts].tolist())))
    if targets.ndim == 0:
        return [*line, int(targets)]
    return [*line, " ".join(NO_TARGET if target == IGNORE else str(target) for target in targets[counts].tolist())]


def _schema(
    dataset: Dataset,
    seed: int,
    settings: dict[str, Any],
    arrays: dict[str, np.ndarray],
    packed: bool,
) -> dict[str, Any]:
    """Return a Table Schema (specs.frictionlessdata.io/table-schema) of the CSV, with seed, settings and floors."""
    task, there = dataset.task, split_sizes(dataset)
    return {
        "name": dataset.name,
        "fields": _schema_fields(task, list(there), packed),
        "missingValues": [""],
        "nothing_asked": {"csv": NO_TARGET, "npz": IGNORE},
        "padding": {"csv": "left out", "npz": f"where documents is {PADDING}"},
        "arrays": {name: {"shape": list(array.shape), "type": str(array.dtype)} for name, array in arrays.items()},
        "sizes": there,
        "vocabulary": task.vocabulary,
        "length": task.length,
        "classes": task.outputs,
        "causal": task.causal,
        "pooled": task.pooled,
        "grid_width": task.grid_width,
        "seed": seed,
        "settings": settings,
        "floors": {split: dataset.floors(split) for split in there if split in ("validation", "test")},
    }


def _schema_fields(task: Task, splits: list[str], packed: bool) -> list[dict[str, Any]]:
    """Return the columns of the CSV as fields of a Table Schema."""
    numbers = r"\d+( \d+)*"
    fields = [
        _field("split", "string", "what the sequence is for", enum=splits),
        _field(
            "tokens",
            "string",
            f"integers from 0 to {task.vocabulary - 1}, apart by spaces: at most {task.length}, without padding",
            pattern=numbers,
        ),
    ]
    if packed:
        fields.append(_field("documents", "string", "for each token, the number of its document", pattern=numbers))
    if task.pooled:
        fields.append(_field("label", "integer", "the sequence's class", minimum=0, maximum=task.outputs - 1))
    else:
        says = (
            f"for each token, what a model is asked there: an integer from 0 to {task.outputs - 1}, or {NO_TARGET} "
            f"where nothing is asked"
        )
        fields.append(_field("targets", "string", says, pattern=rf"(\d+|{NO_TARGET})( (\d+|{NO_TARGET}))*"))
    return fields


def _field(name: str, kind: str, says: str, **constraints: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": says, "constraints": {"required": True, **constraints}}
