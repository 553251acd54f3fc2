"""The parts of a claim: each a t test over seeds, corrected together with the other parts of its claim."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab import statistics

MOST_LISTED = 12  # of more parts, only those that are decided are listed
MARGIN = 0.05  # of an accuracy, an R2, a cosine or a loss in nats: smaller differences are negligible
HOLDS, FAILS, OPEN = "holds", "contradicted", "open"


@dataclass(frozen=True)
class Part:
    """A part of a claim and its test.

    Attributes:
        words: what was measured.
        holds: the one-sided p value of the test that shows that the part holds.
        fails: the one-sided p value of the test that contradicts it.
        tested: whether these are tests, and belong to the claim's family; otherwise both are 0 or 1.
    """

    words: str
    holds: float
    fails: float
    tested: bool = True

    @property
    def p(self) -> float:
        """The two-sided p value."""
        return min(1.0, 2 * min(self.holds, self.fails))


Found = list[Part | str]  # the parts of a claim, and further measurements in words


def decide(found: Found) -> tuple[list[str], list[str]]:
    """Return the state of each part after Holm's correction over all tests, and a description of each."""
    from statsmodels.stats.multitest import multipletests  # takes long to import

    tested = [part for part in found if isinstance(part, Part) and part.tested]
    corrected = iter(multipletests([part.p for part in tested], method="holm")[1] if tested else [])
    states, lines, count = [], [], sum(isinstance(part, Part) for part in found)
    for part in found:
        if isinstance(part, str):
            lines.append(part)
            continue
        p = next(corrected) if part.tested else part.p
        state = OPEN if p >= statistics.LEVEL else HOLDS if part.holds < part.fails else FAILS
        states.append(state)
        if state == OPEN and count > MOST_LISTED:
            continue
        lines.append(f"{part.words} ({_p(p)}, {state})" if part.tested else f"{part.words} ({state})")
    summary = (
        f"{states.count(HOLDS)} of {count} parts hold, {states.count(FAILS)} contradicted, {states.count(OPEN)} open"
    )
    if tested:
        summary += f"; p corrected by Holm over {len(tested)} test{'s' if len(tested) > 1 else ''}"
    return states, [*lines, summary]


def above(words: str, sample: pd.Series, bound: float = 0.0) -> Part:
    """Return a part that holds if the mean over seeds is above a bound, and is contradicted if it is below."""
    return Part(f"{words} {_mean(sample)}", p_above(sample, bound), p_above(-sample, -bound))


def below(words: str, sample: pd.Series, bound: float = 0.0) -> Part:
    """Return a part that holds if the mean over seeds is below a bound, and is contradicted if it is above."""
    return Part(f"{words} {_mean(sample)}", p_above(-sample, -bound), p_above(sample, bound))


def near(words: str, sample: pd.Series, claimed: float) -> Part:
    """Return a part that holds if the mean is within the margin of a claimed figure, and is contradicted beyond it.

    Within: two one-sided tests, both of which must reject. Beyond: above the margin or below it. For a mean at the
    upper border of the margin, "within" and "below" are parts of one tail and "above" is the other, so that the
    two-sided p keeps its level.
    """
    low, high = claimed - MARGIN, claimed + MARGIN
    within = max(p_above(sample, low), p_above(-sample, -high))
    beyond = min(p_above(sample, high), p_above(-sample, -low))
    return Part(f"{words} {_mean(sample, sign='')}", within, beyond)


def exact(words: str, holds: bool) -> Part:
    """Return a part that was computed exactly and needs no test."""
    return Part(words, 1.0 - holds, float(holds), tested=False)


def paired(first: pd.Series, second: pd.Series) -> pd.Series:
    """Return the differences in the seeds that both series have."""
    shared = first.index.intersection(second.index)
    return first[shared] - second[shared]


def p_above(sample: pd.Series, bound: float) -> float:
    """Return the p value of a one-sided t test that the mean is above a bound; 1 where nothing can be tested."""
    values = sample.to_numpy(float)
    if len(values) < 2 or not np.isfinite(values).all() or abs(values.mean() - bound) < 1e-12:
        return 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error < 1e-12:  # all values are the same
        return float(values.mean() < bound)
    return float(stats.t.sf((values.mean() - bound) / error, len(values) - 1))


def _mean(sample: pd.Series, sign: str = "+") -> str:
    """Return the mean with its t interval as text."""
    if not np.isfinite(sample).all():
        return f"not finite in {int((~np.isfinite(sample)).sum())} of {len(sample)} seeds"
    low, high = statistics.interval(sample)
    same = ", equal in every seed" if len(sample) > 1 and sample.nunique() == 1 else ""
    return f"{sample.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]{same}"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
