"""Claims on the rows of the benchmark that come with the package: their studies, and the values of their parts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from pe_lab.benchmark.task_rows import METRICS, measured_lengths, read_rows
from pe_lab.benchmark.task_statistics import published_rows
from pe_lab.benchmark.tasks import NAME, STUDY, encoding_names, task_named, task_names
from pe_lab.replication.entry import Claimed, Condition, Entry
from pe_lab.replication.study_values import RAW_CONDITIONS, MissingError, values_of_parts
from pe_lab.replication.values import SHIPPED_FILE, Values, values_by_entry
from pe_lab.system.names import unknown_name_message

KEYS = ("metric", "task", "pe", "length")  # of conditions on rows


def training_overrides(where: str, tasks: Iterable[str], tests: Mapping[str, Claimed]) -> dict[str, tuple[str, ...]]:
    """Return the overrides that train the encodings that tests name, by the name of the study of each task.

    Raises:
        ValueError: a task, or an encoding, a metric, a task or a column of a test, is not of the benchmark.
    """
    allowed = {"metric": METRICS, "task": tuple(tasks), "pe": encoding_names()}
    _require_known(where, "tasks", allowed["task"], task_names())
    named: dict[str, None] = {}
    for label, test in tests.items():
        if "length" not in test.value:
            raise ValueError(f"{where}, {label!r} must have a length in its value, in training lengths, got none")
        for conditions in (test.value, *test.others):
            _require_known(f"{where}, {label!r}", "columns", conditions, KEYS)
            for key, several in allowed.items():
                _require_known(f"{where}, {label!r}", key, _accepted_texts(conditions.get(key, ())), several)
            named |= dict.fromkeys(_accepted_texts(conditions.get("pe", ())))
    return {f"{STUDY}_{task}": (f"+study={STUDY}_{task}", f"pe={','.join(named)}") for task in tasks}


def read_benchmark_values(entry: Entry, seeds: int, folder: Path | None = None) -> Values:
    """Return the values of the seeds below `seeds`; none, with a reason, if an encoding has no rows of a task.

    Fresh seeds of the benchmark's replication are left out: not every encoding has them.

    Args:
        folder: the folder of shipped results; None: the package's own.

    Raises:
        LedgerError: the results were changed since they were packed.
    """
    tables = {task: published_rows(read_rows(task_named(task), folder)) for task in entry.tasks}
    cells = pd.concat([rows.assign(seconds=rows.get("core_seconds"), device="cpu") for rows in tables.values()])
    records = [
        rows[["task", "pe", "seed"]].assign(
            **RAW_CONDITIONS, length=length, metric=metric, value=rows[f"{metric}_x{length:g}"]
        )
        for rows in tables.values()
        for length in measured_lengths(rows)
        for metric in METRICS
    ]
    try:
        if not records:
            raise MissingError(f"there are no rows of {NAME} on {', '.join(entry.tasks)}")
        return values_of_parts(entry, cells, pd.concat(records, ignore_index=True), seeds)
    except MissingError as missing:
        return Values(why=str(missing))


def shipped_values(
    entries: Mapping[str, Entry], table: Path | None = SHIPPED_FILE, folder: Path | None = None
) -> dict[str, Values]:
    """Return the values of entries that come with the package, by name: those of a table, and of the benchmark's rows.

    Args:
        table: the file of a table of values; None: only the values of the benchmark's rows.
        folder: the folder of shipped results; None: the package's own.
    """
    values = {} if table is None else values_by_entry(table)
    return values | {
        name: read_benchmark_values(entry, entry.seeds, folder) for name, entry in entries.items() if entry.tasks
    }


def _accepted_texts(condition: Condition) -> tuple[str, ...]:
    return tuple(map(str, condition)) if isinstance(condition, tuple) else (str(condition),)


def _require_known(where: str, key: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{where}: {unknown_name_message(key, allowed, name)}")
