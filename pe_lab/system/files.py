"""Files of the ledger: written whole or not at all, and known by their content."""

import errno
import hashlib
import json
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

CHECKSUMS = "checksums.json"
ASIDE = ".aside"  # the folder of a ledger that keeps what was found damaged
COMMANDS = "commands"  # the folder of a ledger that says which cells a command asked for
DEEPEST = 64  # levels of what is nested
NAME = re.compile(r"\w[\w.-]*")  # of a file in a folder that has checksums
NOT_READ = "it is not read; the command that made it, run again, sets it aside and makes it again"
_KINDS = {
    **{stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"},
    **{stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"},
}


class LedgerError(ValueError):
    """An entry whose content is not what its name or its checksums say."""


def canonical(value: Any) -> Any:
    """The value in the one form in which equal meanings are equal: whole floats as integers, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): canonical(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(identity: dict[str, Any]) -> str:
    """16 hexadecimal digits: the hash of an identity in canonical form.

    Raises:
        ValueError: a number is not finite; it is nested too deeply.
    """
    try:
        text = json.dumps(canonical(identity), separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("what is hashed must not be nested so deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path, content: str) -> None:
    """Write under a temporary name in the same folder, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(content)
    os.replace(temporary, path)


def write_json(path: Path, content: Any) -> None:
    """The same for JSON.

    Raises:
        ValueError: a number is not finite.
    """
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is not JSON, has a number that is not finite, or is nested too deeply.
    """
    try:
        content = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level, depth = [content], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"it must have at most {DEEPEST} levels, got more")
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        level, depth = [part for parts in inner for part in parts], depth + 1
    return content


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"a number must be finite, got {text}")
    return number


def read_json(path: Path) -> Any:
    """The content, or None if there is no such file.

    Raises:
        LedgerError: it is no file, or not JSON as `parse_json` takes it, or null.
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


def kind(path: Path) -> str | None:
    """What is at a path: "a file", "a folder", "a link", ...; None: nothing."""
    try:
        return _kind(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:  # links on the way to it that lead nowhere
            raise
        return "a link"


def is_file(path: Path) -> bool:
    """Whether there is a file, and not a link to one."""
    return kind(path) == "a file"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, open to be read; nothing else is waited for or followed.

    Raises:
        FileNotFoundError: there is none.
        LedgerError: it is no file.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise LedgerError(f"ledger entry {path} must be a file, got {kind(path)}: {NOT_READ}") from None
    if not stat.S_ISREG(mode := os.fstat(number).st_mode):
        os.close(number)
        raise LedgerError(f"ledger entry {path} must be a file, got {_kind(mode)}: {NOT_READ}")
    with open(number, "rb") as file:
        yield file


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError, LedgerError: as `opened`.
    """
    with opened(path) as file:
        return file.read()


def file_digest(path: Path) -> str:
    """The hash of a file's content.

    Raises:
        FileNotFoundError, LedgerError: as `opened`.
    """
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path, *names: str) -> None:
    """Compare a folder of the ledger with its checksums.

    Args:
        names: of files that it must have, among others.

    Raises:
        LedgerError: a file is missing, or its content is not what was written.
    """
    checksums = _checksums(folder)
    lacking = [name for name in names if name not in checksums]
    if lacking:
        raise LedgerError(f"ledger entry {folder} must have {', '.join(lacking)}, got none: {NOT_READ}")
    for name, expected in checksums.items():
        try:
            found = file_digest(folder / name)
        except FileNotFoundError:
            found = "no file"
        _require(folder, name, expected, found)


def read_verified(folder: Path, *names: str) -> list[bytes]:
    """The contents of some files of such a folder, each compared with its checksum; the others are not read.

    Raises:
        LedgerError: a file is missing, or its content is not what was written.
    """
    checksums, contents = _checksums(folder), []
    for name in names:
        try:
            contents.append(read_bytes(folder / name))
            found = hashlib.sha256(contents[-1]).hexdigest()
        except FileNotFoundError:
            found = "no file"
        _require(folder, name, checksums.get(name, "no digest"), found)
    return contents


def _checksums(folder: Path) -> dict[str, str]:
    checksums = read_json(folder / CHECKSUMS)
    # a name with a folder in it would lead out of this one
    if not isinstance(checksums, dict) or not all(
        isinstance(digest, str) and NAME.fullmatch(name) for name, digest in checksums.items()
    ):
        raise LedgerError(f"ledger entry {folder} must have its {CHECKSUMS}, got {str(checksums)[:80]!r}: {NOT_READ}")
    return checksums


def _require(folder: Path, name: str, expected: str, found: str) -> None:
    if found != expected:
        raise LedgerError(
            f"ledger entry {folder / name} must have the digest {expected[:16]}, got {found[:16]}: {NOT_READ}"
        )
