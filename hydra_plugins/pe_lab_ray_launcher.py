"""Jobs as tasks of Ray, on this machine or on a running cluster: `hydra/launcher=ray` of pe_lab.

Hydra imports this module in every program of the environment that uses Hydra: it imports neither Ray nor pe_lab.
"""

import logging
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

TIMEOUT = 10.0  # seconds in which a cluster must answer
STORE = 100_000_000  # bytes that a Ray of this machine reserves for objects: jobs exchange configs only


@dataclass
class PeLabRayLauncherConf:
    """Settings of the launcher.

    Attributes:
        address: the address of a running cluster, as HOST:6379, ray://HOST:10001 or auto; None: a Ray of this machine,
            which ends with the program.
        num_cpus: the number of cores of a job.
        num_gpus: the number of GPUs of a job; 0.5: two jobs share one.
        max_retries: how often the job of a process that was killed is started again.
        resources: other resources of the cluster that a job needs, by name.
        init: more arguments of `ray.init`.
    """

    _target_: str = "hydra_plugins.pe_lab_ray_launcher.PeLabRayLauncher"
    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    max_retries: int = 1
    resources: dict[str, float] = field(default_factory=dict)
    init: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/launcher", name="pe_lab_ray", node=PeLabRayLauncherConf, provider="pe_lab")


class PeLabRayLauncher(Launcher):
    """Runs each job as a task of Ray.

    Args:
        address, num_cpus, num_gpus, max_retries, resources, init: see `PeLabRayLauncherConf`.
    """

    def __init__(
        self,
        address: str | None,
        num_cpus: float,
        num_gpus: float,
        max_retries: int,
        resources: DictConfig,
        init: DictConfig,
    ) -> None:
        self.address, self.cpus, self.gpus, self.retries = address, num_cpus, num_gpus, max_retries
        self.resources: Any = OmegaConf.to_container(resources)
        self.init: Any = OmegaConf.to_container(init)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs, and return what each returned or raised.

        Raises:
            ValueError: the cluster cannot be reached; none of its machines has the cores, GPUs and other resources of
                a job.
        """
        import ray  # takes a second
        from ray import cloudpickle

        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        self._connect(len(job_overrides))
        self._require_resources([node["Resources"] for node in ray.nodes() if node["Alive"]])
        common = (self.hydra_context, self.config, self.task_function, Singleton.get_state(), os.getcwd())
        packed, paths = ray.put(cloudpickle.dumps(common)), list(sys.path)

        def job(packed: bytes, index: int, overrides: list[str]) -> JobReturn:  # of <locals>: it is sent, not imported
            import sys

            from ray import cloudpickle

            sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
            from hydra_plugins.pe_lab_ray_launcher import run

            context, config, task, state, folder = cloudpickle.loads(packed)
            return run(context, config, task, state, folder, index, overrides)

        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries, resources=self.resources)(
            job
        )
        pending = [
            task.remote(packed, index, list(overrides))
            for index, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        try:
            with redirect_stdout(sys.stderr):  # Ray prints there that a process died
                return [
                    self._result(reference, overrides)
                    for reference, overrides in zip(pending, job_overrides, strict=True)
                ]
        except BaseException:
            for reference in pending:
                ray.cancel(reference, force=True)
            raise

    def _connect(self, jobs: int) -> None:
        """Connect to the cluster, or start a Ray of this machine that has room for so many jobs; once for all calls."""
        import ray

        cpus = math.ceil(jobs * self.cpus)
        if ray.is_initialized():
            if self.address is not None or ray.cluster_resources().get("CPU", 0) >= cpus:
                return
            ray.shutdown()
        arguments: dict[str, Any] = {"address": self.address or "local", "logging_level": logging.ERROR}
        arguments["log_to_driver"] = False  # or what jobs print is printed, also after the last has ended
        if self.address is None:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray writes one into the user's home
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            cores = max(cpus, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
            arguments |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": STORE}
        elif self.address != "auto":
            _require_reachable(self.address)  # Ray would try for minutes
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**(arguments | self.init))
        except ConnectionError as error:
            raise ValueError(f"{_wrong(self.address)}: {str(error).partition('. ')[0]}") from None
        except SystemExit:  # by Ray's handler of SIGTERM
            signal.signal(signal.SIGTERM, handler)
            signal.raise_signal(signal.SIGTERM)
            raise
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in its place

    def _require_resources(self, nodes: list[dict[str, float]]) -> None:
        """Raise ValueError unless a job fits on one of the machines: Ray would wait for another."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        names = {"CPU": "hydra.launcher.num_cpus", "GPU": "hydra.launcher.num_gpus"}
        if not any(all(node.get(name, 0) >= number for name, number in needs.items()) for node in nodes):
            most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
            wrong = next((name for name in needs if most[name] < needs[name]), "CPU")
            raise ValueError(
                f"{names.get(wrong, f'hydra.launcher.resources.{wrong}')} must be at most what one machine of Ray has, "
                f"{most[wrong]:g}, beside the other resources of a job, got {needs[wrong]:g}"
            )

    def _result(self, pending: Any, overrides: Sequence[str]) -> JobReturn:
        """Wait for a job. That its process was killed too often is what it raised: other jobs are not lost."""
        import ray

        try:
            returned: JobReturn = ray.get(pending)
        except ray.exceptions.RayError as error:
            return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=error)
        return returned


def _wrong(address: str | None) -> str:
    return f"hydra.launcher.address must be that of a running cluster of Ray, got {address}"


def _require_reachable(address: str) -> None:
    """Raise ValueError unless something answers at an address, written HOST:PORT or ray://HOST:PORT."""
    try:
        url = urlsplit(address if "://" in address else f"//{address}")
        socket.create_connection((url.hostname or "", url.port or 0), TIMEOUT).close()
    except (ValueError, OSError) as error:
        raise ValueError(f"{_wrong(address)}: {error}") from None


def run(
    context: HydraContext,
    config: DictConfig,
    task: TaskFunction,
    state: Any,
    folder: str,
    index: int,
    overrides: list[str],
) -> JobReturn:
    """Run a job of Hydra in a process of Ray.

    Args:
        state: the state of Hydra's singletons.
        folder: the current folder of the program.

    Raises:
        ValueError: this machine does not have that folder.
    """
    try:
        os.chdir(folder)
    except OSError:
        raise ValueError(f"{folder} must be there on every machine of the cluster, as the program's folder") from None
    Singleton.set_state(state)
    setup_globals()
    job = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id, job.hydra.job.num = f"{job.hydra.job.name}_{index}", index
    return run_job(
        hydra_context=context,
        task_function=task,
        config=job,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
