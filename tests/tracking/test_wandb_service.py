"""A W&B server that misbehaves, at whatever stage, keeps no program waiting for long and loses no run."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import wandb

from faults.wandb_server import Server, serving
from helpers.configs import TINY
from helpers.offline import contents
from pe_lab import config
from pe_lab.experiment.job import Job
from pe_lab.results import sync
from pe_lab.system.termination import TerminatedError, sigterm_raises
from pe_lab.system.time_limit import LateError, call_within
from pe_lab.tracking import loggers, wandb_run, wandb_service
from pe_lab.tracking.checkpoint_info import CheckpointInfo
from pe_lab.tracking.wandb_mode import settle_wandb, wandb_mode
from pe_lab.tracking.wandb_run import WandbRun
from pe_lab.tracking.wandb_service import end_service

LIMIT = 1.0  # seconds
GENEROUS = 45.0  # that a test which goes on may take, whatever else runs; without a limit they take minutes
SETTINGS = {
    "pe": {"name": "rope"},
    "data": {"name": "structured"},
    "model": {"depth": 1, "width": 16, "norm": "pre"},
    "optimizer": {"lr": 1e-3},
    "epochs": 1,
}


@pytest.fixture
def logged_in(monkeypatch) -> Iterator[Callable[..., AbstractContextManager[Server]]]:
    """Starts a server and lets this process be logged in to it."""
    wandb.teardown()
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)

    @contextmanager
    def start(*fault: str) -> Iterator[Server]:
        with serving(*fault) as server:
            monkeypatch.setenv("WANDB_BASE_URL", server.url)
            began = time.monotonic()
            yield server
            assert time.monotonic() - began < GENEROUS

    yield start
    end_service(kill=True)


def open_run(folder: Path, open_timeout: float = 60, finish_timeout: float = LIMIT) -> list[WandbRun]:
    limits = {"open_timeout": open_timeout, "finish_timeout": finish_timeout}
    checkpoint = CheckpointInfo("run", 1, "cell", SETTINGS, "sdpa", folder)
    run = wandb_run.open_run(checkpoint, "question", "pe_lab", "online", offline_on_failure=True, **limits)
    return [run] if run else []


def close(run: WandbRun) -> None:
    run.log_metrics({"validation/loss": 1.25, "epoch": 1})
    run.finalize("success")


@pytest.mark.parametrize("fault", ["silent", "drips"])
def test_a_server_that_does_not_answer_in_time_is_not_there(fault, logged_in):
    with logged_in("decide", fault):
        assert wandb_mode(None, LIMIT) == "offline"


def test_a_server_that_answers_is_there(logged_in):
    with logged_in():
        assert wandb_mode(None, 30) == "online"
    assert "WANDB_SERVICE" not in os.environ  # no service is started to ask


def test_the_time_to_decide_is_a_setting(logged_in):
    (cfg,) = config.expand_overrides(["logger.wandb.decide_timeout=0.5"], multirun=False)
    with logged_in("decide", "drips"):
        settle_wandb(cfg)
        assert os.environ["WANDB_MODE"] == "offline"


@pytest.mark.parametrize(
    ("setting", "value"), [("decide_timeout", "0"), ("open_timeout", "3601"), ("finish_timeout", "null")]
)
def test_a_limit_is_some_seconds(setting, value):
    line = f"logger.wandb.{setting} must be a number of seconds above 0 and up to 3600, got"
    with pytest.raises(ValueError, match=line):
        config.expand_overrides([f"logger.wandb.{setting}={value}"], multirun=False)


def test_a_server_that_takes_runs_gets_them(logged_in, tmp_path, capsys):
    with logged_in() as server:
        (run,) = open_run(tmp_path, finish_timeout=30)
        close(run)
        assert loggers.is_delivered([run])
    assert b"1.25" in server.streamed
    assert "WANDB_MODE" not in os.environ
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", ["drips", "500"])
def test_a_run_that_is_not_opened_in_time_is_opened_offline(fault, logged_in, tmp_path, capsys, offline_runs):
    with logged_in("open", fault):
        (run,) = open_run(tmp_path, open_timeout=LIMIT)
        close(run)
        assert loggers.is_delivered([run])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cell: W&B did not start, the ledger has the run: ")
    assert f"wandb sync {tmp_path}/wandb/offline-run-* " in line
    assert os.environ["WANDB_MODE"] == "offline"
    (inside,) = offline_runs(tmp_path).values()
    assert [record["item"]["validation/loss"] for record in inside["history"]] == [1.25]


@pytest.mark.parametrize("fault", [("stream", "closes"), ("finish", "silent")])
def test_a_run_that_is_not_finished_in_time_can_be_uploaded_later(fault, logged_in, tmp_path, capsys):
    with logged_in(*fault):
        (run,) = open_run(tmp_path)
        close(run)
        assert not loggers.is_delivered([run])
    (line,) = capsys.readouterr().err.splitlines()
    (folder,) = tmp_path.glob("wandb/run-*")
    assert f"wandb sync --no-skip-online {folder} " in line
    assert f"wandb sync {tmp_path}/wandb/offline-run-* " in line
    assert os.environ["WANDB_MODE"] == "offline"
    (file,) = folder.glob("*.wandb")
    assert {"run", "history", "exit"} <= set(contents(file))


def test_what_was_kept_is_what_wandb_sync_uploads(logged_in, tmp_path):
    with logged_in("stream", "500"):
        close(open_run(tmp_path)[0])
    (folder,) = tmp_path.glob("wandb/run-*")
    with serving() as server:
        environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_MODE": "online"}
        command = [sys.executable, "-m", "wandb", "sync", "--no-skip-online", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"1.25" in server.streamed


def test_a_service_that_hangs_is_killed_and_the_run_is_lost(logged_in, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wandb_run, "CLOSING_SECONDS", 0.5)
    monkeypatch.setattr(wandb_service, "CLOSING_SECONDS", 0.5)
    with logged_in():
        (run,) = open_run(tmp_path, finish_timeout=0.5)
        service = wandb_service._process()
        os.kill(service.pid, signal.SIGSTOP)
        close(run)
    assert service.poll() == -signal.SIGKILL
    assert not loggers.is_delivered([run])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cell: W&B is lost, the ledger has the run: finishing the run took more than 1 s; ")


def test_a_service_that_hangs_does_not_keep_the_program_from_ending(logged_in, tmp_path, monkeypatch):
    """What runs when Python ends is called; W&B's own would wait for ever."""
    ends: list[Callable[[], object]] = []
    monkeypatch.setattr(wandb_service.atexit, "register", ends.append)
    monkeypatch.setattr(wandb_service, "CLOSING_SECONDS", 0.5)
    with logged_in():
        (run,) = open_run(tmp_path)
        run.experiment._run_status_checker.join()  # a thread of W&B's that minds that its service is killed
        service = wandb_service._process()
        os.kill(service.pid, signal.SIGSTOP)
        assert ends[-1] is end_service  # after W&B's own: the last is the first to be called
        ends[-1]()
    assert service.poll() == -signal.SIGKILL


@pytest.mark.parametrize("stage", ["open", "finish"])
def test_a_signal_ends_the_wait(stage, logged_in, tmp_path):
    with logged_in(stage, "silent") as server, sigterm_raises(), pytest.raises(TerminatedError):
        threading.Thread(target=terminate_when, args=(server,), daemon=True).start()
        close(open_run(tmp_path, finish_timeout=600)[0])
    assert wandb_service._process() is None
    assert "WANDB_SERVICE" not in os.environ


def terminate_when(server: Server) -> None:
    """Send this process SIGTERM once the server's fault is there."""
    while not server.struck:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_cell_is_served_and_the_next_does_not_wait(logged_in, tmp_path, capsys, offline_runs):
    words = [
        *TINY,
        "logger=wandb",
        "logger.wandb.images=false",
        f"logger.wandb.finish_timeout={LIMIT:g}",
        "logger.wandb.open_timeout=60",
    ]
    cells = [
        Job.from_config(cfg)
        for cfg in config.expand_overrides([*words, "epochs=1,2", f"ledger={tmp_path}"], multirun=True)
    ]
    with logged_in("stream", "500") as server:
        for job in cells:
            job.request()
        cells[0].complete(wait=True)  # and the other, which is on its training_run
        asked = len(server.asked)
    assert not any(job.missing for job in cells)
    assert asked > 0
    assert capsys.readouterr().err.count("W&B did not take the run in 1 s") == 1
    assert set(offline_runs(tmp_path)) == {f"{cells[0].run.name}-2"}


def test_rebuilding_ends_when_the_server_does_not_take_a_run(monkeypatch, tmp_path):
    tried = []

    def late(training_run: object, epochs: int, *_: object) -> bool:
        tried.append(epochs)
        monkeypatch.setenv("WANDB_MODE", "offline")  # as a run does that is not taken in time
        return False

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setattr(sync, "sync_checkpoint", late)
    assert sync.sync_checkpoints([(None, 1), (None, 2)], None, "pe_lab", "online") == 0
    assert tried == [1]


def test_who_is_offline_unasked_is_told_what_uploads_the_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.setattr("pe_lab.tracking.wandb_mode.has_key", lambda: False)
    (cfg,) = config.expand_overrides([f"ledger={tmp_path}"], multirun=False)
    for told in (True, False):  # then the environment says so
        settle_wandb(cfg)
        assert os.environ["WANDB_MODE"] == "offline"
        assert (f"wandb sync {tmp_path}/wandb/offline-run-* " in capsys.readouterr().err) == told


def test_an_empty_mode_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode(None) == "offline"
    assert "WANDB_MODE" not in os.environ  # W&B would refuse it


def test_a_call_comes_to_what_it_comes_to_in_time_or_is_late():
    assert call_within(30, lambda: 3, "adding") == 3
    with pytest.raises(KeyError, match="x"):
        call_within(30, lambda: {}["x"], "looking")
    with pytest.raises(RuntimeError, match="leaving ended with status 3"):
        call_within(30, lambda: sys.exit(3), "leaving")
    release = threading.Event()
    with pytest.raises(LateError, match="waiting took more than 0.1 s"):
        call_within(0.1, release.wait, "waiting")
    release.set()
