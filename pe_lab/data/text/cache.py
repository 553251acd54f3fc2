"""What can be made again and is kept: in folders with checksums, which are made again when they are damaged."""

import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pe_lab.system.files import CHECKSUMS, file_digest, write_json


def cache_folder(cache: str | None) -> Path:
    """Where what can be made again is kept; None: where this machine keeps such things."""
    if cache is not None:
        return Path(cache).expanduser()
    import pooch

    return Path(pooch.os_cache("pe_lab"))


def kept(entry: Path, make: Callable[[Path], None]) -> Path:
    """A folder of the cache: made unless it is there, and made again, which is said, if it is not what was written.

    Args:
        make: writes files into an empty folder.

    Raises:
        ValueError: the cache cannot be written to.
    """
    with _one_line(entry):
        if os.path.lexists(entry):
            reason = damage(entry)
            if reason is None:
                return entry
            _remove(entry)
            print(f"data.cache: {entry} {reason}; it is made again", file=sys.stderr)
        with writing(entry) as temporary:
            temporary.mkdir()
            make(temporary)
            write_json(temporary / CHECKSUMS, {path.name: file_digest(path) for path in sorted(temporary.iterdir())})
    return entry


def damage(entry: Path) -> str | None:
    """What is wrong with a folder of the cache; None: it is what was written."""
    if entry.is_symlink() or not entry.is_dir():
        return "is no folder"
    sums = entry / CHECKSUMS
    try:
        expected = json.loads(sums.read_text()) if sums.is_file() else None
    except (OSError, ValueError):
        expected = None
    if not isinstance(expected, dict) or not expected:
        return f"does not have its {CHECKSUMS}"
    for name, digest in expected.items():
        file = entry / name
        try:
            found = file_digest(file) if file.is_file() else None
        except OSError:
            found = None
        if found != digest:
            return f"does not have the {name} that was written"
    return None


def _remove(entry: Path) -> None:
    """Remove a damaged entry; if another process has made it again meanwhile, leave that."""
    aside = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}")
    os.rename(entry, aside)
    if damage(aside) is None and not os.path.lexists(entry):
        os.rename(aside, entry)
    elif aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


@contextmanager
def _one_line(entry: Path) -> Iterator[None]:
    """Say which file or folder of the cache stands in the way."""
    try:
        yield
    except OSError as error:
        inside = (folder for folder in reversed(entry.parents) if os.path.lexists(folder) and not folder.is_dir())
        place = next(inside, error.filename2 or error.filename or entry)
        why = error.strerror or type(error).__name__
        raise ValueError(
            f"data.cache must be a folder that can be written to, got {place} ({why}): "
            "remove it, or name another folder"
        ) from None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary name for a file or a folder, which gets its own when all is written: two may do it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        try:
            os.replace(temporary, path)
        except OSError:
            if not path.is_dir():  # otherwise another process was first with the same folder
                raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
