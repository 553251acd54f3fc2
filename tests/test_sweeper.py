"""What the sweeper plugin asks of a launcher, and what its workers do first."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.pe_lab_sweeper import PeLabSweeper
from pe_lab import run
from pe_lab.run import Worker
from pe_lab.system.paths import SAFE_PATH_VARIABLE


class Launched:
    """A launcher that starts nothing: it keeps what it is asked for.

    Args:
        error: of the last job.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[Any, int, list[list[str]], int]] = []

    def __call__(self, hydra_context: Any, task_function: Any, config: DictConfig) -> Any:
        def launch(job_overrides: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
            self.asked.append((task_function, config.hydra.sweeper.workers, job_overrides, initial_job_idx))
            jobs = [JobReturn(_return_value=None, status=JobStatus.COMPLETED) for _ in job_overrides]
            if self.error is not None:
                jobs[-1] = JobReturn(_return_value=self.error, status=JobStatus.FAILED)
            return jobs

        return type("Launcher", (), {"launch": staticmethod(launch)})


class Lab:
    def __call__(self, cfg: DictConfig) -> None:
        """Is what Hydra would run for one cell."""

    def sweep(self, settings: Any, params: Any, overrides: list[str], launch: Any) -> tuple[Any, Any, list[str]]:
        self.launch = launch
        return settings, params, overrides


def sweeper(monkeypatch: pytest.MonkeyPatch, launcher: Launched) -> tuple[PeLabSweeper, Lab]:
    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda self, **given: launcher(**given))
    config = OmegaConf.create({"hydra": {"sweeper": {"params": {"seed": "0,1"}, "workers": -1}}})
    OmegaConf.set_struct(config, True)
    made, task = PeLabSweeper(params=config.hydra.sweeper.params, workers=-1), Lab()
    made.setup(hydra_context=None, task_function=task, config=config)
    return made, task


def test_a_sweep_gets_the_parameters_of_its_study_and_the_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = sweeper(monkeypatch, Launched())
    settings, params, overrides = made.sweep(["pe=rope,alibi"])
    assert (params, overrides) == ({"seed": "0,1"}, ["pe=rope,alibi"])
    assert settings.sweeper.workers == -1


def test_a_launcher_is_asked_for_as_many_jobs_as_there_are_workers_and_numbers_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = Launched()
    made, task = sweeper(monkeypatch, launcher)
    made.sweep([])

    def work(cfg: DictConfig) -> None:
        """Is what each job does."""

    task.launch(work, ["ledger=x"], 3)
    task.launch(work, ["ledger=x"], 2)
    task.launch(work, ["ledger=x"], 1)
    assert launcher.asked == [
        (work, 3, [["ledger=x"]] * 3, 0),
        (work, 2, [["ledger=x"]] * 2, 3),
        (work, 1, [["ledger=x"]], 5),
    ]


def test_what_a_job_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    made, task = sweeper(monkeypatch, Launched(error=RuntimeError("the second")))
    made.sweep([])
    with pytest.raises(RuntimeError, match="the second"):
        task.launch(print, [], 2)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What workers that are called in this process do, in order."""
    seen: list[Any] = []
    from pe_lab.experiment import scheduler

    monkeypatch.setattr(
        scheduler, "complete_cells", lambda cfgs, sweep: seen.append((cfgs, list(sys.path), dict(os.environ)))
    )
    monkeypatch.setattr(run, "end_with_process", lambda parent: seen.append(parent))
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create({"job": {"num": 4}}))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    return seen


@pytest.mark.parametrize("safe", [False, True])
def test_a_worker_finds_classes_ends_with_its_parent_and_sees_its_gpu(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, safe: bool
) -> None:
    monkeypatch.setenv(SAFE_PATH_VARIABLE, "1")
    cfgs = [OmegaConf.create({"seed": 0})]
    known = sys.path[0]
    times = sys.path.count(known)
    Worker(cfgs, ["5", "6,7", "8"], parent=11, path=[known, str(tmp_path)], safe=safe)(OmegaConf.create())
    parent, (given, path, variables) = served
    assert (parent, given) == (11, cfgs)
    assert path[-1] == str(tmp_path)
    assert path.count(known) == times
    assert variables["CUDA_VISIBLE_DEVICES"] == "6,7"  # of job 4 of three
    assert variables.get(SAFE_PATH_VARIABLE) == ("1" if safe else None)


def test_a_worker_elsewhere_has_no_parent_and_the_gpu_of_its_scheduler(served: list[Any]) -> None:
    Worker([], [], parent=None, path=[], safe=True)(OmegaConf.create())
    ((_, _, variables),) = served
    assert variables["CUDA_VISIBLE_DEVICES"] == "all"
