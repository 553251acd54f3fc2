"""Tables in CSV, read with every number as it was written."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

# the default of pandas 3.1, which no longer takes the option; earlier ones round most numbers
_EXACTLY = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


def read_csv(file: Path | BytesIO, **options: Any) -> pd.DataFrame:
    """Return the table in a file, with every number as it was written.

    Args:
        options: more arguments of `pandas.read_csv`.
    """
    table: pd.DataFrame = pd.read_csv(file, **_EXACTLY, **options)
    return table
