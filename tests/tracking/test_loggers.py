"""What W&B, CSV and TensorBoard are told."""

import json
import socket
import time
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch
import wandb
from matplotlib import colormaps

from helpers.configs import TINY
from pe_lab import config
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.checkpoint_loggers import replay_logs
from pe_lab.experiment.executor import Executor
from pe_lab.experiment.job import Job
from pe_lab.experiment.measurement import load_model
from pe_lab.probes.attention import layer_weights
from pe_lab.tracking import loggers, wandb_pictures
from pe_lab.tracking.cell_logs import way_to_bayes
from pe_lab.tracking.wandb_config import wandb_tags
from pe_lab.tracking.wandb_mode import wandb_mode
from pe_lab.tracking.wandb_pictures import GAP, TILE, attention_picture, encoding_picture
from pe_lab.tracking.wandb_run import BEST_DIRECTIONS, WandbRun


def serve(ledger: Path, *overrides: str) -> list[Job]:
    cells = [
        Job.from_config(cfg) for cfg in config.expand_overrides([*TINY, f"ledger={ledger}", *overrides], multirun=True)
    ]
    for job in cells:
        job.request()
    for job in cells:
        job.complete(wait=True)
    return cells


@pytest.fixture(scope="module")
def records(tmp_path_factory, offline_runs) -> dict[str, dict[str, list[dict]]]:
    """Two cells of one run, logged offline in one process and read back: by W&B run name, what its file holds."""
    ledger = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        own = ("logger.wandb.entity=team", "logger.wandb.tags=[mine,rope]", "logger.wandb.notes=why")
        serve(ledger, "logger=wandb", "epochs=1,2", "study_name=question", *own)
    return {inside["run"][0]["display_name"]: inside for inside in offline_runs(ledger).values()}


def history(inside: dict[str, list[dict]]) -> list[dict]:
    return [line["item"] for line in inside["history"]]


def test_each_cell_has_a_run_of_its_own_grouped_by_study(records):
    assert set(records) == {"rope-d1-e1-s0", "rope-d1-e2-s0"}
    for name, inside in records.items():
        (run,) = inside["run"]
        assert run["run_group"] == "question"
        assert run["project"] == "pe_lab"
        config_logged = run["config"]["update"]
        assert config_logged["pe"]["name"] == "rope"
        assert config_logged["attention_resolved"] == "sdpa"
        assert f"e{config_logged['epochs']}" in name
        (end,) = inside["exit"]
        assert end["exit_code"] == 0


def test_metrics_have_their_axes(records):
    axes = {
        metric.get("name") or metric.get("glob_name"): metric.get("step_metric")
        for metric in records["rope-d1-e2-s0"]["metric"]
    }
    assert {axes[f"validation/{metric}"] for metric in BEST_DIRECTIONS} == {"epoch"}
    assert axes["train/*"] == "step"
    assert axes["validation/*"] == axes["test/*"] == axes["floor/*"] == axes["cost/*"] == "epoch"
    assert axes["length/*"] == "length/tokens"
    assert axes["probe/*"] == "probe/layer"


def test_no_metric_has_two_axes(records):
    """W&B takes either where two patterns match."""
    patterns = [metric["glob_name"] for metric in records["rope-d1-e2-s0"]["metric"] if "glob_name" in metric]
    names = {name for line in history(records["rope-d1-e2-s0"]) for name in line if "/" in name}
    assert len(names) > 30
    for name in names:
        assert sum(fnmatch(name, pattern) for pattern in patterns) == 1, name


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


def test_a_run_has_its_place_in_the_grid_whatever_an_agent_calls_it(records):
    (run,) = records["rope-d1-e2-s0"]["run"]
    logged = run["config"]["update"]
    assert (logged["encoding"], logged["task"], logged["depth"], logged["epochs"]) == ("rope", "structured", 1, 2)
    assert (logged["width"], logged["norm"], logged["learning_rate"]) == (16, "pre", 1e-3)
    assert logged["condition"] == "rope, structured, depth 1, epochs 2, width 16, norm pre, learning_rate 0.001"


def test_a_run_has_its_study_task_and_encoding_as_tags_and_what_the_settings_say(records):
    for inside in records.values():
        (run,) = inside["run"]
        assert run["tags"] == ["question", "structured", "rope", "mine"]
        assert (run["entity"], run["notes"]) == ("team", "why")


def test_what_is_too_long_for_a_tag_or_there_already_is_no_tag():
    """W&B refuses tags of more than 64 characters, and with them the run."""
    place = {"encoding": "e" * 65, "task": "bag"}
    assert wandb_tags("s" * 64, place) == ["s" * 64, "bag"]
    assert wandb_tags("s" * 65, place) == wandb_tags(None, place) == wandb_tags("bag", place) == ["bag"]


def test_the_summary_has_the_best_validation_and_the_last(records):
    """Which of their values is the best is logged as well: losses are minimised, accuracies maximised."""
    inside = records["rope-d1-e2-s0"]
    summaries = {metric["name"]: metric["summary"] for metric in inside["metric"] if "summary" in metric}
    assert summaries["validation/loss"] == {"min": True, "last": True}
    assert summaries["validation/accuracy"] == summaries["validation/exact_match"] == {"max": True, "last": True}
    updates: dict[str, object] = {}
    for summary in inside["summary"]:
        updates |= summary["update"]
    for metric, best in BEST_DIRECTIONS.items():
        values = [line[f"validation/{metric}"] for line in history(inside) if f"validation/{metric}" in line]
        if metric != "bits_per_byte":  # that texts have
            assert updates[f"validation/{metric}"] == {best: {"min": min, "max": max}[best](values), "last": values[-1]}
    assert isinstance(updates["test/loss"], float)  # one value: by its own name, as reports read it


def test_the_way_to_the_best_loss_starts_at_the_position_blind_floor(records):
    summary = {"floors": {"bayes": {"loss": 0.5}, "position_blind": {"loss": 2.5}}, "test": {"loss": 1.0}}
    assert way_to_bayes(summary) == {"way_to_bayes": 0.75}
    assert way_to_bayes(summary | {"test": {"loss": 3.5}}) == {"way_to_bayes": -0.5}
    assert way_to_bayes(summary | {"floors": {"bayes": {"loss": 1.0}, "position_blind": {"loss": 1.0}}}) == {}
    assert way_to_bayes(summary | {"floors": {"prior": {"loss": 2.0}}}) == {}
    (test,) = [line for line in history(records["rope-d1-e2-s0"]) if "test/loss" in line]
    floor = next(line for line in history(records["rope-d1-e2-s0"]) if "floor/bayes/loss" in line)
    blind, bayes = floor["floor/position_blind/loss"], floor["floor/bayes/loss"]
    assert test["test/way_to_bayes"] == pytest.approx((blind - test["test/loss"]) / (blind - bayes))


def test_a_run_has_one_picture_of_the_encoding_and_one_of_attention(records):
    for inside in records.values():
        found = [line for line in history(inside) if "picture/encoding.path" in line]
        assert len(found) == 1
        assert found[0]["picture/encoding.width"] >= 800
        depth, heads, tile = 1, 2, 84 + GAP  # the first sequence has 14 tokens: 6 pixels each
        assert found[0]["picture/attention.width"] == heads * tile - GAP
        assert found[0]["picture/attention.height"] == depth * tile - GAP


def test_a_picture_of_an_encoding_is_drawn_once_for_all_cells_that_have_it(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        wandb_pictures, "save_picture", lambda subject, none, path: (drawn.append(subject.name), path.touch())
    )
    (tmp_path / "pictures").mkdir()

    def cells(*words: str) -> list[Cell]:
        return [
            Cell.from_config(cfg)
            for cfg in config.expand_overrides([*TINY, f"ledger={tmp_path}", *words], multirun=True)
        ]

    def drawing(cell: Cell) -> Path:
        return encoding_picture(tmp_path, cell.cfg.pe.name, cell.identity["pe"], cell.encoding)

    paths = [drawing(cell) for cell in cells("pe=rope,learnable", "model.depth=1,2", "seed=0,1")]
    assert sorted(drawn) == ["learnable", "rope"]
    assert len(set(paths)) == 2
    (other,) = cells("pe=rope", "pe.theta=choice(100)")
    assert drawing(other) not in paths
    assert all(path.exists() for path in paths)


def test_a_picture_of_attention_shows_the_weights_of_every_head(tmp_path):
    (job,) = serve(tmp_path, "logger=none", "epochs=1", "model.depth=2")
    model = load_model(job.cell, job.run)
    picture = attention_picture(model, job.cell.dataset, 0)
    batch = job.cell.dataset.batch("test", torch.tensor([0]))
    length = int((batch.layout.segment == 0).sum())
    side = TILE // length
    tile = side * length + GAP
    assert picture.shape == (2 * tile - GAP, 2 * tile - GAP, 3)
    with torch.no_grad():
        layers = [weights[0].sqrt() for weights, _, _ in layer_weights(model.eval(), batch)]
    brightness = picture.astype(float).sum(-1)
    for layer, head, query, key in product(range(2), range(2), (2, length - 1), (0, 1)):
        expected = colormaps["cividis"](layers[layer][head, query, key].item(), bytes=True)[:3]
        place = picture[layer * tile + query * side, head * tile + key * side]
        assert abs(place.astype(int) - expected).max() <= 2
    assert brightness[0, side * (length - 1)] == 3 * 255  # what lies ahead is white
    assert (brightness[side * length : tile] == 3 * 255).all()


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_cell(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb_pictures, "save_picture", lambda *_: (_ for _ in ()).throw(ValueError("no colours left")))
    (job,) = serve(tmp_path, "logger=wandb", "epochs=1")
    assert not job.missing
    assert "rope-d1-e1-s0: no pictures in W&B: no colours left" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "words"), [("offline", ["logger.wandb.images=false"]), ("disabled", [])])
def test_pictures_are_not_drawn_without_a_logger_that_shows_them(mode, words, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", mode)
    serve(tmp_path, "logger=wandb", "epochs=1", *words)
    assert not (tmp_path / "pictures").exists()


def test_a_run_has_a_table_of_its_lengths(tmp_path, monkeypatch, offline_runs):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (job,) = serve(
        tmp_path,
        "logger=wandb",
        "logger.wandb.images=false",
        "epochs=1",
        "evaluate.lengths=[1,2]",
        "logger.wandb.group=mine",
    )
    (inside,) = offline_runs(tmp_path).values()
    assert inside["run"][0]["run_group"] == "mine"
    (line,) = [record["item"] for record in inside["history"] if "lengths.path" in record["item"]]
    (path,) = tmp_path.glob(f"wandb/offline-run-*/files/{line['lengths.path']}")
    table = json.loads(path.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["policy"], row["length"], row["tokens"]) for row in rows] == [("raw", 1, 16), ("raw", 2, 32)]
    assert rows[0]["loss"] == job.run.summary(1)["test"]["loss"]
    (request,) = job.cell.requests
    recorded = job.records.get(request).set_index("metric")["value"]
    assert rows[1]["loss"] == recorded["loss"]
    assert rows[1]["position_blind/loss"] == recorded["position_blind/loss"]


def test_without_an_account_it_is_offline_and_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wandb_mode(None) == "offline"


@pytest.mark.long
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
    (job,) = serve(tmp_path, "logger=wandb", "epochs=1")
    assert not job.missing
    assert "W&B did not start, the ledger has the run: no server" in capsys.readouterr().err


def test_the_environment_wins_over_the_config(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("offline") == "disabled"
    monkeypatch.delenv("WANDB_MODE")
    assert wandb_mode("offline") == "offline"


def test_csv_has_a_column_per_metric(tmp_path):
    (job,) = serve(tmp_path, "logger=csv", "epochs=2")
    table = pd.read_csv(tmp_path / "csv" / "rope-d1-e2-s0" / job.run.name / "metrics.csv")
    assert table["train/loss"].notna().sum() == 2
    assert table["test/loss"].notna().sum() == 1
    assert table["floor/bayes/loss"].dropna().tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (job,) = serve(tmp_path, "logger=tensorboard", "epochs=2")
    events = EventAccumulator(str(tmp_path / "tensorboard" / "rope-d1-e2-s0" / job.run.name))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [9, 18]
    assert len(events.Scalars("test/loss")) == 1


def test_each_of_several_loggers_has_the_whole_cell(tmp_path, monkeypatch, offline_runs):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (job,) = serve(tmp_path, "logger=[wandb,csv]", "epochs=1", "evaluate.lengths=[1,2]", "probe=[rank]")
    table = pd.read_csv(tmp_path / "csv" / "rope-d1-e1-s0" / job.run.name / "metrics.csv")
    (inside,) = offline_runs(tmp_path).values()
    logged = {name for line in history(inside) for name in line if name[0] != "_" and not isinstance(line[name], dict)}
    numbers = {name for name in logged if "lengths." not in name and not name.startswith("picture/")}
    assert numbers == set(table)
    assert table["train/loss"].dropna().tolist() == [
        line["train/loss"] for line in history(inside) if "train/loss" in line
    ]
    assert any("picture/attention" in name for line in history(inside) for name in line)
    assert inside["exit"][0].get("exit_code", 0) == 0


def test_loggers_go_on_when_wandb_does_not_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(wandb.errors.CommError("no server")))
    (job,) = serve(tmp_path, "logger=[wandb,csv]", "epochs=1")
    assert "W&B did not start" in capsys.readouterr().err
    assert not job.logged  # an agent that waits for its W&B run is not told that it is there
    table = pd.read_csv(tmp_path / "csv" / "rope-d1-e1-s0" / job.run.name / "metrics.csv")
    assert table["test/loss"].notna().sum() == 1


def test_loggers_are_closed_when_a_later_one_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    closed, finalize = [], WandbRun.finalize
    monkeypatch.setattr(WandbRun, "finalize", lambda run, status: closed.append(status) or finalize(run, status))
    monkeypatch.setattr(loggers, "TensorBoardLogger", lambda *_: (_ for _ in ()).throw(ModuleNotFoundError()))
    with pytest.raises(ValueError, match="needs the package tensorboard"):
        serve(tmp_path, "logger=[wandb,tensorboard]", "logger.wandb.images=false", "epochs=1")
    assert closed == ["failed"]


def test_a_cell_is_replayed_to_wandb_alone(tmp_path, monkeypatch, offline_runs):
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = ("logger=[csv,wandb]", "logger.wandb.images=false", "epochs=1")
    (job,) = serve(tmp_path, "logger=csv", "epochs=1")
    (file,) = tmp_path.glob("csv/*/*/metrics.csv")
    file.write_text("kept")
    (again,) = config.expand_overrides([*TINY, f"ledger={tmp_path}", *words], multirun=True)
    replay_logs(Cell.from_config(again), job.run)
    assert len(offline_runs(tmp_path)) == 1
    assert file.read_text() == "kept"


def test_a_run_ends_even_when_its_cell_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(Executor, "_complete_checkpoint", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError, match="no"):
        serve(tmp_path, "logger=wandb", "epochs=1")
    assert wandb.run is None
