"""What W&B, CSV and TensorBoard are told."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import wandb

from pe_lab import config
from pe_lab.cell import Cell
from pe_lab.journey import Journey
from pe_lab.wandb_mode import wandb_mode

TINY = ["model.depth=1", "model.width=16", "model.num_heads=2", "trainer.batch_size=512", "trainer.device=cpu"]


def serve(ledger: Path, *overrides: str) -> list[Cell]:
    cells = [Cell(cfg) for cfg in config.expand([*TINY, f"ledger={ledger}", *overrides], multirun=True)]
    for cell in cells:
        cell.want()
    for cell in cells:
        cell.serve(wait=True)
    return cells


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[str, list[dict]]:
    """Two cells of one road, logged offline in one process and read back: by run name, what the run file holds."""
    ledger = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        serve(ledger, "logger=wandb", "epochs=1,2", "study_name=question")
    found = {}
    for path in ledger.glob("wandb/offline-run-*/*.wandb"):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        inside = [json.loads(line) for line in lines if line.startswith("{")]
        (run,) = of_type(inside, "run")
        found[run["display_name"]] = inside
    return found


def of_type(records: list[dict], kind: str) -> list[dict]:
    return [record[kind] for record in records if record["type"] == kind]


def history(records: list[dict]) -> list[dict]:
    return [line["item"] for line in of_type(records, "history")]


def test_each_cell_has_a_run_of_its_own_grouped_by_study(records):
    assert set(records) == {"rope-d1-e1-s0", "rope-d1-e2-s0"}
    for name, inside in records.items():
        (run,) = of_type(inside, "run")
        assert run["run_group"] == "question"
        assert run["project"] == "pe_lab"
        config_logged = run["config"]["update"]
        assert config_logged["pe"]["name"] == "rope"
        assert config_logged["attention_resolved"] == "sdpa"
        assert f"e{config_logged['epochs']}" in name
        (end,) = of_type(inside, "exit")
        assert end["exit_code"] == 0


def test_metrics_have_their_axes(records):
    axes = {
        metric.get("name") or metric.get("glob_name"): metric.get("step_metric")
        for metric in of_type(records["rope-d1-e2-s0"], "metric")
    }
    assert axes["*"] == "step"
    assert axes["validation/*"] == axes["test/*"] == axes["floor/*"] == "epoch"


def test_a_run_has_the_whole_curve_the_floors_and_the_test(records):
    lines = history(records["rope-d1-e2-s0"])
    for metric in ("train/loss", "train/gradient_norm", "train/loss_second", "train/tokens_per_second"):
        assert [line["step"] for line in lines if metric in line] == [9, 18]
    assert [line["epoch"] for line in lines if "validation/loss" in line] == [1, 2]
    floors = [(line["epoch"], line["floor/bayes/loss"]) for line in lines if "floor/bayes/loss" in line]
    assert floors == [(0, 0), (2, 0)]
    (test,) = [line for line in lines if "test/loss" in line]
    assert test["test/loss"] > next(line["floor/position_blind/loss"] for line in lines if "floor/bayes/loss" in line)


def test_the_shorter_cell_is_logged_before_the_longer_begins(records):
    short = history(records["rope-d1-e1-s0"])
    assert max(line["step"] for line in short) == 9
    assert [line["epoch"] for line in short if "test/loss" in line] == [1]


def test_without_an_account_it_is_offline_and_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wandb_mode(None) == "offline"


def test_a_key_without_a_network_goes_offline_within_seconds(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setattr(wandb.setup().settings, "base_url", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert wandb_mode(None) == "offline"
        assert time.monotonic() - began < 10


def test_online_without_a_key_is_refused_and_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match="needs a W&B key"):
        wandb_mode(None)


def test_a_mode_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(ValueError, match="WANDB_MODE must be one of online, offline, disabled, got 'sometimes'"):
        wandb_mode(None)


def test_a_run_that_cannot_be_opened_does_not_cost_the_cell(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(wandb.errors.CommError("no server")))
    (cell,) = serve(tmp_path, "logger=wandb", "epochs=1")
    assert not cell.missing
    assert "W&B did not start, the ledger has the run: no server" in capsys.readouterr().err


def test_the_environment_wins_over_the_config(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("offline") == "disabled"
    monkeypatch.delenv("WANDB_MODE")
    assert wandb_mode("offline") == "offline"


def test_csv_has_a_column_per_metric(tmp_path):
    (cell,) = serve(tmp_path, "logger=csv", "epochs=2")
    table = pd.read_csv(tmp_path / "csv" / "rope-d1-e2-s0" / cell.road.name / "metrics.csv")
    assert table["train/loss"].notna().sum() == 2
    assert table["test/loss"].notna().sum() == 1
    assert table["floor/bayes/loss"].dropna().tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (cell,) = serve(tmp_path, "logger=tensorboard", "epochs=2")
    events = EventAccumulator(str(tmp_path / "tensorboard" / "rope-d1-e2-s0" / cell.road.name))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [9, 18]
    assert len(events.Scalars("test/loss")) == 1


def test_a_run_ends_even_when_its_cell_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(Journey, "_record", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError, match="no"):
        serve(tmp_path, "logger=wandb", "epochs=1")
    assert wandb.run is None
