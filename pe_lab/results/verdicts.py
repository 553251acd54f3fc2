"""The look and the direction of each verdict: a shape and a colour that colour-blind readers can tell apart."""

from typing import NamedTuple

from pe_lab.statistics.comparisons import (
    ALIKE,
    BETTER,
    EQUAL,
    EQUIVALENT,
    NO_SEED,
    ONE_SEED,
    UNDECIDED,
    WITHIN,
    WORSE,
    direction,
    reverse,
)

__all__ = [
    "ALIKE",
    "BETTER",
    "EQUAL",
    "EQUIVALENT",
    "MARKS",
    "NO_SEED",
    "ONE_SEED",
    "UNDECIDED",
    "WITHIN",
    "WORSE",
    "Mark",
    "direction",
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
    BETTER + WITHIN: Mark("△", "#0072B2", "^", False),
    EQUIVALENT: Mark("■", "#009E73", "s", True),
    EQUAL: Mark("□", "#009E73", "s", False),
    WORSE + WITHIN: Mark("▽", "#D55E00", "v", False),
    WORSE: Mark("▼", "#D55E00", "v", True),
    UNDECIDED: Mark("○", "#7F7F7F", "o", False),
    ONE_SEED: Mark("×", "#7F7F7F", "x", False),
    NO_SEED: Mark("·", "#7F7F7F", ".", False),
}
