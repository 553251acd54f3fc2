"""Records of a checkpoint: what was measured on its weights after training, one folder per request."""

from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_lab.ledger.lease import LeasedFolder
from pe_lab.ledger.run import WEIGHTS_FILE, Run, read_failure
from pe_lab.system.files import (
    CHECKSUMS_FILE,
    LedgerError,
    canonical_form,
    digest,
    folder_entries,
    is_file,
    kind_of_path,
    parse_json,
    read_json,
    read_verified,
    verify_files,
    write_json,
)

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("length", "decode", "stride", "probe")
RECORD_FILES = ("request.json", "rows.csv", "environment.json")


class Records(LeasedFolder):
    """The records of one checkpoint. A record belongs to the weights that it was measured on, and to no others.

    A request is a dict that says what to measure. Its lease is apart from the run's, so that training can continue.
    """

    def __init__(self, run: Run, target: int) -> None:
        super().__init__(run.tree, run.folder / "records" / str(target))
        self.checkpoint = run.checkpoint(target)

    @cached_property
    def weights(self) -> str:
        """The digest of the weights that were measured."""
        checksums = read_json(self.checkpoint / CHECKSUMS_FILE)
        if isinstance(checksums, dict) and isinstance(weights := checksums.get(WEIGHTS_FILE), str):
            return weights
        raise LedgerError(f"ledger entry {self.checkpoint} must have the checksum of its weights, got none")

    def _entry(self, request: dict[str, Any]) -> Path:
        return self.folder / digest(request | {"weights": self.weights})

    def requests(self) -> list[dict[str, Any]]:
        """Return all requests that were measured on the checkpoint's present weights."""
        requests = [read_json(path / "request.json") for path in self.entries()]
        return [
            {key: value for key, value in request.items() if key != "weights"}
            for request in requests
            if isinstance(request, dict) and request.get("weights") == self.weights
        ]

    def has(self, request: dict[str, Any]) -> bool:
        """Return whether a request was measured; False if the checkpoint's checksums cannot be read."""
        try:
            return is_file(self._entry(request) / CHECKSUMS_FILE)
        except LedgerError:
            return False

    def add(self, request: dict[str, Any], rows: "pd.DataFrame", environment: dict[str, Any]) -> None:
        """Store the measured rows of a request, and the environment they were measured in."""
        with self.tree.new_folder(self._entry(request), self.folder) as folder:
            write_json(folder / "request.json", canonical_form(request | {"weights": self.weights}))
            write_json(folder / "environment.json", environment)
            rows.to_csv(folder / "rows.csv", index=False)

    def get(self, request: dict[str, Any]) -> "pd.DataFrame":
        """Return the measured rows of a request.

        Raises:
            LedgerError: there are none, or they are damaged.
        """
        return self.read(self._entry(request))[1]

    def set_aside_if_damaged(self, request: dict[str, Any]) -> None:
        """Set the record of a request aside if it is damaged."""
        entry = self._entry(request)
        self.tree.refuse_links(entry)
        if kind_of_path(entry):
            self.tree.set_aside_if_damaged(entry, partial(self.verify, entry))

    def entries(self) -> list[Path]:
        """Return the folders of all records, by name."""
        return [path for path in folder_entries(self.folder, "[!.]*") if path.is_dir()]

    def verify(self, entry: Path) -> None:
        """Compare all files of a record with their checksums, and read it.

        Raises:
            LedgerError: as `read`.
        """
        verify_files(entry, *RECORD_FILES)
        self.read(entry)

    def read(self, entry: Path) -> tuple[dict[str, Any], "pd.DataFrame"]:
        """Return the request of a record and its rows.

        Raises:
            LedgerError: the record is damaged, or was measured on other weights than the checkpoint's.
        """
        from pe_lab.system.exact_csv import read_csv  # loads pandas

        contents = read_verified(entry, "request.json", "rows.csv")
        try:
            request, rows = parse_json(contents[0]), read_csv(BytesIO(contents[1]))
        except ValueError as error:
            raise LedgerError(f"ledger entry {entry} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(request, dict) or request.get("kind") not in KINDS or not {"metric", "value"} <= set(rows):
            raise LedgerError(f"ledger entry {entry} must be a request with its rows, got something else")
        if request.get("weights") != self.weights or digest(request) != entry.name:
            raise LedgerError(
                f"ledger entry {entry} must be measured on the weights of {self.checkpoint}, got a record of others"
            )
        return request, rows

    def fail(self, request: dict[str, Any], reason: str, traceback: list[str] | None = None) -> None:
        """Record why a request could not be measured.

        Args:
            reason, traceback: as in `Run.fail`.
        """
        failure = {"reason": reason} | ({} if traceback is None else {"traceback": traceback})
        self.tree.write_json(self._failure_file(request), failure)

    def failure(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record of a failure, or None."""
        return read_failure(self._failure_file(request))

    def clear_failure(self, request: dict[str, Any]) -> None:
        """Remove the record of a failure."""
        self.tree.remove(self._failure_file(request))

    def _failure_file(self, request: dict[str, Any]) -> Path:
        return self._entry(request).with_suffix(".failed.json")
