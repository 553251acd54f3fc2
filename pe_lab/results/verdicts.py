"""The look and the direction of each verdict, and whether a study is large enough for their error rates.

A look is a shape and a colour that colour-blind readers can tell apart.
"""

from typing import NamedTuple

from pe_lab.statistics.comparisons import (
    ALIKE,
    BETTER,
    EQUAL,
    EQUIVALENT,
    NO_SEED,
    ONE_SEED,
    SLIGHTLY_BETTER,
    SLIGHTLY_WORSE,
    UNDECIDED,
    WORSE,
    direction,
    reverse,
)
from pe_lab.statistics.moderation import FEWEST

__all__ = [
    "ALIKE",
    "BETTER",
    "EQUAL",
    "EQUIVALENT",
    "MARKS",
    "NO_SEED",
    "ONE_SEED",
    "SLIGHTLY_BETTER",
    "SLIGHTLY_WORSE",
    "UNDECIDED",
    "WORSE",
    "Mark",
    "direction",
    "few_runs",
    "reverse",
]


class Mark(NamedTuple):
    """How a verdict is drawn.

    Attributes:
        symbol: before the word in tables.
        colour: Okabe and Ito's, or a grey; never the only difference between two verdicts.
        shape: matplotlib's marker that looks like the symbol.
        filled: whether the shape is filled.
    """

    symbol: str
    colour: str
    shape: str
    filled: bool


MARKS = {
    BETTER: Mark("▲", "#0072B2", "^", True),
    SLIGHTLY_BETTER: Mark("△", "#0072B2", "^", False),
    EQUIVALENT: Mark("■", "#009E73", "s", True),
    EQUAL: Mark("□", "#009E73", "s", False),
    SLIGHTLY_WORSE: Mark("▽", "#D55E00", "v", False),
    WORSE: Mark("▼", "#D55E00", "v", True),
    UNDECIDED: Mark("○", "#7F7F7F", "o", False),
    ONE_SEED: Mark("×", "#7F7F7F", "x", False),
    NO_SEED: Mark("·", "#7F7F7F", ".", False),
}
ENOUGH_SEEDS = 12  # with which fewer than FEWEST encodings have the stated error rates, see docs/protocol.md


def few_runs(encodings: int, seeds: int, advice: bool = True) -> str:
    """Return a sentence that says that verdicts are wrong more often than stated; empty if they are not, or are none.

    Args:
        encodings: that are compared.
        seeds: of each, at least.
        advice: whether it says what to do.
    """
    if not 2 <= encodings < FEWEST or not 2 <= seeds < ENOUGH_SEEDS:
        return ""
    text = f"With {encodings} encodings and {seeds} seeds, verdicts may be wrong more often than stated"
    return f"{text}: compare at least {FEWEST} encodings, or use {ENOUGH_SEEDS} seeds." if advice else f"{text}."
