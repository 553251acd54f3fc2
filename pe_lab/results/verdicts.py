"""The look and the meaning of each verdict: a shape and a colour that colour-blind readers can tell apart."""

from typing import NamedTuple


class Mark(NamedTuple):
    """How a verdict is drawn.

    Attributes:
        symbol: before the word in tables.
        colour: Okabe and Ito's; never the only difference between two verdicts.
        marker: matplotlib's, of the same shape as the symbol.
        filled: whether the shape is filled.
    """

    symbol: str
    colour: str
    marker: str
    filled: bool


UNDECIDED = "undecided"
BETTER, WORSE = "better", "worse"
WITHIN = ", within the margin"  # added to better or worse: the difference is certain, and certainly below the margin

MARKS = {
    BETTER: Mark("▲", "#0072B2", "^", True),
    BETTER + WITHIN: Mark("△", "#0072B2", "^", False),
    "equivalent": Mark("■", "#009E73", "s", True),
    "equal": Mark("=", "#000000", "_", True),
    UNDECIDED: Mark("○", "#595959", "o", False),
    WORSE + WITHIN: Mark("▽", "#D55E00", "v", False),
    WORSE: Mark("▼", "#D55E00", "v", True),
    "one seed": Mark("·", "#595959", ".", True),
    "no shared seed": Mark("·", "#595959", ".", True),
}


def direction(verdict: str) -> str:
    """Return better or worse for a difference that is certain, whatever its size; otherwise an empty text."""
    word = verdict.removesuffix(WITHIN)
    return word if word in (BETTER, WORSE) else ""
