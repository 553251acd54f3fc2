"""The verdict on two encodings: its words, and the decision that follows from corrected p values."""

from enum import StrEnum

import numpy as np

LEVEL = 0.05
MIN_SEEDS = 5  # with fewer, error rates are not simulated, and studies that tune or add seeds find none equivalent


class Verdict(StrEnum):
    """The verdict on the first encoding of a pair."""

    BETTER = "better"
    SLIGHTLY_BETTER = "slightly better"  # significantly better, by a mean difference below the margin
    EQUIVALENT = "equivalent"  # the difference is significantly smaller than the margin
    EQUAL = "equal"  # the same bits in every seed
    SLIGHTLY_WORSE = "slightly worse"
    WORSE = "worse"
    UNDECIDED = "undecided"
    BOTH_UNSOLVED = "both unsolved"  # no run of either solved the task
    NOT_ASKED = "not asked"  # the pair is in no family, so nothing is tested
    TOO_FEW_SEEDS = "too few seeds"
    ONE_SEED = "one seed"
    NO_SEED = "no shared seed"

    @property
    def direction(self) -> str:
        """Better or worse for a significant difference of any size, otherwise an empty text."""
        return self.removeprefix("slightly ") if self in DIFFERENT_VERDICTS else ""

    @property
    def reverse(self) -> "Verdict":
        """The verdict on the second encoding of the pair."""
        return _REVERSE.get(self, self)


COMPARISON_COLUMNS = (  # columns of a comparison, behind those of its setting; more may follow
    *("pe", "baseline", "seeds", "difference", "low", "high"),  # of pe minus baseline, with a 95 % interval
    *("p", "margin", "p_equivalent"),
    *("p_corrected", "p_equivalent_corrected", "verdict"),  # the verdict is on pe
)
DIFFERENT_VERDICTS = (Verdict.BETTER, Verdict.SLIGHTLY_BETTER, Verdict.SLIGHTLY_WORSE, Verdict.WORSE)
EQUIVALENT_VERDICTS = (Verdict.EQUIVALENT, Verdict.EQUAL)  # shown to be within the margin, and not to differ
_REVERSE = dict(zip(DIFFERENT_VERDICTS, DIFFERENT_VERDICTS[::-1], strict=True))


def verdicts_on(
    difference: np.ndarray,
    p: np.ndarray,
    p_equivalent: np.ndarray,
    margin: np.ndarray | float,
    lower_is_better: bool,
    ahead: np.ndarray | int = 0,
) -> np.ndarray:
    """Return the verdicts on pairs [...]: better, slightly better, equivalent, slightly worse, worse or undecided.

    Better or worse: p is below 5 %, and the one with the better mean did not solve fewer runs; *slightly*, if the mean
    difference is smaller than the margin, whether or not that is significant. Otherwise equivalent: p_equivalent is
    below 5 %. A p value of NaN shows nothing.

    Args:
        difference: mean of the first encoding minus the second.
        p: the corrected p value of the hypothesis that the mean difference is 0.
        p_equivalent: the corrected p value of the hypothesis that the mean difference is beyond the margin.
        margin: the smallest difference that matters, in the unit of the difference; NaN: there is none.
        lower_is_better: whether a lower value is better.
        ahead: the number of runs that the first encoding solved, minus that of the second.
    """
    wins = (difference < 0) if lower_is_better else (difference > 0)
    small = np.abs(difference) < margin
    different = (p < LEVEL) & np.where(wins, np.asarray(ahead) >= 0, np.asarray(ahead) <= 0)
    cases = {
        Verdict.SLIGHTLY_BETTER: different & wins & small,
        Verdict.SLIGHTLY_WORSE: different & ~wins & small,
        Verdict.BETTER: different & wins,
        Verdict.WORSE: different & ~wins,
        Verdict.EQUIVALENT: p_equivalent < LEVEL,
    }
    return np.select(list(cases.values()), [str(word) for word in cases], str(Verdict.UNDECIDED))
