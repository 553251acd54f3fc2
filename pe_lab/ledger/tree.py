"""All that is changed in a ledger's folder: nothing is written, moved, removed or locked through a link.

The modules of a ledger name paths; this one alone touches what is at them. The ledger's folder itself may be a link.
"""

import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_lab.system.files import (
    ASIDE,
    CHECKSUMS,
    NOT_READ,
    LedgerError,
    file_digest,
    is_file,
    kind,
    write_json,
    write_text,
)

MENDING = ".lock"  # in .aside: held by who sets something aside
REMOVE = "remove it"


class Tree:
    """The folder of a ledger.

    Args:
        root: it; whatever is passed to the methods is a path below it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def require(self, path: Path) -> None:
        """Check a path component by component.

        Raises:
            LedgerError: one of them is a link, and may lead out of the ledger.
        """
        place = self.root
        for part in path.relative_to(self.root).parts:
            place /= part
            if part == ".." or place.is_symlink():
                raise LedgerError(
                    f"ledger entry {place} must be a folder of the ledger, got a link: remove it, or put the folder "
                    f"itself in its place"
                )

    # -- what is to be written ------------------------------------------------------------------------------------

    def folder(self, path: Path) -> Path:
        """Make a folder, and those that it is in. What stands in their place and is no folder is set aside."""
        self.require(path)
        self.root.mkdir(parents=True, exist_ok=True)
        place = self.root
        for part in path.relative_to(self.root).parts:
            place /= part
            if not place.is_dir():
                self.mend(place, partial(_require_folder, place))
                place.mkdir(exist_ok=True)
        return path

    def place(self, path: Path) -> Path:
        """Make a path ready for a file: its folder is made, and what is at the path and is no file is set aside."""
        self.folder(path.parent)
        self.mend(path, partial(_require_file, path))
        return path

    def write(self, path: Path, content: str) -> None:
        """Write a text file, whole or not at all."""
        write_text(self.place(path), content)

    def write_json(self, path: Path, content: Any) -> None:
        """The same for JSON.

        Raises:
            ValueError: a number is not finite.
        """
        write_json(self.place(path), content)

    @contextmanager
    def writing(self, final: Path, beside: Path) -> Iterator[Path]:
        """A folder to write files into; when the block ends well it gets checksums and its final name.

        What is there under that name and has no checksums is set aside; what has them stays.

        Args:
            beside: the folder that it is in until then.
        """
        temporary = self.folder(beside / f".s-{uuid.uuid4().hex}")
        try:
            yield temporary
            write_json(temporary / CHECKSUMS, {path.name: file_digest(path) for path in sorted(temporary.iterdir())})
            self.folder(final.parent)
            self.require(final)
            self.mend(final, partial(_require_whole, final))
            try:
                os.rename(temporary, final)
            except OSError:
                if not is_file(final / CHECKSUMS):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name; what had it is replaced."""
        self.require(source.parent)
        os.replace(source, self.place(target))

    def lock(self, path: Path) -> FileLock:
        """The system's lock on a file, and nothing in its place: a lock that is a file outlives its process.

        Raises:
            LedgerError: what is there is no file.
        """
        self.require(path.parent)
        _require_file(path)
        return FileLock(path, thread_local=False, fallback_to_soft=False)

    # -- what is not needed any more ------------------------------------------------------------------------------

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there. What is no file is set aside, and what is no folder in its folder's place."""
        self.require(path.parent)
        if path.parent != self.root:
            self.mend(path.parent, partial(_require_folder, path.parent))
        if not self.mend(path, partial(_require_file, path)):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()

    def clear(self, path: Path) -> None:
        """Remove whatever is at a path that only the ledger gives a name, with all that is in it."""
        self.require(path.parent)
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    # -- what is damaged ------------------------------------------------------------------------------------------

    def mend(self, entry: Path, check: Callable[[], object]) -> bool:
        """Set an entry aside if it is damaged; returns whether it was.

        Two processes may find the same damage: the second looks again, so that it does not set aside what the first has
        made anew.

        Args:
            check: raises LedgerError if it is.
        """
        try:
            check()
        except LedgerError:
            with self._mending():
                try:
                    check()
                except LedgerError as error:
                    self._move_aside(entry, error)
                    return True
        return False

    def set_aside(self, entry: Path, reason: object) -> None:
        """Move a damaged file or folder out of the way, and say so; it is kept until somebody prunes the ledger."""
        with self._mending():
            self._move_aside(entry, reason)

    @contextmanager
    def _mending(self) -> Iterator[None]:
        aside = self.root / ASIDE
        self.require(aside)
        _require_folder(aside)
        aside.mkdir(parents=True, exist_ok=True)
        with self.lock(aside / MENDING):
            yield

    def _move_aside(self, entry: Path, reason: object) -> None:
        self.require(entry.parent)
        place = self.root / ASIDE / uuid.uuid4().hex[:8]
        kept = place / entry.relative_to(self.root)
        kept.parent.mkdir(parents=True)
        try:
            os.rename(entry, kept)
        except (FileNotFoundError, NotADirectoryError):  # somebody else has found it
            self.clear(place)
            return
        line = " ".join(str(reason).split()).removesuffix(f": {NOT_READ}").removesuffix(f": {REMOVE}")
        print(f"set aside: {line}; now in {kept}", file=sys.stderr)


def _require_file(path: Path) -> None:
    """Raises LedgerError if something is there that is no file."""
    if (found := kind(path)) not in ("a file", None):
        raise LedgerError(f"ledger entry {path} must be a file, got {found}: {REMOVE}")


def _require_folder(path: Path) -> None:
    """Raises LedgerError if something is there that is no folder."""
    if (found := kind(path)) not in ("a folder", None):
        raise LedgerError(f"ledger entry {path} must be a folder, got {found}: {REMOVE}")


def _require_whole(folder: Path) -> None:
    """Raises LedgerError if something is there that has no checksums, but for an empty folder."""
    _require_folder(folder)
    if kind(folder) and any(folder.iterdir()) and not is_file(folder / CHECKSUMS):
        raise LedgerError(f"ledger entry {folder} must have its {CHECKSUMS}, got none: {NOT_READ}")
