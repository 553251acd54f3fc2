"""Records beside a checkpoint: what was measured on its weights after it was made, one folder per request."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.ledger.lease import register, try_lock
from pe_lab.ledger.run import OWNER, Run, read_failure
from pe_lab.system.files import (
    CHECKSUMS,
    LedgerError,
    canonical,
    digest,
    is_file,
    kind,
    parse_json,
    read_json,
    read_verified,
    verify,
    write_json,
)

KINDS = ("length", "probe")
FILES = ("request.json", "rows.csv", "environment.json")


class Records:
    """The records of one checkpoint. A request is answered for the weights that the checkpoint has, and for no others.

    Args:
        run, epochs: of the checkpoint.
    """

    def __init__(self, run: Run, epochs: int) -> None:
        self.checkpoint = run.checkpoint(epochs)
        self.folder = run.folder / "records" / str(epochs)
        self.tree = run.tree

    @cached_property
    def _weights(self) -> str:
        checksums = read_json(self.checkpoint / CHECKSUMS)
        if not isinstance(checksums, dict) or "weights.safetensors" not in checksums:
            raise LedgerError(f"ledger entry {self.checkpoint} must have the checksum of its weights, got none")
        return checksums["weights.safetensors"]

    def _place(self, request: dict[str, Any]) -> Path:
        return self.folder / digest(request | {"weights": self._weights})

    def requests(self) -> list[dict[str, Any]]:
        """All that has been asked about the weights that the checkpoint has, and answered."""
        found = [read_json(path) for path in sorted(self.folder.glob("[!.]*/request.json"))]
        mine = [request for request in found if isinstance(request, dict) and request.get("weights") == self._weights]
        return [{key: value for key, value in request.items() if key != "weights"} for request in mine]

    def has(self, request: dict[str, Any]) -> bool:
        """Whether a request is answered. No record is of a checkpoint whose checksums cannot be read."""
        try:
            return is_file(self._place(request) / CHECKSUMS)
        except LedgerError:
            return False

    def add(self, request: dict[str, Any], rows: pd.DataFrame, environment: dict[str, Any]) -> None:
        """Keep the rows that answer a request, and what they were measured in."""
        with self.tree.writing(self._place(request), self.folder) as folder:
            write_json(folder / "request.json", canonical(request | {"weights": self._weights}))
            write_json(folder / "environment.json", environment)
            rows.to_csv(folder / "rows.csv", index=False)

    def get(self, request: dict[str, Any]) -> pd.DataFrame:
        """The rows that answer a request.

        Raises:
            LedgerError: there are none, or their content is not what was written.
        """
        return self.read(self._place(request))[1]

    def mend(self, request: dict[str, Any]) -> None:
        """Set the answer to a request aside if it is damaged."""
        place = self._place(request)
        self.tree.require(place)
        if kind(place):
            self.tree.mend(place, partial(self.verify, place))

    def entries(self) -> list[Path]:
        """The folders of all that was answered, by name."""
        return sorted(path for path in self.folder.glob("[!.]*") if path.is_dir())

    def verify(self, entry: Path) -> None:
        """Compare all files of such a folder with their checksums.

        Raises:
            LedgerError: as `read`.
        """
        verify(entry, *FILES)
        self.read(entry)

    def read(self, entry: Path) -> tuple[dict[str, Any], pd.DataFrame]:
        """The request of such a folder, and the rows that answer it.

        Raises:
            LedgerError: its content is not what was written, or was measured on other weights than the checkpoint has.
        """
        contents = read_verified(entry, "request.json", "rows.csv")
        try:
            request, rows = parse_json(contents[0]), pd.read_csv(BytesIO(contents[1]))
        except ValueError as error:
            raise LedgerError(f"ledger entry {entry} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(request, dict) or request.get("kind") not in KINDS or not {"metric", "value"} <= set(rows):
            raise LedgerError(f"ledger entry {entry} must be a request with its rows, got something else")
        if request.get("weights") != self._weights or digest(request) != entry.name:
            raise LedgerError(
                f"ledger entry {entry} must be measured on the weights of {self.checkpoint}, got a record of others"
            )
        return request, rows

    def fail(self, request: dict[str, Any], reason: str) -> None:
        """Record why a request could not be answered."""
        self.tree.write_json(self._place(request).with_suffix(".failed.json"), {"reason": reason})

    def failure(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a failure, or None."""
        return read_failure(self._place(request).with_suffix(".failed.json"))

    def forget(self, request: dict[str, Any]) -> None:
        """Clear the record of a failure."""
        self.tree.remove(self._place(request).with_suffix(".failed.json"))

    @contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to become the one that measures on this stop; yields whether that is so. Training can go on meanwhile."""
        with try_lock(self.tree, self.tree.place(self.folder / "lock")) as mine:
            for left in self.folder.glob(".s-*") if mine else []:  # what a killed owner left half-written
                self.tree.clear(left)
            if mine:
                self.tree.write_json(self.folder / OWNER, {"who": register(self.tree.root)})
            try:
                yield mine
            finally:
                if mine:
                    self.tree.remove(self.folder / OWNER)
