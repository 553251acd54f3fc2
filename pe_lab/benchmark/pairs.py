"""How many of all pairs of encodings are decided on a task."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pe_lab.results.verdicts import EQUAL
from pe_lab.statistics import LEVEL, benjamini_hochberg, holm


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs of encodings that differ, and of others that are equivalent within the margin or equal."""

    differ: int
    equivalent: int

    @classmethod
    def of(cls, lines: pd.DataFrame, correct: Callable[[np.ndarray], np.ndarray]) -> "Counts":
        """Count pairs whose corrected p value is below 5 %; a pair for which both are is counted as different.

        Args:
            lines: of all pairs, from `Families`.
            correct: corrects p values, those of differences and those of equivalence each on their own.
        """
        differ, similar = (correct(lines[name].to_numpy()) < LEVEL for name in ("p", "p_equivalent"))
        similar |= (lines["verdict"] == EQUAL).to_numpy()
        return cls(int(differ.sum()), int((similar & ~differ).sum()))

    def words(self) -> str:
        """Return both numbers."""
        return f"{self.differ:,} differ, {self.equivalent:,} equivalent"


@dataclass(frozen=True)
class Pairs:
    """How many of all pairs of encodings are decided at one length of a task.

    All pairs are one family; the verdicts of reports have two, one of comparisons with the baseline, and the ranks of
    the benchmark have one for each encoding.

    Attributes:
        encodings: with enough seeds to be compared.
        all: the number of pairs.
        certain: decided with a family-wise error of 5 % (Holm): a wrong difference among all pairs is unlikely, and so
            is a wrong equivalence.
        discovered: decided at a false discovery rate of 5 % (Benjamini and Hochberg): one in twenty of the differences,
            and of the equivalences, is expected to be wrong at most. Pairs share encodings, for which there is no
            proof; sweeps/results/shared_variance.md has simulated rates.
    """

    encodings: int
    all: int
    certain: Counts
    discovered: Counts

    @classmethod
    def of(cls, encodings: int, lines: pd.DataFrame) -> "Pairs":
        """Count the lines of all pairs; a pair that was not tested, as without a shared seed, is not decided."""
        return cls(encodings, len(lines), Counts.of(lines, holm), Counts.of(lines, benjamini_hochberg))

    def share(self, counts: Counts) -> float:
        """Return the share of all pairs that is counted, 0 to 1."""
        return (counts.differ + counts.equivalent) / self.all

    def words(self) -> str:
        """Return two sentences."""
        found, certain = (f"{100 * self.share(counts):.0f} %" for counts in (self.discovered, self.certain))
        return (
            f"Of {self.all:,} pairs of {self.encodings} encodings {found} are decided at a false discovery rate of 5 "
            f"%: {self.discovered.words()}; of each, at most about one in twenty is expected to be wrong. {certain} "
            f"are decided with a family-wise error of 5 %: {self.certain.words()}; of each, any wrong one is unlikely."
        )
