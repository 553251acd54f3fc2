"""The values of a claim's parts in the tables of studies, and of an audit."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pe_lab.replication.claim_tests import CONDITION_PATTERN
from pe_lab.replication.entry import Claimed, Condition, Entry
from pe_lab.replication.values import Values
from pe_lab.results import frame
from pe_lab.system.exact_csv import read_csv

AUDIT_PREFIX = "audit."  # columns of the audit, in conditions on cells
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# records at other lengths, without a policy for them
RAW_CONDITIONS: dict[str, Condition] = {"kind": "length", "policy": "raw", "offset": 0}


class MissingError(LookupError):
    """A study or an audit is missing, or lacks rows."""


def read_study_values(entry: Entry, folder: Path, seeds: int) -> Values:
    """Return the values of the seeds below `seeds` that have all parts of a claim; none, with a reason, if rows lack.

    Args:
        folder: a ledger, or a folder with one folder per study, and the audit as `audit`.
    """
    place = folder / "studies" if (folder / "studies").is_dir() else folder
    try:
        cells, records = _read_tables(
            entry.studies, {key for test in _tests_of_entry(entry).values() for key in _condition_names(test)}, place
        )
        return values_of_parts(entry, cells, records, seeds)
    except MissingError as missing:
        return Values(why=str(missing))


def values_of_parts(entry: Entry, cells: pd.DataFrame, records: pd.DataFrame, seeds: int) -> Values:
    """Return the values of the seeds below `seeds` that have all parts of a claim.

    Args:
        cells: the table of cells, with the columns of conditions, `seed`, `seconds` and `device`.
        records: the table of measured lengths and probes, with the columns `metric` and `value`.

    Raises:
        MissingError: a part has no rows.
    """
    parts = {label: _value_per_seed(test, cells, records) for label, test in _tests_of_entry(entry).items()}
    shared = pd.concat(parts, axis=1, join="inner").sort_index()
    shared = shared[shared.index < seeds]
    minutes = cells.groupby("seed")["seconds"].sum() / 60
    return Values(
        {label: shared[label].tolist() for label in parts},
        [int(seed) for seed in shared.index],
        [float(minutes[seed]) for seed in shared.index],
        str(cells["device"].iloc[0]),
    )


def _read_tables(studies: Iterable[str], columns: set[str], place: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells of studies, with the audit if its columns are asked for, and the records if theirs are."""
    if absent := [name for name in studies if not (place / name / "rows.csv").is_file()]:
        raise MissingError(f"there is no study {', '.join(absent)}")
    results = [frame.load(place / name) for name in studies]
    cells = pd.concat([result.cells for result in results], ignore_index=True)
    if any(key.startswith(AUDIT_PREFIX) for key in columns):
        table = place / "audit" / "table.csv"
        if not table.is_file():
            raise MissingError(f"there is no audit: pe-lab audit out={table.parent}")
        audit = read_csv(table).set_index("pe").add_prefix(AUDIT_PREFIX)
        cells = cells.join(audit, on="pe")
    if columns.isdisjoint({"length", "probe"}):
        return cells, pd.DataFrame()
    return cells, pd.concat([result.records for result in results], ignore_index=True)


def _tests_of_entry(entry: Entry) -> dict[str, Claimed]:
    return {label: test for label, test in entry.values.items() if isinstance(test, Claimed)}


def _condition_names(test: Claimed) -> set[str]:
    changes = (test.value, *test.others)
    return {key for change in changes for key in change} | {str(change.get("metric")) for change in changes}


def _value_per_seed(test: Claimed, cells: pd.DataFrame, records: pd.DataFrame) -> pd.Series:
    """Return the value of each seed."""

    def compared(conditions: Mapping[str, Condition], others: Sequence[Mapping[str, Condition]]) -> pd.Series:
        if not others:
            return _mean_per_seed(conditions, cells, records)
        *first, last = others
        value, other = compared(conditions, first), compared({**conditions, **last}, first)
        return (value / other if test.ratio else value - other).dropna()

    return compared(test.value, test.others)


def _mean_per_seed(conditions: Mapping[str, Condition], cells: pd.DataFrame, records: pd.DataFrame) -> pd.Series:
    """Return the mean over the rows that meet the conditions, for each seed that has all of them."""
    conditions = dict(conditions)
    metric = str(conditions.pop("metric"))
    if conditions.keys() & {"length", "probe"}:
        conditions = {"metric": metric, **({} if "probe" in conditions else RAW_CONDITIONS), **conditions}
        rows, column = records, "value"
    else:
        rows, column = cells, f"test_{metric}" if f"test_{metric}" in cells else metric
    for key, condition in conditions.items():
        if key in rows:
            rows = rows[_meets_condition(rows[key], condition)]
        if key not in rows or rows.empty:
            raise MissingError(f"there are no rows of {_conditions_text(conditions, metric)}")
    if column not in rows or rows[column].isna().all():
        raise MissingError(f"there are no rows of {_conditions_text(conditions, metric)}")
    groups = rows.groupby("seed")[column]
    means = groups.agg(lambda values: values.to_numpy(float).mean())  # NaN if one is
    return means[groups.size() == groups.size().max()]


def _meets_condition(values: pd.Series, condition: Condition) -> pd.Series:
    if condition == "max":
        return values == values.max()
    compared = CONDITION_PATTERN.fullmatch(condition) if isinstance(condition, str) else None
    if compared:
        return OPERATORS[compared[1]](values, float(compared[2]))
    return values.isin(condition if isinstance(condition, tuple) else [condition])


def _conditions_text(conditions: Mapping[str, Condition], metric: str) -> str:
    shown = {key: value for key, value in conditions.items() if key != "metric" and key not in RAW_CONDITIONS}
    return ", ".join([metric, *(f"{key} {value}" for key, value in shown.items())])
