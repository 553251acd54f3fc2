"""The benchmark as one tidy table that other programs and other people read, and theirs beside ours."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.benchmark.rows import COLUMNS
from pe_lab.benchmark.sound import NEEDED, TEXTS, WHOLE, complaint
from pe_lab.benchmark.tasks import NAME, tasks
from pe_lab.system.files import LedgerError, parse_json, write_text
from pe_lab.system.spreadsheet import restored, to_csv
from pe_lab.system.tables import read_csv

STEM = NAME.replace(" ", "-")
MEANING = {
    "benchmark": "name and version: rows of another version are never compared",
    "task": "a task of the benchmark",
    "pe": "the encoding, with the options in which cells of a name differ",
    "name": "the encoding's name in conf/pe",
    "seed": "cells of one seed share data, order and all weights that are not positional",
    "length": "of the test sequences, in training lengths",
    "tokens": "of a test sequence",
    "score": "(level - loss) / (level - best); empty where level and best are equal",
    "loss": "mean test loss in nats",
    "level": "the loss of the best function of the unordered tokens, or the task's first reference level",
    "best": "the best possible loss, 0 where it is not known",
    "accuracy": "from 0 to 1",
    "exact_match": "share of sequences with every answer right, from 0 to 1",
    "parameters": "of the model",
    "positional_parameters": "of the encoding",
    "flops_per_token": "of a forward pass",
    "seconds": "in training steps, on the machine of the row",
    "lr": "the learning rate that the search chose",
    "epochs": "of training",
    "run": "the hash of all that determines the training",
    "python": "version",
    "torch": "version",
    "pe_lab": "version",
    "commit": "of pe_lab",
    "hardware": "of the training",
    "threads": "of PyTorch in training",
    "command": "what trains and measures the cell again",
}


def write(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Write a table of `rows.tables` as CSV, as JSON with a schema, and the schema by itself; return the files.

    Raises:
        ValueError: a value cannot be.
    """
    lines = [{name: _plain(name, value) for name, value in line.items()} for line in table.to_dict("records")]
    _require(lines, "rows to export")
    files = {
        folder / f"{STEM}.csv": to_csv(table),
        folder / f"{STEM}.json": json.dumps({"$schema": f"{STEM}.schema.json", "rows": lines}, indent=1) + "\n",
        folder / f"{STEM}.schema.json": json.dumps(schema(), indent=2) + "\n",
    }
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the exported JSON."""
    columns = {name: {"description": MEANING[name], "type": [_type(name), "null"]} for name in COLUMNS}
    for name in NEEDED:
        columns[name]["type"] = _type(name)
    columns["benchmark"]["const"] = NAME
    columns["task"]["enum"] = [task.name for task in tasks()]
    row = {"type": "object", "properties": columns, "required": list(NEEDED), "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{NAME}: a row per cell and length",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, "rows": {"type": "array", "items": row}},
        "required": ["rows"],
    }


def read(path: Path) -> pd.DataFrame:
    """Read somebody's exported table, CSV or JSON, with the file's name beside the name of each encoding.

    Raises:
        ValueError: there is no such file; it lacks a column or has one of another meaning; it is of another version of
            the benchmark; a value cannot be; a cell occurs twice; a score is not that of its parts.
    """
    table = _parsed(path)
    missing = [name for name in NEEDED if name not in table]
    unknown = [name for name in table if name not in COLUMNS]
    if missing or unknown:
        what = f"no {', '.join(missing)}" if missing else f"{', '.join(map(str, unknown))}"
        raise ValueError(f"{path} must have the columns of {STEM}.schema.json, got {what}")
    table = table.reindex(columns=list(COLUMNS)).astype(object)
    rows = [{name: _read(name, value) for name, value in line.items()} for line in table.to_dict("records")]
    _require(rows, str(path))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table[list(TEXTS)] = table[list(TEXTS)].astype(object).where(table[list(TEXTS)].notna(), None)
    numbers = [name for name in COLUMNS if name not in TEXTS]
    table[numbers] = table[numbers].astype(float)
    table["seed"] = table["seed"].astype(int)
    twice = table.duplicated(["task", "pe", "seed", "length"])
    _require_all(path, ~twice, "have each cell once:", "task, pe, seed and length", table["pe"])
    gap = (table["level"] - table["best"]).where(lambda gaps: gaps > 0)
    score = (table["level"] - table["loss"]) / gap
    given = table["score"].fillna(score)
    _require_all(path, score.isna() | ((given - score).abs() < 1e-6), "have scores of their parts in", "score", given)
    return table.assign(score=score, pe=table["pe"].astype(str) + f" ({path.stem})", name=None)


def _parsed(path: Path) -> pd.DataFrame:
    try:
        if path.suffix == ".json":
            content = parse_json(path.read_bytes())
            rows = content.get("rows") if isinstance(content, dict) else None
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError("no list of rows")
            return pd.DataFrame(rows, dtype=object)
        table = read_csv(path, dtype=dict.fromkeys(TEXTS, str))
        texts = [name for name in TEXTS if name in table]
        return table.assign(**{name: table[name].map(restored, na_action="ignore") for name in texts})
    except OSError as error:
        raise ValueError(f"{path} must be a table of {NAME}, got {error.strerror}") from None
    except (ValueError, LedgerError) as error:
        raise ValueError(f"{path} must be a table of {NAME}, CSV or JSON, got {' '.join(str(error).split())}") from None


def _read(name: str, value: Any) -> Any:
    """Return a value of a table as it was meant: None where it is missing, numbers of a CSV file as numbers."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if name in TEXTS:
        return value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require(rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise ValueError with the first row that cannot be."""
    for number, row in enumerate(rows, 1):
        if found := complaint(row):
            raise ValueError(f"{where} {found} in row {number}")


def _require_all(path: Path, good: pd.Series, what: str, which: str, values: pd.Series) -> None:
    """Raise ValueError with the first value that is not good."""
    if not good.all():
        number = int((~good).to_numpy().argmax())
        raise ValueError(f"{path} must {what} {which}, got {values.tolist()[number]!r} in row {number + 1}")


def _type(name: str) -> str:
    return "string" if name in TEXTS else "integer" if name in WHOLE else "number"


def _plain(name: str, value: Any) -> Any:
    """Return a value for JSON: missing ones are null, counts are whole."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return str(value) if name in TEXTS else int(value) if name in WHOLE else float(value)
