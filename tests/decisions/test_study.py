"""Decisions of sequential studies as functions of their results."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from pe_lab.decisions.design import Design
from pe_lab.decisions.intervals import FIRST, LAST, MIDDLE, half_width, tail
from pe_lab.decisions.question import Cell, Question
from pe_lab.decisions.sequential import holm, nominal_p, sequential_p, stop
from pe_lab.decisions.study import Decision, Line, Values, decide

DESIGN = Design((3, 4, 6, 8))
SETTING = (4,)
NAMES = ("rope", "alibi", "t5", "none")


def draw(means: dict[str, float], seeds: int = 8, noise: float = 1.0, seed: int = 0) -> dict[tuple[Cell, int], float]:
    """Return results: the mean of an encoding, plus noise of its own."""
    rng = np.random.default_rng(seed)
    return {
        ((SETTING, pe), s): mean + noise * rng.standard_normal() for pe, mean in means.items() for s in range(seeds)
    }


def run(question: Question, results: Values, margin: float = 1.0, most: int | None = None) -> tuple[Decision, list]:
    """Run a study on results that come as they are asked for; return its end, and the cells asked for at each look."""
    known: dict = {}
    asked = []
    while (decision := decide(question, DESIGN, known, {SETTING: margin}, most)).needed:
        asked.append(decision.needed)
        known |= {key: results[key] for key in decision.needed}
    return decision, asked


def question(baseline: str = "rope", **options) -> Question:
    return Question([(SETTING, pe) for pe in NAMES], baseline, **options)


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


def test_comparisons_go_on_without_waiting_for_the_seeds_of_others():
    results = draw({"rope": 0.0, "alibi": 2.0, "t5": 0.4, "none": 0.2}, noise=0.7)
    known = {((s, pe), seed): v for ((s, pe), seed), v in results.items() if pe in ("rope", "alibi") or seed < 3}
    waiting = decide(question(), DESIGN, known, {SETTING: 0.01})
    assert {line.pe: (line.verdict, line.seeds) for line in waiting.lines} == dict.fromkeys(
        ("alibi", "t5", "none"), ("undecided", 3)
    )
    assert {pe for (_, pe), _ in waiting.needed} == {"t5", "none"}
    decision = decide(question(), DESIGN, known, {SETTING: 0.01}, wait=False)
    assert decision.needed == []
    lines = {line.pe: line for line in decision.lines}
    assert lines["alibi"].verdict == "worse"
    assert lines["alibi"].seeds > 3
    for pe in ("t5", "none"):
        assert (lines[pe].verdict, lines[pe].seeds, lines[pe].look) == ("undecided", 3, 1)
        assert lines[pe].note == f"the next look needs seeds of {pe}"
    assert {line.pe: line.p for line in waiting.lines}["t5"] == lines["t5"].p
    assert decide(question(), DESIGN, results, {SETTING: 0.01}, wait=False) == decide(
        question(), DESIGN, results, {SETTING: 0.01}
    )


def test_without_the_baseline_s_seeds_nothing_goes_on():
    results = draw({"rope": 0.0, "alibi": 2.0, "t5": 0.4, "none": 0.2}, noise=0.7)
    known = {((s, pe), seed): v for ((s, pe), seed), v in results.items() if pe != "rope" or seed < 3}
    lines = decide(question(), DESIGN, known, {SETTING: 0.01}, wait=False).lines
    assert {(line.seeds, line.note) for line in lines} == {(3, "the next look needs seeds of rope")}


def test_higher_is_better_for_an_accuracy():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 300.0, "none": -300.0})
    end, _ = run(question(lower_is_better=False), results)
    assert [line.verdict for line in end.lines] == ["better", "better", "worse"]


def test_equal_results_give_equal_decisions_whatever_their_order_and_whatever_else_is_there():
    results = draw({"rope": 0.0, "alibi": 1.5, "t5": 0.1, "none": -4.0}, seeds=40, noise=0.5)
    end, _ = run(question(), results)
    shuffled = list(results.items())
    np.random.default_rng(1).shuffle(shuffled)
    assert decide(question(), DESIGN, dict(shuffled), {SETTING: 1.0}) == end
    assert any(line.seeds < 8 for line in end.lines)  # later seeds were there and were not used


def test_a_decided_encoding_keeps_its_verdict_and_its_numbers():
    results = draw({"rope": 0.0, "alibi": 60.0, "t5": 0.5, "none": 0.5}, noise=0.8)
    known: dict = {}
    seen: dict[str, tuple] = {}
    while (decision := decide(question(), DESIGN, known, {SETTING: 0.05})).needed:
        for line in decision.lines:
            if line.verdict != "undecided":
                seen.setdefault(line.pe, (line.verdict, line.difference, line.low, line.seeds, line.p))
        known |= {key: results[key] for key in decision.needed}
    assert "alibi" in seen
    final = {line.pe: (line.verdict, line.difference, line.low, line.seeds, line.p) for line in decision.lines}
    assert all(final[pe] == numbers for pe, numbers in seen.items())


def test_a_study_of_few_encodings_tests_each_comparison_alone():
    rng = np.random.default_rng(2)
    for _ in range(40):
        effects, margin = rng.choice([0.0, 1.0, 3.0, 10.0], size=3), rng.choice([0.5, 2.0, 5.0])
        differences = rng.standard_normal((3, 8)) + effects[:, None]
        fast = stop(sequential_p(nominal_p(differences[None], DESIGN.looks, margin), DESIGN), DESIGN.level)
        names = ["base", *(f"e{number}" for number in range(3))]
        values = {((SETTING, "base"), seed): 0.0 for seed in range(8)}
        values |= {((SETTING, f"e{n}"), seed): x for n, row in enumerate(differences) for seed, x in enumerate(row)}
        asked = Question([(SETTING, name) for name in names], "base")
        lines = decide(asked, DESIGN, values, {SETTING: margin}).lines
        assert [line.look - 1 for line in lines] == fast.look[0].tolist()
        np.testing.assert_allclose([line.p_holm for line in lines], fast.p_difference[0], rtol=1e-9)
        np.testing.assert_allclose([line.p_equivalent_holm for line in lines], fast.p_equivalence[0], rtol=1e-9)
        decided = [line.verdict != "undecided" for line in lines]
        assert decided == (fast.different | fast.equivalent)[0].tolist()


def test_of_two_that_fail_in_a_race_both_are_said_to_have_failed():
    values = {((SETTING, pe), seed): "diverged" for pe in ("a", "b") for seed in range(3)}
    end = decide(Question([(SETTING, pe) for pe in ("a", "b")], "best"), DESIGN, values, {SETTING: 1.0})
    assert set(end.places.values()) == {"undecided: a cell failed"}
    assert end.look == 1


def test_errors_name_the_setting_where_there_are_several():
    cells = [(("digits",), "rope"), (("digits",), "rope_2d"), (("structured",), "rope")]
    with pytest.raises(ValueError, match="decide needs at least two encodings in setting structured, got rope"):
        Question(cells, "rope")
    with pytest.raises(ValueError, match="must be one of rope, rope_2d, .* in setting digits, got 'alibi'"):
        Question(cells, "alibi")


def drifting(first: list[float], later: float, other: float, margin: float) -> Line:
    """The line of an encoding whose differences move after three seeds, beside one that leaves the family later."""
    rng = np.random.default_rng(0)
    spread = 0.7 * rng.standard_normal(8)
    moving = [*first, *(later + 0.3 * rng.standard_normal(5))]
    runs = {"base": np.zeros(8), "moves": np.array(moving), "other": other + spread - spread[:6].mean()}
    values = {((SETTING, pe), seed): x for pe, row in runs.items() for seed, x in enumerate(row)}
    return decide(Question([(SETTING, pe) for pe in runs], "base"), DESIGN, values, {SETTING: margin}).lines[0]


@pytest.mark.parametrize("epsilon", [0.16, 0.18, 0.2])
def test_early_evidence_for_one_direction_decides_nothing_once_the_mean_has_the_other(epsilon):
    line = drifting([-1.0, -1.0 - epsilon, -1.0 + epsilon], 3.6, 1.0, margin=0.05)
    assert line.difference > 0
    assert line.verdict == "undecided"
    assert line.p > 0.05


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("epsilon", [0.24, 0.27])
def test_early_evidence_of_equivalence_decides_nothing_once_the_mean_is_beyond_the_margin(epsilon, sign):
    line = drifting([0.0, -epsilon, epsilon], 3.2 * sign, 0.3, margin=1.0)
    assert line.difference * sign > 1
    assert "equivalent" not in line.verdict
    assert line.p_equivalent == 1


def test_equivalence_within_the_margin_is_decided_and_a_certain_small_difference_is_both():
    results = draw({"rope": 0.0, "alibi": 0.5, "t5": 0.0, "none": 0.0}, noise=1e-3)
    end, _ = run(question(), results, margin=1.0)
    assert [line.verdict for line in end.lines] == ["worse, within the margin", "equivalent", "equivalent"]
    assert all(line.look == 1 for line in end.lines)


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
    assert alibi.p_holm < DESIGN.level
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


def test_the_interval_of_what_the_budget_left_is_that_of_a_last_look():
    from scipy import stats

    results = draw({"rope": 0.0, "alibi": 0.6, "t5": 0.5, "none": 300.0})
    end, _ = run(question(), results, margin=0.01, most=2)
    sample = [results[(SETTING, "alibi"), seed] - results[(SETTING, "rope"), seed] for seed in range(4)]
    line = end.lines[0]
    assert (line.low, line.high) == pytest.approx(stats.t.interval(1 - LAST, 3, np.mean(sample), stats.sem(sample)))


def test_settings_are_one_family_and_get_seeds_apart():
    cells = [((depth,), pe) for depth in (1, 4) for pe in ("rope", "alibi")]
    asked = Question(cells, "rope")
    values = {
        (cell, seed): 50.0 * (cell == ((4,), "alibi")) + np.sin(seed + len(str(cell)) ** 2 + cell[0][0])
        for cell in cells
        for seed in range(3)
    }
    decision = decide(asked, DESIGN, values, {(1,): 0.01, (4,): 0.01})
    assert decision.needed == [(((1,), "rope"), 3), (((1,), "alibi"), 3)]
    p = np.array([[line.p, line.p_holm] for line in decision.lines])
    np.testing.assert_allclose(p[:, 1], holm(p[:, 0]))


def test_all_pairs_are_one_family_of_pairs():
    end, asked = run(
        question("all pairs"), draw({"rope": 0.0, "alibi": 400.0, "t5": 0.1, "none": -400.0}, noise=0.5), 0.01
    )
    assert len(end.lines) == 6
    assert {pe for (_, pe), _ in asked[1]} == {"rope", "t5"}
    assert end.undecided == ["rope", "t5"]


def test_holm_is_that_of_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(0).random((3, 9)) ** 3
    for one, corrected in zip(p, holm(p), strict=True):
        np.testing.assert_allclose(corrected, multipletests(one, method="holm")[1])


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Question([(SETTING, "rope")], "rope"), "decide needs at least two encodings, got rope"),
        (
            lambda: question("fire"),
            "decide.baseline must be one of rope, alibi, t5, none, all pairs, best, got 'fire'",
        ),
        (lambda: question("best", best=4), "decide.best must be in 1 ... 3, got 4"),
        (lambda: question("rope", best=2), "decide.best=2 needs decide.baseline=best, got 'rope'"),
    ],
)
def test_questions_without_an_answer_are_refused(make: Callable[[], Question], line: str):
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


def test_the_best_of_a_race_is_the_lowest_loss_or_the_highest_accuracy():
    results = draw({"rope": 0.0, "alibi": 300.0, "t5": 600.0, "none": 900.0})
    assert run(question("best"), results)[0].places[SETTING, "rope"] == "the best"
    assert run(question("best", lower_is_better=False), results)[0].places[SETTING, "none"] == "the best"


# -- intervals -------------------


def test_intervals_are_wider_for_what_stopped_early_and_usual_for_one_look():
    assert tail(np.array([0, 1, 2, 3]), 4).tolist() == [FIRST, MIDDLE, MIDDLE, LAST]
    assert tail(np.array([0, 1]), 4, np.array([False, False])).tolist() == [LAST, LAST]
    assert tail(np.array([0]), 1).tolist() == [0.05]
    assert MIDDLE < LAST <= FIRST < 0.05


def test_half_of_an_interval_is_that_of_scipy():
    from scipy import stats

    sample = np.array([0.3, 1.2, 0.7, 2.0])
    low, high = stats.t.interval(0.97, 3, sample.mean(), stats.sem(sample))
    assert half_width(sample.std(ddof=1), np.array(3), np.array(4), np.array(0.03)) == pytest.approx((high - low) / 2)


def test_p_values_of_a_look_are_those_of_scipy():
    from scipy import stats

    differences = np.random.default_rng(3).standard_normal((5, 8)) + np.arange(5)[:, None] / 2
    found = nominal_p(differences, (3, 6), 0.7)
    for number, seeds in enumerate((3, 6)):
        part = differences[:, :seeds]
        np.testing.assert_allclose(found.difference[number], stats.ttest_1samp(part, 0, axis=1).pvalue)
        above = stats.ttest_1samp(part, -0.7, axis=1, alternative="greater").pvalue
        np.testing.assert_allclose(found.above[number], above)
        np.testing.assert_allclose(found.below[number], stats.ttest_1samp(part, 0.7, axis=1, alternative="less").pvalue)


def test_an_e_value_is_the_mixture_of_likelihood_ratios_that_it_is_derived_from():
    """The formula against its two integrals, over deviation and standardised mean, on a grid."""
    from pe_lab.decisions.alternatives import log_e_value

    sample, prior = np.array([0.4, 1.3, 0.9, -0.2]), 0.5
    effects = np.linspace(-12, 12, 4001)
    weights = np.exp(-prior * effects**2 / 2) * np.sqrt(prior / (2 * np.pi)) * (effects[1] - effects[0])
    logs = np.linspace(-5, 5, 2001)  # of the deviation; the measure is d log(deviation)

    def density(means: np.ndarray) -> np.ndarray:
        deviation = np.exp(logs)[:, None]
        squares = ((sample[:, None, None] / deviation - means) ** 2).sum(0)
        return (np.exp(-squares / 2) / deviation ** len(sample)).sum(0)

    ratio = (density(effects[None]) * weights).sum() / density(np.zeros((1, 1)))[0]
    assert log_e_value(sample, 0.0, prior) == pytest.approx(np.log(ratio), abs=1e-4)


def test_bonferroni_multiplies_the_smallest_p_value_so_far_by_the_number_of_all_looks():
    from pe_lab.decisions.alternatives import bonferroni

    nominal = nominal_p(np.random.default_rng(4).standard_normal((5, 8)) + 0.5, DESIGN.looks, 1.5)
    found, ends = bonferroni(nominal), np.maximum(nominal.above, nominal.below)
    for corrected, p in ((found.difference, nominal.difference), (found.equivalence, ends)):
        assert (corrected < 1).any()
        np.testing.assert_allclose(corrected, np.minimum(4 * np.minimum.accumulate(p), 1))
