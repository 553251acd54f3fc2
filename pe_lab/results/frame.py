"""The results in a ledger or in the folder of a study, as pandas tables with one row per cell or measurement."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from pe_lab.results import from_ledger, study_declaration
from pe_lab.results.columns import ENVIRONMENT, checkpoint_target
from pe_lab.results.from_ledger import NO_FAILED
from pe_lab.results.required_columns import require_cells, require_curves, require_records
from pe_lab.results.study_declaration import StudyDeclaration
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.names import unknown_name_message

NO_SKIPPED = pd.DataFrame(columns=["pe", "data", "reason"])
LOG_FILE = "LOG.md"  # where the findings of the studies below its folder are written down
UNKNOWN_TASK = "unknown"  # the task of cells in old study folders, whose files do not name it
# a run, a version or a commit may consist of digits, and an encoding or a task may be called 1e5
_TYPES = dict.fromkeys(("pe", "data", "run", "python", "torch", "pe_lab", "commit"), str) | {"offset": "Int64"}


@dataclass(frozen=True)
class Results:
    """The results in a ledger or in a study's folder; nothing is averaged.

    Attributes:
        source: the folder that the results were read from.
        study: the name of the study, or None for a whole ledger.
        cells: one row per finished cell, in the order of the study, or by encoding, task, depth, seed and epochs. pe
            (the encoding, with the options in which cells of that name differ), data (the task; unknown in old files),
            depth, epochs, seed, further settings that vary; test_<metric> (losses in nats per token, accuracies from 0
            to 1); floor_<floor>_<metric>; parameters, positional_parameters, flops_per_token (of a forward pass),
            seconds (in training steps, from the run's start), attention and device (those that ran), run (the hash of
            all that determines the training), python, torch, pe_lab, commit, hardware, threads.
        failed: one row per cell that failed: settings, kind (diverged or error), reason, step, run. For one study of a
            ledger, those that the study's folder names.
        skipped: one row per impossible pair of encoding and task that a study left out: pe, data, reason.
        refused: one line per entry that is damaged, incomplete, missing or unreadable; all else is then a part. Entries
            of curves and records are added when these are first read.
        curves: validation during training, of each run's longest checkpoint: settings, epoch, metric, value.
        records: later measurements: settings, kind (length or probe), length (in training lengths), policy, offset,
            tokens, probe, layer, head, metric, value.
        declared: margin, baseline and more that the study declared before its first cell was trained; empty for a
            whole ledger.
    """

    source: Path
    study: str | None
    cells: pd.DataFrame
    failed: pd.DataFrame = field(default_factory=NO_FAILED.copy)
    refused: list[str] = field(default_factory=list)
    skipped: pd.DataFrame = field(default_factory=NO_SKIPPED.copy)

    def __repr__(self) -> str:
        encodings = ", ".join(self.cells["pe"].unique()) if len(self.cells) else "none"
        lines = {
            "cells": f"{len(self.cells)} cells: {encodings}",
            "curves": "validation during training, a row per run, epoch and metric",
            "records": "later measurements: other lengths and probes",
            "failed": f"{len(self.failed)} cells",
            "skipped": f"{len(self.skipped)} pairs of encoding and task",
            "refused": f"{len(self.refused)} damaged or incomplete entries",
        }
        return "\n".join(
            [f"Results {self.name} in {self.source}", *(f"  .{name:<8} {text}" for name, text in lines.items())]
        )

    @cached_property
    def curves(self) -> pd.DataFrame:
        return from_ledger.read_curves(self.source, self.cells, self.refused)

    @cached_property
    def records(self) -> pd.DataFrame:
        return from_ledger.read_records(self.source, self.cells, self.refused)

    @cached_property
    def declared(self) -> StudyDeclaration:
        return StudyDeclaration() if self.study is None else study_declaration.read_declared(self.folder)

    @property
    def folder(self) -> Path:
        """The folder of the study's tables; of a whole ledger, its own."""
        return self.source / "studies" / self.study if self.study else self.source

    @property
    def name(self) -> str:
        return self.study or self.source.resolve().name


class StudyFolderResults(Results):
    """The results in a study's folder, which has all tables as CSV."""

    @cached_property
    def curves(self) -> pd.DataFrame:
        path = self.source / "curves.csv"
        return require_curves(_read_csv(path), path)

    @cached_property
    def records(self) -> pd.DataFrame:
        path = self.source / "records.csv"
        return require_records(_read_csv(path), path)

    @property
    def folder(self) -> Path:
        return self.source


def load(source: str | Path, study: str | None = None) -> Results:
    """Load a ledger, one study of it, or the folder of a study, such as `<ledger>/studies/<name>`.

    Raises:
        ValueError: there is no such folder or study, or it has no cell.
    """
    folder = Path(source)
    if study is None and (folder / "rows.csv").is_file():
        stored = _read_tables(folder)
        require_cells(stored.cells, folder / "rows.csv")
        return stored
    if not folder.is_dir():
        raise ValueError(f"the ledger must be an existing folder, got {str(source)!r}")
    if study is not None:
        return load_cells(folder, named_cells(folder, study), study)
    cells, failed, refused = from_ledger.read_ledger_cells(folder)
    if cells.empty and failed.empty and not refused:
        raise ValueError(f"the ledger must have a finished cell, got none in {folder}{_hint_without_cells(folder)}")
    return Results(folder, None, cells, failed, refused)


def _hint_without_cells(folder: Path) -> str:
    """Return what to do about a folder that has no cell."""
    if (folder / "outcomes.csv").is_file():
        logs = [parent / LOG_FILE for parent in folder.parents if (parent / LOG_FILE).is_file()]
        log = next((path for path in logs if folder.name in path.read_text(encoding="utf-8")), None)
        said = f". {log} says what came out of it" if log else ""
        return (
            ", which has what came out of a study with tuned learning rates (outcomes.csv, a line per cell), without "
            f"the rows.csv of its cells, from which reports are made{said}"
        )
    studies = sorted(path.parent.name for path in folder.glob("*/rows.csv"))
    return f": name one of its folders, such as {', '.join(studies[:3])}" if studies else ": pe-lab run makes one"


def named_cells(folder: Path, study: str) -> list[tuple[str, int]]:
    """Return the run and the checkpoint of each cell that a study of a ledger names, in the study's order.

    Raises:
        ValueError: there is no such study.
    """
    return [
        (cell["run"], checkpoint_target(cell)) for cell in _read_study_tables(folder, study).cells.to_dict("records")
    ]


def _read_study_tables(folder: Path, study: str) -> Results:
    """Read the CSV files of a study of a ledger."""
    rows = folder / "studies" / study / "rows.csv"
    if not rows.is_file():
        names = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
        raise ValueError(unknown_name_message("study", names, study, f" in {folder}"))
    return _read_tables(rows.parent)


def load_cells(ledger: str | Path, named: list[tuple[str, int]], study: str | None = None) -> Results:
    """Load cells of a ledger, in the order in which they are named.

    Args:
        named: the run and the checkpoint of each.
        study: the study that they are of, if it has a name; its failed and impossible cells are read too.

    Raises:
        ValueError: there is no such study.
    """
    folder = Path(ledger)
    cells, failed, refused = from_ledger.read_ledger_cells(folder, {cell: number for number, cell in enumerate(named)})
    if study is None:
        return Results(folder, None, cells, failed, refused)
    stored = _read_study_tables(folder, study)
    return Results(folder, study, cells, stored.failed, refused, stored.skipped)


def _read_tables(folder: Path) -> Results:
    """Read the CSV files of a study's folder."""
    cells = _read_csv(folder / "rows.csv")
    if cells.empty or not {"pe", "depth", "epochs", "seed", "run", "test_loss"} <= set(cells):
        raise ValueError(f"rows.csv must have the cells of a study, got {len(cells)} rows of another kind in {folder}")
    cells = cells.reindex(columns=[*cells, *(name for name in ENVIRONMENT if name not in cells)])
    failed, skipped = _read_csv(folder / "failed.csv", NO_FAILED), _read_csv(folder / "skipped.csv", NO_SKIPPED)
    if not set(NO_SKIPPED) <= set(skipped):
        needed, columns = ", ".join(NO_SKIPPED), ", ".join(skipped)
        raise ValueError(f"{folder / 'skipped.csv'} must have the columns {needed}, got {columns}")
    return StudyFolderResults(folder, folder.name, cells, failed, skipped=skipped)


def _read_csv(path: Path, empty: pd.DataFrame | None = None) -> pd.DataFrame:
    """Read a table of a study's folder; a task that is not named is unknown.

    Args:
        empty: the table to return for a missing or empty file.

    Raises:
        ValueError: the file is no table in CSV.
    """
    empty = pd.DataFrame() if empty is None else empty.copy()
    if not path.is_file():
        return empty
    try:
        # keep_default_na: the text null is a value
        table = read_csv(path, dtype=_TYPES, keep_default_na=False, na_values=[""], low_memory=False)
    except pd.errors.EmptyDataError:
        return empty
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must be a table in CSV, got {' '.join(str(error).split())}") from None
    if "pe" in table and "data" not in table:
        table.insert(table.columns.get_loc("pe") + 1, "data", UNKNOWN_TASK)
    return table
