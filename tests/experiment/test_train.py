"""`pe_lab.train` trains the cells of `pe-lab run -m`, and says in one line what is wrong with settings."""

from pathlib import Path

import pytest

import pe_lab
from helpers.configs import TINY
from pe_lab.experiment.sweep_report import CellsMissingError
from pe_lab.results import frame

SMALL = [*TINY, "data=induction", "steps=2", "logger=none"]


@pytest.mark.parametrize("study", [None, "mine"])
def test_it_returns_the_cells_asked_for_and_no_others_of_the_ledger(tmp_path: Path, study: str | None) -> None:
    where = [f"ledger={tmp_path}", *([f"study_name={study}"] if study else [])]
    pe_lab.train("pe=alibi", *SMALL, f"ledger={tmp_path}")
    results = pe_lab.train("pe=rope,none", "seed=range(2)", *SMALL, *where)
    assert list(zip(results.cells["pe"], results.cells["seed"], strict=True)) == [
        ("rope", 0),
        ("rope", 1),
        ("none", 0),
        ("none", 1),
    ]
    assert results.study == study
    assert set(results.curves["pe"]) == {"rope", "none"}
    assert set(frame.load(tmp_path).cells["pe"]) == {"alibi", "rope", "none"}
    if study:
        assert results.cells.equals(frame.load(tmp_path, study).cells)


def test_a_cell_that_fails_does_not_stop_the_next(tmp_path: Path) -> None:
    with pytest.raises(CellsMissingError, match="1 of 2"):
        pe_lab.train("pe=rope", "optimizer.lr=1e30,1e-3", *SMALL, f"ledger={tmp_path}")
    results = frame.load(tmp_path)
    assert (len(results.cells), len(results.failed)) == (1, 1)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("pe=ropee", "did you mean rope"),
        ("--help", "key=value"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("+study=pe_bench_2", "pe-lab run -m"),
    ],
)
def test_a_wrong_setting_is_a_value_error_in_one_line(tmp_path: Path, setting: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as raised:
        pe_lab.train(setting, f"ledger={tmp_path / 'ledger'}")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "ledger").exists()


def test_settings_are_texts() -> None:
    with pytest.raises(TypeError, match="pe=rope"):
        pe_lab.train(5)  # type: ignore[arg-type]
