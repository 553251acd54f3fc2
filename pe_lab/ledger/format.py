"""The format number of a ledger: it changes when the names or keys of its files change."""

import re
from pathlib import Path

from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import LedgerError, is_file, kind_of_path, open_file, parse_json

FORMAT = 2
FORMAT_FILE = "format.json"
FORMAT_CONTENT = f'{{"format": {FORMAT}}}'
MAX_BYTES = 4096  # read of the file
RUN_NAME = re.compile(r"[0-9a-f]{16}")
NEW_FOLDER = "train into a new folder (ledger=NEW)"
REPAIR_ADVICE = f"if this version of pe_lab made the ledger, write that file again; otherwise {NEW_FOLDER}"


def require_format(folder: Path) -> None:
    """Check that a ledger has this format or no runs yet. Nothing is written.

    Raises:
        LedgerError: it has another format, or its format file is damaged.
    """
    path = folder / FORMAT_FILE
    number = read_format(path)
    if number is None:
        runs = [run for run in folder.iterdir() if RUN_NAME.fullmatch(run.name)] if folder.is_dir() else []
        if not runs or read_format(path) == FORMAT:  # another process has just written the file, then made a run
            return
        if not any(is_file(run / "road.json") for run in runs):
            raise LedgerError(f"ledger entry {path} must be a file with {FORMAT_CONTENT}, got none: {REPAIR_ADVICE}")
        number = 1
    if number < FORMAT:
        raise LedgerError(f"ledger {folder} must have the format {FORMAT}, got the older {number}: {NEW_FOLDER}")
    if number > FORMAT:
        raise LedgerError(
            f"ledger {folder} must have the format {FORMAT}, got {str(number)[:20]}: a newer version of "
            f"pe_lab made it; use that version, or {NEW_FOLDER}"
        )


def write_format(folder: Path) -> None:
    """Write the format number into a new ledger. Several processes may do so at the same time.

    Raises:
        LedgerError: as `require_format`.
    """
    require_format(folder)
    path = folder / FORMAT_FILE
    if not is_file(path):
        LedgerFiles(folder).write_json(path, {"format": FORMAT})


def read_format(path: Path) -> int | None:
    """Return the number in a format file, or None if there is no file.

    Raises:
        LedgerError: it is not a file that holds a number.
    """
    content = b""
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES)
        number = parse_json(content)["format"]
        if type(number) is int and number > 0:
            return number
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError):
        pass
    entry = repr(content[:40].decode(errors="replace")) if is_file(path) else kind_of_path(path)
    raise LedgerError(f"ledger entry {path} must be a file with {FORMAT_CONTENT}, got {entry}: {REPAIR_ADVICE}")
