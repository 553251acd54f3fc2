"""Sweeps of pe_lab in Hydra: `hydra/sweeper=pe_lab`.

Hydra imports this module in every program of the environment that uses Hydra: it imports nothing of pe_lab.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


@dataclass
class PeLabSweeperConf:
    """Settings of the sweeper.

    Attributes:
        params: the overrides of the sweep by setting, as in Hydra's basic sweeper; a study's file has them.
        workers: the number of jobs that are launched together; set when they are, for the settings of launchers.
    """

    _target_: str = "hydra_plugins.pe_lab_sweeper.PeLabSweeper"
    params: dict[str, Any] = field(default_factory=dict)
    workers: int = -1


ConfigStore.instance().store(group="hydra/sweeper", name="pe_lab", node=PeLabSweeperConf, provider="pe_lab")


class PeLabSweeper(Sweeper):
    """Lets the task sweep, and launches the workers that it asks for.

    Args:
        params: see `PeLabSweeperConf`.
        workers: see `PeLabSweeperConf`.
    """

    hydra_context: HydraContext  # once set up
    config: DictConfig

    def __init__(self, params: DictConfig, workers: int) -> None:
        self.launched = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        """Run the sweep.

        Raises:
            ValueError: the program is not that of pe_lab.
        """
        if not hasattr(self.task_function, "sweep"):
            raise ValueError("hydra/sweeper=pe_lab needs a program that sweeps, pe-lab run: got another")
        params = OmegaConf.to_container(self.config.hydra.sweeper.params)
        return self.task_function.sweep(self.config.hydra, params, arguments, self.launch)

    def launch(self, work: TaskFunction, overrides: list[str], workers: int) -> None:
        """Launch jobs that do the same work, and wait for them.

        Args:
            work: the function that each job calls, with a config of its own.
            overrides: the overrides of that config.
            workers: the number of jobs.

        Raises:
            Exception: the launcher, or a job, failed.
        """
        with open_dict(self.config):
            self.config.hydra.sweeper.workers = workers
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=work, config=self.config
        )
        first, self.launched = self.launched, self.launched + workers
        for returned in launcher.launch([overrides] * workers, initial_job_idx=first):
            returned.return_value  # noqa: B018 raises what the job raised
