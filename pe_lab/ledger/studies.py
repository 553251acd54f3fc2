"""Tables of the studies of a ledger. They have no checksums, so each row is checked.

A damaged table is refused as a whole: nothing is done for a part of its cells.
"""

import csv
import io
from pathlib import Path

from pe_lab.ledger.format import RUN_NAME
from pe_lab.ledger.run import CHECKPOINT_NAME, Run
from pe_lab.system.files import COMMANDS_FOLDER, LedgerError, folder_entries, kind_of_path, read_bytes, read_json

REWRITE_ADVICE = "the command of the study, run again, writes it anew"


def study_names(ledger: Path) -> list[str]:
    """Return the names of the studies that have a table of cells, in order."""
    return sorted(path.name for path in folder_entries(ledger / "studies", "[!.]*") if kind_of_path(path / "rows.csv"))


def has_trained_cell(ledger: Path, study: str) -> bool:
    """Return whether a cell that was requested under a study's name is in the ledger."""
    if kind_of_path(ledger / "studies" / study / "rows.csv"):
        return True
    for path in folder_entries(ledger / COMMANDS_FOLDER, "[!.]*.json"):
        try:
            content = read_json(path)
            cells = content["cells"] if content["study"] == study else []
            if any(
                RUN_NAME.fullmatch(cell["run"]) and Run(ledger / cell["run"]).done(cell["epochs"]) for cell in cells
            ):
                return True
        except (LedgerError, TypeError, KeyError):  # damaged: pe_lab.status says so
            continue
    return False


def read_study_cells(ledger: Path, study: str) -> list[tuple[str, int]]:
    """Return the run and the target of each cell in a study's rows.csv.

    Raises:
        LedgerError: the file is not a table of cells, or a row does not name one.
    """
    path = ledger / "studies" / study / "rows.csv"
    try:
        if path.parent.is_symlink():
            raise ValueError(f"its folder must not be a link: {path.parent}")
        content = read_bytes(path)
        if b"\0" in content or not content.endswith(b"\n"):
            raise ValueError("it must be text that ends with a newline, got a damaged or truncated file")
        rows = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
        cells = [_parse_cell(row, rows.line_num) for row in rows]
        if not cells:
            raise ValueError("it must have a cell, got none")
    except LedgerError:
        raise LedgerError(f"{path} must be a file, got {kind_of_path(path)}: {REWRITE_ADVICE}") from None
    except (ValueError, csv.Error, OSError) as error:
        raise LedgerError(f"{path} must be a table of cells: {error}; {REWRITE_ADVICE}") from None
    return cells


def _parse_cell(row: dict[str | None, str | None], line: int) -> tuple[str, int]:
    for column in ("run", "epochs"):
        if column not in row:
            raise ValueError(f"it must have the column {column}, got none")
    if None in row or None in row.values():
        raise ValueError(f"each row must have as many values as the header, got others in line {line}")
    column = "steps" if row.get("steps") else "epochs"
    run, target = row["run"], row[column]
    if not RUN_NAME.fullmatch(run or ""):
        raise ValueError(f"a run must be named by 16 hexadecimal digits, got {str(run)[:40]!r} in line {line}")
    if not CHECKPOINT_NAME.fullmatch(target or "") or len(target or "") > 18:
        raise ValueError(f"{column} must be an integer of at least 1, got {str(target)[:40]!r} in line {line}")
    return str(run), int(str(target))
