"""Log a cell: while it trains, and again from the ledger, under the same names."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch.loggers import Logger

from pe_lab.data.base import Floors, flat_floors
from pe_lab.data.score import NO_GAP
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.system.files import read_verified
from pe_lab.tracking.wandb_run import WandbRun

COST_COLUMNS = ("parameters", "positional_parameters", "flops_per_token", "seconds")


def log_metrics(loggers: list[Logger], split: str, metrics: Mapping[str, float], step: int, epoch: float) -> None:
    """Log the metrics of a split at a step."""
    named = {f"{split}/{name}": value for name, value in metrics.items()}
    for logger in loggers:
        logger.log_metrics(named | {"step": step, "epoch": epoch}, step)


def log_floors(loggers: list[Logger], floors: Floors, step: int, epoch: float) -> None:
    """Log floors; called at both ends of the curve, so that they are drawn as lines beside it."""
    log_metrics(loggers, "floor", flat_floors(floors), step, epoch)


def log_curve(loggers: list[Logger], rows: Iterable[dict[str, Any]]) -> None:
    """Log rows of split, step, epoch, metric and value, in the order in which they were measured."""
    for (split, step, epoch), group in groupby(rows, itemgetter("split", "step", "epoch")):
        log_metrics(loggers, split, {row["metric"]: row["value"] for row in group}, step, epoch)


def log_checkpoint(loggers: list[Logger], summary: dict[str, Any]) -> None:
    """Log a checkpoint's test, its cost, and the floors again."""
    step, epoch = summary["steps"], summary["epochs"]
    log_metrics(loggers, "test", summary["test"] | way_to_bayes(summary), step, epoch)
    log_metrics(loggers, "cost", {name: summary[name] for name in COST_COLUMNS}, step, epoch)
    log_floors(loggers, summary["floors"], step, epoch)


def way_to_bayes(summary: dict[str, Any]) -> dict[str, float]:
    """Return the share of the way from the position-blind floor to the best possible loss, if the task has both.

    1 is the best possible, 0 the best that unordered tokens allow without knowing which sequences are held out; below
    0 the model has not learned even that.
    """
    bayes, blind = (summary["floors"].get(level, {}).get("loss") for level in ("bayes", "position_blind"))
    if bayes is None or blind is None or blind - bayes <= NO_GAP:
        return {}
    return {"way_to_bayes": (blind - summary["test"]["loss"]) / (blind - bayes)}


def log_records(
    loggers: list[Logger],
    summary: dict[str, Any],
    records: Records,
    requests: Iterable[dict[str, Any]],
    tokens: int | None,
) -> None:
    """Log the records of a checkpoint: curves over tokens and a table of them; curves over layers.

    Args:
        requests: the requests whose records are logged; those without a record are left out.
        tokens: the training length, at which the test itself is logged; None: unknown, the test is left out.
    """
    recorded = [request for request in requests if records.has(request)]
    lengths = [request for request in recorded if request["kind"] in ("length", "decode")]
    if lengths:
        metrics = summary["test"] | flat_floors(summary["floors"])
        test = {"policy": "raw", "offset": 0, "length": 1.0, "tokens": tokens} | metrics
        by_evaluation = {("raw", 0, 1.0): test} if tokens is not None else {}
        for request in lengths:
            rows = records.get(request)
            evaluation = {"policy": request["policy"], "offset": request["offset"], "length": float(request["length"])}
            point = by_evaluation.setdefault(
                tuple(evaluation.values()), evaluation | {"tokens": int(rows["tokens"].iloc[0])}
            )
            point |= dict(zip(rows["metric"], rows["value"], strict=True))
        points = sorted(by_evaluation.values(), key=itemgetter("policy", "offset", "length"))
        for point in points:
            _log_length(loggers, point)
        for logger in loggers:
            if isinstance(logger, WandbRun):
                logger.log_rows("lengths", pd.DataFrame(points), summary["steps"], summary["epochs"])
    for request in recorded:
        if request["kind"] == "probe":
            at = f"@{request['length']:g}" if "length" in request else ""
            _log_probe(loggers, f"{request['probe']}{at}", records.get(request))


def log_stored(
    loggers: list[Logger],
    run: Run,
    target: int,
    tokens: int | None,
    requests: Iterable[dict[str, Any]] | None = None,
) -> None:
    """Log all that the ledger has of a checkpoint: floors, the whole curve, test, cost, records.

    Args:
        requests: the requests whose records are logged; None: all.
        tokens: the training length, see `log_records`.

    Raises:
        LedgerError: an entry is damaged.
    """
    summary, records = run.summary(target), Records(run, target)
    log_floors(loggers, summary["floors"], 0, 0)
    log_curve(loggers, _rows(run.checkpoint(target)))
    log_checkpoint(loggers, summary)
    log_records(loggers, summary, records, records.requests() if requests is None else requests, tokens)


def _rows(checkpoint: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a curve exactly as stored, without the test, which the summary has."""
    (content,) = read_verified(checkpoint, "metrics.csv")
    for row in csv.DictReader(content.decode().splitlines()):
        if row["split"] != "test":
            numbers = {"step": int(row["step"]), "epoch": float(row["epoch"]), "value": float(row["value"] or "nan")}
            yield row | numbers


def _log_length(loggers: list[Logger], point: dict[str, Any]) -> None:
    """Log a point of the curves over tokens."""
    shifted = f"+{point['offset']}" if point["offset"] else ""
    metrics = {name: value for name, value in point.items() if name not in ("policy", "offset", "length", "tokens")}
    named = {f"length/{point['policy']}{shifted}/{name}": value for name, value in metrics.items()}
    for logger in loggers:
        logger.log_metrics(named | {"length/tokens": point["tokens"]}, point["tokens"])


def _log_probe(loggers: list[Logger], probe: str, rows: pd.DataFrame) -> None:
    """Log points of the curves over layers, one curve per head."""
    for layer, group in rows[rows["layer"].notna()].groupby("layer"):
        heads = ["" if pd.isna(head) else f"/head{head:g}" for head in group["head"]]
        named = {
            f"probe/{probe}/{metric}{head}": value
            for metric, head, value in zip(group["metric"], heads, group["value"], strict=True)
        }
        for logger in loggers:
            logger.log_metrics(named | {"probe/layer": int(layer)}, int(layer))
