"""The cache: folders with checksums that are made again when they are damaged."""

import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pooch

from pe_lab.system.files import CHECKSUMS_FILE, file_digest, write_json


def cache_folder(cache: str | None) -> Path:
    """Return the cache folder; None: that of the user."""
    if cache is not None:
        return Path(cache).expanduser()
    return Path(pooch.os_cache("pe_lab"))


def cached_folder(entry: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; make it if it is missing, and with a message if it is damaged.

    Args:
        make: a function that writes files into an empty folder.

    Raises:
        ValueError: the cache cannot be written to.
    """
    with _one_line(entry):
        if os.path.lexists(entry):
            reason = find_damage(entry)
            if reason is None:
                return entry
            _remove(entry)
            print(f"data.cache: {entry} {reason}; it is made again", file=sys.stderr)
        with write_atomically(entry) as temporary:
            temporary.mkdir()
            make(temporary)
            write_json(
                temporary / CHECKSUMS_FILE, {path.name: file_digest(path) for path in sorted(temporary.iterdir())}
            )
    return entry


def find_damage(entry: Path) -> str | None:
    """Return why a folder of the cache is damaged; None: it is not."""
    if entry.is_symlink() or not entry.is_dir():
        return "is no folder"
    sums = entry / CHECKSUMS_FILE
    try:
        expected = json.loads(sums.read_text(encoding="utf-8")) if sums.is_file() else None
    except (OSError, ValueError):
        expected = None
    if not isinstance(expected, dict) or not expected:
        return f"does not have its {CHECKSUMS_FILE}"
    if expected.keys() != {path.name for path in entry.iterdir()} - {CHECKSUMS_FILE}:
        return f"does not have the files of its {CHECKSUMS_FILE}"
    for name, digest in expected.items():
        file = entry / name
        try:
            actual = file_digest(file) if file.is_file() else None
        except OSError:
            actual = None
        if actual != digest:
            return f"does not have the {name} that was written"
    return None


def _remove(entry: Path) -> None:
    """Remove a damaged entry, unless another process has made it again."""
    aside = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}")
    os.rename(entry, aside)
    if find_damage(aside) is None and not os.path.lexists(entry):
        os.rename(aside, entry)
    elif aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


@contextmanager
def _one_line(entry: Path) -> Iterator[None]:
    """Name the file or folder of the cache in errors."""
    try:
        yield
    except OSError as error:
        inside = (folder for folder in reversed(entry.parents) if os.path.lexists(folder) and not folder.is_dir())
        path = next(inside, error.filename2 or error.filename or entry)
        why = error.strerror or type(error).__name__
        raise ValueError(
            f"data.cache must be a folder that can be written to, got {path} ({why}): remove it, or name another folder"
        ) from None


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed when the block ends; several processes may write the same entry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        try:
            os.replace(temporary, path)
        except OSError:
            if not path.is_dir():  # otherwise another process has made the same folder
                raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
