"""What the tables of a study's folder must be, so that they can be reported."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from pe_lab.results.curves import MEASURED

COUNTS = ("depth", "epochs", "seed")
PAID = ("parameters", "positional_parameters", "flops_per_token", "seconds")


def require_rows(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The cells of a study.

    Raises:
        ValueError: a column is absent, or has something else in it than it must have.
    """
    numbers = [name for name in table if name.startswith(("test_", "floor_")) or name in PAID]
    return _require(table, path, ("pe", "run"), COUNTS, numbers)


def require_costs(cells: pd.DataFrame, source: object) -> None:
    """What a report says of costs it must be told; frames are made without.

    Raises:
        ValueError: a column is absent, or says nothing of the attention of a cell.
    """
    _require(cells, source, ("attention",), (), PAID)


def require_curves(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Validation during training; raises as `require_rows`."""
    return _require(table, path, ("pe", "metric"), COUNTS, ("epoch", "value"))


def require_records(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """What was measured beyond the test; raises as `require_rows`."""
    numbers = ("length", "offset", "layer", "head", "value")
    return _require(table, path, ("pe", "kind", "metric"), COUNTS, numbers, MEASURED)


def _require(
    table: pd.DataFrame,
    path: object,
    texts: Collection[str],
    counts: Collection[str],
    numbers: Collection[str],
    others: Collection[str] = (),
) -> pd.DataFrame:
    """A table whose texts and counts are all there, and whose numbers are numbers or left empty."""
    if not len(table.columns):
        return table  # there is no such file, or nothing in it
    if lacking := [name for name in dict.fromkeys([*texts, *counts, *numbers, *others]) if name not in table]:
        raise ValueError(f"{path} must have the columns {', '.join(lacking)}, got none of that name")
    for name in [*texts, *counts, *numbers]:
        values = table[name]
        if name in texts:
            bad, kind = values.isna(), "a name"
        else:
            as_numbers = pd.to_numeric(values, errors="coerce")
            bad, kind = as_numbers.isna() & values.notna(), "a number or nothing"
            if name in counts:
                bad, kind = ~np.isfinite(as_numbers) | (as_numbers % 1 != 0), "a whole number"
        if bad.any():
            line = int(np.argmax(bad.to_numpy()))
            value = values.iloc[line]
            value = "nothing" if pd.isna(value) else repr(value) if isinstance(value, str) else f"{value}"
            raise ValueError(f"{path} must have {kind} in the column {name}, got {value} in line {line + 2}")
    return table
