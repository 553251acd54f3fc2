"""The results that come with the package: cells of its benchmark, without weights.

A file per study, `<study>.jsonl.gz`, has a line per cell: the identity of its run, its summary and environment, its
last validation, the digest of its weights, and what was measured on them later. SHA256SUMS has the digests of the
files. A cell is found by the hash of its identity, so that results of another revision of an encoding or of a task, or
of another version of anything that enters the identity, are never taken for those of today.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pe_lab.system.files import LedgerError, canonical, digest, entries, parse_json

FOLDER = Path(__file__).parents[1] / "benchmark" / "results"
SUMS = "SHA256SUMS"
END = ".jsonl.gz"

Key = tuple[str, int]  # the name of a run, and epochs


@dataclass(frozen=True)
class Shipped:
    """A cell without its weights.

    Attributes:
        identity: of its run; epochs: of its checkpoint.
        summary, environment: as in its checkpoint.
        validation: metrics on the validation split at its end.
        weights: the digest of the file of its weights.
        records: what was measured on the weights, each a request and rows of tokens, metric and value.
    """

    identity: dict[str, Any]
    epochs: int
    summary: dict[str, Any]
    environment: dict[str, Any]
    validation: dict[str, float]
    weights: str
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return digest(self.identity), self.epochs

    def record(self, request: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the rows that answer a request; None: it was not measured."""
        wanted = canonical(request)
        rows = (record["rows"] for record in self.records if canonical(record["request"]) == wanted)
        return next(rows, None)


def write(study: str, cells: Iterable[Shipped], folder: Path | None = None) -> Path:
    """Write the cells of a study, in the order of their keys, and the digests of all files of the folder.

    The same cells give the same bytes.
    """
    folder = folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(asdict(cell), separators=(",", ":"), allow_nan=False) for cell in sorted(cells, key=lambda c: c.key)
    ]
    path = folder / f"{study}{END}"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    write_sums(folder)
    return path


def write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder of shipped results."""
    files = sorted([*folder.glob(f"*{END}"), *folder.glob("*.csv")])
    (folder / SUMS).write_text("".join(f"{_sha256(file.read_bytes())}  {file.name}\n" for file in files))


def studies(folder: Path | None = None) -> list[str]:
    """Return the names of the studies that have shipped results."""
    return sorted(path.name.removesuffix(END) for path in entries(folder or FOLDER, f"*{END}"))


def read(study: str, folder: Path | None = None) -> list[Shipped]:
    """Read the cells of a study, after comparing its file with its digest.

    Raises:
        LedgerError: there is no such file, it was changed, or it is not in the form of `write`.
    """
    path = (folder or FOLDER) / f"{study}{END}"
    content = compared(path)
    try:
        cells = [Shipped(**parse_json(line)) for line in gzip.decompress(content).splitlines()]
    except (ValueError, TypeError, OSError, EOFError, zlib.error) as error:
        raise LedgerError(f"shipped results {path} cannot be read: {' '.join(str(error).split())}") from None
    for cell in cells:
        if (cell.summary.get("run"), cell.summary.get("epochs")) != cell.key:
            raise LedgerError(f"shipped results {path} must have summaries of their cells, got one of another cell")
    return cells


def compared(path: Path) -> bytes:
    """Return the content of a file of shipped results, after comparing it with its digest.

    Raises:
        LedgerError: there is no such file, or it was changed.
    """
    try:
        content, sums = path.read_bytes(), (path.parent / SUMS).read_text()
    except OSError as error:
        study = path.name.partition(".")[0]
        raise LedgerError(f"shipped results of {study} must be in {path}, got {error.strerror}") from None
    lines = [line.split() for line in sums.splitlines()]
    expected = {name: value for value, name in filter(lambda line: len(line) == 2, lines)}.get(path.name)
    if (found := _sha256(content)) != expected:
        raise LedgerError(
            f"shipped results {path} must have the digest {str(expected)[:16]}, got {found[:16]}: they were changed; "
            f"install the package again, or add shipped=false"
        )
    return content


def index(folder: Path | None = None) -> dict[Key, Shipped]:
    """Return all shipped cells by run and epochs; read once.

    Raises:
        LedgerError: as `read`.
    """
    return _index(folder or FOLDER)


@cache
def _index(folder: Path) -> dict[Key, Shipped]:
    return {cell.key: cell for study in studies(folder) for cell in read(study, folder)}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
