"""Read the cells, curves and records of a ledger as tables. Entries that cannot be read are listed with the reason."""

import csv
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pe_lab.config import flatten_settings
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run, read_target
from pe_lab.results.cell_rows import Settings, describe_cells, rows_of
from pe_lab.results.columns import (
    CURVE_METRICS,
    LEADING_COLUMNS,
    LENGTH_KINDS,
    RECORD_COLUMNS,
    SUMMARY_COLUMNS,
    checkpoint_target,
)
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import (
    CHECKSUMS_FILE,
    LedgerError,
    folder_entries,
    is_file,
    parse_json,
    read_json,
    read_verified,
    unread_message,
)

# settings of a cell by their names in the identity of its run
_SETTING_NAMES = {
    "batch_size": "trainer.batch_size",
    "clip": "trainer.clip",
    "precision": "trainer.precision",
    "fresh": "trainer.fresh",
    "device": "trainer.device",
    "attention": "attention.implementation",
    "attention_revision": "attention.revision",
}
_COUNTS = ("model.depth", "seed")
NO_CELLS = pd.DataFrame(columns=[*LEADING_COLUMNS, "run"])
FAILURE_COLUMNS = ["kind", "reason", "step", "run"]
NO_FAILED = pd.DataFrame(columns=[*LEADING_COLUMNS, *FAILURE_COLUMNS])

Wanted = dict[tuple[str, int], int]  # the cells to read, as run and target, with their positions in the result


class _Outcomes(NamedTuple):
    """Cells of a ledger, each as its settings and its summary; failed cells, as settings and reason."""

    cells: list[tuple[Settings, dict[str, Any]]]
    failed: list[tuple[Settings, dict[str, Any]]]


def read_ledger_cells(
    folder: Path, wanted: Wanted | None = None, failed: Collection[tuple[str, int]] = ()
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Read the finished cells, the failed cells and the refused entries of a ledger.

    Args:
        wanted: the cells to read; None: all, and all failed cells.
        failed: the failed cells to read beside those that are wanted.
    """
    refused = _without_identity(folder) if wanted is None else []
    outcomes = _Outcomes([], [])
    for run, targets in _select_runs(folder, wanted):
        _read_run(run, targets, outcomes, refused)
    for name, target in failed:
        with _record_refusal(refused):
            run = Ledger(folder).named(name)
            if is_file(path := run.folder / "failed" / f"{target}.json"):
                _add_failed_cell(path, run, _settings_of_run(run), outcomes)
    if wanted is None:
        outcomes.cells.sort(key=lambda cell: _sort_key(cell[0]))
    else:
        outcomes.cells.sort(key=lambda cell: wanted[cell[1]["run"], read_target(cell[1])])
    settings, summaries = [cell[0] for cell in outcomes.cells], [cell[1] for cell in outcomes.cells]
    cells = rows_of(settings, summaries) if settings else NO_CELLS.copy()
    failed = failure_rows(settings, [cell[0] for cell in outcomes.failed], [cell[1] for cell in outcomes.failed])
    return cells, failed, refused


def _select_runs(folder: Path, wanted: Wanted | None) -> list[tuple[Run, list[int] | None]]:
    """Return the runs to read with their checkpoints; None stands for all checkpoints and all failures."""
    if wanted is None:
        return [(run, None) for run in Ledger(folder).runs()]
    checkpoints = defaultdict(list)
    for name, target in wanted:
        checkpoints[name].append(target)
    return [(Ledger(folder).named(name), targets) for name, targets in checkpoints.items()]


def _read_run(run: Run, wanted: Collection[int] | None, outcomes: _Outcomes, refused: list[str]) -> None:
    """Read the checkpoints of a run and, if all are wanted, its failures."""
    with _record_refusal(refused):
        settings = _settings_of_run(run)
        for target in _complete_checkpoints(run, refused) if wanted is None else wanted:
            with _record_refusal(refused):
                summary = summary_and_environment(run, target)
                outcomes.cells.append((settings | _checkpoint_length(target, summary), summary))
        for path in folder_entries(run.folder / "failed", "*.json") if wanted is None else []:
            with _record_refusal(refused):
                _add_failed_cell(path, run, settings, outcomes)


def _add_failed_cell(path: Path, run: Run, settings: Settings, outcomes: _Outcomes) -> None:
    """Read a record of a failure, and add its cell if it was not trained afterwards."""
    reason = _read_failure(path, run)
    if not run.done(int(path.stem)):
        unit = settings.get("unit", "epochs")
        outcomes.failed.append((settings | {"epochs": float("nan"), unit: int(path.stem)}, reason))


@contextmanager
def _record_refusal(refused: list[str]) -> Iterator[None]:
    """Add a line for an entry that is damaged or cannot be read."""
    try:
        yield
    except OSError as error:
        refused.append(unread_message(error))
    except ValueError as error:
        refused.append(in_one_line(error))


def _checkpoint_length(target: int, summary: dict[str, Any]) -> dict[str, float]:
    """Return epochs of a checkpoint, and steps where its run is counted in them; it may have been solved before."""
    if "target" not in summary:
        return {"epochs": target}
    steps_per_epoch = round(summary["steps"] / summary["epochs"])  # exact: one value for a setting
    return {"steps": target, "epochs": target / steps_per_epoch}


def settings_of_cells(folder: Path) -> tuple[list[tuple[Run, int, Settings]], list[str]]:
    """Return the run, the checkpoint and the settings of each finished cell of a ledger, and its refused entries.

    Results are not read. A setting has its name in the config; epochs or steps are those of the checkpoint.
    """
    entries: list[tuple[Run, int, Settings]] = []
    refused: list[str] = []
    for run in Ledger(folder).runs():
        with _record_refusal(refused):
            settings = _settings_of_run(run)
            unit = settings.get("unit", "epochs")
            entries += [(run, target, settings | {unit: target}) for target in _complete_checkpoints(run, refused)]
    return entries, refused


def failure_rows(settings: list[Settings], failed: list[Settings], reasons: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one row per failed cell: its distinguishing settings, kind, reason, step and run.

    Args:
        settings: the settings of the finished cells, which failed cells are distinguished from.
        failed: the settings of the failed cells.
        reasons: the kind, reason, step and run of each failed cell.
    """
    if not failed:
        return NO_FAILED.copy()
    described = describe_cells(settings + failed).tail(len(failed)).reset_index(drop=True)
    return pd.concat([described, pd.DataFrame(reasons, columns=FAILURE_COLUMNS)], axis=1)


def _without_identity(folder: Path) -> list[str]:
    """Return a line for each folder that has the parts of a run and no identity."""
    runs = sorted(
        {path.parent for name in ("checkpoints", "failed", "records") for path in folder.glob(f"[!.]*/{name}")}
    )
    return [
        f"ledger entry {run} must have its run.json, got none: its checkpoints cannot be identified"
        for run in runs
        if not (run / "run.json").exists()
    ]


def settings_of_identity(identity: dict[str, Any]) -> Settings:
    """Return the settings that determine a run, by their names in the config."""
    return {_SETTING_NAMES.get(name, name): value for name, value in flatten_settings(identity).items()}


def _settings_of_run(run: Run) -> Settings:
    """Return the settings that determine a run, by their names in the config.

    Raises:
        LedgerError: the settings are not those of a training.
    """
    settings = settings_of_identity(run.identity())
    named = all(isinstance(settings.get(name), str) for name in ("pe.name", "data.name"))
    if not named or not all(type(settings.get(name)) is int for name in _COUNTS):
        raise LedgerError(f"ledger entry {run.folder} must have pe, data, depth and seed of a training, got others")
    return settings


def _sort_key(settings: Settings) -> list[Any]:
    """Return the position of a cell among all cells of a ledger."""
    names = [name for name in sorted(settings) if name.startswith(("pe.", "data."))]
    options = [(name, isinstance(settings[name], str), settings[name]) for name in names]
    return [settings["pe.name"], settings["data.name"], options, *(settings[name] for name in (*_COUNTS, "epochs"))]


def _complete_checkpoints(run: Run, refused: list[str]) -> list[int]:
    """Return the targets of a run's complete checkpoints; incomplete ones are added to `refused`."""
    complete = []
    for path in folder_entries(run.folder / "checkpoints"):
        with _record_refusal(refused):
            if not _is_count(path.name) or not is_file(path / CHECKSUMS_FILE):
                reason = f"must be a checkpoint with its {CHECKSUMS_FILE}, got an incomplete one"
                raise LedgerError(f"ledger entry {path} {reason}")
            complete.append(int(path.name))
    return sorted(complete)


def _is_count(name: str) -> bool:
    """Return whether a name is a number of epochs or steps in its usual form."""
    return name.isdecimal() and str(int(name)) == name


def summary_and_environment(run: Run, target: int) -> dict[str, Any]:
    """Read a checkpoint's summary and environment; only these two files are compared with their checksums.

    Raises:
        LedgerError: the files are damaged, or belong to another checkpoint.
    """
    checkpoint = run.checkpoint(target)
    contents = read_verified(checkpoint, "summary.json", "environment.json")
    try:
        summary, environment = map(parse_json, contents)
    except ValueError as error:
        raise LedgerError(f"ledger entry {checkpoint} cannot be read: {in_one_line(error)}") from None
    if not isinstance(summary, dict) or not isinstance(environment, dict):
        raise LedgerError(f"ledger entry {checkpoint} must have a summary and an environment, got something else")
    if summary.get("run") != run.name or read_target(summary) != target:
        raise LedgerError(
            f"ledger entry {checkpoint} must be checkpoint {target} of its run, got {read_target(summary)} of "
            f"{summary.get('run')}: it was moved here"
        )
    floors = summary.get("floors")
    if not isinstance(floors, dict) or not all(map(_are_numbers, (summary.get("test"), *floors.values()))):
        raise LedgerError(f"ledger entry {checkpoint} must have numbers as test metrics and floors, got others")
    if not summary["test"] or not summary.keys() >= set(SUMMARY_COLUMNS):
        lacking = ", ".join(name for name in SUMMARY_COLUMNS if name not in summary) or "test"
        raise LedgerError(
            f"ledger entry {checkpoint} must have test metrics and {', '.join(SUMMARY_COLUMNS)}, got none of {lacking}"
        )
    return summary | {"environment": environment}


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) in (int, float) for value in values.values())


def _read_failure(path: Path, run: Run) -> dict[str, Any]:
    """Read why a run did not reach a checkpoint.

    Raises:
        LedgerError: the file is no record of a failure.
    """
    content = read_json(path)
    if not _is_count(path.stem) or not isinstance(content, dict):
        raise LedgerError(
            f"ledger entry {path} must say why a number of epochs or steps was not reached, got something else"
        )
    return {name: content.get(name) for name in FAILURE_COLUMNS} | {"run": run.name}


def _columns_before_metrics(cells: pd.DataFrame) -> list[str]:
    """Return the columns that distinguish cells: those before the metrics."""
    columns = list(cells.columns)
    return columns[: next((number for number, name in enumerate(columns) if name.startswith("test_")), len(columns))]


def read_curves(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """Read the validation during training, of each run's longest checkpoint.

    Args:
        refused: a list to which a line is appended for each entry that cannot be read.
    """
    names, lines = _columns_before_metrics(cells), []
    for cell in cells.sort_values("epochs", kind="stable").drop_duplicates("run", keep="last").to_dict("records"):
        with _record_refusal(refused):
            rows = validation_scores(Run(ledger / cell["run"]).checkpoint(checkpoint_target(cell)))
            values = [cell[name] for name in names]
            lines += [[*values, *row] for row in rows]
    return pd.DataFrame(lines, columns=[*names, "epoch", "metric", "value"])


def validation_scores(checkpoint: Path) -> list[tuple[float, str, float]]:
    """Return epoch, metric and value of the validations before a checkpoint; raises as `validation_by_step`."""
    return [
        (epoch, metric, value) for _, epoch, metric, value in _validation_rows(checkpoint) if metric in CURVE_METRICS
    ]


def validation_by_step(checkpoint: Path) -> dict[int, dict[str, float]]:
    """Return the metrics, by name, of each validation before a checkpoint, by its step.

    Raises:
        LedgerError: the metrics are damaged, or not in the expected form.
    """
    by_step: dict[int, dict[str, float]] = {}
    for step, _, metric, value in _validation_rows(checkpoint):
        by_step.setdefault(step, {})[metric] = value
    return by_step


def _validation_rows(checkpoint: Path) -> list[tuple[int, float, str, float]]:
    """Return step, epoch, metric and value of all validations before a checkpoint."""
    (content,) = read_verified(checkpoint, "metrics.csv")
    try:
        header, *lines = csv.reader(content.decode().splitlines())
        if header != ["split", "step", "epoch", "metric", "value"]:
            raise ValueError(f"the columns {', '.join(header)}")
        return [
            (int(step), float(epoch), metric, float(value))
            for split, step, epoch, metric, value in lines
            if split == "validation"
        ]
    except (ValueError, csv.Error) as error:
        raise LedgerError(f"ledger entry {checkpoint / 'metrics.csv'} must be rows of metrics, got {error}") from None


def read_records(ledger: Path, cells: pd.DataFrame, refused: list[str]) -> pd.DataFrame:
    """Read all later measurements of the cells; where lengths were measured, add the test itself as length 1.

    Args:
        refused: a list to which a line is appended for each entry that cannot be read.
    """
    names, parts = _columns_before_metrics(cells), []
    for cell in cells.to_dict("records"):
        distinguishing = {name: cell[name] for name in names}
        records, measured = Records(Run(ledger / cell["run"]), checkpoint_target(cell)), []
        with _record_refusal(refused):
            for entry in records.entries():
                with _record_refusal(refused):
                    measured.append(records.read(entry))
        if any(request["kind"] in LENGTH_KINDS for request, _ in measured):
            rows = pd.DataFrame(_test_metrics(cell).items(), columns=["metric", "value"]).dropna()
            parts.append(rows.assign(**distinguishing, kind="length", length=1, policy="raw", offset=0))
        for request, rows in measured:
            columns = {"length": 1} | {name: value for name, value in request.items() if name in RECORD_COLUMNS}
            parts.append(rows.assign(**(distinguishing | columns)))
    if not parts:
        return pd.DataFrame(columns=[*names, *RECORD_COLUMNS])
    return pd.concat(parts, ignore_index=True).reindex(columns=[*names, *RECORD_COLUMNS]).astype({"offset": "Int64"})


def _test_metrics(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the test metrics of a row, and its floors by the name <floor>/<metric>."""
    test = {name.removeprefix("test_"): cell[name] for name in cell if name.startswith("test_")}
    metrics = dict(test)
    for name in cell:
        # the longest metric that a floor's name ends with: loss_second, not second
        metric = max((tested for tested in test if name.endswith(f"_{tested}")), key=len, default=None)
        if name.startswith("floor_") and metric:
            metrics[f"{name.removeprefix('floor_').removesuffix(f'_{metric}')}/{metric}"] = cell[name]
    return metrics
