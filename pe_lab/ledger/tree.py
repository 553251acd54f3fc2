"""All changes to the files of a ledger. Nothing is written, moved, removed or locked through a link.

Other modules name paths; only this one changes what is at them. The ledger's folder itself may be a link.
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
    ASIDE_FOLDER,
    CHECKSUMS_FILE,
    NOT_READ,
    LedgerError,
    file_digest,
    is_file,
    kind_of_path,
    write_json,
    write_text,
)

ASIDE_LOCK = ".lock"  # in .aside: held while an entry is set aside
REMOVE_ADVICE = "remove it"


class LedgerFiles:
    """The folder of a ledger.

    Args:
        root: the path of the folder; all paths given to the methods are below it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def refuse_links(self, path: Path) -> None:
        """Check each component of a path.

        Raises:
            LedgerError: one of them is a link, and may lead out of the ledger.
        """
        part_path = self.root
        for part in path.relative_to(self.root).parts:
            part_path /= part
            if part == ".." or part_path.is_symlink():
                raise LedgerError(
                    f"ledger entry {part_path} must be a folder of the ledger, got a link: remove it, or put the "
                    f"folder itself in its place"
                )

    # -- writing ------------------------------------------------------------------------------------------------------

    def make_folder(self, path: Path) -> Path:
        """Make a folder and its parents. Anything else in their place is set aside."""
        self.refuse_links(path)
        self.root.mkdir(parents=True, exist_ok=True)
        part_path = self.root
        for part in path.relative_to(self.root).parts:
            part_path /= part
            if not part_path.is_dir():
                self.set_aside_if_damaged(part_path, partial(_require_folder, part_path))
                part_path.mkdir(exist_ok=True)
        return path

    def prepare_file(self, path: Path) -> Path:
        """Make the folder of a file, and set aside what is at its path and is not a file."""
        self.make_folder(path.parent)
        self.set_aside_if_damaged(path, partial(_require_file, path))
        return path

    def write(self, path: Path, content: str) -> None:
        """Write a text file, completely or not at all."""
        write_text(self.prepare_file(path), content)

    def write_json(self, path: Path, content: Any) -> None:
        """Write a JSON file, completely or not at all.

        Raises:
            ValueError: a number is not finite.
        """
        write_json(self.prepare_file(path), content)

    @contextmanager
    def new_folder(self, final: Path, parent: Path) -> Iterator[Path]:
        """Yield a temporary folder to write files into; on success it gets checksums and its final name.

        A folder of that name without checksums is set aside; one with checksums stays.

        Args:
            parent: the folder that holds the temporary one.
        """
        temporary = self.make_folder(parent / f".s-{uuid.uuid4().hex}")
        try:
            yield temporary
            write_json(
                temporary / CHECKSUMS_FILE, {path.name: file_digest(path) for path in sorted(temporary.iterdir())}
            )
            self.make_folder(final.parent)
            self.refuse_links(final)
            self.set_aside_if_damaged(final, partial(_require_checksums, final))
            try:
                os.rename(temporary, final)
            except OSError:
                if not is_file(final / CHECKSUMS_FILE):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; an existing target is replaced."""
        self.refuse_links(source.parent)
        os.replace(source, self.prepare_file(target))

    def lock(self, path: Path) -> FileLock:
        """Return the operating system's lock on a file; a lock that is a file would outlive its process.

        Raises:
            LedgerError: the path is not a file.
        """
        self.refuse_links(path.parent)
        _require_file(path)
        return FileLock(path, thread_local=False, fallback_to_soft=False)

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists. Anything else there is set aside, also in the place of its folder."""
        self.refuse_links(path.parent)
        if path.parent != self.root:
            self.set_aside_if_damaged(path.parent, partial(_require_folder, path.parent))
        if not self.set_aside_if_damaged(path, partial(_require_file, path)):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()

    def remove_all(self, path: Path) -> None:
        """Remove whatever is at a path, folders with their content. Only for names that the ledger itself gives."""
        self.refuse_links(path.parent)
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    # -- setting damaged entries aside --------------------------------------------------------------------------------

    def set_aside_if_damaged(self, entry: Path, check: Callable[[], object]) -> bool:
        """Set an entry aside if it is damaged; return whether it was.

        The check is repeated under a lock: another process may have found the same damage and replaced the entry.

        Args:
            check: a function that raises LedgerError if the entry is damaged.
        """
        try:
            check()
        except LedgerError:
            with self._aside_lock():
                try:
                    check()
                except LedgerError as error:
                    _move_aside(self, entry, error)
                    return True
        return False

    def set_aside(self, entry: Path, reason: object) -> None:
        """Move a damaged file or folder to .aside and print a line; `ledger prune` removes it there."""
        with self._aside_lock():
            _move_aside(self, entry, reason)

    @contextmanager
    def _aside_lock(self) -> Iterator[None]:
        aside = self.root / ASIDE_FOLDER
        self.refuse_links(aside)
        _require_folder(aside)
        aside.mkdir(parents=True, exist_ok=True)
        with self.lock(aside / ASIDE_LOCK):
            yield


def _move_aside(tree: LedgerFiles, entry: Path, reason: object) -> None:
    tree.refuse_links(entry.parent)
    folder = tree.root / ASIDE_FOLDER / uuid.uuid4().hex[:8]
    target = folder / entry.relative_to(tree.root)
    target.parent.mkdir(parents=True)
    try:
        os.rename(entry, target)
    except (FileNotFoundError, NotADirectoryError):  # another process has moved it
        tree.remove_all(folder)
        return
    line = " ".join(str(reason).split()).removesuffix(f": {NOT_READ}").removesuffix(f": {REMOVE_ADVICE}")
    print(f"set aside: {line}; now in {target}", file=sys.stderr)


def _require_file(path: Path) -> None:
    """Raise LedgerError if the path exists and is not a file."""
    if (entry_kind := kind_of_path(path)) not in ("a file", None):
        raise LedgerError(f"ledger entry {path} must be a file, got {entry_kind}: {REMOVE_ADVICE}")


def _require_folder(path: Path) -> None:
    """Raise LedgerError if the path exists and is not a folder."""
    if (entry_kind := kind_of_path(path)) not in ("a folder", None):
        raise LedgerError(f"ledger entry {path} must be a folder, got {entry_kind}: {REMOVE_ADVICE}")


def _require_checksums(folder: Path) -> None:
    """Raise LedgerError if the path exists and is neither an empty folder nor one with checksums."""
    _require_folder(folder)
    if kind_of_path(folder) and any(folder.iterdir()) and not is_file(folder / CHECKSUMS_FILE):
        raise LedgerError(f"ledger entry {folder} must have its {CHECKSUMS_FILE}, got none: {NOT_READ}")
