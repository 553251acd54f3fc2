"""What was measured on trained cells beyond the test: curves over length, and over layers."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pe_lab.config import flatten
from pe_lab.results.statistics import interval
from pe_lab.results.table import describe, settings_of

if TYPE_CHECKING:
    from pe_lab.experiment.cell import Cell

MEASURED = ("kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value")
SHOWN = ("loss", "accuracy", "exact_match")


def gather(cells: list["Cell"]) -> pd.DataFrame:
    """Tidy rows of all records that the cells ask for, and of the test itself as length 1 where lengths are asked for.

    Returns:
        What tells cells apart; kind; length, policy, offset, tokens, or probe, layer, head; metric; value.
    """
    told = describe([settings_of(cell.cfg) for cell in cells]).to_dict("records")
    parts = []
    for apart, cell in zip(told, cells, strict=True):
        if any(request["kind"] == "length" for request in cell.requests):
            summary = cell.run.summary(cell.epochs)
            here = apart | {"kind": "length", "length": 1, "policy": "raw", "offset": 0}
            metrics = summary["test"] | flatten(summary["floors"], separator="/")
            rows = pd.DataFrame({"metric": name, "value": value} for name, value in metrics.items())
            parts.append(rows.assign(**here, tokens=cell.dataset.task.length))
        for request in filter(cell.records.has, cell.requests):
            named = {"length": 1} | {name: value for name, value in request.items() if name in MEASURED}
            parts.append(cell.records.get(request).assign(**(apart | named)))
    if not parts:
        return pd.DataFrame()
    rows = pd.concat(parts, ignore_index=True).drop_duplicates()
    return rows.reindex(columns=[*told[0], *MEASURED]).astype({"offset": "Int64"})


def lengths(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per setting, encoding, policy, offset and metric; a column per length: mean and half its t interval."""
    return _wide(rows[rows["kind"].eq("length") & rows["metric"].isin(SHOWN)], "length", ("policy", "offset"))


def layers(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per setting, encoding, probe, length and metric; a column per layer: mean over heads, and over seeds."""
    return _wide(rows[rows["kind"].eq("probe") & rows["layer"].notna()], "layer", ("probe", "length"))


def _wide(rows: pd.DataFrame, across: str, extra: tuple[str, ...]) -> pd.DataFrame:
    """Text: means over seeds, of the means over heads, with half the t interval where there are several seeds.

    What is not finite is not averaged away: the cell says in how many seeds. Where there are fewer seeds than in the
    row's first column says, the cell says how many.
    """
    place = [name for name in rows if name not in ("seed", *MEASURED)] + [*extra, "metric"]
    lines = []
    for key, of in rows.groupby(place, sort=False, dropna=False):
        seeds = of.groupby([across, "seed"], sort=False)["value"].agg(lambda heads: heads.mean(skipna=False))
        most = seeds.groupby(level=across).size().max()
        line = dict(zip(place, key, strict=True)) | {"seeds": most}
        for value, at in seeds.groupby(level=across):
            bad = int((~np.isfinite(at)).sum())
            text = f"not finite in {bad} of {len(at)}" if bad else _mean_and_half(at)
            line[f"{across} {value:g}"] = text if len(at) == most else f"{text} ({len(at)} seeds)"
        lines.append(line)
    values = [f"{across} {value:g}" for value in sorted(rows[across].unique())]
    return pd.DataFrame(lines, columns=[*place, "seeds", *values] if lines else None).fillna(dict.fromkeys(values, ""))


def _mean_and_half(values: pd.Series) -> str:
    low, high = interval(values)
    return f"{values.mean():.3f}" if pd.isna(low) else f"{values.mean():.3f} ± {(high - low) / 2:.3f}"
