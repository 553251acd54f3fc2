"""Values of our seeds, and the table that keeps them beyond a ledger."""

import csv
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

SHIPPED_FILE = Path(__file__).with_name("values.csv")  # of the package
COLUMNS = ("entry", "label", "seed", "value", "device", "minutes")


@dataclass
class Values:
    """The values of an entry's seeds.

    Attributes:
        by_label: the values by label, one for each of the seeds.
        seeds: the seeds that have values of all labels.
        minutes: the minutes that each seed took.
        device: the device that they were trained on, "cpu" or "cuda".
        why: what is missing, where there are no values.
    """

    by_label: dict[str, list[float]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    minutes: list[float] = field(default_factory=list)
    device: str = ""
    why: str = ""


def values_to_csv(values: dict[str, Values]) -> str:
    """Return values by entry as CSV, a row for each value."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry, of_entry in values.items():
        for label, numbers in of_entry.by_label.items():
            for seed, minutes, number in zip(of_entry.seeds, of_entry.minutes, numbers, strict=True):
                writer.writerow((entry, label, seed, number, of_entry.device, f"{minutes:.1f}"))
    return text.getvalue()


def values_by_entry(path: Path) -> dict[str, Values]:
    """Return the values of a table by entry.

    Raises:
        ValueError: the file is not such a table.
    """
    by_entry: dict[str, Values] = {}
    try:
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            values = by_entry.setdefault(row["entry"], Values(device=row["device"]))
            values.by_label.setdefault(row["label"], []).append(float(row["value"]))
            if int(row["seed"]) not in values.seeds:
                values.seeds.append(int(row["seed"]))
                values.minutes.append(float(row["minutes"]))
        for values in by_entry.values():
            if any(len(numbers) != len(values.seeds) for numbers in values.by_label.values()):
                raise ValueError("a label has not every seed")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must be a table of pe-lab replicate: {error}") from None
    return by_entry
