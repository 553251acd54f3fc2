"""A report shows the attention of trained models, and an evaluation writes it to files; neither needs W&B."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from helpers.configs import in_ledger
from pe_lab.experiment import sweep, sweep_report
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import WEIGHTS_FILE
from pe_lab.report.answer import answer
from pe_lab.report.attention import _chosen, attention_section, configured_name, heads
from pe_lab.report.parts import CaptionedFigure
from pe_lab.report.report_subject import ReportSubject
from pe_lab.results import frame
from pe_lab.results.frame import Results

TINY = ["model.width=16", "model.num_heads=2", "trainer.batch_size=4522", "trainer.device=cpu", "logger=none"]
STUDY = [*TINY, "pe=rope,alibi", "model.depth=1,2", "epochs=1", "study_name=mine"]
LOSSES = {"rope": (0.3, 0.3), "sinusoidal": (0.1, 0.9), "alibi": (0.2, 0.0), "none": (0.4, 0.1), "t5": (0.3, 0.4)}
MEANS = pd.DataFrame(
    {"pe": pe, "data": "bag", "depth": 1, "epochs": 1, "seed": seed, "test_loss": loss}
    for pe, losses in LOSSES.items()
    for seed, loss in enumerate(losses)
)
ASKED = ["evaluate.lengths=[1,2]", "probe=[attention,position]"]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    sweep.run_cells(in_ledger(folder, *STUDY))
    return folder


def asked(results: frame.Results) -> ReportSubject:
    return ReportSubject(results, "", "", "alibi", "loss", pd.DataFrame())


def test_attention_of_the_last_setting_is_drawn_from_the_ledger(ledger: Path) -> None:
    results = frame.load(ledger, "mine")
    parts = attention_section(asked(results)).parts
    assert [isinstance(part, CaptionedFigure) for part in parts] == [True, True]
    deep = results.cells[results.cells["depth"] == 2].sort_values("test_loss")
    captions = [part.caption for part in parts if isinstance(part, CaptionedFigure)]
    assert [caption.split()[2].strip(",") for caption in captions] == list(deep["pe"])  # the best first
    first = parts[list(deep["pe"]).index("alibi")]
    assert isinstance(first, CaptionedFigure)
    assert len(first.plot.data) == 4  # two layers with two heads
    (run,) = results.cells.loc[(results.cells["pe"] == "alibi") & (results.cells["depth"] == 2), "run"]
    pd.testing.assert_frame_equal(heads(results, run, 1).data, first.plot.data)
    assert (first.plot.data["distance"] > 0).all()


def test_the_first_encodings_are_those_of_the_best_mean_over_seeds_and_the_baseline_is_always_there() -> None:
    """The baseline is the best in the first seed, and the worst in the mean."""
    results = Results(Path(), "mine", MEANS, pd.DataFrame())
    subject = ReportSubject(results, "", "", "sinusoidal", "loss", pd.DataFrame())
    assert [row["pe"] for row in _chosen(subject)] == ["alibi", "none", "rope", "sinusoidal"]
    assert {row["seed"] for row in _chosen(subject)} == {0}


def test_an_evaluation_draws_the_best_encodings_first() -> None:
    """By the mean over seeds; further seeds come later."""
    rows = MEANS.assign(run=[f"{number}" for number in range(len(MEANS))])
    jobs: list[Any] = [
        SimpleNamespace(run=SimpleNamespace(name=run), cell=SimpleNamespace(target=1)) for run in rows["run"]
    ]
    ordered = rows.set_index("run").loc[[job.run.name for job in sweep_report._best_first(jobs, rows)]]
    assert list(ordered["pe"]) == 2 * ["alibi", "none", "rope", "t5", "sinusoidal"]
    assert list(ordered["seed"]) == 5 * [0] + 5 * [1]


def test_a_folder_of_tables_has_no_attention_and_lost_weights_are_named(ledger: Path, tmp_path: Path) -> None:
    assert attention_section(asked(frame.load(ledger / "studies" / "mine"))).parts == []
    results = frame.load(ledger, "mine")
    (run,) = results.cells.loc[(results.cells["pe"] == "rope") & (results.cells["depth"] == 2), "run"]
    weights = Ledger(ledger).named(run).checkpoint(1) / WEIGHTS_FILE
    weights.rename(tmp_path / "kept")
    try:
        parts = attention_section(asked(results)).parts
    finally:
        (tmp_path / "kept").rename(weights)
    assert [isinstance(part, CaptionedFigure) for part in parts].count(True) == 1
    (lost,) = (part for part in parts if isinstance(part, str))
    assert "rope" in lost
    assert str(weights.parent) in lost


def test_cells_counted_in_steps_beside_cells_counted_in_epochs_are_drawn(tmp_path: Path) -> None:
    short = [*TINY, "pe=rope", "data=bag", "data.train=200", "trainer.batch_size=100", "model.depth=1"]
    for count in ("steps=3", "epochs=1"):
        sweep.run_cells(in_ledger(tmp_path, *short, count))
    drawn = attention_section(ReportSubject(frame.load(tmp_path), "", "", "rope", "loss", pd.DataFrame())).parts
    assert [isinstance(part, CaptionedFigure) for part in drawn] == [True]


@pytest.mark.long
@pytest.mark.parametrize("study", [True, False], ids=["of a study", "of no study"])
def test_an_evaluation_prints_little_and_writes_all(ledger: Path, study: bool, capsys: pytest.CaptureFixture) -> None:
    words = STUDY if study else STUDY[:-1]
    sweep.run_cells(in_ledger(ledger, *words, *ASKED), train=False)
    lines = capsys.readouterr().out.strip().splitlines()
    folder = ledger / "studies" / "mine" if study else ledger / "evaluation"
    assert str(folder) in lines[-1]
    assert "pe-lab report" in lines[-1]
    records = frame.load(ledger, "mine").records
    written = pd.read_csv(folder / "records.csv")
    assert len(written) == len(records)
    assert len(lines) < 40 < len(records)
    expected = {f"attention-{pe}-d{depth}-e1-s0.svg" for pe in ("rope", "alibi") for depth in (1, 2)}
    made = {path.name for path in folder.glob("*.svg")}
    assert made == expected | {"lengths.svg", "layers-attention.svg", "layers-position.svg"}
    assert all(path.read_text().count("<svg") == 1 for path in folder.glob("*.svg"))
    (folder / "mine.svg").write_text("<svg/>")
    sweep.run_cells(in_ledger(ledger, *words, ASKED[0]), train=False)
    assert {path.name for path in folder.glob("*.svg")} == {"lengths.svg", "mine.svg"}  # none of the first evaluation


def test_encodings_whose_configuration_is_elsewhere_are_named(ledger: Path) -> None:
    results = frame.load(ledger, "mine")
    renamed = results.cells.assign(pe=results.cells["pe"].replace({"alibi": "mine[rope]"}))
    subject = replace(asked(replace(results, cells=renamed)), baseline="rope")
    drawn, said = attention_section(subject).parts
    assert isinstance(drawn, CaptionedFigure)
    assert "`mine[rope]`" in str(said)
    assert "--config-dir" in str(said)
    (encodings,) = (part for part in answer(subject).parts if "What the enc" in str(getattr(part, "title", "")))
    assert "`mine[rope]`" in encodings.parts[-1]
    assert configured_name("sum[rope+alibi] base=2") == "sum"
