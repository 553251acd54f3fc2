"""Files that are written completely or not at all, and verified by digests of their content."""

import errno
import hashlib
import json
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

CHECKSUMS_FILE = "checksums.json"
ASIDE_FOLDER = ".aside"  # the folder of a ledger for damaged entries
COMMANDS_FOLDER = "commands"  # the folder of a ledger with the cells that each command requested
MAX_NESTING = 64  # most levels of nested data
FILE_NAME = re.compile(r"\w[\w.-]*")  # of a file with a checksum
NOT_READ = "it is not read; the command that made it, run again, sets it aside and makes it again"
_KINDS = {
    **{stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"},
    **{stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"},
}


class LedgerError(ValueError):
    """An entry of a ledger does not match its name, its checksums or its kind."""


def canonical_form(value: Any) -> Any:
    """Return a value in canonical form: sorted keys, whole floats as integers, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): canonical_form(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical_form(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(identity: dict[str, Any]) -> str:
    """Return the hash of an identity in canonical form, as 16 hexadecimal digits.

    Raises:
        ValueError: a number is not finite; the data is nested too deeply.
    """
    try:
        text = json.dumps(canonical_form(identity), separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("data must not be nested so deeply to be hashed") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path, content: str) -> None:
    """Write a text file in UTF-8 under a temporary name in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file as `write_text` does.

    Raises:
        ValueError: a number is not finite.
    """
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, has a number that is not finite, or is nested too deeply.
    """
    try:
        content = json.loads(text, parse_constant=_parse_finite, parse_float=_parse_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    values, depth = [content], 0
    while values:
        if depth > MAX_NESTING:
            raise ValueError(f"it must have at most {MAX_NESTING} levels, got more")
        nested = [value.values() if isinstance(value, dict) else value for value in values if _is_nested(value)]
        values, depth = [value for group in nested for value in group], depth + 1
    return content


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"a number must be finite, got {text}")
    return number


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if there is no such file.

    Raises:
        LedgerError: the path is not a file, or the content is null or not JSON that `parse_json` accepts.
    """
    try:
        if (content := parse_json(read_bytes(path))) is None:
            raise ValueError("it is null")
        return content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LedgerError:
        raise
    except ValueError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None


def kind_of_path(path: Path) -> str | None:
    """Return what is at a path: "a file", "a folder", "a link", ..., or None. Links are not followed."""
    try:
        return _kind(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:  # a cycle of links in the path
            raise
        return "a link"


def is_file(path: Path) -> bool:
    """Return whether a path is a file, and not a link to one."""
    return kind_of_path(path) == "a file"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def folder_entries(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a folder, by name; none if there is no such folder.

    `Path.glob` leaves out what it may not read, without a word.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]


def unread_message(error: OSError) -> str:
    """Return the error of reading a file or folder as a line."""
    return f"{error.filename} cannot be read ({error.strerror or type(error).__name__}): what is in it is left out"


def is_writable(folder: Path) -> bool:
    """Return whether files can be written into a folder, or the folder be made where there is none."""
    existing = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    try:
        with TemporaryFile(dir=existing):  # the rights alone do not say so, as of /proc
            return True
    except OSError:
        return False


def require_writable(setting: str, folder: Path) -> None:
    """Raise ValueError unless files can be written into a folder: before anything is computed for it."""
    if not is_writable(folder):
        raise ValueError(f"{setting} must be a folder that can be written to, got {str(folder)!r}")


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file for reading, without following a link or waiting for a FIFO.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerError: the path is not a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise LedgerError(f"ledger entry {path} must be a file, got {kind_of_path(path)}: {NOT_READ}") from None
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LedgerError(f"ledger entry {path} must be a file, got {_kind(mode)}: {NOT_READ}")
    with open(descriptor, "rb") as file:
        yield file


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        FileNotFoundError, LedgerError: see `open_file`.
    """
    with open_file(path) as file:
        return file.read()


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file's content.

    Raises:
        FileNotFoundError, LedgerError: see `open_file`.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_files(folder: Path, *names: str) -> None:
    """Compare a folder of the ledger with its checksums.

    Args:
        names: the names of files that the folder must have.

    Raises:
        LedgerError: a file is missing or changed.
    """
    checksums = _checksums(folder)
    missing = [name for name in names if name not in checksums]
    if missing:
        raise LedgerError(f"ledger entry {folder} must have {', '.join(missing)}, got none: {NOT_READ}")
    for name, expected in checksums.items():
        try:
            actual = file_digest(folder / name)
        except FileNotFoundError:
            actual = "no file"
        _require(folder, name, expected, actual)


def read_verified(folder: Path, *names: str) -> list[bytes]:
    """Return the contents of some files of a folder, after comparing these with their checksums.

    Raises:
        LedgerError: a file is missing or changed.
    """
    checksums, contents = _checksums(folder), []
    for name in names:
        try:
            contents.append(read_bytes(folder / name))
            actual = hashlib.sha256(contents[-1]).hexdigest()
        except FileNotFoundError:
            actual = "no file"
        _require(folder, name, checksums.get(name, "no digest"), actual)
    return contents


def _checksums(folder: Path) -> dict[str, str]:
    checksums = read_json(folder / CHECKSUMS_FILE)
    # a name with a slash would lead out of the folder
    if not isinstance(checksums, dict) or not all(
        isinstance(digest, str) and FILE_NAME.fullmatch(name) for name, digest in checksums.items()
    ):
        raise LedgerError(
            f"ledger entry {folder} must have its {CHECKSUMS_FILE}, got {str(checksums)[:80]!r}: {NOT_READ}"
        )
    return checksums


def _require(folder: Path, name: str, expected: str, actual: str) -> None:
    if actual != expected:
        raise LedgerError(
            f"ledger entry {folder / name} must have the digest {expected[:16]}, got {actual[:16]}: {NOT_READ}"
        )
