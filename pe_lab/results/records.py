"""Records beside a stop: what was measured on its weights after it was made, one folder per request."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.results.files import CHECKSUMS, canonical, digest, read_json, read_verified, verify, write_json, writing
from pe_lab.results.ledger import Road
from pe_lab.results.presence import first_come


class Records:
    """The records of one stop. A request is answered for the weights that the stop has, and for no others.

    Args:
        road, epochs: of the stop.
    """

    def __init__(self, road: Road, epochs: int) -> None:
        self.stop = road.stop(epochs)
        self.folder = road.folder / "records" / str(epochs)

    @cached_property
    def _weights(self) -> str:
        return read_json(self.stop / CHECKSUMS)["weights.safetensors"]

    def _place(self, request: dict[str, Any]) -> Path:
        return self.folder / digest(request | {"weights": self._weights})

    def requests(self) -> list[dict[str, Any]]:
        """All that has been asked about the weights that the stop has, and answered."""
        found = [read_json(path) for path in sorted(self.folder.glob("[!.]*/request.json"))]
        return [request for request in found if request.pop("weights") == self._weights and self.has(request)]

    def has(self, request: dict[str, Any]) -> bool:
        return (self._place(request) / CHECKSUMS).exists()

    def add(self, request: dict[str, Any], rows: pd.DataFrame, environment: dict[str, Any]) -> None:
        """Keep the rows that answer a request, and what they were measured in."""
        with writing(self._place(request), self.folder) as folder:
            write_json(folder / "request.json", canonical(request | {"weights": self._weights}))
            write_json(folder / "environment.json", environment)
            rows.to_csv(folder / "rows.csv", index=False)

    def get(self, request: dict[str, Any]) -> pd.DataFrame:
        """The rows that answer a request.

        Raises:
            LedgerError: there are none, or their content is not what was written.
        """
        verify(self._place(request))
        return pd.read_csv(self._place(request) / "rows.csv")

    def all(self) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
        """Every request that was answered for the weights that the stop has, and the rows that answer it.

        Raises:
            LedgerError: as `get`.
        """
        for path in sorted(self.folder.glob(f"*/{CHECKSUMS}")):
            request, rows = read_verified(path.parent, "request.json", "rows.csv")
            if json.loads(request).get("weights") == self._weights:
                yield json.loads(request), pd.read_csv(BytesIO(rows))

    def fail(self, request: dict[str, Any], reason: str) -> None:
        """Record why a request could not be answered."""
        write_json(self._place(request).with_suffix(".failed.json"), {"reason": reason})

    def failure(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a failure, or None."""
        return read_json(self._place(request).with_suffix(".failed.json"))

    def forget(self, request: dict[str, Any]) -> None:
        """Clear the record of a failure."""
        self._place(request).with_suffix(".failed.json").unlink(missing_ok=True)

    @contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to become the one that measures on this stop; yields whether that is so. Training can go on meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with first_come(self.folder / "lock") as mine:
            for left in self.folder.glob(".s-*") if mine else []:  # what a killed holder left half-written
                shutil.rmtree(left)
            yield mine
