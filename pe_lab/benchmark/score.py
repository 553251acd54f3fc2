"""Scores: the share of the way from a task's level without position to the best possible loss."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from pe_lab.data.score import BEST, score
from pe_lab.results.columns import levels
from pe_lab.results.from_ledger import settings_of_identity
from pe_lab.results.rows import rows_of
from pe_lab.results.shipped import Shipped

COLUMNS = ("pe", "seed", "length", "tokens", "score", "loss", "level", "best", "accuracy", "exact_match")


def rows(cells: Iterable[Shipped]) -> pd.DataFrame:
    """Return a row per cell, with the columns of a study's rows."""
    listed = list(cells)
    settings = [settings_of_identity(cell.identity) | {"epochs": cell.epochs} for cell in listed]
    return rows_of(settings, [cell.summary | {"environment": cell.environment} for cell in listed])


def scores(cells: Iterable[Shipped]) -> pd.DataFrame:
    """Return a line per cell and length: pe, seed, length (in training lengths), tokens, score, and its parts.

    The parts are the loss, the level (the loss of the best function of the unordered tokens, or, where that is not
    known, the first reference level of the task) and the best loss (Bayes, or 0 where that is not known), each of the
    test set of that seed and length; accuracy and exact_match where the task has them.
    """
    listed = list(cells)
    if not listed:
        return pd.DataFrame(columns=list(COLUMNS))
    names, lines = rows(listed)["pe"], []
    for pe, cell in zip(names, listed, strict=True):
        for length, tokens, metrics in measured(cell):
            lines.append({"pe": pe, "seed": cell.identity["seed"], "length": length, "tokens": tokens, **line(metrics)})
    return pd.DataFrame(lines, columns=list(COLUMNS))


def measured(cell: Shipped) -> list[tuple[float, int, Mapping[str, float]]]:
    """Return length, tokens and metrics, of floors as <floor>/<metric>, of each measurement without a policy."""
    summary = cell.summary
    test = dict(summary["test"])
    for floor, values in summary["floors"].items():
        test |= {f"{floor}/{name}": value for name, value in values.items()}
    found: list[tuple[float, int, Mapping[str, float]]] = [(1.0, summary["tokens_per_sequence"], test)]
    for record in cell.records:
        request, lines = record["request"], record["rows"]
        if request["kind"] == "length" and request.get("policy", "raw") == "raw" and not request.get("offset"):
            metrics = {line["metric"]: line["value"] for line in lines}
            found.append((float(request["length"]), int(lines[0]["tokens"]), metrics))
    return found


def line(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return score, loss, level, best, accuracy and exact match of a measurement."""
    known = [name.removesuffix("/loss") for name in metrics if name.endswith("/loss")]
    best, loss = metrics.get(f"{BEST}/loss", 0.0), metrics["loss"]
    level = next((metrics[f"{name}/loss"] for name in levels(known)), float("nan"))
    found = {"score": score(loss, level, best) if level > best else float("nan")}
    return (
        found
        | {"loss": loss, "level": level, "best": best}
        | {name: metrics[name] for name in ("accuracy", "exact_match") if name in metrics}
    )
