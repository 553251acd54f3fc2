"""How each verdict is drawn, and whether a study is large enough for the verdicts' error rates."""

from typing import NamedTuple

from pe_lab.statistics import Verdict
from pe_lab.statistics.moderation import MIN_ENCODINGS


class Mark(NamedTuple):
    """How a verdict is drawn.

    Attributes:
        symbol: the symbol before the word in tables.
        colour: a colour of Okabe and Ito's, or a grey; never the only difference between two verdicts.
        shape: the marker of matplotlib that looks like the symbol.
        filled: whether the shape is filled.
    """

    symbol: str
    colour: str
    shape: str
    filled: bool


VERDICT_MARKS = {
    Verdict.BETTER: Mark("▲", "#0072B2", "^", True),
    Verdict.SLIGHTLY_BETTER: Mark("△", "#0072B2", "^", False),
    Verdict.EQUIVALENT: Mark("■", "#009E73", "s", True),
    Verdict.EQUAL: Mark("□", "#009E73", "s", False),
    Verdict.SLIGHTLY_WORSE: Mark("▽", "#D55E00", "v", False),
    Verdict.WORSE: Mark("▼", "#D55E00", "v", True),
    Verdict.UNDECIDED: Mark("○", "#7F7F7F", "o", False),
    Verdict.BOTH_UNSOLVED: Mark("–", "#7F7F7F", "_", False),
    Verdict.ONE_SEED: Mark("×", "#7F7F7F", "x", False),
    Verdict.NO_SEED: Mark("·", "#7F7F7F", ".", False),
}
ENOUGH_SEEDS = 12  # with which fewer than MIN_ENCODINGS encodings have the stated error rates, see docs/protocol.md


def few_runs(encodings: int, seeds: int, advice: bool = True) -> str:
    """Return a sentence that says that verdicts are wrong more often than stated; empty if they are not, or are none.

    Args:
        encodings: the number of encodings that are compared.
        seeds: the smallest number of seeds of an encoding.
        advice: whether the sentence says what to do.
    """
    if not 2 <= encodings < MIN_ENCODINGS or not 2 <= seeds < ENOUGH_SEEDS:
        return ""
    text = f"With {encodings} encodings and {seeds} seeds, verdicts may be wrong more often than stated"
    enough = f": compare at least {MIN_ENCODINGS} encodings, or use {ENOUGH_SEEDS} seeds" if advice else ""
    return f"{text}{enough}."
