"""What the launcher asks of Ray, by a stand-in for it; and a sweep by Ray itself, where it is installed."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from faults.programs import Program, wait_for
from faults.sweeps import TINY
from hydra_plugins import pe_lab_ray_launcher
from hydra_plugins.pe_lab_ray_launcher import PeLabRayLauncher
from pe_lab.ledger.ledger import Ledger

DONE = JobReturn(status=JobStatus.COMPLETED, _return_value="done")


class StandIn:
    """Ray, as far as the launcher uses it. Tasks are called when their result is asked for.

    Attributes:
        machines: the resources of each.
        given: to init, and to every task.
        cancelled: the numbers of tasks.
    """

    cloudpickle = SimpleNamespace(dumps=lambda value: value, loads=lambda value: value)
    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

    def __init__(self, *machines: dict[str, float]) -> None:
        self.machines = machines
        self.given: list[dict[str, Any]] = []
        self.tasks: dict[str, Any] = {}
        self.cancelled: list[int] = []
        self.stopped = 0

    def is_initialized(self) -> bool:
        return bool(self.given)

    def init(self, **given: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.given.append(given)

    def shutdown(self) -> None:
        self.stopped += 1

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": machine} for machine in self.machines]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.given[-1].get("num_cpus", 0)}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **given: Any) -> Callable[[Callable], Any]:
        self.tasks = given
        return lambda function: SimpleNamespace(remote=lambda packed, *job: (function, packed, job))

    def get(self, task: Any) -> Any:
        function, packed, job = task
        return function(packed, *job)

    def cancel(self, task: Any, force: bool) -> None:
        self.cancelled.append(task[2][0])


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Launches jobs by a stand-in for Ray."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def start(ray: StandIn, jobs: int = 2, run: Callable[..., JobReturn] = lambda *_: DONE, **settings: Any) -> Any:
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setattr(pe_lab_ray_launcher, "run", run)
        defaults: dict[str, Any] = {"address": None, "num_cpus": 1, "num_gpus": 0, "max_retries": 1}
        extra = {name: OmegaConf.create(settings.pop(name, {})) for name in ("resources", "init")}
        made = PeLabRayLauncher(**(defaults | settings | extra))
        config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path / "jobs")}}})
        made.setup(hydra_context=None, task_function=print, config=config)  # type: ignore[arg-type]
        return made.launch([[f"seed={number}"] for number in range(jobs)], initial_job_idx=3)

    return start


def test_a_ray_of_this_machine_has_room_for_all_jobs_and_leaves_no_token_in_the_home(launch: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ray = StandIn({"CPU": 1})
    launch(ray, jobs=300, num_cpus=0.5, init={"log_to_driver": True})
    (given,) = ray.given
    assert (given["address"], given["num_cpus"], given["log_to_driver"]) == ("local", 150, True)
    assert len(os.environ.pop("RAY_AUTH_TOKEN")) >= 32
    assert signal.getsignal(signal.SIGTERM) == before
    launch(ray, jobs=300, num_cpus=0.5)
    assert (len(ray.given), ray.stopped) == (1, 0)  # it is used again
    launch(ray, jobs=700, num_cpus=0.5)
    assert (ray.given[1]["num_cpus"], ray.stopped) == (350, 1)


def test_a_running_cluster_is_taken_as_it_is(launch: Any) -> None:
    ray = StandIn({"CPU": 1})
    launch(ray, jobs=9, address="auto")
    launch(ray, jobs=9, address="auto")
    assert [(given["address"], given["log_to_driver"]) for given in ray.given] == [("auto", False)]
    assert "num_cpus" not in ray.given[0]
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_jobs_are_numbered_and_ask_for_their_resources(launch: Any) -> None:
    ray, asked = StandIn({"CPU": 4, "GPU": 1, "big": 1}), []
    returned = launch(
        ray,
        run=lambda *given: asked.append(given[-2:]) or DONE,
        num_cpus=2,
        num_gpus=0.5,
        max_retries=4,
        resources={"big": 1},
    )
    assert asked == [(3, ["seed=0"]), (4, ["seed=1"])]
    assert [one.return_value for one in returned] == ["done"] * 2
    assert ray.tasks == {"num_cpus": 2, "num_gpus": 0.5, "max_retries": 4, "resources": {"big": 1}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_gpus": 1}, "hydra.launcher.num_gpus .* 0.5, .* got 1"),
        ({"num_cpus": 8}, "hydra.launcher.num_cpus .* 4, .* got 8"),
        ({"resources": {"big": 1}}, r"hydra.launcher.resources.big .* 0, .* got 1"),
        ({"num_cpus": 4, "num_gpus": 0.5}, "beside the other resources"),  # each is there, on different machines
    ],
)
def test_resources_that_no_machine_has_are_refused_before_a_job_waits_for_them(
    launch: Any, settings: dict[str, Any], named: str
) -> None:
    ray = StandIn({"CPU": 4}, {"CPU": 2, "GPU": 0.5})
    with pytest.raises(ValueError, match=named):
        launch(ray, **settings)
    assert ray.tasks == {}


def test_a_job_whose_process_was_killed_too_often_fails_and_others_do_not(launch: Any) -> None:
    def run(*given: Any) -> JobReturn:
        if given[-2] == 3:
            raise StandIn.exceptions.RayError("killed")
        return DONE

    lost, returned = launch(StandIn({"CPU": 4}), run=run)
    assert returned.return_value == "done"
    with pytest.raises(StandIn.exceptions.RayError):
        _ = lost.return_value


def test_what_ray_prints_meanwhile_is_no_result_of_the_program(launch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    launch(StandIn({"CPU": 4}), jobs=1, run=lambda *given: print("a process died") or DONE)
    assert capsys.readouterr() == ("", "a process died\n")


def test_when_the_program_is_interrupted_its_jobs_are_ended(launch: Any) -> None:
    def run(*given: Any) -> JobReturn:
        raise KeyboardInterrupt

    ray = StandIn({"CPU": 4})
    with pytest.raises(KeyboardInterrupt):
        launch(ray, run=run)
    assert ray.cancelled == [3, 4]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", "127.0.0.1:port"])
def test_an_address_at_which_nothing_answers_is_refused_at_once(launch: Any, address: str) -> None:
    with pytest.raises(ValueError, match="hydra.launcher.address must be .*" + address):
        launch(StandIn({"CPU": 4}), address=address)


def test_a_signal_that_arrives_while_ray_starts_is_the_programs(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminated(StandIn):
        def init(self, **given: Any) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise SystemExit(signal.SIGTERM)  # as Ray's handler does

    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: received.append(signum))
    try:
        with pytest.raises(SystemExit):
            launch(Terminated())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


@pytest.mark.slow
def test_a_sweep_by_ray_makes_the_same_cells_though_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    sweep = [*TINY, "-m", "pe=rope,none,alibi", "epochs=4,1", "logger=none", "workers=2"]

    def start(name: str, *words: str) -> Program:
        env = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return Program([*sweep, f"ledger={tmp_path / name}", *words], tmp_path / f"printed {name}", env=env)

    process, ledger, owners = start("ledger", "hydra/launcher=ray"), Ledger(tmp_path / "ledger"), []

    def owned() -> bool:
        runs = list(ledger.runs()) if (tmp_path / "ledger").exists() else []
        owners.extend(owner["pid"] for one in runs if (owner := one.owner()) and owner["pid"] != process.pid)
        return bool(owners) or process.ended

    wait_for(owned, 300)
    for owner in owners[:1]:
        os.kill(owner, signal.SIGKILL)
    status, table, err = process.wait()
    if "timed out during startup" in err:
        pytest.skip("Ray gives itself 30 s to start, and did not in that time")
    assert status == 0, err
    assert owners
    assert "the launcher stopped" not in err  # Ray has started the worker again
    assert start("sound", "hydra/launcher=basic", "workers=1").wait()[:2] == (0, table)
    assert not (tmp_path / "home" / ".ray").exists()
    files = [json.loads(path.read_text()) for path in (tmp_path / "ledger").glob("*/checkpoints/*/environment.json")]
    assert {environment["threads"] for environment in files} == {1}
