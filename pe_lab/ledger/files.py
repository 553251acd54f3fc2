"""Files of the ledger: written whole or not at all, and known by their content."""

import hashlib
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKSUMS = "checksums.json"
ASIDE = ".aside"  # the folder of a ledger that keeps what was found damaged
ASKED = "asked"  # the folder of a ledger that says which cells a command asked for
DEEPEST = 64  # levels of what is nested
NOT_READ = "it is not read; the command that made it, run again, sets it aside and makes it again"


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
    """16 hexadecimal digits: the hash of an identity in canonical form."""
    text = json.dumps(canonical(identity), separators=(",", ":"), allow_nan=False)
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


def read_json(path: Path) -> Any:
    """The content, or None if there is no such file.

    Raises:
        LedgerError: it is no file, or not JSON, or nested too deep.
    """
    if not path.is_file():
        if path.exists():  # nobody may ever write to a pipe, and a device has no end
            raise LedgerError(f"{path} must be a file, got something else")
        return None
    try:
        return loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None


def loads(text: str | bytes) -> Any:
    """JSON as the ledger writes it.

    Raises:
        ValueError: it is not JSON, has a number that is not finite, or is nested deeper than can be followed.
    """
    try:
        content = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level, depth = [content], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"it must have at most {DEEPEST} levels, got more")
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        level, depth = [part for parts in inner for part in parts], depth + 1
    return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"numbers must be finite, got {text[:20]}")
    return value


def set_aside(entry: Path, ledger: Path, reason: object) -> None:
    """Move a damaged file or folder out of the way, and say so; it is kept until somebody prunes the ledger."""
    kept = ledger / ASIDE / uuid.uuid4().hex[:8] / entry.relative_to(ledger)
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(entry, kept)
    except FileNotFoundError:  # somebody else has found it
        return
    print(f"set aside: {str(reason).removesuffix(f': {NOT_READ}')}; now in {kept}", file=sys.stderr)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path) -> None:
    """Compare a folder of the ledger with its checksums.

    Raises:
        LedgerError: a file is missing, or its content is not what was written.
    """
    for name, expected in _checksums(folder).items():
        found = file_digest(folder / name) if (folder / name).is_file() else "no file"
        _require(folder, name, expected, found)


def read_verified(folder: Path, *names: str) -> list[bytes]:
    """The contents of some files of such a folder, each compared with its checksum; the others are not read.

    Raises:
        LedgerError: a file is missing, or its content is not what was written.
    """
    checksums, contents = _checksums(folder), []
    for name in names:
        try:
            if not (folder / name).is_file():
                raise FileNotFoundError
            contents.append((folder / name).read_bytes())
            found = hashlib.sha256(contents[-1]).hexdigest()
        except OSError:
            found = "no file"
        _require(folder, name, checksums.get(name, "no digest"), found)
    return contents


def _checksums(folder: Path) -> dict[str, str]:
    checksums = read_json(folder / CHECKSUMS)
    # a name with a folder in it would lead out of this one
    if not isinstance(checksums, dict) or not all(
        isinstance(digest, str) and Path(name).name == name for name, digest in checksums.items()
    ):
        raise LedgerError(f"ledger entry {folder} must have its {CHECKSUMS}, got {checksums!r}: {NOT_READ}")
    return checksums


def _require(folder: Path, name: str, expected: str, found: str) -> None:
    if found != expected:
        raise LedgerError(
            f"ledger entry {folder / name} must have the digest {expected[:16]}, got {found[:16]}: {NOT_READ}"
        )


@contextmanager
def writing(final: Path, beside: Path) -> Iterator[Path]:
    """A folder to write files into; when the block ends well it gets checksums and its final name.

    Args:
        beside: where it is until then, on the same file system.
    """
    temporary = beside / f".s-{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        checksums = {path.name: file_digest(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / CHECKSUMS, checksums)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(temporary, final)
        except OSError:
            if not (final / CHECKSUMS).exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
