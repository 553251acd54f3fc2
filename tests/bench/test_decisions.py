"""The bench of sequential studies: small simulations, and the replay of the committed cells."""

from pathlib import Path

import numpy as np
import pytest

from pe_lab.bench import __main__ as bench
from pe_lab.bench import decisions, replay

ROWS = Path(__file__).parents[2] / "sweeps" / "results" / "all_encodings" / "rows.csv"


def test_the_replay_of_committed_cells_contradicts_no_verdict_of_all_seeds_at_once(program):
    code, out, _ = program(bench.main, "decisions", "--replay", ROWS, "--margin", "0.05 gap")
    assert code == 0
    assert out[0].startswith("80 comparisons with 0.05 gap, looks from 3 to 5 seeds against 5 seeds at once: 6 were ")
    assert "399 of 410 cells were needed, 11 (3 %) were saved. 0 verdicts are contradicted." in out[0]
    written = (ROWS.parents[1] / "decisions.md").read_text()
    assert "\n".join(out) in written


def test_a_contradiction_is_a_difference_in_the_other_direction():
    assert replay.contradicts("better", "worse, within the margin")
    assert replay.contradicts("equal", "worse")
    for one, other in (("better", "undecided"), ("equivalent", "worse"), ("worse", "worse, within the margin")):
        assert not replay.contradicts(one, other)


@pytest.mark.parametrize("count", [8, 40])
def test_error_and_coverage_of_a_small_simulation(count):
    """400 studies; the 10,000 of sweeps/results/decisions.md take half an hour."""
    for effect, margin in ((0.0, 0.5), (1.0, 1.0), (4.0, 1.0)):
        wrong, covered = [], []
        made = decisions.constant(effect, margin, count)
        for differences, true, margins in decisions.chunks(decisions.normal, made, 400):
            found = decisions.simulate(differences, margins)
            wrong.append(found.different.any(1) if effect == 0 else found.equivalent.any(1))
            covered.append(decisions.covers(differences, true, found))
        assert np.mean(np.concatenate(wrong)) < 0.075
        assert np.mean(np.concatenate(covered)) == pytest.approx(0.95, abs=0.022)


def test_noise_has_deviation_one():
    noises = decisions.all_noises(np.random.default_rng(0).uniform(-1.9, 1.9, 400))
    for name, noise in noises.items():
        drawn = noise(np.random.default_rng(1), (500, 8, 24))
        assert drawn.shape == (500, 8, 24)
        assert drawn.std() == pytest.approx(1, abs=0.1), name


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
