"""Checking a whole ledger, and removing what is not needed. Nothing here imports torch."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from pe_lab.ledger.lease import PROCESSES, is_alive, try_lock
from pe_lab.ledger.ledger import Ledger, read_kept
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import EPOCHS, OWNER, Run, read_cost
from pe_lab.ledger.tree import Tree
from pe_lab.system.files import ASIDE, COMMANDS, LedgerError, is_file, kind, read_bytes, read_json
from pe_lab.system.files import verify as verify_files

SHARED = (".", "floors", COMMANDS, "studies/*")  # folders of files that no run has
WRITTEN = re.compile(r"\..+\.[0-9a-f]{32}")  # the name of a file until it is written
OLD = 3600  # seconds after which nobody is still writing a file of some lines


@dataclass
class Counts:
    """What was checked."""

    runs: int = 0
    checkpoints: int = 0
    records: int = 0
    states: int = 0
    kept: int = 0


def verify(folder: Path, counts: Counts) -> Iterator[str]:
    """One line for each entry of a ledger that is not what it says it is, or that leads out of it. Nothing is changed.

    What was set aside and what W&B keeps are not looked at.

    Args:
        counts: added to.

    Raises:
        ValueError: there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"LEDGER must be a folder that is there, got {str(folder)!r}")
    for parent, names, files in os.walk(folder):
        for name in (*names, *files):
            path = Path(parent, name)
            if (found := kind(path)) not in ("a file", "a folder", None):
                yield f"ledger entry {path} must be a file or a folder, got {found}"
        if Path(parent) == folder:
            names[:] = [name for name in names if name not in (ASIDE, "wandb")]
    for run in sorted(path for path in folder.glob("[!.]*") if _is_run(path)):
        counts.runs += 1
        yield from _verify_run(Run(run), counts)
    for path in sorted(folder.glob("floors/[!.]*.json")):
        counts.kept += 1
        yield from _complaint(read_kept, path)


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("run.json", "checkpoints", "records")) or any(Run(path).states())


def _verify_run(run: Run, counts: Counts) -> Iterator[str]:
    yield from _complaint(run.identity)
    found = [path for name in ("checkpoints", "records") for path in sorted(run.folder.glob(f"{name}/*"))]
    for path in found:
        if not EPOCHS.fullmatch(path.name):
            yield f"ledger entry {path} must be named by a number of epochs, as 4"
    checkpoints = {path.name for path in found if path.parent.name == "checkpoints"}
    counts.checkpoints += len(checkpoints)
    for name in sorted({path.name for path in found if EPOCHS.fullmatch(path.name)}, key=int):
        damaged = list(_complaint(run.verify, int(name))) if name in checkpoints else []
        yield from damaged
        records, sound = Records(run, int(name)), name in checkpoints and not damaged
        for entry in records.entries():
            counts.records += 1
            yield from _complaint(records.verify if sound else verify_files, entry)
    for _, state in run.states():
        counts.states += 1
        try:
            yield from _complaint(run.verify_state, state)
        except FileNotFoundError:  # a newer one has just taken its place
            counts.states -= 1
    for path in (*run.folder.glob("failed/[!.]*"), run.folder / OWNER):
        yield from _complaint(read_json, path)
    yield from _complaint(read_cost, run.folder / "cost.json")


def _complaint(check, *given) -> Iterator[str]:
    try:
        check(*given)
    except FileNotFoundError:
        raise
    except (LedgerError, OSError) as error:
        yield " ".join(str(error).split())


@dataclass(frozen=True)
class Removable:
    """Something in a ledger that no result needs.

    Attributes:
        kind: why, in words.
        size: bytes.
    """

    kind: str
    path: Path
    size: int
    tree: Tree


def removable(folder: Path, keep: list[str], forget: bool = False) -> Iterator[Removable]:
    """What can be removed from a ledger without any result being lost or made again.

    States of finished trainings (a longer one starts anew then), what processes that are gone left half-written, their
    requests and signs of life, and what was set aside. Not what a process that lives is at.

    Args:
        keep: studies whose trainings keep their states.
        forget: what commands that have ended asked for, too: pe_lab.status tells no more that something is missing.

    Raises:
        ValueError: there is no such ledger or study.
    """
    if not folder.is_dir():
        raise ValueError(f"LEDGER must be a folder that is there, got {str(folder)!r}")
    tree, kept = Tree(folder), _runs_of(folder, keep)
    for run in Ledger(folder).runs():
        with suppress(LedgerError):  # it is damaged, or behind a link: `verify` says so
            yield from _of_run(run, run.name in kept)
    present = (path for path in folder.glob(f"{PROCESSES}/*") if is_file(path))
    gone = [path for path in present if not is_alive(folder, path.name, clean=False)]
    yield from _of(tree, "signs of life of processes that are gone", *gone)
    shared = (path for of in SHARED for path in folder.glob(f"{of}/.*") if WRITTEN.fullmatch(path.name))
    yield from _of(tree, "half-written", *(path for path in shared if is_file(path) and _age(path) > OLD))
    yield from _of(tree, "commands that have ended", *(_ended(folder) if forget else ()))
    yield from _of(tree, "set aside as damaged", *folder.glob(f"{ASIDE}/[!.]*"))


def _of_run(run: Run, keep: bool) -> Iterator[Removable]:
    """What can be removed of a training that nobody serves.

    Args:
        keep: its states stay.
    """
    tree = run.tree
    with try_lock(tree, run.folder / "lock") as free:
        if not free:
            return
        yield from _of(tree, "half-written", *run.folder.glob(".s*"), *_left_of_records(run))
        requests = sorted(run.folder.glob("requested/[0-9]*"))
        gone = [path for path in requests if not is_alive(tree.root, path.name.partition(".")[2], clean=False)]
        yield from _of(tree, "requests of processes that are gone", *gone)
        written = (*run.folder.glob(".*.*"), *run.folder.glob("requested/.*"), *run.folder.glob("failed/.*"))
        yield from _of(tree, "half-written", *(path for path in written if _age(path) > OLD))
        yield from _of(tree, "leases of processes that are gone", *run.folder.glob(OWNER))
        checkpoints = run.checkpoints()
        # a state beyond the last stop is of a training that was broken off
        if checkpoints and not keep and len(gone) == len(requests):
            end, states = run.summary(checkpoints[-1]).get("steps"), run.states()
            if states and isinstance(end, int) and states[-1][0] <= end:
                yield from _of(tree, "states of finished trainings", *(path for _, path in states))


def _ended(folder: Path) -> Iterator[Path]:
    """What was asked for by processes that are gone."""
    for path in folder.glob(f"{COMMANDS}/[!.]*.json"):
        with suppress(
            LedgerError, OSError, TypeError, KeyError, RecursionError
        ):  # not such a file: pe_lab.status says so
            who = read_json(path)["who"]
            if isinstance(who, list) and not any(is_alive(folder, str(one), clean=False) for one in who):
                yield path


def _left_of_records(run: Run) -> Iterator[Path]:
    """What was being measured by a process that is gone."""
    for folder in run.folder.glob("records/[0-9]*/"):
        with suppress(LedgerError), try_lock(run.tree, folder / "lock") as free:
            yield from (*folder.glob(".s-*"), *folder.glob(OWNER)) if free else ()


def _runs_of(folder: Path, studies: list[str]) -> set[str]:
    import pandas as pd

    there = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
    runs: set[str] = set()
    for study in studies:
        if study not in there:
            raise ValueError(f"--keep must be one of {', '.join(there) or 'none yet'} in {folder}, got {study!r}")
        rows = BytesIO(read_bytes(folder / "studies" / study / "rows.csv"))
        runs |= set(pd.read_csv(rows, usecols=["run"], dtype=str)["run"])
    return runs


def _of(tree: Tree, why: str, *paths: Path) -> Iterator[Removable]:
    for path in paths:
        with suppress(LedgerError, FileNotFoundError):  # behind a link; whoever it belongs to has just removed it
            tree.require(path)
            files = [file for file in (path, *path.rglob("*")) if is_file(file)]
            yield Removable(why, path, sum(file.lstat().st_size for file in files), tree)


def _age(path: Path) -> float:
    """Seconds since it was written; 0: it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove(of: Removable) -> None:
    """Remove it, if it is still there."""
    if of.path.parent.name == PROCESSES:
        is_alive(of.tree.root, of.path.name)  # removes it under its lock: whose it is may just begin to live
    else:
        of.tree.clear(of.path)
