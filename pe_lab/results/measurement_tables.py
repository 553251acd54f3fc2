"""Curves over length and over layers: measurements made on trained cells beyond their test."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pe_lab.config import flatten_settings
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.results.cell_rows import Settings, describe_cells
from pe_lab.results.columns import (
    CURVE_METRICS,
    GENERATED_METRIC,
    LENGTH_KINDS,
    RECORD_COLUMNS,
    STRIDED_PREFIX,
    without_whole_windows,
)
from pe_lab.statistics.intervals import interval


class CellMeasurements(NamedTuple):
    """A trained cell and the measurements that were requested on it.

    Attributes:
        settings: the settings of the cell's config, by dotted name.
        run: the cell's training run in the ledger.
        epochs: the number of epochs, or of steps, that names the cell's checkpoint in its run.
        requests: the requested measurements.
    """

    settings: Settings
    run: Run
    epochs: int
    requests: Sequence[dict[str, Any]]


def gather_records(cells: Sequence[CellMeasurements]) -> pd.DataFrame:
    """Return the rows of all requested records; where lengths were requested, the test itself as length 1.

    Returns:
        The distinguishing columns of the cells; kind; length, policy, offset, tokens, or probe, layer, head; metric;
        value.
    """
    described = describe_cells([cell.settings for cell in cells]).to_dict("records")
    parts = []
    for distinguishing, cell in zip(described, cells, strict=True):
        records = Records(cell.run, cell.epochs)
        if any(request["kind"] in LENGTH_KINDS for request in cell.requests):
            parts.append(_test_rows(cell.run.summary(cell.epochs)).assign(**distinguishing))
        for request in filter(records.has, cell.requests):
            columns = {"length": 1} | {name: value for name, value in request.items() if name in RECORD_COLUMNS}
            parts.append(records.get(request).assign(**(distinguishing | columns)))
    if not parts:
        return pd.DataFrame()
    rows = pd.concat(parts, ignore_index=True).drop_duplicates()
    return rows.reindex(columns=[*described[0], *RECORD_COLUMNS]).astype({"offset": "Int64"})


def _test_rows(summary: dict[str, Any]) -> pd.DataFrame:
    """Return the test metrics and floors of a summary as a measurement at the training length."""
    metrics = summary["test"] | flatten_settings(summary["floors"], separator="/")
    rows = pd.DataFrame({"metric": name, "value": value} for name, value in metrics.items())
    tokens = summary["tokens_per_sequence"]
    return rows.assign(kind="length", length=1, policy="raw", offset=0, tokens=tokens)


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting, encoding, policy, offset and metric, and a column per length."""
    rows = without_whole_windows(rows)
    metric = rows["metric"]
    shown = rows["kind"].isin(LENGTH_KINDS) & (
        metric.isin((*CURVE_METRICS, GENERATED_METRIC)) | metric.str.startswith(STRIDED_PREFIX)
    )
    return _mean_texts(rows[shown], "length", ("policy", "offset"))


def layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting, encoding, probe, length and metric, and a column per layer; heads are averaged."""
    return _mean_texts(rows[rows["kind"].eq("probe") & rows["layer"].notna()], "layer", ("probe", "length"))


def _mean_texts(rows: pd.DataFrame, across: str, extra: tuple[str, ...]) -> pd.DataFrame:
    """Return means over seeds, of means over heads, as text; with half the t interval where there are several seeds.

    Non-finite values are not averaged away: the cell says in how many seeds they occur. Where fewer seeds were measured
    than in the row's other columns, the cell says how many.
    """
    keys = [name for name in rows if name not in ("seed", *RECORD_COLUMNS)] + [*extra, "metric"]
    lines = []
    for key, group in rows.groupby(keys, sort=False, dropna=False):
        seeds = group.groupby([across, "seed"], sort=False)["value"].agg(lambda heads: heads.mean(skipna=False))
        most = seeds.groupby(level=across).size().max()
        line = dict(zip(keys, key, strict=True)) | {"seeds": most}
        for position, values in seeds.groupby(level=across):
            bad = int((~np.isfinite(values)).sum())
            text = f"not finite in {bad} of {len(values)}" if bad else _mean_and_half(values)
            line[f"{across} {position:g}"] = text if len(values) == most else f"{text} ({len(values)} seeds)"
        lines.append(line)
    columns = [f"{across} {position:g}" for position in sorted(rows[across].unique())]
    table = pd.DataFrame(lines, columns=[*keys, "seeds", *columns] if lines else None)
    return table.fillna(dict.fromkeys(columns, ""))


def _mean_and_half(values: pd.Series) -> str:
    low, high = interval(values)
    return f"{values.mean():.3f}" if pd.isna(low) else f"{values.mean():.3f} ± {(high - low) / 2:.3f}"
