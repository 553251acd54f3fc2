"""How many of all pairs of encodings are decided on a task."""

from dataclasses import dataclass

import pandas as pd

from pe_lab.results.statistics import CONFIDENCE
from pe_lab.results.statistics.correction import benjamini_hochberg
from pe_lab.results.verdicts import EQUAL, EQUIVALENT, UNDECIDED


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs of encodings that differ, and that are equivalent within the margin or equal to the bit."""

    differ: int
    equivalent: int

    def words(self) -> str:
        """Return both numbers."""
        return f"{self.differ:,} differ, {self.equivalent:,} equivalent"


@dataclass(frozen=True)
class Pairs:
    """How many of all pairs of encodings are decided at one length of a task.

    Attributes:
        encodings: with enough seeds to be compared.
        all: the number of pairs.
        certain: decided with a family-wise error of 5 %: any wrong one among all pairs is unlikely. These are the
            verdicts that stand elsewhere.
        discovered: decided at a false discovery rate of 5 %, of each of the two questions: at most one in twenty of
            them is expected to be wrong.
    """

    encodings: int
    all: int
    certain: Counts
    discovered: Counts

    @classmethod
    def of(cls, encodings: int, lines: pd.DataFrame) -> "Pairs":
        """Count the lines of a family of all pairs."""
        verdicts = lines["verdict"]
        alike, equal = verdicts.isin([EQUIVALENT, EQUAL]), verdicts == EQUAL
        differ = benjamini_hochberg(lines["p"].to_numpy()) < 1 - CONFIDENCE
        similar = benjamini_hochberg(lines["p_equivalent"].to_numpy()) < 1 - CONFIDENCE
        certain = Counts(int((~alike & (verdicts != UNDECIDED)).sum()), int(alike.sum()))
        return cls(encodings, len(lines), certain, Counts(int(differ.sum()), int((equal | (similar & ~differ)).sum())))

    def share(self, counts: Counts) -> float:
        """Return the share of all pairs that is counted, 0 to 1."""
        return (counts.differ + counts.equivalent) / self.all

    def words(self) -> str:
        """Return two sentences."""
        found, certain = (f"{100 * self.share(counts):.0f} %" for counts in (self.discovered, self.certain))
        return (
            f"Of {self.all:,} pairs of {self.encodings} encodings {found} are decided at a false discovery rate of 5 "
            f"%: {self.discovered.words()}; at most one in twenty of these is expected to be wrong. {certain} are "
            f"decided with a family-wise error of 5 %: {self.certain.words()}; any wrong one among these is unlikely."
        )
