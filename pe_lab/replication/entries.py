"""The registry: files of conf/replication, each a published table or a list of claims, whose cells are the entries.

A file has the keys of `FILE_KEYS`, and `cells`: entries by name, with the keys of `CELL_KEYS`. A key of both stands in
the file for all of its cells, and in a cell for that one; `setting` and `chosen` of a cell follow those of the file.

A cell has either `published` numbers, or `tests`: on cells of `studies`, or on the benchmark's rows of `tasks`, which
come with the package. A test says that a value is `above`, `below` or `near` a bound. Its value is a mean over the rows
that a condition on columns leaves, alone, or compared with that of other rows: `minus` a second value, or `over` it.
`each` repeats it for every combination of some columns' values.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pe_lab import config
from pe_lab.replication.benchmark_rows import training_overrides
from pe_lab.replication.claim_tests import tests_by_label, universe_claim, universe_grid
from pe_lab.replication.entry import Entry, Reported
from pe_lab.replication.fields import (
    require_finite,
    require_flag,
    require_keys,
    require_mapping,
    require_number,
    require_text,
    require_texts,
)
from pe_lab.statistics import Published

SHARED_KEYS = (
    "title",
    "paper",
    "says",
    "source",
    "seen",
    "unit",
    "tolerance",
    "seeds",
    "measured",
    "tasks",
    "setting",
    "chosen",
    "lacks",
    "minutes",
    "timed",
)
FILE_KEYS = (*SHARED_KEYS, "cells")
CELL_KEYS = ("brief", "published", "studies", "tests", "universe", *SHARED_KEYS)
QUANTITY_PATTERN = re.compile(r"([a-z]\w*)(?:@([\d.]+(?:,[\d.]+)*))?")
MIN_SEEDS = 3  # seeds of ours


def load_entries(folder: Path | None = None) -> dict[str, Entry]:
    """Return all entries by name, in the order of files and cells.

    Args:
        folder: the folder of the files; None: the package's own and those of users.

    Raises:
        ValueError: a file is not as described above.
    """
    if folder is None:
        files = [path for _, path in sorted(config.find_folders().files.get("replication", {}).items())]
    else:
        files = sorted(folder.glob("*.yaml"))
    return {entry.name: entry for file in files for entry in _read_entries(file)}


def _read_entries(path: Path) -> list[Entry]:
    where = f"replication/{path.name}"
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} must be YAML: {' '.join(str(error).split())}") from None
    cells = require_mapping(where, "the file", table).get("cells")
    require_keys(where, table, FILE_KEYS)
    common = {key: value for key, value in table.items() if key != "cells"}
    entries = []
    for name, cell in require_mapping(where, "cells", cells).items():
        entries.append(_parse_entry(f"{where}: {name}", path.stem, str(name), common, cell))
        if entries[-1].universe:
            entries.append(universe_claim(f"{where}: {name}", entries[-1]))
    return entries


def _parse_entry(where: str, table: str, name: str, common: Mapping[str, Any], cell: Any) -> Entry:
    require_keys(where, require_mapping(where, "the cell", cell), CELL_KEYS)
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"{where} must be named with letters, digits and _, got {name!r}")
    fields = {**common, **cell}
    described: dict[str, Any] = {
        key: require_text(where, key, fields.get(key)) for key in ("title", "paper", "says", "source", "unit")
    }
    described["brief"] = require_text(where, "brief", cell.get("brief", described["says"]))
    lists: dict[str, Any] = {
        key: (*require_texts(where, key, common.get(key)), *require_texts(where, key, cell.get(key)))
        for key in ("setting", "chosen")
    }
    lacks, minutes = fields.get("lacks"), fields.get("minutes")
    studies: dict[str, tuple[str, ...]] = {}
    tests = tests_by_label(where, cell) if "tests" in cell else {}
    tasks = tuple(require_texts(where, "tasks", fields.get("tasks"))) if tests else ()
    if tasks:
        if both := fields.keys() & {"studies", "universe"}:
            raise ValueError(f"{where} must have either tasks or {' and '.join(sorted(both))}, got both")
        studies = training_overrides(where, tasks, tests)
    elif tests:
        named = require_mapping(where, "studies, overrides by the name of a study,", fields.get("studies"))
        studies = {str(key): tuple(require_texts(where, f"studies.{key}", words)) for key, words in named.items()}
    elif lacks is not None:
        require_text(where, "lacks", lacks)
    elif not lists["setting"]:
        raise ValueError(f"{where} must have a setting, the overrides of pe-lab run, got none")
    if minutes is not None or (lacks is None and not tasks):
        require_number(where, "minutes", minutes)
    seeds = fields.get("seeds", MIN_SEEDS)
    if type(seeds) is not int or seeds < MIN_SEEDS:
        raise ValueError(f"{where} must have seeds, a whole number of at least {MIN_SEEDS}, got {seeds!r}")
    return Entry(
        name=f"{table}/{name}",
        **described,
        seen=require_flag(where, "seen", fields.get("seen")),
        values=tests or _parse_values(where, fields.get("published"), fields.get("measured")),
        tolerance=require_number(where, "tolerance", fields.get("tolerance")),
        seeds=seeds,
        **lists,
        lacks=lacks,
        minutes=minutes,
        timed=require_flag(where, "timed", fields.get("timed", False)),
        studies=studies,
        tasks=tasks,
        universe=universe_grid(where, cell["universe"], studies) if "universe" in cell else {},
    )


def _parse_values(where: str, published: Any, measured: Any) -> dict[str, Reported]:
    """Return what was reported: published numbers by label, beside what we measure for each label."""
    quantities = require_mapping(where, "measured, a metric for each published value,", measured)
    values = {}
    for label, value in require_mapping(where, "published, numbers by label,", published).items():
        if label not in quantities:
            raise ValueError(f"{where} must say in measured what we compare with {label!r}, got none")
        match = QUANTITY_PATTERN.fullmatch(str(quantities[label]))
        if match is None:
            raise ValueError(f"{where} must measure a metric, as exact_match or loss@2, got {quantities[label]!r}")
        lengths = tuple(float(length) for length in match[2].split(",")) if match[2] else (1.0,)
        values[str(label)] = Reported(_parse_published(f"{where}, {label}", value), match[1], lengths)
    return values


def _parse_published(where: str, value: Any) -> Published:
    """Return a published number: one number, a number for each seed, or a mean with sd and seeds."""
    if isinstance(value, list) and len(value) > 1:
        numbers = [require_finite(where, number) for number in value]
        return Published(float(np.mean(numbers)), float(np.std(numbers, ddof=1)), len(numbers))
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in ("mean", "sd", "seeds")]
        if unknown or "mean" not in value:
            raise ValueError(f"{where} must have mean, and sd and seeds where they are stated, got {dict(value)}")
        sd, seeds = value.get("sd"), value.get("seeds")
        if sd is not None and not require_finite(where, sd) >= 0:
            raise ValueError(f"{where} must have an sd of at least 0, got {sd:g}")
        if seeds is not None and (type(seeds) is not int or seeds < 1):
            raise ValueError(f"{where} must have a whole number of seeds, got {seeds!r}")
        return Published(require_finite(where, value["mean"]), sd, seeds)
    return Published(require_finite(where, value))
