"""Checking a whole ledger, and removing what is not needed. Nothing here imports torch."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pe_lab.ledger.files import ASIDE, ASKED, CHECKSUMS, NOT_READ, LedgerError, read_json
from pe_lab.ledger.files import verify as verify_files
from pe_lab.ledger.ledger import Ledger, read_kept
from pe_lab.ledger.presence import first_come, is_present
from pe_lab.ledger.records import Records
from pe_lab.ledger.road import HOLDER, Road, read_cost, verify_state

SHARED = (".", "floors", ASKED, "studies/*")  # folders of files that no road has
WRITTEN = re.compile(r"\..+\.[0-9a-f]{32}")  # the name of a file until it is written
OLD = 3600  # seconds after which nobody is still writing a file of some lines
STOP_FILES = ("config.yaml", "metrics.csv", "summary.json", "environment.json", "weights.safetensors")


@dataclass
class Counts:
    """What was checked."""

    roads: int = 0
    stops: int = 0
    records: int = 0
    states: int = 0
    kept: int = 0


def verify(folder: Path, counts: Counts) -> Iterator[str]:
    """One line for each entry of a ledger that is not what it says it is, or that leads out of it. Nothing is changed.

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
            if path.is_symlink() and "wandb" not in path.relative_to(folder).parts:
                yield f"ledger entry {path} must be a file or a folder, got a link"
    for road in sorted(path for path in folder.glob("[!.]*") if _is_road(path)):
        counts.roads += 1
        yield from _verify_road(Road(road), counts)
    for path in sorted(folder.glob("floors/[!.]*.json")):
        counts.kept += 1
        yield from _complaint(read_kept, path)


def _is_road(path: Path) -> bool:
    return any((path / name).exists() for name in ("road.json", "stops", "records"))


def _verify_road(road: Road, counts: Counts) -> Iterator[str]:
    yield from _complaint(road.identity)
    for stop in sorted(road.folder.glob("stops/*")):
        counts.stops += 1
        try:
            epochs = int(stop.name)
        except ValueError:
            yield f"ledger entry {stop} must be named by a number of epochs"
            continue
        damaged = list(_complaint(verify_stop, road, epochs))
        yield from damaged
        records = Records(road, epochs)
        for entry in records.entries():
            counts.records += 1
            yield from _complaint(verify_files if damaged else records.verify, entry)
    for _, state in road.states():
        counts.states += 1
        try:
            yield from _complaint(verify_state, state)
        except FileNotFoundError:  # a newer one has just taken its place
            counts.states -= 1
    for path in (*road.folder.glob("failed/[!.]*"), road.folder / HOLDER):
        yield from _complaint(read_json, path)
    yield from _complaint(read_cost, road.folder / "cost.json")


def verify_stop(road: Road, epochs: int) -> None:
    """Raises LedgerError unless a stop has all files that it must have, with the checksums of each."""
    road.verify(epochs)
    lacking = [name for name in STOP_FILES if name not in json.loads((road.stop(epochs) / CHECKSUMS).read_text())]
    if lacking:
        raise LedgerError(f"ledger entry {road.stop(epochs)} must have {', '.join(lacking)}, got none: {NOT_READ}")


def _complaint(check, *given) -> Iterator[str]:
    try:
        check(*given)
    except FileNotFoundError:
        raise
    except (LedgerError, OSError) as error:
        yield " ".join(str(error).split())


@dataclass(frozen=True)
class Removable:
    """Something that no result needs.

    Attributes:
        kind: why, in words.
        size: bytes.
    """

    kind: str
    path: Path
    size: int


def removable(folder: Path, keep: list[str], forget: bool = False) -> Iterator[Removable]:
    """What can be removed from a ledger without any result being lost or made again.

    States of finished trainings (a longer one starts anew then), what processes that are gone left half-written, their
    wishes and signs of life, and what was set aside. Not what a process that lives is at.

    Args:
        keep: studies whose trainings keep their states.
        forget: what commands that have ended asked for, too: pe_lab.status tells no more that something is missing.

    Raises:
        ValueError: there is no such ledger or study.
    """
    if not folder.is_dir():
        raise ValueError(f"LEDGER must be a folder that is there, got {str(folder)!r}")
    folder = folder.resolve()
    kept = _roads_of(folder, keep)
    for road in Ledger(folder).roads():
        if road.folder.is_symlink():
            continue
        with first_come(road.folder / "lock") as free:
            if not free:
                continue
            yield from _of("half-written", *road.folder.glob(".s*"), *_left_of_records(road))
            wishes = sorted(road.folder.glob("wanted/[0-9]*"))
            gone = [path for path in wishes if not is_present(folder, path.name.partition(".")[2], clean=False)]
            yield from _of("wishes of processes that are gone", *gone)
            written = (*road.folder.glob(".*.*"), *road.folder.glob("wanted/.*"), *road.folder.glob("failed/.*"))
            yield from _of("half-written", *(path for path in written if _age(path) > OLD))
            yield from _of("leases of processes that are gone", *road.folder.glob(HOLDER))
            stops = road.stops()
            # a state beyond the last stop is of a training that was broken off
            if stops and road.name not in kept and len(gone) == len(wishes):
                end = read_json(road.stop(stops[-1]) / "summary.json")
                states = road.states()
                if isinstance(end, dict) and states and states[-1][0] <= end.get("steps", -1):
                    yield from _of("states of finished trainings", *(path for _, path in states))
    present = (path for path in folder.glob(".present/*") if path.is_file())
    gone = [path for path in present if not is_present(folder, path.name, clean=False)]
    yield from _of("signs of life of processes that are gone", *gone)
    shared = (path for of in SHARED for path in folder.glob(f"{of}/.*") if WRITTEN.fullmatch(path.name))
    yield from _of("half-written", *(path for path in shared if path.is_file() and _age(path) > OLD))
    yield from _of("commands that have ended", *(_ended(folder) if forget else ()))
    yield from _of("set aside as damaged", *folder.glob(f"{ASIDE}/*"))


def _ended(folder: Path) -> Iterator[Path]:
    """What was asked for by processes that are gone."""
    for path in folder.glob(f"{ASKED}/[!.]*.json"):
        with suppress(
            LedgerError, OSError, TypeError, KeyError, RecursionError
        ):  # not such a file: pe_lab.status says so
            who = read_json(path)["who"]
            if isinstance(who, list) and not any(is_present(folder, str(one), clean=False) for one in who):
                yield path


def _left_of_records(road: Road) -> Iterator[Path]:
    """What was being measured by a process that is gone."""
    for folder in road.folder.glob("records/[0-9]*"):
        with first_come(folder / "lock") as free:
            yield from (*folder.glob(".s-*"), *folder.glob(HOLDER)) if free else ()


def _roads_of(folder: Path, studies: list[str]) -> set[str]:
    import pandas as pd

    there = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
    roads: set[str] = set()
    for study in studies:
        if study not in there:
            raise ValueError(f"--keep must be one of {', '.join(there) or 'none yet'} in {folder}, got {study!r}")
        roads |= set(pd.read_csv(folder / "studies" / study / "rows.csv", usecols=["road"], dtype=str)["road"])
    return roads


def _of(kind: str, *paths: Path) -> Iterator[Removable]:
    for path in paths:
        if any(parent.is_symlink() for parent in (path, *islice(path.parents, 2))):  # it leads out of the ledger
            continue
        with suppress(FileNotFoundError):  # whoever it belongs to has just removed it
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            yield Removable(kind, path, sum(file.stat().st_size for file in files))


def _age(path: Path) -> float:
    """Seconds since it was written; 0: it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove(of: Removable) -> None:
    """Remove it, if it is still there."""
    if of.path.parent.name == ".present":
        is_present(of.path.parents[1], of.path.name)  # removes it under its lock: whose it is may just begin to live
    elif of.path.is_dir():
        shutil.rmtree(of.path, ignore_errors=True)
    else:
        of.path.unlink(missing_ok=True)
