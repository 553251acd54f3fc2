"""The registry: files of conf/replication, each a published table, whose cells are the entries.

A file has the keys of `FILE`, and `cells`: entries by name, with the keys of `CELL`. A key of both stands in the file
for all of its cells, and in a cell for that one; `setting` and `chosen` of a cell come after those of the file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pe_lab import config
from pe_lab.statistics import Published

BOTH = (
    "says",
    "source",
    "seen",
    "unit",
    "tolerance",
    "seeds",
    "measured",
    "setting",
    "chosen",
    "lacks",
    "minutes",
    "timed",
)
FILE = ("title", "paper", *BOTH, "cells")
CELL = ("published", *BOTH)
QUANTITY = re.compile(r"([a-z]\w*)(?:@([\d.]+(?:,[\d.]+)*))?")
FEWEST = 3  # seeds of ours


@dataclass(frozen=True)
class Reported:
    """A published number of an entry.

    Attributes:
        published: the number, with its spread and seeds where they are stated.
        metric: what we measure: a metric of the task, `error` (1 - accuracy) or `perplexity` (e^loss).
        lengths: of the test, in training lengths; of several, the mean.
    """

    published: Published
    metric: str
    lengths: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Entry:
    """A published cell: what was reported, and how we repeat it.

    Attributes:
        name: of its file and of its cell, as `formal_counting/majority_none`.
        title, paper: of the publication, and its address.
        says: what its authors say, in a sentence of ours.
        source: where the number stands.
        seen: whether we read it there.
        unit: of the numbers.
        values: what was reported, by a label, as the range of lengths.
        tolerance: means that differ by less count as the same.
        seeds: of ours, at the first look.
        setting: overrides of `pe-lab run`.
        chosen: what the authors leave unsaid, or do otherwise, and what we do.
        lacks: what this package would need to repeat it; None: nothing.
        minutes: core-minutes of a seed.
        timed: whether these were measured; otherwise they are an estimate.
    """

    name: str
    title: str
    paper: str
    says: str
    source: str
    seen: bool
    unit: str
    values: dict[str, Reported]
    tolerance: float
    seeds: int
    setting: tuple[str, ...]
    chosen: tuple[str, ...]
    lacks: str | None
    minutes: float | None
    timed: bool

    def overrides(self) -> list[str]:
        """Return the setting, with the lengths that are measured."""
        lengths = sorted({length for value in self.values.values() for length in value.lengths})
        asked = [] if lengths == [1.0] else [f"evaluate.lengths=[{','.join(f'{length:g}' for length in lengths)}]"]
        return [*self.setting, *asked]


def load(folder: Path | None = None) -> dict[str, Entry]:
    """Return all entries by name, in the order of files and cells.

    Args:
        folder: of the files; None: those of the package and of users.

    Raises:
        ValueError: a file is not as described above.
    """
    if folder is None:
        files = [path for _, path in sorted(config.folders().files.get("replication", {}).items())]
    else:
        files = sorted(folder.glob("*.yaml"))
    return {entry.name: entry for file in files for entry in _entries(file)}


def _entries(path: Path) -> list[Entry]:
    where = f"replication/{path.name}"
    try:
        table = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} must be YAML: {' '.join(str(error).split())}") from None
    cells = _mapping(where, "the file", table).get("cells")
    _known(where, table, FILE)
    common = {key: value for key, value in table.items() if key != "cells"}
    return [
        _entry(f"{where}: {name}", path.stem, str(name), common, cell)
        for name, cell in _mapping(where, "cells", cells).items()
    ]


def _entry(where: str, table: str, name: str, common: Mapping[str, Any], cell: Any) -> Entry:
    _known(where, _mapping(where, "the cell", cell), CELL)
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"{where} must be named with letters, digits and _, got {name!r}")
    given = {**common, **cell}
    lists = {
        key: (*_texts(where, key, common.get(key)), *_texts(where, key, cell.get(key))) for key in ("setting", "chosen")
    }
    lacks, minutes = given.get("lacks"), given.get("minutes")
    if lacks is not None:
        _text(where, "lacks", lacks)
    elif not lists["setting"]:
        raise ValueError(f"{where} must have a setting, the overrides of pe-lab run, got none")
    if minutes is not None or lacks is None:
        _number(where, "minutes", minutes)
    seeds = given.get("seeds", FEWEST)
    if type(seeds) is not int or seeds < FEWEST:
        raise ValueError(f"{where} must have seeds, a whole number of at least {FEWEST}, got {seeds!r}")
    return Entry(
        name=f"{table}/{name}",
        **{key: _text(where, key, given.get(key)) for key in ("title", "paper", "says", "source", "unit")},
        seen=_flag(where, "seen", given.get("seen")),
        values=_values(where, given.get("published"), given.get("measured")),
        tolerance=_number(where, "tolerance", given.get("tolerance")),
        seeds=seeds,
        **lists,
        lacks=lacks,
        minutes=minutes,
        timed=_flag(where, "timed", given.get("timed", False)),
    )


def _values(where: str, published: Any, measured: Any) -> dict[str, Reported]:
    """Return what was reported: published numbers by label, beside what we measure for each label."""
    quantities = _mapping(where, "measured, a metric for each published value,", measured)
    values = {}
    for label, number in _mapping(where, "published, numbers by label,", published).items():
        if label not in quantities:
            raise ValueError(f"{where} must say in measured what we compare with {label!r}, got none")
        match = QUANTITY.fullmatch(str(quantities[label]))
        if match is None:
            raise ValueError(f"{where} must measure a metric, as exact_match or loss@2, got {quantities[label]!r}")
        lengths = tuple(float(length) for length in match[2].split(",")) if match[2] else (1.0,)
        values[str(label)] = Reported(_published(f"{where}, {label}", number), match[1], lengths)
    return values


def _published(where: str, given: Any) -> Published:
    """Return a published number: one number, a number for each seed, or a mean with sd and seeds."""
    if isinstance(given, list) and len(given) > 1:
        numbers = [_finite(where, number) for number in given]
        return Published(float(np.mean(numbers)), float(np.std(numbers, ddof=1)), len(numbers))
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in ("mean", "sd", "seeds")]
        if unknown or "mean" not in given:
            raise ValueError(f"{where} must have mean, and sd and seeds where they are stated, got {dict(given)}")
        sd, seeds = given.get("sd"), given.get("seeds")
        if sd is not None and not _finite(where, sd) >= 0:
            raise ValueError(f"{where} must have an sd of at least 0, got {sd:g}")
        if seeds is not None and (type(seeds) is not int or seeds < 1):
            raise ValueError(f"{where} must have a whole number of seeds, got {seeds!r}")
        return Published(_finite(where, given["mean"]), sd, seeds)
    return Published(_finite(where, given))


def _finite(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not np.isfinite(value):
        raise ValueError(f"{where} must be a number, a list of one for each seed, or mean, sd and seeds, got {value!r}")
    return float(value)


def _mapping(where: str, what: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{where}: {what} must be a mapping, got {'nothing' if value is None else repr(value)}")
    return value


def _known(where: str, given: Mapping[Any, Any], keys: tuple[str, ...]) -> None:
    for key in given:
        if key not in keys:
            raise ValueError(f"{where} must have the keys {', '.join(keys)}, got {key!r}")


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must have {key}, a text, got {'none' if value is None else repr(value)}")
    return value


def _texts(where: str, key: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where} must have {key} as a list of texts, got {value!r}")
    return [_text(where, key, text) for text in value]


def _number(where: str, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < np.inf:
        raise ValueError(f"{where} must have {key}, a number above 0, got {'none' if value is None else repr(value)}")
    return float(value)


def _flag(where: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where} must have {key}, true or false, got {'none' if value is None else repr(value)}")
    return value
