"""Files of the ledger: written whole or not at all, and known by their content."""

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any


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
        LedgerError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
