"""Check that the tables in a study's folder have the columns and values that a report needs."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from pe_lab.results.columns import RECORD_COLUMNS

COUNT_COLUMNS = ("depth", "seed")
COST_COLUMNS = ("parameters", "positional_parameters", "flops_per_token", "seconds")


def require_cells(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the cells of a study once they are checked.

    Raises:
        ValueError: a column is missing, or has values of another kind.
    """
    numbers = [name for name in table if name.startswith(("test_", "floor_")) or name in COST_COLUMNS]
    return _require(table, path, ("pe", "run"), _count_columns(table), numbers)


def require_costs(cells: pd.DataFrame, source: object) -> None:
    """Require the cost columns, which a report needs and `frame.load` does not.

    Raises:
        ValueError: a column is missing, or a cell has no attention.
    """
    _require(cells, source, ("attention",), (), COST_COLUMNS)


def require_curves(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the validation curves once they are checked; raises as `require_cells`."""
    return _require(table, path, ("pe", "metric"), _count_columns(table), ("epoch", "value"))


def require_records(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the later measurements once they are checked; raises as `require_cells`."""
    numbers = ("length", "offset", "layer", "head", "value")
    return _require(table, path, ("pe", "kind", "metric"), _count_columns(table), numbers, RECORD_COLUMNS)


def _count_columns(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of whole numbers: epochs may be a fraction only where steps are counted."""
    return (
        (*COUNT_COLUMNS, "steps") if "steps" in table and table["steps"].notna().all() else (*COUNT_COLUMNS, "epochs")
    )


def _require(
    table: pd.DataFrame,
    path: object,
    texts: Collection[str],
    counts: Collection[str],
    numbers: Collection[str],
    others: Collection[str] = (),
) -> pd.DataFrame:
    """Return a table whose texts and counts are complete, and whose numbers are numbers or empty.

    Raises:
        ValueError: a column is missing, or has values of another kind.
    """
    if not len(table.columns):
        return table  # no such file, or an empty one
    if lacking := [name for name in dict.fromkeys([*texts, *counts, *numbers, *others]) if name not in table]:
        raise ValueError(f"{path} must have the columns {', '.join(lacking)}, got none of that name")
    for name in [*texts, *counts, *numbers]:
        values = table[name]
        if name in texts:
            bad, kind = values.isna(), "a name"
        elif name in counts:
            as_numbers = pd.to_numeric(values, errors="coerce")
            bad, kind = ~np.isfinite(as_numbers) | (as_numbers % 1 != 0), "a whole number"
        else:
            bad, kind = pd.to_numeric(values, errors="coerce").isna() & values.notna(), "a number or nothing"
        if bad.any():
            line = int(np.argmax(bad.to_numpy()))
            value = values.iloc[line]
            value = "nothing" if pd.isna(value) else repr(value) if isinstance(value, str) else f"{value}"
            raise ValueError(f"{path} must have {kind} in the column {name}, got {value} in line {line + 2}")
    return table
