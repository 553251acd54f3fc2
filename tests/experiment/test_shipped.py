"""Cells that come with the package are not trained again, unless somebody asks for it."""

import json
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import DictConfig

from faults.sweeps import TINY
from pe_lab import config
from pe_lab.experiment import executor, sweep
from pe_lab.experiment.job import Job
from pe_lab.experiment.measurement import trained
from pe_lab.experiment.shipped import gathered, take
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.maintenance import Counts, verify
from pe_lab.results import shipped
from pe_lab.results.frame import load
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import LedgerError

MODEL = [word for word in TINY if not word.startswith("data")]
LENGTHS = "evaluate.lengths=[1,2]"


def cfgs(folder: Path, *overrides: str) -> list[DictConfig]:
    words = [
        *MODEL,
        "data=copy",
        "data.train=64",
        "data.validation=16",
        "data.test=16",
        f"ledger={folder}",
        "logger=none",
        "epochs=1",
        *overrides,
    ]
    return config.expand(config.of_jobs(words), multirun=True)


def of(cfg: DictConfig) -> Shipped:
    """The cell of a config, which is in its ledger, as it is shipped."""
    return gathered(Job.from_config(cfg).run, cfg.epochs)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with two encodings, measured at twice the length."""
    folder = tmp_path_factory.mktemp("source")
    sweep.run(cfgs(folder, "pe=rope,none", LENGTHS, "study_name=of_package"))
    return folder


@pytest.fixture
def package(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships these cells."""
    folder = tmp_path / "package"
    monkeypatch.setattr(shipped, "FOLDER", folder)
    shipped.write("of_package", [of(cfg) for cfg in cfgs(source, "pe=rope,none", LENGTHS)])
    return folder


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cells that are trained, in order."""
    names, train = [], executor.Executor.train_requested

    def noting(self: executor.Executor) -> None:
        names.append(self.cell.name())
        train(self)

    monkeypatch.setattr(executor.Executor, "train_requested", noting)
    return names


def test_shipped_cells_are_not_trained_and_have_the_same_tables(source, package, trainings, tmp_path, capsys):
    ledger = tmp_path / "ledger"
    sweep.run(cfgs(ledger, "pe=rope,none,alibi", LENGTHS, "study_name=mine"))
    assert trainings == ["alibi-copy-d1-e1-s0"]
    assert "2 of 3 cells come with the package: shipped=false trains them" in capsys.readouterr().err
    expected, found = load(source, "of_package"), load(ledger, "mine")
    assert not found.refused
    pd.testing.assert_frame_equal(found.cells[found.cells["pe"] != "alibi"].reset_index(drop=True), expected.cells)
    own = found.records[found.records["pe"] != "alibi"].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, expected.records)
    ends = expected.curves[expected.curves["epoch"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.curves[found.curves["pe"] != "alibi"].reset_index(drop=True), ends)
    assert list(verify(ledger, Counts())) == []


def test_the_same_command_again_says_nothing_and_trains_nothing(package, trainings, tmp_path, capsys):
    for _ in range(2):
        capsys.readouterr()
        sweep.run(cfgs(tmp_path / "ledger", "pe=rope,none", LENGTHS))
    assert trainings == []
    assert "come with the package" not in capsys.readouterr().err


@pytest.mark.parametrize("placed", [False, True])
def test_with_shipped_false_cells_are_trained_to_the_same_bits(source, package, trainings, tmp_path, placed):
    ledger = tmp_path / "ledger"
    if placed:
        sweep.run(cfgs(ledger, "pe=rope", LENGTHS))
        assert trainings == []
    sweep.run(cfgs(ledger, "pe=rope", LENGTHS, "shipped=false"))
    assert trainings == ["rope-copy-d1-e1-s0"]
    (cfg,) = cfgs(ledger, "pe=rope", LENGTHS)
    found, expected = of(cfg), shipped.index()[of(cfg).key]
    assert (found.weights, found.summary["test"], found.validation) == (
        expected.weights,
        expected.summary["test"],
        expected.validation,
    )
    assert found.records == expected.records
    assert not Job.from_config(cfg).run.is_shipped(1)


def test_a_measurement_that_was_not_shipped_trains_the_cell(package, trainings, tmp_path, capsys):
    ledger = tmp_path / "ledger"
    sweep.run(cfgs(ledger, "pe=rope"))
    assert trainings == []
    sweep.run(cfgs(ledger, "pe=rope", "evaluate.lengths=[1,2,3]"))
    assert trainings == ["rope-copy-d1-e1-s0"]
    assert "a measurement needs its weights" in capsys.readouterr().err
    (cfg,) = cfgs(ledger, "pe=rope")
    assert trained(Job.from_config(cfg).cell, Job.from_config(cfg).run)


def test_a_shipped_cell_has_no_weights_to_load(package, tmp_path):
    (cfg,) = cfgs(tmp_path / "ledger", "pe=rope")
    job = Job.from_config(cfg)
    assert take([job]) == 1
    with pytest.raises(LedgerError, match="must have its weights, got a shipped result: shipped=false trains it"):
        trained(job.cell, job.run)


@pytest.mark.parametrize("other", ["seed=1", "optimizer.lr=2e-3", "pe=p_rope", "data.symbols=9", "epochs=2"])
def test_another_cell_is_trained(package, trainings, tmp_path, other):
    sweep.run(cfgs(tmp_path / "ledger", "pe=rope", other))
    assert len(trainings) == 1


def test_another_revision_is_trained(package, trainings, tmp_path, monkeypatch):
    from pe_lab.encodings import RoPE

    monkeypatch.setattr(RoPE, "revision", RoPE.revision + 1)
    sweep.run(cfgs(tmp_path / "ledger", "pe=rope"))
    assert len(trainings) == 1


def test_more_epochs_are_trained_from_the_start(package, trainings, tmp_path):
    """A shipped checkpoint has no state to go on from, and stays."""
    ledger = tmp_path / "ledger"
    sweep.run(cfgs(ledger, "pe=rope", "epochs=1,2"))
    (first, _) = cfgs(ledger, "pe=rope", "epochs=1,2")
    assert Job.from_config(first).run.is_shipped(1)
    sweep.run(cfgs(tmp_path / "other", "pe=rope", "epochs=2", "shipped=false"))
    found = [json.loads(path.read_text())["test"] for path in sorted(tmp_path.glob("*/*/checkpoints/2/summary.json"))]
    assert len(found) == 2
    assert found[0] == found[1]


def test_a_damaged_shipped_cell_is_put_again(package, trainings, tmp_path):
    ledger = tmp_path / "ledger"
    sweep.run(cfgs(ledger, "pe=rope", LENGTHS))
    (cfg,) = cfgs(ledger, "pe=rope", LENGTHS)
    file = Job.from_config(cfg).run.checkpoint(1) / "summary.json"
    file.write_text(file.read_text().replace('"loss": ', '"loss": 1'))
    sweep.run(cfgs(ledger, "pe=rope", LENGTHS))
    assert trainings == []
    assert of(cfg).summary == shipped.index()[of(cfg).key].summary


def test_changed_shipped_results_end_the_program_before_anything_is_trained(package, trainings, tmp_path):
    path = package / f"of_package{shipped.END}"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(LedgerError, match="they were changed; install the package again, or add shipped=false"):
        sweep.run(cfgs(tmp_path / "ledger", "pe=rope,alibi"))
    assert trainings == []
    sweep.run(cfgs(tmp_path / "ledger", "pe=rope", "shipped=false"))
    assert len(trainings) == 1


def test_evaluation_alone_takes_nothing(package, tmp_path):
    with pytest.raises(ValueError, match="cells are not in the ledger"):
        sweep.run(cfgs(tmp_path / "ledger", "pe=rope"), train=False)
    assert not list(Ledger(tmp_path / "ledger").runs())
