"""The tables in sweeps/results are those of the committed rows, with today's statistics."""

from pathlib import Path

import pandas as pd
import pytest

from pe_lab.report.tuned import TunedSubject, read_outcomes
from pe_lab.results import frame, study
from pe_lab.results.tuned_outcomes import compare_with_baseline

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[2] / "sweeps/results").glob("*/rows.csv"))
TUNED = [folder for folder in FOLDERS if (folder / "outcomes.csv").exists()]  # whose seeds tune for themselves
UNTUNED = [folder for folder in FOLDERS if folder not in TUNED]


@pytest.mark.slow
@pytest.mark.parametrize("folder", UNTUNED, ids=lambda folder: folder.name)
def test_committed_tables_are_those_of_the_committed_rows(folder):
    results = frame.load(folder)
    _, files = study.study_tables(results, results.records)
    assert (folder / "table.txt").read_text() == files["table.txt"]
    for name in ("table.md", "tasks.md", "tasks.txt"):
        if (folder / name).exists():
            assert (folder / name).read_text() == files[name]


@pytest.mark.parametrize("folder", TUNED, ids=lambda folder: folder.name)
def test_committed_verdicts_are_those_of_the_committed_outcomes(folder):
    results = frame.load(folder)
    subject, outcomes = TunedSubject.of(results), read_outcomes(results)
    expected = pd.read_csv(folder / "verdicts.csv")
    lines = compare_with_baseline(outcomes, subject.compared.endpoint, subject.baseline)
    pd.testing.assert_frame_equal(lines, expected, check_dtype=False, rtol=1e-9)
    both = subject.results.cells.merge(outcomes, on=["pe", "data", "depth", "seed", "steps"], validate="one_to_one")
    assert len(both) == len(results.cells) == len(outcomes)
    assert (both["y"] == results.cells["test_loss"]).all()
