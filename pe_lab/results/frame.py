"""A ledger, or a study of it, as tidy pandas frames."""

import csv
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.config import flatten
from pe_lab.results.curves import MEASURED, SHOWN
from pe_lab.results.files import CHECKSUMS, LedgerError, read_json, read_verified
from pe_lab.results.ledger import Ledger, Road
from pe_lab.results.records import Records
from pe_lab.results.table import Settings, describe, rows_of

# settings of a cell by their names in the identity of its road
_RENAMED = {
    "batch_size": "trainer.batch_size",
    "clip": "trainer.clip",
    "precision": "trainer.precision",
    "device": "trainer.device",
    "attention": "attention.implementation",
}
NO_CELLS = pd.DataFrame(columns=["pe", "depth", "epochs", "seed", "road"])


@dataclass(frozen=True)
class Results:
    """What a ledger or a study's folder holds; nothing in it is averaged.

    Attributes:
        source: the folder it was read from.
        study: its name, or None for all of a ledger.
        cells: one row per finished cell. pe (the encoding, with the options in which cells of that name differ), data
            (if there are several), depth, epochs, seed, further settings that vary; test_<metric> (losses in nats per
            slot, accuracies from 0 to 1); floor_<floor>_<metric>; parameters, positional_parameters, flops_per_token
            (of a forward pass), seconds (in training steps, from the road's start), attention and device (which really
            ran), road (the hash of all that determines the training), torch, commit.
        failed: one row per cell that was tried and not reached: settings, reason, step.
        refused: one line per entry that is not what it says it is, or was left half-written.
        curves: validation during training, of each road's longest stop: settings, epoch, metric, value.
        records: what was measured later: settings, kind (length or probe), length (times the training length), policy,
            offset, tokens, probe, layer, head, metric, value.
    """

    source: Path
    study: str | None
    cells: pd.DataFrame
    failed: pd.DataFrame = field(default_factory=pd.DataFrame)
    refused: list[str] = field(default_factory=list)

    @cached_property
    def curves(self) -> pd.DataFrame:
        return _curves(self.source, self.cells, self.refused)

    @cached_property
    def records(self) -> pd.DataFrame:
        return _records(self.source, self.cells, self.refused)

    @property
    def name(self) -> str:
        return self.study or self.source.name


class Stored(Results):
    """The same of a study's folder, which has all of it as CSV."""

    @cached_property
    def curves(self) -> pd.DataFrame:
        return _csv(self.source / "curves.csv")

    @cached_property
    def records(self) -> pd.DataFrame:
        return _csv(self.source / "records.csv")


def load(source: str | Path, study: str | None = None) -> Results:
    """What a ledger holds, all of it or one study; or what the folder of a study holds, as `<ledger>/studies/<name>`.

    Raises:
        ValueError: there is nothing of the kind; it has no cell.
    """
    folder = Path(source)
    if study is None and (folder / "rows.csv").is_file():
        return _stored(folder)
    if not folder.is_dir():
        raise ValueError(f"the ledger must be a folder that is there, got {str(source)!r}")
    wanted = None
    if study is not None:
        rows = folder / "studies" / study / "rows.csv"
        if not rows.is_file():
            there = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
            raise ValueError(f"study must be one of {', '.join(there) or 'none yet'} in {folder}, got {study!r}")
        wanted = {(road, epochs) for road, epochs in pd.read_csv(rows)[["road", "epochs"]].itertuples(index=False)}
    results = _gather(folder, study, wanted)
    if results.cells.empty and results.failed.empty and not results.refused:
        raise ValueError(f"the ledger must have a finished cell, got none in {folder}: python -m pe_lab.run makes one")
    return results


def _stored(folder: Path) -> Results:
    cells = _csv(folder / "rows.csv")
    if cells.empty or not {"pe", "depth", "epochs", "seed", "road", "test_loss"} <= set(cells):
        raise ValueError(f"rows.csv must have the cells of a study, got {len(cells)} rows of another kind in {folder}")
    return Stored(folder, folder.name, cells, _csv(folder / "failed.csv"))


def _csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame()
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a table in CSV, got {' '.join(str(error).split())}") from None


def _gather(folder: Path, study: str | None, wanted: set[tuple[str, int]] | None) -> Results:
    settings, summaries, failed, reasons = [], [], [], []
    refused: list[str] = []
    for road in Ledger(folder).roads():
        try:
            of_road = _settings(road.identity())
        except LedgerError as error:
            refused.append(str(error))
            continue
        for epochs in _stops(road, refused):
            if wanted is not None and (road.name, epochs) not in wanted:
                continue
            try:
                summaries.append(_summary(road, epochs))
            except LedgerError as error:
                refused.append(str(error))
            else:
                settings.append(of_road | {"epochs": epochs})
        for path in sorted(road.folder.glob("failed/*.json")) if wanted is None else []:
            epochs = int(path.stem)
            if not road.done(epochs):
                reason = read_json(path) or {}
                failed.append(of_road | {"epochs": epochs})
                reasons.append({"reason": reason.get("reason"), "step": reason.get("step"), "road": road.name})
    cells = rows_of(settings, summaries) if settings else NO_CELLS
    failures = pd.DataFrame()
    if failed:
        told = describe(settings + failed).tail(len(failed)).reset_index(drop=True)
        failures = pd.concat([told, pd.DataFrame(reasons)], axis=1)
    return Results(folder, study, cells, failures, refused)


def _settings(identity: dict[str, Any]) -> Settings:
    """The settings that determine a road, by the names that the config has for them."""
    return {_RENAMED.get(name, name): value for name, value in flatten(identity).items()}


def _stops(road: Road, refused: list[str]) -> list[int]:
    """The stops of a road that are whole; others are told."""
    whole = []
    for path in road.folder.glob("stops/*"):
        if not path.name.isdigit() or not (path / CHECKSUMS).is_file():
            refused.append(
                f"ledger entry {path} must be a stop with its {CHECKSUMS}, got one that was left half-written"
            )
        else:
            whole.append(int(path.name))
    return sorted(whole)


def _summary(road: Road, epochs: int) -> dict[str, Any]:
    """What a stop came to, with the environment it was made in; only these files are compared with their checksums."""
    summary, environment = map(json.loads, read_verified(road.stop(epochs), "summary.json", "environment.json"))
    if summary.get("road") != road.name or summary.get("epochs") != epochs:
        raise LedgerError(
            f"ledger entry {road.stop(epochs)} must be of {epochs} epochs of its road, got one of "
            f"{summary.get('epochs')} of {summary.get('road')}: it was moved here"
        )
    return summary | {"environment": environment}


def _told(cells: pd.DataFrame) -> list[str]:
    """The columns that tell cells apart: those before the metrics."""
    columns = list(cells.columns)
    return columns[: next((number for number, name in enumerate(columns) if name.startswith("test_")), len(columns))]


def _curves(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """Validation during training, of each road's longest stop."""
    told, lines = _told(cells), []
    for apart in cells.sort_values("epochs", kind="stable").drop_duplicates("road", keep="last").to_dict("records"):
        try:
            (content,) = read_verified(Road(ledger / apart["road"]).stop(apart["epochs"]), "metrics.csv")
        except LedgerError as error:
            refused.append(str(error))
            continue
        place = [apart[name] for name in told]
        for split, _, epoch, metric, value in csv.reader(content.decode().splitlines()[1:]):
            if split == "validation" and metric in SHOWN:
                lines.append([*place, float(epoch), metric, float(value)])
    return pd.DataFrame(lines, columns=[*told, "epoch", "metric", "value"])


def _records(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """What was measured on the cells beyond the test, and the test itself as length 1 where lengths were measured."""
    told, parts = _told(cells), []
    for cell in cells.to_dict("records"):
        apart = {name: cell[name] for name in told}
        try:
            measured = list(Records(Road(ledger / cell["road"]), cell["epochs"]).all())
        except LedgerError as error:
            refused.append(str(error))
            continue
        if any(request["kind"] == "length" for request, _ in measured):
            test = {name.removeprefix("test_"): cell[name] for name in cell if name.startswith("test_")}
            rows = pd.DataFrame({"metric": test.keys(), "value": test.values()}).dropna()
            parts.append(rows.assign(**apart, kind="length", length=1, policy="raw", offset=0))
        for request, rows in measured:
            named = {name: value for name, value in request.items() if name in MEASURED}
            parts.append(rows.assign(**(apart | named)))
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, ignore_index=True).reindex(columns=[*told, *MEASURED]).astype({"offset": "Int64"})
