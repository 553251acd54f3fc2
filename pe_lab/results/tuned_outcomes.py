"""What came out of a study whose seeds tune for themselves: its outcomes, a line per cell, and their comparisons.

An outcome has the settings of its cell, then y (log2 of the steps to solve, or the test loss of a task without a
level), solved, the rate and the scale that were chosen, edge (whether the rate is the lowest or the highest tried),
trained_steps and core_seconds (of all tries).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pe_lab.statistics import Endpoint, compare, interval, rank_ranges, share_interval

ENDPOINTS = {"steps": "1 octave", "loss": "0.05 nats"}  # what a study compares, with the default margin


def endpoint(margin: str | None, octaves: float | None) -> Endpoint:
    """Return what a study compares: steps to solve, or the loss.

    Args:
        margin: the smallest difference that matters; None: the default.
        octaves: of steps, from the first evaluation to the last; None: the task has no level, and losses are compared.

    Raises:
        ValueError: the margin does not fit.
    """
    kind = "loss" if octaves is None else "steps"
    return Endpoint.parse(kind, margin or ENDPOINTS[kind], np.inf if octaves is None else octaves)


def summaries(found: pd.DataFrame, endpoint: Endpoint) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield, for each setting, its name and a line per encoding: runs, solved, steps or loss, 95 % interval, ranks.

    Args:
        found: see `outcome_table`.
    """
    keys = settings(found)
    for key, part in found.groupby(keys, sort=False, dropna=False):
        known = part[part["y"].notna()].rename(columns={"pe": "encoding"})
        names = list(known["encoding"].unique())
        values = known.groupby("encoding", sort=False)["y"]
        table = values.agg(runs="count", y="mean").reset_index()
        ends = [interval(own) if len(own) > 1 else (np.nan, np.nan) for _, own in values]
        if endpoint.kind == "steps":
            solved = known.groupby("encoding", sort=False)["solved"].sum().astype(int).to_numpy()
            low, high = share_interval(solved, table["runs"].to_numpy())
            table["solved"] = [f"{s} [{a:.2f}, {b:.2f}]" for s, a, b in zip(solved, low, high, strict=True)]
            table["steps"] = (2 ** table.pop("y")).round().astype(int)
            table["95 % interval"] = _between([(2**a, 2**b) for a, b in ends], ",.0f")
        else:
            table["loss"] = table.pop("y")
            table["95 % interval"] = _between(ends, ".4f")
        if len(names) > 1:
            runs = known.drop(columns="solved") if endpoint.kind != "steps" else known.astype({"solved": bool})
            verdict = compare(runs[[name for name in ("encoding", "seed", "y", "solved") if name in runs]], endpoint)
            first, last = rank_ranges(verdict["verdict"].to_numpy(str), len(names))
            table["ranks"] = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)]
        text = ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True))
        yield text, table.rename(columns={"encoding": "pe"})


def _between(ends: list[tuple[float, float]], digits: str) -> list[str]:
    return ["" if np.isnan(low) else f"[{low:{digits}}, {high:{digits}}]" for low, high in ends]


def settings(found: pd.DataFrame) -> list[str]:
    """Return the columns of an outcome table by which settings differ, the steps of a training among them."""
    names = found.columns[: found.columns.get_loc("y")]
    return [name for name in names if name not in ("pe", "seed") and (name != "steps" or found[name].nunique() > 1)]


def with_baseline(found: pd.DataFrame, endpoint: Endpoint, baseline: str) -> pd.DataFrame:
    """Compare every encoding with a baseline, in one family over all settings.

    A setting in which the baseline has no value, or no other encoding has one, is left out: all tries diverged there.

    Args:
        found: see `outcome_table`.

    Returns:
        A line per setting and encoding: the settings, then the columns of `pe_lab.statistics.compare`.
    """
    keys = settings(found)
    runs = found[found["y"].notna()].rename(columns={"pe": "encoding"})
    each = runs[keys].drop_duplicates(ignore_index=True)
    runs = runs.merge(each.assign(task=each.index.astype(str)))
    compared = runs.groupby("task")["encoding"].transform(lambda names: baseline in set(names) and names.nunique() > 1)
    runs = runs[compared.astype(bool)]
    if runs.empty:
        return each.head(0).assign(verdict="")
    columns = ["encoding", "seed", "y", "task"]
    if endpoint.kind == "steps":
        columns, runs = [*columns, "solved"], runs.astype({"solved": bool})
    lines = compare(runs[columns], endpoint, baseline, one_family=True)
    return each.loc[lines.pop("task").astype(int)].reset_index(drop=True).join(lines)
