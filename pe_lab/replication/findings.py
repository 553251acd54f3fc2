"""The finding on an entry: its verdict, from the values of our seeds beside the published ones."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from pe_lab.replication.entry import Claimed, Entry, Reported, benchmark_commands
from pe_lab.statistics import LEVEL, Agreement, Comparison, compare_with_published, holm, holm_levels

EQUALITY_TOLERANCE = 1e-12  # numbers that differ by less are equal
PARTS = {
    Agreement.REPRODUCED: "shown",
    Agreement.NOT_REPRODUCED: "contradicted",
    Agreement.UNDECIDED: "open",
}  # of a claim


class EntryVerdict(StrEnum):
    """Whether our seeds reproduce an entry."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    MIXED = "mixed"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Finding:
    """The verdict on an entry.

    Attributes:
        entry: the entry that the verdict is about.
        verdict: the verdict on all values of the entry.
        seeds: the number of our seeds.
        ours: the means of our seeds, by label.
        compared: each value beside the published one or its bound, by label; empty where there are no seeds.
        why: what is missing, where nothing is decided.
    """

    entry: Entry
    verdict: EntryVerdict
    seeds: int
    ours: dict[str, float]
    compared: dict[str, Comparison]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}" if self.why else str(self.verdict)


def judge_entry(entry: Entry, values: Mapping[str, Sequence[float]], why: str = "") -> Finding:
    """Return the verdict on an entry.

    It is reproduced where every value agrees, not reproduced where some disagree and none agrees, and mixed where some
    agree and others disagree.

    Args:
        values: the values of our seeds, by label, the same number for each; none: the entry was not run.
        why: what is missing, where the entry was not run.
    """
    seeds = min((len(values.get(label, ())) for label in entry.values), default=0)
    if seeds < entry.seeds:
        needs = f"{why}; " if why else ""
        return Finding(entry, EntryVerdict.NOT_RUN, 0, {}, {}, needs + _describe_cost(entry))
    tested = {label: value for label, value in entry.values.items() if isinstance(value, Claimed)}
    reported = {label: value for label, value in entry.values.items() if isinstance(value, Reported)}
    arrays = {label: np.array(values[label], float) for label in entry.values}
    compared = _test_parts(tested, arrays, entry.tolerance) | {
        label: compare_with_published(arrays[label], value.published, entry.tolerance, len(reported))
        for label, value in reported.items()
    }
    verdict = combine_agreements(str(comparison.agreement) for comparison in compared.values())
    ours = {label: float(np.mean(values[label])) for label in entry.values}
    why = (
        (_count_open_parts(compared) if tested else _seeds_to_decide(compared))
        if verdict is EntryVerdict.UNDECIDED
        else ""
    )
    return Finding(entry, verdict, seeds, ours, compared, why)


def combine_agreements(agreements: Iterable[str]) -> EntryVerdict:
    """Return the verdict that agreements amount to."""
    verdicts = set(agreements)
    if Agreement.NOT_REPRODUCED in verdicts:
        return EntryVerdict.MIXED if Agreement.REPRODUCED in verdicts else EntryVerdict.NOT_REPRODUCED
    return EntryVerdict.UNDECIDED if Agreement.UNDECIDED in verdicts else EntryVerdict.REPRODUCED


def _test_parts(
    tests: Mapping[str, Claimed], values: Mapping[str, np.ndarray], tolerance: float
) -> dict[str, Comparison]:
    """Test the parts of a claim by t tests, with the variance of each alone, corrected together by Holm's method.

    Intervals are corrected like the verdicts: one excludes the bound if and only if its part is decided.

    "Near" is shown by two one-sided tests against the ends of the tolerance, and contradicted by one of them; at an
    end, "within" and "beyond on this side" are the two tails of one test, so that the two-sided p keeps its level.
    """
    if not tests:
        return {}
    p = {label: _p_values(test, values[label], tolerance) for label, test in tests.items()}
    smaller = np.array([min(1.0, 2 * min(both)) for both in p.values()])
    comparisons = {}
    for (label, (holds, fails)), corrected_p, level in zip(
        p.items(), holm(smaller), holm_levels(smaller, LEVEL), strict=True
    ):
        decided = Agreement.REPRODUCED if holds < fails else Agreement.NOT_REPRODUCED
        agreement = decided if corrected_p < LEVEL else Agreement.UNDECIDED
        mean, low, high = _mean_interval(values[label], tests[label].ratio, level)
        comparisons[label] = Comparison(*map(np.asarray, (agreement, mean, low, high, np.nan)))
    return comparisons


def _p_values(test: Claimed, values: np.ndarray, tolerance: float) -> tuple[float, float]:
    """Return the one-sided p values for a part that holds and for one that is contradicted."""
    bound = np.log(test.bound) if test.ratio else test.bound
    values = np.log(values) if test.ratio else values
    if test.rule == "near":
        low, high = bound - tolerance, bound + tolerance
        inside = max(_p_above(values, low), _p_above(-values, -high))
        return inside, min(_p_above(values, high), _p_above(-values, -low))
    above, below = _p_above(values, bound), _p_above(-values, -bound)
    return (above, below) if test.rule == "above" else (below, above)


def _p_above(values: np.ndarray, bound: float) -> float:
    """Return the p value of a one-sided t test that the mean is above a bound; 1 where nothing can be tested."""
    if len(values) < 2 or not np.isfinite(values).all() or abs(values.mean() - bound) < EQUALITY_TOLERANCE:
        return 1.0
    error = _standard_error(values)
    if error < EQUALITY_TOLERANCE:  # all values are the same
        return float(values.mean() < bound)
    return float(special.stdtr(len(values) - 1, (bound - values.mean()) / error))


def _standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _mean_interval(values: np.ndarray, ratio: bool, level: float) -> tuple[float, float, float]:
    """Return the mean and its t interval of 1 - level, geometric for ratios; NaN where a value is not finite."""
    if not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    values = np.log(values) if ratio else values
    half = special.stdtrit(len(values) - 1, 1 - level / 2) * _standard_error(values)
    estimate = values.mean() + np.array([0, -half, half])
    mean, low, high = map(float, np.exp(estimate) if ratio else estimate)
    return mean, low, high


def _describe_cost(entry: Entry) -> str:
    """Say what it would take to run an entry."""
    if entry.lacks:
        return f"pe_lab has no {entry.lacks}"
    if entry.tasks:
        return f"needs {benchmark_commands(entry)}"
    hours = (entry.minutes or 0) * entry.seeds / 60
    if hours >= 1:
        return f"needs {hours:.1f} core-hours"
    minutes = max(1, round(hours * 60))
    return f"needs {minutes} core-minute{'s' * (minutes > 1)}"


def _count_open_parts(compared: Mapping[str, Comparison]) -> str:
    """Say how many parts of a claim are open."""
    count = sum(comparison.agreement == Agreement.UNDECIDED for comparison in compared.values())
    return f"{count} of {len(compared)} parts are open"


def _seeds_to_decide(compared: Mapping[str, Comparison]) -> str:
    """Say how many seeds would decide."""
    needed = [
        float(comparison.needed) for comparison in compared.values() if comparison.agreement == Agreement.UNDECIDED
    ]
    if any(map(math.isnan, needed)):
        return "no number of our seeds decides it, as too few were published"
    return f"needs {max(needed):.0f} seeds"
