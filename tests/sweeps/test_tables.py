"""The tables in sweeps/results are those of the committed rows, with today's statistics."""

from pathlib import Path

import pytest

from pe_lab.results import frame, study

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[2] / "sweeps/results").glob("*/rows.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_tables_are_those_of_the_committed_rows(folder):
    results = frame.load(folder)
    _, files = study.tables(results, results.records)
    assert (folder / "table.txt").read_text() == files["table.txt"]
    for name in ("table.md", "tasks.md", "tasks.txt"):
        if (folder / name).exists():
            assert (folder / name).read_text() == files[name]
