"""A study keeps the cells of earlier commands with its name, unless a file of conf/study declares its cells."""

import pandas as pd
import pytest

from helpers.configs import TINY_MODEL, in_ledger
from pe_lab.experiment import sweep
from pe_lab.ledger.studies import read_study_cells
from pe_lab.results import frame

TINY = [*TINY_MODEL, "trainer.batch_size=4522", "trainer.device=cpu", "logger=none", "epochs=1", "study_name=s"]
FOUR = ["pe=rope,none", "seed=0,1"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1]


def test_a_second_command_adds_its_cells_to_a_study(tmp_path, capsys):
    sweep.run_cells(in_ledger(tmp_path, *TINY, *FOUR))
    assert "of them new" not in last_line(capsys)
    before = read_study_cells(tmp_path, "s")
    sweep.run_cells(in_ledger(tmp_path, *TINY, "pe=none", "seed=0,1", "evaluate.lengths=[2]"))
    assert "; s: 4 cells, none of them new; " in last_line(capsys)
    assert read_study_cells(tmp_path, "s") == before
    sweep.run_cells(in_ledger(tmp_path, *TINY, "pe=none", "seed=0,2"))
    assert "; s: 5 cells, 1 of them new; " in last_line(capsys)
    assert read_study_cells(tmp_path, "s")[:4] == before
    folder = tmp_path / "studies" / "s"
    assert pd.read_csv(folder / "table.csv", keep_default_na=False)["pe"].tolist() == ["rope", "none"]
    assert set(pd.read_csv(folder / "records.csv", keep_default_na=False)["pe"]) == {"none"}
    results = frame.load(tmp_path, "s")
    columns = ["pe", "seed", "epochs", "test_loss"]
    stored = frame.load(folder).cells
    pd.testing.assert_frame_equal(results.cells[columns], stored[columns])

    sweep.run_cells(in_ledger(tmp_path, *TINY, "pe=rope", "seed=0"), ["-m", "+study=s"])
    assert "; s: 1 cell, none of them new, 4 earlier ones left out; " in last_line(capsys)


def test_a_study_that_adds_seeds_is_not_made_smaller(tmp_path):
    words = ["decide.baseline=none", "decide.seeds=3..3", "margin=100 nats"]
    sweep.run_cells(in_ledger(tmp_path, *TINY, *words, "pe=none,rope,alibi"))
    folder = tmp_path / "studies" / "s"
    before = (folder / "rows.csv").read_text()
    with pytest.raises(ValueError, match="^study_name=s has 9 cells, 3 of which this command leaves out, as pe=alibi"):
        sweep.run_cells(in_ledger(tmp_path, *TINY, *words, "pe=none,rope"))
    assert (folder / "rows.csv").read_text() == before
    sweep.run_cells(in_ledger(tmp_path, *TINY, *words, "pe=none,alibi,rope"))
