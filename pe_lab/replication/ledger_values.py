"""The values of entries in a ledger."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pe_lab import config
from pe_lab.experiment.cell import Cell
from pe_lab.ledger.records import Records
from pe_lab.replication import benchmark_rows, study_values
from pe_lab.replication.entry import Entry, Reported
from pe_lab.replication.values import Values
from pe_lab.results.from_ledger import summary_and_environment

DERIVED_METRICS: dict[str, tuple[str, Callable[[float], float]]] = {
    "error": ("accuracy", lambda value: 1 - value),
    "perplexity": ("loss", math.exp),
}


def read_ledger_values(entry: Entry, ledger: Path, seeds: int, overrides: tuple[str, ...] = ()) -> Values:
    """Return the values of the seeds 0 ... seeds - 1 of an entry that the ledger has.

    Those of a claim are read from the tables of its studies, or from the benchmark's rows that come with the package,
    which are trained with the default settings.

    Args:
        overrides: overrides beside those of the entry, which say where it is trained.

    Raises:
        ValueError: the setting does not compose, or a metric is unknown.
        LedgerError: an entry of the ledger is damaged.
    """
    values = Values({label: [] for label in entry.values})
    if entry.tasks:
        if overrides:
            return Values(why=f"the benchmark's rows are not of {' '.join(overrides)}")
        return benchmark_rows.read_benchmark_values(entry, seeds)
    if entry.studies:
        return study_values.read_study_values(entry, ledger, seeds)
    if entry.lacks or not ledger.is_dir():
        return values
    for seed in range(seeds):
        cell = compose_cell(entry, [f"seed={seed}", f"ledger={ledger}", *overrides])
        run = cell.run
        records = Records(run, cell.target)
        if not run.done(cell.target) or not all(map(records.has, cell.requests)):
            if seed == 0 and not run.folder.exists():  # an entry that was never asked for
                break
            continue
        summary = summary_and_environment(run, cell.target)
        for label, value in entry.values.items():
            assert isinstance(value, Reported)
            values.by_label[label].append(_read_value(entry, value, summary, cell, records))
        values.seeds.append(seed)
        values.minutes.append(summary["seconds"] / 60)
        values.device = cell.device.type
    return values


def compose_cell(entry: Entry, overrides: list[str]) -> Cell:
    """Return a cell of an entry.

    Raises:
        ValueError: the setting does not compose.
    """
    try:
        (cfg,) = config.expand_overrides([*entry.overrides(), "logger=none", *overrides], multirun=False)
        return Cell.from_config(cfg)
    except Exception as error:
        raise ValueError(f"{entry.name}: {' '.join(str(error).split())}") from None


def _read_value(entry: Entry, value: Reported, summary: dict[str, Any], cell: Cell, records: Records) -> float:
    metric, change = DERIVED_METRICS.get(value.metric, (value.metric, float))
    numbers = []
    for length in value.lengths:
        if length == 1:
            test = summary["test"]
        else:
            description = {"kind": "length", "length": length, "policy": "raw", "offset": 0}
            request = next(request for request in cell.requests if description.items() <= request.items())
            rows = records.get(request)
            test = dict(zip(rows["metric"], rows["value"], strict=True))
        if metric not in test:
            raise ValueError(f"{entry.name} must measure one of {', '.join(test)}, got {value.metric}")
        numbers.append(float(change(test[metric])))
    return sum(numbers) / len(numbers)
