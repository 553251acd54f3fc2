"""Whether any model uses position yet: has a loss below the lowest that a model without position can reach."""

import numpy as np
import pandas as pd

from pe_lab.data.score import BEST, BLIND, NO_GAP


def uses_position(rows: pd.DataFrame) -> pd.Series:
    """Return `pe_lab.data.score.uses_position` of each cell as 1 or 0, and NaN for None."""
    level = pd.Series(np.nan, rows.index)
    for floor in reversed(BLIND):
        if (name := f"floor_{floor}_loss") in rows:
            level = rows[name].astype(float).fillna(level)
    if "test_loss" not in rows:
        return level
    name = f"floor_{BEST}_loss"
    best = rows[name].astype(float).fillna(0) if name in rows else 0.0
    return (rows["test_loss"].astype(float) < level).astype(float).where(level - best > NO_GAP)


def not_learned(rows: pd.DataFrame) -> str:
    """Return a sentence that says on which tasks no model uses position yet; empty if there is none."""
    used = uses_position(rows)
    tasks = rows["data"] if "data" in rows else pd.Series("", rows.index)
    best = used.dropna().groupby(tasks, sort=False).max()
    without = list(best.index[best == 0])
    if not without:
        return ""
    where = "" if len(without) == len(best) else f" on {', '.join(without)}"
    return (
        f"None of these models uses position yet{where}: no test loss is below the best without position. "
        "Train longer before you compare encodings."
    )
