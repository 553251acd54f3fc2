"""Results that stand in no folder, made of tables."""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.results.frame import Results
from pe_lab.results.study_declaration import StudyDeclaration


def results_of(
    cells: pd.DataFrame,
    source: Path = Path("somewhere"),
    study: str | None = None,
    curves: pd.DataFrame | None = None,
    records: pd.DataFrame | None = None,
    declared: StudyDeclaration | None = None,
    kind: type[Results] = Results,
    **fields: Any,
) -> Results:
    """Return results of cells, as if the curves, the records and the declaration had been read.

    Args:
        curves, records: None: empty ones.
        fields: others of `Results`, as failed.
    """
    results = kind(source, study, cells, **fields)
    tables = {"curves": curves, "records": records}
    vars(results).update({name: pd.DataFrame() if table is None else table for name, table in tables.items()})
    if declared is not None:
        vars(results)["declared"] = declared
    return results
