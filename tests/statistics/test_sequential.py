"""Decisions of sequential studies as functions of their results."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.simulated_looks import sequential
from pe_lab.statistics import COMPARISON_COLUMNS, Endpoint, holm
from pe_lab.statistics.look_levels import SPENT_SHARES, level_shares
from pe_lab.statistics.race import Race
from pe_lab.statistics.sequential import Arm, SequentialDesign, StudyDecision, Values, decide_cells

LOOKS = (3, 4, 6, 8)
SETTING = (4,)
NAMES = ("rope", "alibi", "t5", "none")


def draw(means: dict[str, float], seeds: int = 8, noise: float = 1.0, seed: int = 0) -> dict[tuple[Arm, int], float]:
    """Return results: the mean of an encoding, plus noise of its own."""
    rng = np.random.default_rng(seed)
    return {
        ((SETTING, pe), s): mean + noise * rng.standard_normal() for pe, mean in means.items() for s in range(seeds)
    }


def run(
    question: SequentialDesign, results: Values, margin: float = 1.0, most: int | None = None
) -> tuple[StudyDecision, list]:
    """Run a study on results that come as they are asked for; return its end, and the cells asked for at each look."""
    known: dict = {}
    asked = []
    while (decision := decide_cells(question, LOOKS, known, {SETTING: margin}, most)).needed:
        asked.append(decision.needed)
        known |= {key: results[key] for key in decision.needed}
    return decision, asked


def question(baseline: str = "rope", **options) -> SequentialDesign:
    return SequentialDesign([(SETTING, pe) for pe in NAMES], baseline, **options)


def test_only_the_undecided_and_their_baseline_get_seeds():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 0.4, "none": -300.0}, noise=0.7)
    end, asked = run(question(), results, margin=0.01)
    assert {pe for (_, pe), _ in asked[0]} == set(NAMES)
    assert {seed for _, seed in asked[0]} == {0, 1, 2}
    assert {(pe, seed) for (_, pe), seed in asked[1]} == {("rope", 3), ("t5", 3)}
    assert {(pe, seed) for (_, pe), seed in asked[3]} == {(pe, seed) for pe in ("rope", "t5") for seed in (6, 7)}
    assert {line.pe: (line.verdict, line.seeds, line.look) for line in end.lines} == {
        "alibi": ("worse", 3, 1),
        "t5": ("undecided", 8, 4),
        "none": ("better", 3, 1),
    }
    assert end.undecided == ["t5"]


def test_higher_is_better_for_an_accuracy():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 300.0, "none": -300.0})
    end, _ = run(question(lower_is_better=False), results)
    assert [line.verdict for line in end.lines] == ["better", "better", "worse"]


def test_equal_results_give_equal_decisions_whatever_their_order_and_whatever_else_is_there():
    results = draw({"rope": 0.0, "alibi": 1.5, "t5": 0.1, "none": -4.0}, seeds=40, noise=0.5)
    end, _ = run(question(), results)
    shuffled = list(results.items())
    np.random.default_rng(1).shuffle(shuffled)
    assert decide_cells(question(), LOOKS, dict(shuffled), {SETTING: 1.0}) == end
    assert any(line.seeds < 8 for line in end.lines)  # later seeds were there and were not used


def test_a_decided_encoding_keeps_its_verdict_and_its_numbers():
    results = draw({"rope": 0.0, "alibi": 60.0, "t5": 0.5, "none": 0.5}, noise=0.8)
    known: dict = {}
    seen: dict[str, tuple] = {}
    while (decision := decide_cells(question(), LOOKS, known, {SETTING: 0.05})).needed:
        for line in decision.lines:
            if line.verdict != "undecided":
                seen.setdefault(line.pe, (line.verdict, line.difference, line.low, line.seeds, line.p))
        known |= {key: results[key] for key in decision.needed}
    assert "alibi" in seen
    final = {line.pe: (line.verdict, line.difference, line.low, line.seeds, line.p) for line in decision.lines}
    assert all(final[pe] == numbers for pe, numbers in seen.items())


def test_of_two_that_fail_in_a_race_both_are_said_to_have_failed():
    values = {((SETTING, pe), seed): "diverged" for pe in ("a", "b") for seed in range(3)}
    end = decide_cells(SequentialDesign([(SETTING, pe) for pe in ("a", "b")], "best"), LOOKS, values, {SETTING: 1.0})
    assert set(end.places.values()) == {"undecided: a cell failed"}
    assert end.look == 1


def test_errors_name_the_setting_where_there_are_several():
    cells = [(("digits",), "rope"), (("digits",), "rope_2d"), (("structured",), "rope")]
    with pytest.raises(ValueError, match="decide needs at least two encodings in setting structured, got rope"):
        SequentialDesign(cells, "rope")
    with pytest.raises(ValueError, match="must be one of rope, rope_2d, .* in setting digits, got 'alibi'"):
        SequentialDesign(cells, "alibi")


def test_equivalence_within_the_margin_needs_five_seeds():
    results = draw({"rope": 0.0, "alibi": 5.0, "t5": 0.0, "none": 0.0}, noise=1e-3)
    end, _ = run(question(), results, margin=1.0)
    assert [(line.verdict, line.seeds) for line in end.lines] == [("worse", 3), ("equivalent", 6), ("equivalent", 6)]
    assert decide_cells(question(), (5, 8), results, {SETTING: 1.0}).lines[1].seeds == 5


def test_a_significant_difference_below_the_margin_is_slight():
    results = draw({"rope": 0.0, "alibi": 0.5, "t5": 0.0, "none": 0.0}, noise=1e-3)
    assert decide_cells(question(), (5, 8), results, {SETTING: 1.0}).lines[0].verdict == "slightly worse"


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("looks", [(5, 8, 12), (3, 4, 6, 8)])
def test_a_study_decides_as_the_looks_of_the_protocol_do(number, looks):
    """Eight encodings, which share their variances; more or less seeds as they are needed."""
    rng = np.random.default_rng(number)
    y = rng.standard_normal((looks[-1], 8)) * 0.4 + np.array([0.0, 0.1, 2.0, -3.0, 0.0, 0.9, -1.1, 5.0])
    names = [f"e{n}" for n in range(8)]
    values: dict = {((SETTING, pe), seed): y[seed, n] for n, pe in enumerate(names) for seed in range(looks[-1])}
    end = decide_cells(SequentialDesign([(SETTING, pe) for pe in names], "e0"), looks, values, {SETTING: 1.0})
    fast = sequential(y, 0, Endpoint("loss", 1.0), looks=looks, spent=level_shares(looks))
    assert [line.seeds for line in end.lines] == fast.seeds.tolist()
    for name, array in {"p_corrected": fast.p, "p_equivalent_corrected": fast.p_equivalent, "low": fast.low}.items():
        np.testing.assert_allclose([getattr(line, name) for line in end.lines], array, rtol=1e-12)
    said = [line.verdict for line in end.lines]
    assert said == list(fast.verdict)
    assert len(set(said)) > 2


@pytest.mark.parametrize("looks", [(2,), (3, 4, 6, 8, 12, 16, 24), (5, 8, 12)])
def test_the_looks_spend_the_level_and_no_more(looks):
    parts = level_shares(looks)
    assert sum(parts) == pytest.approx(1)
    assert list(parts) == sorted(parts)
    np.testing.assert_allclose(parts, np.sqrt(looks) / np.sqrt(looks).sum(), atol=0.02)


def test_the_looks_of_the_protocol_spend_what_it_declares():
    assert level_shares((5, 8, 12)) == SPENT_SHARES == (0.25, 0.35, 0.4)


@pytest.mark.parametrize("looks", [(), (1, 3), (3, 3), (5, 4)])
def test_looks_that_do_not_ascend_from_2_are_refused(looks):
    with pytest.raises(ValueError, match="looks must be ascending numbers of seeds from 2"):
        decide_cells(question(), looks, {}, {})


def test_tied_differences_are_not_certain_at_once():
    """Three equal differences of a hundredth of the margin."""
    results: dict = {((SETTING, pe), seed): 0.3 + 0.01 * n + seed for n, pe in enumerate(NAMES) for seed in range(8)}
    lines = decide_cells(question(), (3,), results, {SETTING: 1.0}).lines
    assert [line.verdict for line in lines] == ["undecided"] * 3
    assert min(line.p for line in lines) > 0.05


def test_equal_bits_are_equal_and_decided_at_the_first_look():
    results = draw({"rope": 0.3, "alibi": 0.7, "t5": 0.2, "none": 9.0})
    results |= {((SETTING, "alibi"), seed): results[(SETTING, "rope"), seed] for seed in range(8)}
    line = run(question(), results)[0].lines[0]
    assert (line.verdict, line.seeds, line.difference, line.low, line.high) == ("equal", 3, 0, 0, 0)
    assert line.p == 1


def test_a_failed_cell_is_named_and_its_encoding_stays_undecided():
    results: dict = draw({"rope": 0.0, "alibi": 30.0, "t5": 0.2, "none": 30.0})
    results[(SETTING, "alibi"), 1] = "the loss is not finite"
    results[(SETTING, "none"), 2] = float("nan")
    end, asked = run(question(), results)
    assert [(line.verdict, line.note) for line in end.lines] == [
        ("undecided", "seed 1 of alibi failed: the loss is not finite"),
        ("undecided", ""),
        ("undecided", "seed 2 of none has no finite value"),
    ]
    assert {pe for (_, pe), _ in asked[1]} == {"rope", "t5"}


def test_an_infinite_result_is_a_failure():
    results: dict = draw({"rope": 0.0, "alibi": 300.0, "t5": 300.0, "none": 300.0})
    results[(SETTING, "alibi"), 1] = float("inf")
    end, _ = run(question(), results)
    assert [line.verdict for line in end.lines] == ["undecided", "worse", "worse"]
    assert end.lines[0].note == "seed 1 of alibi has no finite value"


def test_an_encoding_that_failed_later_stays_undecided_when_others_leave_the_family():
    """Its p value of the first look is small enough only once Holm's method has rejected the others."""
    results: dict = draw({"rope": 0.0, "alibi": -9.0, "t5": 6.0, "none": 6.0}, seed=5)
    results[(SETTING, "alibi"), 3] = "killed"
    end, _ = run(question(), results, margin=0.01)
    assert [line.verdict for line in end.lines] == ["undecided", "worse", "worse"]
    alibi = end.lines[0]
    assert (alibi.seeds, alibi.note) == (3, "seed 3 of alibi failed: killed")
    assert alibi.p_corrected < 0.05
    assert end.undecided == ["alibi"]


def test_a_failed_baseline_leaves_all_undecided():
    results: dict = draw({"rope": 0.0, "alibi": 30.0, "t5": 0.2, "none": 30.0})
    results[(SETTING, "rope"), 0] = "killed"
    end, asked = run(question(), results)
    assert len(asked) == 1
    assert {line.note for line in end.lines} == {"seed 0 of rope failed: killed"}


def test_the_budget_ends_a_study_after_a_look():
    results = draw({"rope": 0.0, "alibi": 0.6, "t5": 0.5, "none": 300.0})
    end, asked = run(question(), results, margin=0.01, most=2)
    assert len(asked) == 2
    assert [(line.verdict, line.note) for line in end.lines] == [
        ("undecided", "the budget ended"),
        ("undecided", "the budget ended"),
        ("worse", ""),
    ]


def test_settings_are_one_family_and_get_seeds_apart():
    cells = [((depth,), pe) for depth in (1, 4) for pe in ("rope", "alibi")]
    asked = SequentialDesign(cells, "rope")
    values = {
        (cell, seed): 50.0 * (cell == ((4,), "alibi")) + np.sin(seed + len(str(cell)) ** 2 + cell[0][0])
        for cell in cells
        for seed in range(3)
    }
    decision = decide_cells(asked, LOOKS, values, {(1,): 0.01, (4,): 0.01})
    assert decision.needed == [(((1,), "rope"), 3), (((1,), "alibi"), 3)]
    assert set(COMPARISON_COLUMNS) <= set(vars(decision.lines[0]))
    p = np.array([[line.p, line.p_corrected] for line in decision.lines])
    np.testing.assert_allclose(p[:, 1], holm(p[:, 0]))


def test_all_pairs_are_one_family_of_pairs():
    end, asked = run(
        question("all pairs"), draw({"rope": 0.0, "alibi": 400.0, "t5": 0.1, "none": -400.0}, noise=0.5), 0.01
    )
    assert len(end.lines) == 6
    assert {pe for (_, pe), _ in asked[1]} == {"rope", "t5"}
    assert end.undecided == ["rope", "t5"]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: SequentialDesign([(SETTING, "rope")], "rope"), "decide needs at least two encodings, got rope"),
        (
            lambda: question("fire"),
            "decide.baseline must be one of rope, alibi, t5, none, all pairs, best, got 'fire'",
        ),
        (lambda: question("best", best=4), "decide.best must be in 1 ... 3, got 4"),
        (lambda: question("rope", best=2), "decide.best=2 needs decide.baseline=best, got 'rope'"),
    ],
)
def test_questions_without_an_answer_are_refused(make: Callable[[], SequentialDesign], line: str):
    with pytest.raises(ValueError, match=re.escape(line)) as error:
        make()
    assert str(error.value) == line


# -- the race --------------------


def test_a_race_drops_what_is_certainly_worse_and_leaves_the_best():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 0.2, "none": 290.0}, noise=0.3)
    end, asked = run(question("best", best=2), results, margin=0.001)
    assert end.places == {
        (SETTING, "rope"): "among the best 2",
        (SETTING, "alibi"): "not among the best 2",
        (SETTING, "t5"): "among the best 2",
        (SETTING, "none"): "not among the best 2",
    }
    assert len(asked) == 1  # whether rope or t5 is better was not asked, nor alibi or none


def test_a_race_goes_on_among_the_contested_only_and_ends_in_a_tie_of_equivalents():
    results = draw({"rope": -300.0, "alibi": 300.0, "t5": 0.0, "none": 0.0}, noise=0.3)
    end, asked = run(question("best", best=2), results, margin=1.0)
    assert {pe for (_, pe), _ in asked[1]} == {"t5", "none"}
    assert list(end.places.values()) == [
        "among the best 2",
        "not among the best 2",
        "tied for a place",
        "tied for a place",
    ]


def test_a_race_gives_no_seeds_to_what_is_dropped():
    """None is dropped by rope; that t5 is not told apart from it does not matter."""
    results = draw({"rope": 0.0, "alibi": 1000.0, "t5": 0.0, "none": 60.0}, noise=0.1)
    results |= {((SETTING, "t5"), seed): value for seed, value in enumerate((-90.0, 150.0, 20.0, -60.0) * 2)}
    end, asked = run(question("best"), results)
    assert end.places[SETTING, "none"] == "not the best"
    assert [{pe for (_, pe), _ in look} for look in asked[1:]] == [{"rope", "t5"}] * 3
    assert {(line.pe, line.baseline): line.verdict for line in end.lines}["t5", "none"] == "undecided"


def test_a_race_says_what_it_did_not_decide():
    results: dict = draw({"rope": 0.0, "alibi": 0.5, "t5": 0.3, "none": 300.0}, noise=0.6)
    end, _ = run(question("best"), results, margin=0.001)
    assert list(end.places.values()) == ["undecided", "undecided", "undecided", "not the best"]
    results[(SETTING, "alibi"), 0] = "killed"
    results |= {((SETTING, "t5"), seed): 300.0 + np.sin(seed) for seed in range(8)}
    end, _ = run(question("best"), results, margin=0.001)
    assert list(end.places.values()) == ["undecided", "undecided: a cell failed", "not the best", "not the best"]


def test_a_race_uses_no_comparison_that_it_had_ended() -> None:
    """At 3 seeds c loses to b, which ends its comparison with a, nearly decided; with 12, a is far better than b."""
    noise, size = np.array([-1.0, 0.0, 1.0]), 3**-0.5
    c = np.full(24, 20.0)
    c[:3] = 25 * size + noise
    a = np.cos(np.arange(24)) - 10_000
    a[:3] = c[:3] + 10 * (12 * size + noise)
    results = {
        ((SETTING, pe), s): float(x) for pe, xs in {"a": a, "b": 0 * a, "c": c}.items() for s, x in enumerate(xs)
    }
    known: dict = {}
    cells = [(SETTING, pe) for pe in "abc"]
    while (end := decide_cells(SequentialDesign(cells, "best"), (3, 6, 12, 24), known, {SETTING: 1e-3})).needed:
        known |= {key: results[key] for key in end.needed}
    assert list(end.places.values()) == ["the best", "not the best", "not the best"]


def test_what_is_worse_than_a_worse_one_has_no_place() -> None:
    a, b, c, d = cells = [(SETTING, pe) for pe in "abcd"]
    race = Race({SETTING: "abcd"}, places=2)
    for loser in (c, d):
        race.beats(a, loser)
    race.settle()
    race.beats(c, b)
    race.settle()
    assert [race.place(cell, compared=False) for cell in cells] == [
        "among the best 2",
        "not among the best 2",
        "tied for a place",
        "tied for a place",
    ]


def test_a_race_drops_nobody_by_comparisons_that_contradict_each_other() -> None:
    race = Race({SETTING: "abc"}, places=2)
    for winner, loser in ("ab", "bc", "ca"):
        race.beats((SETTING, winner), (SETTING, loser))
        race.settle()
    assert len(race.dropped) <= 1


def test_the_best_of_a_race_is_the_lowest_loss_or_the_highest_accuracy():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 600.0, "none": 900.0})
    assert run(question("best"), results)[0].places[SETTING, "rope"] == "the best"
    assert run(question("best", lower_is_better=False), results)[0].places[SETTING, "none"] == "the best"
