"""The studies that claims are tested on, and the rows of them that a claim needs."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pe_lab.results import frame
from pe_lab.results.frame import UNKNOWN, Results
from pe_lab.system.tables import read_csv


class MissingError(LookupError):
    """A study that a claim needs is missing, or has only one seed."""


class Studies:
    """The studies of a ledger, or of a folder of studies, by name; and the table of an audit.

    Args:
        folder: a ledger, or a folder with one folder per study.

    Raises:
        ValueError: there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "studies" if (folder / "studies").is_dir() else folder
        if not self.folder.is_dir():
            raise ValueError(f"--ledger must be a folder with studies, got {str(folder)!r}")
        self.used: list[str] = []

    def __getitem__(self, name: str) -> Results:
        """Load a study; raises MissingError if it is missing, or has only one seed."""
        if not (self.folder / name / "rows.csv").is_file():
            raise MissingError(f"needs `python -m pe_lab.run -m +study={name}`")
        results = frame.load(self.folder / name)
        if results.cells["seed"].nunique() < 2:
            raise MissingError(f"needs several seeds of `+study={name}`, got one")
        self.used.append(f"{name} ({results.cells['seed'].nunique()} seeds)")
        return results

    def audit(self) -> pd.DataFrame:
        """Load the table of the audit; raises MissingError if it is missing."""
        table = self.folder / "audit" / "table.csv"
        if not table.is_file():
            raise MissingError(f"needs `python -m pe_lab.audit out={self.folder / 'audit'}`")
        self.used.append("audit")
        return read_csv(table).set_index("pe")


def require_encodings(names: Iterable[str], *needed: str) -> None:
    """Raise MissingError unless all needed encodings are among the names."""
    if absent := [name for name in needed if name not in set(names)]:
        raise MissingError(f"needs cells of {', '.join(absent)}")


def rows_of_task(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one task.

    Raises:
        MissingError: there are none, or the folder does not name the task of its cells.
    """
    if len(rows) and (rows["data"] == UNKNOWN).all():
        raise MissingError(f"needs cells of {name}, got a folder that does not say the task of its cells")
    found = rows[rows["data"] == name] if len(rows) else rows
    if found.empty:
        raise MissingError(f"needs cells of {name}")
    return found


def deepest(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of the deepest models.

    Raises:
        MissingError: there are no records.
    """
    if records.empty:
        raise MissingError("needs the probes of `+study=layers`")
    return records[records["depth"] == records["depth"].max()]


def by_length(records: pd.DataFrame, name: str, metric: str) -> pd.DataFrame:
    """Return a metric of an encoding with a row per seed and a column per length, in training lengths.

    Raises:
        MissingError: the encoding was not measured at other lengths.
    """
    found = records[(records["kind"] == "length") & (records["pe"] == name) & (records["metric"] == metric)]
    found = found[(found["policy"] == "raw") & (found["offset"] == 0)]
    if found.empty:
        raise MissingError(f"needs cells of {name}, measured at several lengths")
    return found.pivot(index="seed", columns="length", values="value")


def entropy_by_length(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the mean entropy of attention over layers and heads, with a row per seed and a column per length.

    Raises:
        MissingError: the encoding was not probed at several lengths.
    """
    found = records[(records["probe"] == "attention") & (records["metric"] == "entropy") & (records["pe"] == name)]
    if found.empty or found["length"].nunique() < 2:
        raise MissingError(f"needs the attention of {name}, probed at several lengths")
    return found.groupby(["seed", "length"])["value"].mean().unstack("length")


def by_layer(records: pd.DataFrame, name: str, probe: str, metric: str, norm: str) -> pd.DataFrame:
    """Return a probe's metric for an encoding with a row per seed and a column per layer; heads are averaged.

    Raises:
        MissingError: it was not probed.
    """
    found = records[(records["pe"] == name) & (records["probe"] == probe) & (records["metric"] == metric)]
    found = found[found["model.norm"] == norm] if "model.norm" in found else found
    found = found[found["layer"].notna()]
    if found.empty:
        raise MissingError(f"needs the probe {probe} of {name}, {norm}-norm")
    return found.groupby(["seed", "layer"])["value"].mean().unstack("layer")
