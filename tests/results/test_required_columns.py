"""A study's tables are accepted unchanged, or refused with the column, the line and the value."""

from pathlib import Path

import pandas as pd
import pytest

from pe_lab.results.required_columns import COST_COLUMNS, require_cells, require_costs, require_curves, require_records

PATH = Path("rows.csv")
ROWS = {"pe": ["rope", "none"], "depth": [1, 1], "epochs": [4, 4], "seed": [0, 1], "test_loss": [0.5, None]}
ROWS |= {"floor_bayes_loss": [0.0, 0.0], "parameters": [9, 9], "positional_parameters": [0, None]}
ROWS |= {"flops_per_token": [1e5, 1e5], "seconds": [1.0, 2.0], "attention": ["sdpa"] * 2, "run": ["a", "b"]}
CURVES = {name: ROWS[name] for name in ("pe", "depth", "epochs", "seed")}
CURVES |= {"epoch": [1.0, 2.0], "metric": ["loss", "loss"], "value": [1.0, float("inf")]}
NOTHING = [None, None]
RECORDS = {name: ROWS[name] for name in ("pe", "depth", "epochs", "seed")}
RECORDS |= {"kind": ["length"] * 2, "length": [1.0, 2.0], "policy": ["raw"] * 2, "offset": [0, 0], "tokens": NOTHING}
RECORDS |= {"probe": NOTHING, "layer": NOTHING, "head": NOTHING, "metric": ["loss"] * 2, "value": [1.0, None]}
TABLES = {require_cells: ROWS, require_curves: CURVES, require_records: RECORDS}


@pytest.mark.parametrize("require", TABLES)
def test_a_table_that_is_one_passes_as_it_is(require):
    table = pd.DataFrame(TABLES[require])
    assert require(table, PATH) is table
    assert require(pd.DataFrame(), PATH).empty  # there is no such file


@pytest.mark.parametrize(("require", "name"), [(require, name) for require, names in TABLES.items() for name in names])
def test_a_missing_column_is_named(require, name):
    table = pd.DataFrame(TABLES[require]).drop(columns=name)
    if require is require_cells and name in ("test_loss", "floor_bayes_loss", *COST_COLUMNS, "attention"):
        assert require(table, PATH) is table  # which metrics there are, the table says; costs are for a report
        if not name.startswith(("test", "floor")):
            with pytest.raises(ValueError, match=f"^rows.csv must have the columns {name}, got none of that name$"):
                require_costs(table, PATH)
        return
    with pytest.raises(ValueError, match=f"^rows.csv must have the columns {name}, got none of that name$"):
        require(table, PATH)


@pytest.mark.parametrize(
    ("require", "name", "value", "line"),
    [
        (require_cells, "test_loss", "low", "a number or nothing in the column test_loss, got 'low'"),
        (require_cells, "floor_bayes_loss", "low", "a number or nothing in the column floor_bayes_loss, got 'low'"),
        (require_cells, "seconds", "long", "a number or nothing in the column seconds, got 'long'"),
        (require_cells, "seed", "zero", "a whole number in the column seed, got 'zero'"),
        (require_cells, "seed", 0.5, "a whole number in the column seed, got 0.5"),
        (require_cells, "epochs", float("inf"), "a whole number in the column epochs, got inf"),
        (require_cells, "depth", None, "a whole number in the column depth, got nothing"),
        (require_cells, "pe", None, "a name in the column pe, got nothing"),
        (require_costs, "attention", None, "a name in the column attention, got nothing"),
        (require_curves, "epoch", "first", "a number or nothing in the column epoch, got 'first'"),
        (require_curves, "value", "low", "a number or nothing in the column value, got 'low'"),
        (require_curves, "metric", None, "a name in the column metric, got nothing"),
        (require_records, "length", "long", "a number or nothing in the column length, got 'long'"),
        (require_records, "layer", "top", "a number or nothing in the column layer, got 'top'"),
        (require_records, "kind", None, "a name in the column kind, got nothing"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_line(require, name, value, line):
    table = pd.DataFrame(TABLES.get(require, ROWS)).astype({name: object})
    table.loc[1, name] = value
    with pytest.raises(ValueError, match=f"^rows.csv must have {line} in line 3$"):
        require(table, PATH)
