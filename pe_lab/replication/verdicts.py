"""The verdict on an entry, from the values of our seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pe_lab.replication.entries import Entry
from pe_lab.statistics import Agreement, Comparison, compare_with_published

LEVEL = 0.05


class Verdict(StrEnum):
    """What became of an entry."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    IN_PART = "reproduced in part"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Finding:
    """The verdict on an entry.

    Attributes:
        entry: that it is about.
        verdict: of all of its values.
        seeds: of ours.
        ours: our means, by label.
        compared: each value beside the published one, by label; empty where there are no seeds.
        why: what is missing, where nothing is decided.
    """

    entry: Entry
    verdict: Verdict
    seeds: int
    ours: dict[str, float]
    compared: dict[str, Comparison]
    why: str = ""

    @property
    def unseen(self) -> float:
        """The largest share of runs that could fail although none of ours did, at 95 % confidence."""
        return 1.0 if not self.seeds else 1 - LEVEL ** (1 / self.seeds)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}" if self.why else str(self.verdict)


def judge(entry: Entry, values: Mapping[str, Sequence[float]]) -> Finding:
    """Return the verdict on an entry.

    Every value must agree for it to be reproduced; one that does not makes it reproduced in part, or not reproduced
    where none agrees.

    Args:
        values: of our seeds, by label, as many of each; none: it was not run.
    """
    seeds = min((len(values.get(label, ())) for label in entry.values), default=0)
    if seeds < entry.seeds:
        return Finding(entry, Verdict.NOT_RUN, 0, {}, {}, _cost(entry))
    tests = len(entry.values)
    compared = {
        label: compare_with_published(np.array(values[label], float), value.published, entry.tolerance, tests)
        for label, value in entry.values.items()
    }
    found = [str(comparison.agreement) for comparison in compared.values()]
    ours = {label: float(np.mean(values[label])) for label in entry.values}
    if Agreement.NOT_REPRODUCED in found:
        verdict = Verdict.IN_PART if Agreement.REPRODUCED in found else Verdict.NOT_REPRODUCED
    elif Agreement.UNDECIDED in found:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.REPRODUCED
    why = _needs(compared) if verdict is Verdict.UNDECIDED else ""
    return Finding(entry, verdict, seeds, ours, compared, why)


def _cost(entry: Entry) -> str:
    """Say what it would take to run an entry."""
    if entry.lacks:
        return f"pe_lab has no {entry.lacks}"
    hours = (entry.minutes or 0) * entry.seeds / 60
    return f"needs {hours:.1f} core-hours" if hours >= 1 else f"needs {hours * 60:.0f} core-minutes"


def _needs(compared: Mapping[str, Comparison]) -> str:
    """Say how many seeds would decide."""
    needed = [float(one.needed) for one in compared.values() if one.agreement == Agreement.UNDECIDED]
    if any(map(math.isnan, needed)):
        return "no number of our seeds decides it, as too few were published"
    return f"needs {max(needed):.0f} seeds"
