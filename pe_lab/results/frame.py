"""A ledger, or a study of it, as tidy pandas frames."""

import csv
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.config import flatten
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.results.curves import MEASURED, SHOWN
from pe_lab.results.study_tables import require_curves, require_records, require_rows
from pe_lab.results.table import COST, ENVIRONMENT, PLACE, Settings, describe, rows_of
from pe_lab.system.files import CHECKSUMS, LedgerError, parse_json, read_json, read_verified

# settings of a cell by their names in the identity of its run
_RENAMED = {
    "batch_size": "trainer.batch_size",
    "clip": "trainer.clip",
    "precision": "trainer.precision",
    "device": "trainer.device",
    "attention": "attention.implementation",
    "attention_revision": "attention.revision",
}
_COUNTS = ("model.depth", "seed")
NO_CELLS = pd.DataFrame(columns=[*PLACE, "run"])
NO_FAILED = pd.DataFrame(columns=[*PLACE, "reason", "step", "run"])
NO_SKIPPED = pd.DataFrame(columns=["pe", "data", "reason"])
UNKNOWN = "unknown"  # the task, in a study's files that were written before they all said it
# a run, a version or a commit may consist of digits, and an encoding or a task may be called 1e5
_TYPES = dict.fromkeys(("pe", "data", "run", "python", "torch", "pe_lab", "commit"), str) | {"offset": "Int64"}


@dataclass(frozen=True)
class Results:
    """What a ledger or a study's folder holds; nothing in it is averaged.

    Attributes:
        source: the folder it was read from.
        study: its name, or None for all of a ledger.
        cells: one row per finished cell, in the order of the study, or by encoding, task, depth, seed and epochs. pe
            (the encoding, with the options in which cells of that name differ), data (the task; unknown in old files),
            depth, epochs, seed, further settings that vary; test_<metric> (losses in nats per slot, accuracies from 0
            to 1); floor_<floor>_<metric>; parameters, positional_parameters, flops_per_token (of a forward pass),
            seconds (in training steps, from the run's start), attention and device (which really ran), run (the hash
            of all that determines the training), python, torch, pe_lab, commit, hardware, threads.
        failed: one row per cell that was tried and not reached: settings, reason, step, run. Of one study of a
            ledger, those that its folder names.
        skipped: one row per pair of encoding and task that a study left out, since it is impossible: pe, data, reason.
        refused: one line per entry that is not what it says it is, or was left half-written, or is gone; those of
            curves and records once these have been asked for.
        curves: validation during training, of each run's longest stop: settings, epoch, metric, value.
        records: what was measured later: settings, kind (length or probe), length (times the training length), policy,
            offset, tokens, probe, layer, head, metric, value.
    """

    source: Path
    study: str | None
    cells: pd.DataFrame
    failed: pd.DataFrame = field(default_factory=NO_FAILED.copy)
    refused: list[str] = field(default_factory=list)
    skipped: pd.DataFrame = field(default_factory=NO_SKIPPED.copy)

    @cached_property
    def curves(self) -> pd.DataFrame:
        return _curves(self.source, self.cells, self.refused)

    @cached_property
    def records(self) -> pd.DataFrame:
        return _records(self.source, self.cells, self.refused)

    @property
    def name(self) -> str:
        return self.study or self.source.resolve().name


class Stored(Results):
    """The same of a study's folder, which has all of it as CSV."""

    @cached_property
    def curves(self) -> pd.DataFrame:
        path = self.source / "curves.csv"
        return require_curves(_csv(path), path)

    @cached_property
    def records(self) -> pd.DataFrame:
        path = self.source / "records.csv"
        return require_records(_csv(path), path)


def load(source: str | Path, study: str | None = None) -> Results:
    """What a ledger holds, all of it or one study; or what the folder of a study holds, as `<ledger>/studies/<name>`.

    Raises:
        ValueError: there is nothing of the kind; it has no cell.
    """
    folder = Path(source)
    if study is None and (folder / "rows.csv").is_file():
        stored = _stored(folder)
        require_rows(stored.cells, folder / "rows.csv")
        return stored
    if not folder.is_dir():
        raise ValueError(f"the ledger must be a folder that is there, got {str(source)!r}")
    if study is not None:
        rows = folder / "studies" / study / "rows.csv"
        if not rows.is_file():
            there = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
            raise ValueError(f"study must be one of {', '.join(there) or 'none yet'} in {folder}, got {study!r}")
        stored = _stored(rows.parent)
        named = stored.cells[["run", "epochs"]].itertuples(index=False, name=None)
        wanted = {cell: number for number, cell in enumerate(named)}
        return replace(_gather(folder, study, wanted), failed=stored.failed, skipped=stored.skipped)
    results = _gather(folder, None, None)
    if results.cells.empty and results.failed.empty and not results.refused:
        raise ValueError(f"the ledger must have a finished cell, got none in {folder}: python -m pe_lab.run makes one")
    return results


def _stored(folder: Path) -> Results:
    cells = _csv(folder / "rows.csv")
    if cells.empty or not {"pe", "depth", "epochs", "seed", "run", "test_loss"} <= set(cells):
        raise ValueError(f"rows.csv must have the cells of a study, got {len(cells)} rows of another kind in {folder}")
    cells = cells.reindex(columns=[*cells, *(name for name in ENVIRONMENT if name not in cells)])
    failed, skipped = _csv(folder / "failed.csv", NO_FAILED), _csv(folder / "skipped.csv", NO_SKIPPED)
    if not set(NO_SKIPPED) <= set(skipped):
        needed, found = ", ".join(NO_SKIPPED), ", ".join(skipped)
        raise ValueError(f"{folder / 'skipped.csv'} must have the columns {needed}, got {found}")
    return Stored(folder, folder.name, cells, failed, skipped=skipped)


def _csv(path: Path, empty: pd.DataFrame | None = None) -> pd.DataFrame:
    """A table of a study's folder; one without a column for the task says that it is unknown.

    Args:
        empty: what a file that is not there, or has nothing in it, is read as.
    """
    empty = pd.DataFrame() if empty is None else empty.copy()
    if not path.is_file():
        return empty
    try:
        # the text null is a value
        table = pd.read_csv(path, dtype=_TYPES, keep_default_na=False, na_values=[""], low_memory=False)
    except pd.errors.EmptyDataError:
        return empty
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must be a table in CSV, got {_line(error)}") from None
    if "pe" in table and "data" not in table:
        table.insert(table.columns.get_loc("pe") + 1, "data", UNKNOWN)
    return table


def _gather(folder: Path, study: str | None, wanted: dict[tuple[str, int], int] | None) -> Results:
    found, failed, reasons = [], [], []
    refused = _without_identity(folder) if wanted is None else []
    checkpoints = defaultdict(list)
    for name, epochs in wanted or ():
        checkpoints[name].append(epochs)
    for run in Ledger(folder).runs() if wanted is None else map(Ledger(folder).named, checkpoints):
        try:
            of_road = _settings(run)
        except (OSError, ValueError) as error:
            refused.append(_line(error))
            continue
        for epochs in _stops(run, refused) if wanted is None else checkpoints[run.name]:
            try:
                found.append((of_road | {"epochs": epochs}, outcome(run, epochs)))
            except (OSError, ValueError) as error:
                refused.append(_line(error))
        for path in sorted(run.folder.glob("failed/*.json")) if wanted is None else []:
            try:
                reason = _failure(path, run)
            except (OSError, ValueError) as error:
                refused.append(_line(error))
                continue
            if not run.done(int(path.stem)):
                failed.append(of_road | {"epochs": int(path.stem)})
                reasons.append(reason)
    if wanted is None:
        found.sort(key=lambda cell: _place(cell[0]))
    else:
        found.sort(key=lambda cell: wanted[cell[1]["run"], cell[1]["epochs"]])
    settings, summaries = [cell[0] for cell in found], [cell[1] for cell in found]
    cells = rows_of(settings, summaries) if settings else NO_CELLS.copy()
    return Results(folder, study, cells, failures(settings, failed, reasons), refused)


def failures(settings: list[Settings], failed: list[Settings], reasons: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per cell that failed: what tells it from all others, and why.

    Args:
        settings: of the cells that did not.
        failed: settings of those that did.
        reasons: of each of them, a reason, a step and a run.
    """
    if not failed:
        return NO_FAILED.copy()
    told = describe(settings + failed).tail(len(failed)).reset_index(drop=True)
    return pd.concat([told, pd.DataFrame(reasons, columns=["reason", "step", "run"])], axis=1)


def _without_identity(folder: Path) -> list[str]:
    """What looks like a run, and has no identity."""
    runs = sorted(
        {path.parent for name in ("checkpoints", "failed", "records") for path in folder.glob(f"[!.]*/{name}")}
    )
    return [
        f"ledger entry {run} must have its run.json, got none: its checkpoints are nobody's"
        for run in runs
        if not (run / "run.json").exists()
    ]


def _settings(run: Run) -> Settings:
    """The settings that determine a run, by the names that the config has for them.

    Raises:
        ValueError: they are not those of a training.
    """
    settings = {_RENAMED.get(name, name): value for name, value in flatten(run.identity()).items()}
    told = all(isinstance(settings.get(name), str) for name in ("pe.name", "data.name"))
    if not told or not all(type(settings.get(name)) is int for name in _COUNTS):
        raise LedgerError(f"ledger entry {run.folder} must have pe, data, depth and seed of a training, got others")
    return settings


def _place(settings: Settings) -> list[Any]:
    """Where a cell stands among others."""
    names = [name for name in sorted(settings) if name.startswith(("pe.", "data."))]
    options = [(name, isinstance(settings[name], str), settings[name]) for name in names]
    return [settings["pe.name"], settings["data.name"], options, *(settings[name] for name in (*_COUNTS, "epochs"))]


def _stops(run: Run, refused: list[str]) -> list[int]:
    """The checkpoints of a run that are whole; others are told."""
    whole = []
    for path in run.folder.glob("checkpoints/*"):
        if not _is_count(path.name) or not (path / CHECKSUMS).is_file():
            refused.append(
                f"ledger entry {path} must be a checkpoint with its {CHECKSUMS}, got one that was left half-written"
            )
        else:
            whole.append(int(path.name))
    return sorted(whole)


def _is_count(name: str) -> bool:
    """Whether it is the name that a number of epochs has."""
    return name.isdecimal() and str(int(name)) == name


def outcome(run: Run, epochs: int) -> dict[str, Any]:
    """Read a checkpoint's summary and environment. Only these files are compared with their checksums.

    Raises:
        ValueError: they are not what was written, or not of such a checkpoint.
    """
    checkpoint = run.checkpoint(epochs)
    contents = read_verified(checkpoint, "summary.json", "environment.json")
    try:
        summary, environment = map(parse_json, contents)
    except ValueError as error:
        raise LedgerError(f"ledger entry {checkpoint} cannot be read: {_line(error)}") from None
    if not isinstance(summary, dict) or not isinstance(environment, dict):
        raise LedgerError(f"ledger entry {checkpoint} must have a summary and an environment, got something else")
    if summary.get("run") != run.name or summary.get("epochs") != epochs:
        raise LedgerError(
            f"ledger entry {checkpoint} must be of {epochs} epochs of its run, got one of "
            f"{summary.get('epochs')} of {summary.get('run')}: it was moved here"
        )
    floors = summary.get("floors")
    if not isinstance(floors, dict) or not all(map(_are_numbers, (summary.get("test"), *floors.values()))):
        raise LedgerError(f"ledger entry {checkpoint} must have test metrics and floors, which are numbers, got others")
    if not summary["test"] or not summary.keys() >= set(COST):
        lacking = ", ".join(name for name in COST if name not in summary) or "test"
        raise LedgerError(
            f"ledger entry {checkpoint} must have test metrics and {', '.join(COST)}, got none of {lacking}"
        )
    return summary | {"environment": environment}


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) in (int, float) for value in values.values())


def _failure(path: Path, run: Run) -> dict[str, Any]:
    """Why a checkpoint could not be reached.

    Raises:
        ValueError: the record is not one of a failure.
    """
    found = read_json(path)
    if not _is_count(path.stem) or not isinstance(found, dict):
        raise LedgerError(f"ledger entry {path} must say why a number of epochs was not reached, got something else")
    return {"reason": found.get("reason"), "step": found.get("step"), "run": run.name}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _told(cells: pd.DataFrame) -> list[str]:
    """The columns that tell cells apart: those before the metrics."""
    columns = list(cells.columns)
    return columns[: next((number for number, name in enumerate(columns) if name.startswith("test_")), len(columns))]


def _curves(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """Validation during training, of each run's longest checkpoint."""
    told, lines = _told(cells), []
    for apart in cells.sort_values("epochs", kind="stable").drop_duplicates("run", keep="last").to_dict("records"):
        try:
            rows = _validation(Run(ledger / apart["run"]).checkpoint(apart["epochs"]))
        except (OSError, ValueError) as error:
            refused.append(_line(error))
            continue
        place = [apart[name] for name in told]
        lines += [[*place, *row] for row in rows]
    return pd.DataFrame(lines, columns=[*told, "epoch", "metric", "value"])


def _validation(checkpoint: Path) -> list[tuple[float, str, float]]:
    """Epoch, metric and value of the validation on the way to a checkpoint.

    Raises:
        ValueError: its metrics are not what was written, or not of the kind.
    """
    (content,) = read_verified(checkpoint, "metrics.csv")
    try:
        header, *lines = csv.reader(content.decode().splitlines())
        if header != ["split", "step", "epoch", "metric", "value"]:
            raise ValueError(f"the columns {', '.join(header)}")
        return [
            (float(epoch), metric, float(value))
            for split, _, epoch, metric, value in lines
            if split == "validation" and metric in SHOWN
        ]
    except (ValueError, csv.Error) as error:
        raise LedgerError(f"ledger entry {checkpoint / 'metrics.csv'} must be rows of metrics, got {error}") from None


def _records(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """What was measured on the cells beyond the test, and the test itself as length 1 where lengths were measured."""
    told, parts = _told(cells), []
    for cell in cells.to_dict("records"):
        apart = {name: cell[name] for name in told}
        records, measured = Records(Run(ledger / cell["run"]), cell["epochs"]), []
        for entry in records.entries():
            try:
                measured.append(records.read(entry))
            except (OSError, ValueError) as error:
                refused.append(_line(error))
        if any(request["kind"] == "length" for request, _ in measured):
            rows = pd.DataFrame(_metrics(cell).items(), columns=["metric", "value"]).dropna()
            parts.append(rows.assign(**apart, kind="length", length=1, policy="raw", offset=0))
        for request, rows in measured:
            named = {"length": 1} | {name: value for name, value in request.items() if name in MEASURED}
            parts.append(rows.assign(**(apart | named)))
    if not parts:
        return pd.DataFrame(columns=[*told, *MEASURED])
    return pd.concat(parts, ignore_index=True).reindex(columns=[*told, *MEASURED]).astype({"offset": "Int64"})


def _metrics(cell: dict[str, Any]) -> dict[str, Any]:
    """A row's test metrics, and its floors as <floor>/<metric>."""
    test = {name.removeprefix("test_"): cell[name] for name in cell if name.startswith("test_")}
    found = dict(test)
    for name in cell:
        # of the metrics that a floor's name ends with, the longest: loss_second, not second
        of = max((metric for metric in test if name.endswith(f"_{metric}")), key=len, default=None)
        if name.startswith("floor_") and of:
            found[f"{name.removeprefix('floor_').removesuffix(f'_{of}')}/{of}"] = cell[name]
    return found
