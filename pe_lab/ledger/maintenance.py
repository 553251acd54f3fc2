"""Maintenance of a ledger: verify all of it, and find what can be removed. Torch is not imported."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pe_lab.ledger.format import FORMAT_FILE
from pe_lab.ledger.lease import OWNER_FILE
from pe_lab.ledger.ledger import Ledger, read_cached
from pe_lab.ledger.processes import PROCESSES_FOLDER, is_alive, process_name, try_lock
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import CHECKPOINT_NAME, IDENTITY_FILE, Run, read_cost
from pe_lab.ledger.studies import read_study_cells, study_names
from pe_lab.ledger.training_states import verify_state
from pe_lab.ledger.tree import REMOVE_ADVICE, LedgerFiles
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import (
    ASIDE_FOLDER,
    COMMANDS_FOLDER,
    LedgerError,
    folder_entries,
    is_file,
    kind_of_path,
    read_json,
    unread_message,
    verify_files,
)
from pe_lab.system.names import unknown_name_message

SHARED_FOLDERS = (".", "floors", COMMANDS_FOLDER, "studies/*")  # folders of files that belong to no run
TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{32}")  # the name of a file while it is written
STALE_SECONDS = 3600  # seconds after which a temporary file counts as left behind


@dataclass(frozen=True)
class Damage:
    """An entry that is damaged or cannot be read.

    Attributes:
        path: the path of the entry.
        reason: the reason in one line, which names the entry.
        check: a function that raises LedgerError while the entry is damaged.
        run: the run that the entry is a part of; None: it is shared.
    """

    path: Path
    reason: str
    check: Callable[[], object]
    run: Run | None = None


@dataclass
class Counts:
    """How many entries were verified, and what could not be read."""

    runs: int = 0
    checkpoints: int = 0
    records: int = 0
    states: int = 0
    floors: int = 0
    unreadable: set[Path] = field(default_factory=set)

    def note(self, error: OSError) -> Iterator[Damage]:
        """Note and yield what could not be read, unless it is in a folder that was noted already."""
        path = Path(error.filename or ".")
        if self.unreadable.isdisjoint((path, *path.parents)):
            self.unreadable.add(path)
            yield Damage(path, unread_message(error), lambda: None)


def open_ledger(folder: Path) -> Ledger:
    """Return the ledger in a folder.

    Raises:
        ValueError: there is no such folder, or no ledger in it; the ledger has another format.
    """
    if not folder.is_dir():
        raise ValueError(f"LEDGER must be an existing folder, got {str(folder)!r}")
    ledger = Ledger(folder)
    if not kind_of_path(folder / FORMAT_FILE):
        raise ValueError(f"LEDGER must be the folder of a ledger, got {str(folder)!r}, which has no {FORMAT_FILE}")
    return ledger


def set_aside(tree: LedgerFiles, damage: Damage) -> bool:
    """Move a damaged entry to .aside and return whether it was moved; the command that made it makes it again.

    The identity of a run stays: its checkpoints belong to it. So does what a live process uses.
    """
    if damage.run and damage.path == damage.run.folder / IDENTITY_FILE:
        return False
    unused = try_lock(tree, damage.run.folder / "lock") if damage.run else nullcontext(True)
    with suppress(LedgerError, OSError), unused as free:
        return free and tree.set_aside_if_damaged(damage.path, damage.check)
    return False


def damaged_entries(folder: Path, counts: Counts) -> Iterator[Damage]:
    """Yield the entries of a ledger that are damaged or cannot be read, and the links in it. Nothing is changed.

    Entries that were set aside and files of W&B are not verified.

    Args:
        counts: the counts of verified and unreadable entries, which are updated.

    Raises:
        ValueError: there is no such folder, or the ledger has another format.
    """
    open_ledger(folder)
    errors: list[OSError] = []
    for parent, names, files in os.walk(folder, onerror=errors.append):
        while errors:  # errors of folders, before the entries in them
            yield from _unread(counts, errors.pop(0))
        for name in (*names, *files):
            path = Path(parent, name)
            yield from _found_damage(counts, path, partial(_require_kind, path))
        if Path(parent) == folder:
            names[:] = [name for name in names if name not in (ASIDE_FOLDER, "wandb")]
    for error in errors:
        yield from _unread(counts, error)
    for path in folder_entries(folder, "[!.]*"):
        yield from _readable(counts, _verify_run(Run(path), counts))
    yield from _readable(counts, _verify_floors(folder, counts))


def _unread(counts: Counts, error: OSError) -> Iterator[Damage]:
    """Yield that a folder could not be read; one that has gone since, or was set aside by a repair, is no damage."""
    if not isinstance(error, FileNotFoundError):
        yield from counts.note(error)


def _readable(counts: Counts, damages: Iterator[Damage]) -> Iterator[Damage]:
    """Yield damages, and what ends them because it cannot be read."""
    try:
        yield from damages
    except FileNotFoundError:
        raise
    except OSError as error:
        yield from counts.note(error)


def _verify_floors(folder: Path, counts: Counts) -> Iterator[Damage]:
    for path in folder_entries(folder / "floors", "[!.]*.json"):
        counts.floors += 1
        yield from _found_damage(counts, path, partial(read_cached, path))


def _require_kind(path: Path) -> None:
    if (entry_kind := kind_of_path(path)) not in ("a file", "a folder", None):
        raise LedgerError(f"ledger entry {path} must be a file or a folder, got {entry_kind}: {REMOVE_ADVICE}")


def _require_name(path: Path) -> None:
    if kind_of_path(path) and not CHECKPOINT_NAME.fullmatch(path.name):
        raise LedgerError(f"ledger entry {path} must be named by a number of epochs or steps, as 4: {REMOVE_ADVICE}")


def _is_run(path: Path) -> bool:
    return any(kind_of_path(path / name) for name in (IDENTITY_FILE, "checkpoints", "records")) or any(
        Run(path).states.files()
    )


def _verify_run(run: Run, counts: Counts) -> Iterator[Damage]:
    """Verify all of a folder, if it is a run."""
    if not _is_run(run.folder):
        return
    counts.runs += 1
    yield from _found_damage(counts, run.folder / IDENTITY_FILE, run.identity, run)
    paths = [path for name in ("checkpoints", "records") for path in folder_entries(run.folder / name)]
    for path in paths:
        yield from _found_damage(counts, path, partial(_require_name, path), run)
    checkpoints = {path.name for path in paths if path.parent.name == "checkpoints"}
    counts.checkpoints += len(checkpoints)
    for name in sorted({path.name for path in paths if CHECKPOINT_NAME.fullmatch(path.name)}, key=int):
        entry, check = run.checkpoint(int(name)), partial(run.verify, int(name))
        damaged = list(_found_damage(counts, entry, check, run)) if name in checkpoints else []
        yield from damaged
        records, sound = Records(run, int(name)), name in checkpoints and not damaged
        for entry in records.entries():
            counts.records += 1
            yield from _found_damage(counts, entry, partial(records.verify if sound else verify_files, entry), run)
    for _, state in run.states.files():
        counts.states += 1
        try:
            yield from _found_damage(counts, state, partial(verify_state, state), run)
        except FileNotFoundError:  # a newer state has just replaced it
            counts.states -= 1
    for path in (*folder_entries(run.folder / "failed", "[!.]*"), run.folder / OWNER_FILE):
        yield from _found_damage(counts, path, partial(read_json, path), run)
    path = run.folder / "cost.json"
    yield from _found_damage(counts, path, partial(read_cost, path), run)


def _found_damage(counts: Counts, path: Path, check: Callable[[], object], run: Run | None = None) -> Iterator[Damage]:
    """Yield the damage that a check finds, if any, with its error as one line."""
    try:
        check()
    except FileNotFoundError:
        raise
    except OSError as error:
        yield from counts.note(error)
    except LedgerError as error:
        yield Damage(path, in_one_line(error), check, run)


@dataclass(frozen=True)
class Removable:
    """An entry that no result needs.

    Attributes:
        reason: the reason why it is not needed; entries are counted by it.
        size: the size of the entry, in bytes.
    """

    reason: str
    path: Path
    size: int
    tree: LedgerFiles


def removable_entries(folder: Path, keep: list[str], forget: bool = False) -> Iterator[Removable]:
    """Yield what can be removed from a ledger without losing a result.

    These are states of finished runs (a longer training then starts again from step 0), unfinished files, requests and
    locks of dead processes, and entries that were set aside. What a live process uses is not yielded.

    Args:
        keep: the studies whose runs keep their states.
        forget: whether to yield the commands of dead processes too; pe_lab.status then no longer lists their missing
            cells.

    Raises:
        ValueError: there is no such ledger or study; a study's table is damaged.
    """
    ledger = open_ledger(folder)
    kept_runs = _study_runs(folder, keep)
    for run in ledger.runs():
        with suppress(LedgerError, PermissionError):  # damaged, behind a link or not ours: `verify` reports it
            yield from _removable_of_run(run, run.name in kept_runs)
    processes = (path for path in folder.glob(f"{PROCESSES_FOLDER}/*") if is_file(path))
    dead = [path for path in processes if not is_alive(folder, process_name(path), clean=False)]
    yield from _entries(ledger.tree, "files of dead processes", *dead)
    temporary = (
        path for place in SHARED_FOLDERS for path in folder.glob(f"{place}/.*") if TEMPORARY_NAME.fullmatch(path.name)
    )
    yield from _entries(
        ledger.tree,
        "unfinished",
        *(path for path in temporary if is_file(path) and _file_age(path) > STALE_SECONDS),
    )
    yield from _entries(ledger.tree, "commands that have ended", *(_ended_commands(folder) if forget else ()))
    yield from _entries(ledger.tree, "set aside as damaged", *folder.glob(f"{ASIDE_FOLDER}/[!.]*"))


def _removable_of_run(run: Run, keep: bool) -> Iterator[Removable]:
    """Yield what can be removed from a run that no process owns; its states only if they are not to be kept."""
    tree = run.tree
    with try_lock(tree, run.folder / "lock") as free:
        if not free:
            return
        yield from _entries(tree, "unfinished", *run.folder.glob(".s*"), *_unfinished_records(run))
        requests = sorted(run.folder.glob("requested/[0-9]*"))
        dead = [path for path in requests if not is_alive(tree.root, path.name.partition(".")[2], clean=False)]
        yield from _entries(tree, "requests of dead processes", *dead)
        temporary = (*run.folder.glob(".*.*"), *run.folder.glob("requested/.*"), *run.folder.glob("failed/.*"))
        yield from _entries(tree, "unfinished", *(path for path in temporary if _file_age(path) > STALE_SECONDS))
        yield from _entries(tree, "leases of dead processes", *run.folder.glob(OWNER_FILE))
        checkpoints = run.checkpoints()
        # a state with more steps than the last checkpoint belongs to an interrupted training
        if checkpoints and not keep and len(dead) == len(requests):
            end, states = run.summary(checkpoints[-1]).get("steps"), run.states.files()
            if states and isinstance(end, int) and states[-1][0] <= end:
                yield from _entries(tree, "states of finished trainings", *(path for _, path in states))


def _ended_commands(folder: Path) -> Iterator[Path]:
    """Yield the commands whose processes are all dead; pe_lab.status reports damaged ones."""
    for path in folder.glob(f"{COMMANDS_FOLDER}/[!.]*.json"):
        with suppress(LedgerError, OSError, TypeError, KeyError):
            processes = read_json(path)["processes"]
            if isinstance(processes, list) and not any(is_alive(folder, str(name), clean=False) for name in processes):
                yield path


def _unfinished_records(run: Run) -> Iterator[Path]:
    """Yield what dead processes left where they measured records."""
    for folder in run.folder.glob("records/[0-9]*/"):
        with suppress(LedgerError), try_lock(run.tree, folder / "lock") as free:
            yield from (*folder.glob(".s-*"), *folder.glob(OWNER_FILE)) if free else ()


def _study_runs(folder: Path, names: list[str]) -> set[str]:
    """Return the names of the runs of studies."""
    stored_studies = study_names(folder)
    for name in names:
        if name not in stored_studies:
            raise ValueError(unknown_name_message("--keep", stored_studies, name, f" in {folder}"))
    return {run for name in names for run, _ in read_study_cells(folder, name)}


def _entries(tree: LedgerFiles, reason: str, *paths: Path) -> Iterator[Removable]:
    for path in paths:
        with suppress(LedgerError, FileNotFoundError):  # behind a link, or another process has just removed it
            tree.refuse_links(path)
            files = [file for file in (path, *path.rglob("*")) if is_file(file)]
            yield Removable(reason, path, sum(file.lstat().st_size for file in files), tree)


def _file_age(path: Path) -> float:
    """Return the seconds since a file was written; 0 if it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove_entry(entry: Removable) -> None:
    """Remove an entry, if it still exists."""
    # the file of a process is removed only if that is dead
    if entry.path.parent.name != PROCESSES_FOLDER or not is_alive(entry.tree.root, process_name(entry.path)):
        entry.tree.remove_all(entry.path)
