"""The bench of sequential studies: small simulations, and the replay of the committed cells."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pe_lab.bench import __main__ as bench
from pe_lab.bench import decisions, noise, replay, spending
from pe_lab.decisions.design import Design
from pe_lab.decisions.question import Question
from pe_lab.decisions.sequential import nominal_p
from pe_lab.decisions.study import decide
from pe_lab.results.frame import load

RESULTS = Path(__file__).parents[2] / "sweeps" / "results"
ROWS = RESULTS / "all_encodings_41" / "rows.csv"


def test_the_replay_of_committed_cells_contradicts_no_verdict_of_all_seeds_at_once(program):
    code, out, _ = program(bench.main, "decisions", "--replay", ROWS, "--margin", "0.05 gap")
    assert code == 0
    assert out[0].startswith("80 comparisons with 0.05 gap, looks from 3 to 5 seeds against 5 seeds at once: 16 were ")
    assert "388 of 410 cells were needed, 22 (5 %) were saved. 0 verdicts are contradicted." in out[0]
    written = (ROWS.parents[1] / "decisions.md").read_text()
    assert "\n".join(out) in written


def test_a_study_that_added_seeds_contradicts_no_verdict_of_twelve_seeds_at_once(program):
    """The cells of `all_encodings` with one layer: a real study, and afterwards all seeds of all encodings."""
    code, out, _ = program(bench.main, "decisions", "--replay", RESULTS / "all_encodings_12/rows.csv")
    assert code == 0
    assert "533 of 744 cells were needed, 211 (28 %) were saved. 0 verdicts are contradicted." in out[0]
    assert "61 comparisons" in out[0]
    with (RESULTS / "all_encodings_sequential/decisions.csv").open() as file:
        verdicts = Counter(line["verdict"] for line in csv.DictReader(file))
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in "\n".join(out).splitlines() if "| " in line
    ]
    replayed = {first: sum(map(int, numbers)) for first, *numbers in cells[2:]}
    assert replayed == verdicts


def test_a_contradiction_is_a_difference_in_the_other_direction():
    assert replay.contradicts("better", "worse, within the margin")
    assert replay.contradicts("equal", "worse")
    for one, other in (("better", "undecided"), ("equivalent", "worse"), ("worse", "worse, within the margin")):
        assert not replay.contradicts(one, other)


@pytest.mark.parametrize("epsilon", [0.16, 0.18, 0.2])
def test_a_simulated_study_forgets_early_evidence_for_the_other_direction(epsilon):
    """See the tests of `decide`: certain at three seeds but for its family, then the mean changes its sign."""
    rng = np.random.default_rng(0)
    spread = 0.7 * rng.standard_normal(8)
    moving = [-1.0, -1.0 - epsilon, -1.0 + epsilon, *(3.6 + 0.3 * rng.standard_normal(5))]
    runs = np.stack([np.array(moving), 1 + spread - spread[:6].mean(), np.zeros(8)])[None]
    found = decisions.simulate(runs, np.full((1, 2), 0.05), Design((3, 4, 6, 8)), shared=False)
    assert found.mean[0, 0] > 0
    assert not found.different[0, 0]


def test_simulated_studies_end_as_studies_do():
    """Two encodings, so that one may end later than at the look that made it certain."""
    rng, design = np.random.default_rng(4), Design((3, 4, 6, 8))
    ends_later = 0
    for _ in range(300):
        runs = rng.standard_normal((3, 8)) + rng.choice([0.0, 2.0, 6.0], size=(3, 1))
        found = decisions.simulate(runs[None], np.full((1, 2), 2.0), design, shared=False)
        values = {(((), f"e{column}"), seed): x for column, row in enumerate(runs) for seed, x in enumerate(row)}
        lines = decide(Question([((), f"e{column}") for column in (2, 0, 1)], "e2"), design, values, {(): 2.0}).lines
        assert found.look[0].tolist() == [line.look - 1 for line in lines]
        assert found.different[0].tolist() == ["better" in line.verdict or "worse" in line.verdict for line in lines]
        seeds = lines[0].seeds
        nominal = nominal_p((runs[0] - runs[2])[:seeds], (seeds,), 2.0)
        alone = design.two_sided.at(lines[0].look - 1, nominal.difference[0])
        ends_later += bool(alone > lines[0].p * 1.001)
    assert ends_later > 5


@pytest.mark.parametrize("count", [pytest.param(8, marks=pytest.mark.slow), 40])
def test_error_and_coverage_of_a_small_simulation(count):
    """300 studies; the 10,000 of sweeps/results/decisions.md take an hour."""
    for effect, margin in ((0.0, 0.5), (1.0, 1.0), (4.0, 1.0)):
        wrong, covered = [], []
        made = spending.constant(effect, margin, count)
        for runs, true, margins in decisions.chunks(noise.spreads()["equal"], made, 300):
            found = decisions.simulate(runs, margins)
            wrong.append(found.different.any(1) if effect == 0 else found.equivalent.any(1))
            covered.append(decisions.covers(true, found))
        assert np.mean(np.concatenate(wrong)) < 0.06
        assert 0.93 < np.mean(np.concatenate(covered)) < 0.985


def test_simulated_studies_decide_as_those_of_the_lab():
    """They share their statistics, not their loops. What is decided gets no seed, and its variance still counts."""
    rng, design, looks = np.random.default_rng(2), Design((3, 4, 6, 8)), set()
    for count in (2, 4, 8, 8, 8, 8):
        effects, margin = rng.choice([0.0, 1.0, 3.0, 10.0], size=count + 1), float(rng.choice([0.5, 2.0, 5.0]))
        runs = rng.standard_normal((count + 1, 8)) * np.exp(rng.normal(0, 0.5, (count + 1, 1))) + effects[:, None]
        fast = decisions.simulate(runs[None], np.full((1, count), margin), design)
        cells = [((4,), "base"), *(((4,), f"e{number}") for number in range(count))]
        rows = [runs[-1], *runs[:-1]]
        values = {(cell, seed): x for cell, row in zip(cells, rows, strict=True) for seed, x in enumerate(row)}
        lines = decide(Question(cells, "base"), design, values, {(4,): margin}).lines
        assert [line.look - 1 for line in lines] == fast.look[0].tolist()
        assert [line.verdict != "undecided" for line in lines] == fast.decided[0].tolist()
        np.testing.assert_allclose([line.difference for line in lines], fast.mean[0])
        np.testing.assert_allclose([line.high - line.difference for line in lines], fast.half[0], rtol=1e-9)
        looks |= {line.look for line in lines}
    assert len(looks) > 2


def test_sharing_variances_needs_fewer_seeds():
    seeds = {}
    for shared in (False, True):
        found = [
            decisions.simulate(runs, margin, shared=shared)
            for runs, _, margin in decisions.chunks(noise.spreads()["equal"], spending.constant(4.0, 0.25, 40), 100)
        ]
        seeds[shared] = np.mean([np.array(spending.DESIGN.looks)[one.look].mean() for one in found])
    assert seeds[True] < 0.8 * seeds[False]


def test_a_typical_difference_has_deviation_one():
    rows = load(ROWS.parent).cells
    for name, made in (noise.spreads() | noise.of_cells(rows) | {"t": noise.heavy}).items():
        drawn = made(np.random.default_rng(1), (200, 40, 24))
        assert drawn.shape == (200, 40, 24)
        differences = drawn[:, 1:39:2] - drawn[:, 2:39:2]
        if name != "log-normal, 3":  # the larger of two such deviations is not typical
            assert np.median(differences.std(-1)) == pytest.approx(1, abs=0.25), name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--replay", "nowhere.csv"], "--replay must be the rows.csv of a study, got 'nowhere.csv'"),
        (["--replay", str(ROWS), "--baseline", "nobody"], "decide.baseline must be one of none, integer"),
        (["--replay", str(ROWS), "--margin", "much"], "margin must be a number and one of gap, nats, share"),
        (["--studies", "0"], "--studies must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(program, words, line):
    code, _, err = program(bench.main, "decisions", *words)
    assert code == 2 or code == 1
    assert line in err.splitlines()[-1]
