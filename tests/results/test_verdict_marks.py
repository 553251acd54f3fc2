"""Verdicts look different without colour, and with the colours that colour-blind readers see."""

import pytest

from pe_lab.results.verdict_marks import VERDICT_MARKS, few_runs
from pe_lab.statistics import Verdict

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


def test_no_two_decided_verdicts_share_a_shape() -> None:
    shapes = [(mark.shape, mark.filled) for verdict, mark in VERDICT_MARKS.items() if "seed" not in verdict]
    symbols = [mark.symbol for verdict, mark in VERDICT_MARKS.items() if "seed" not in verdict]
    assert len(set(shapes)) == len(set(symbols)) == len(shapes) == 8


def test_colours_are_those_of_okabe_and_ito_or_grey() -> None:
    for mark in VERDICT_MARKS.values():
        grey = mark.colour[1:3] == mark.colour[3:5] == mark.colour[5:7]
        assert mark.colour in OKABE_ITO or grey


def test_significant_differences_below_the_margin_are_hollow() -> None:
    for word in ("better", "worse"):
        assert VERDICT_MARKS[Verdict(f"slightly {word}")] == VERDICT_MARKS[Verdict(word)]._replace(
            symbol=VERDICT_MARKS[Verdict(f"slightly {word}")].symbol, filled=False
        )


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        ("better", "better"),
        ("worse", "worse"),
        ("slightly better", "better"),
        ("slightly worse", "worse"),
        *((verdict, "") for verdict in ("equivalent", "equal", "undecided", "one seed", "no shared seed")),
    ],
)
def test_only_certain_differences_have_a_direction(verdict, word) -> None:
    assert Verdict(verdict).direction == word
    assert verdict in VERDICT_MARKS


@pytest.mark.parametrize(
    ("encodings", "seeds", "few"),
    [(2, 2, True), (4, 11, True), (5, 2, False), (4, 12, False), (1, 5, False), (3, 1, False)],
)
def test_few_encodings_with_few_seeds_are_told(encodings: int, seeds: int, few: bool) -> None:
    """One encoding has no verdict, and neither has one seed."""
    sentence = few_runs(encodings, seeds)
    assert bool(sentence) == few
    assert bool(few_runs(encodings, seeds, advice=False)) == few
    assert not few or {str(encodings), str(seeds)} <= set(sentence.replace(",", "").split())
