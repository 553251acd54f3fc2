"""The loggers of conf/logger. The ledger does not depend on them.

Each function takes the checkpoint's values and returns its Lightning loggers, a list that may be empty.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from omegaconf import DictConfig

from pe_lab.ledger.tree import LedgerFiles
from pe_lab.tracking.checkpoint_info import CheckpointInfo
from pe_lab.tracking.wandb_agent import agent_run
from pe_lab.tracking.wandb_mode import wandb_mode
from pe_lab.tracking.wandb_run import WandbRun, open_run


def import_loggers(cfg: DictConfig) -> None:
    """Import early what the loggers of this config import later, so that no cell's time includes it."""
    if "wandb" in cfg.logger:
        import wandb.sdk.launch  # noqa: F401 - by wandb.init


def wandb_logger(
    checkpoint: CheckpointInfo,
    project: str,
    mode: str | None,
    images: bool,
    decide_timeout: float,
    open_timeout: float,
    finish_timeout: float,
    job_type: str = "training",
    entity: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    notes: str | None = None,
) -> list[Logger]:
    """Return one W&B run, grouped by study. The W&B run of an agent logs only the checkpoint that it asked for.

    If it cannot be opened online, or not be finished in time, this process goes on offline, and prints why.

    Args:
        mode: "online", "offline" or "disabled"; None: see `wandb_mode`.
        images: whether pictures of the encoding and of attention are logged.
        decide_timeout, open_timeout, finish_timeout: the seconds to wait for the server, see conf/logger/wandb.yaml.
        job_type: "training", or another name for what is measured on the trained cell in a W&B run of its own.
        entity: the user or team of W&B; None: the default of the account.
        group: the group of the W&B run; None: the study.
        tags: more tags, besides study, task and encoding.
        notes: a text about the run.

    Raises:
        LedgerError: the W&B run would be written through a link.
    """
    if agent_run() and not checkpoint.requested:
        return []  # the process that requested it finds it in the ledger, and logs it
    LedgerFiles(checkpoint.ledger).refuse_links(checkpoint.ledger / "wandb")
    mode = wandb_mode(mode, decide_timeout)
    run = open_run(
        checkpoint,
        group=group or checkpoint.settings["study_name"],
        project=project,
        mode=mode,
        images=images,
        job_type=job_type,
        open_timeout=open_timeout,
        finish_timeout=finish_timeout,
        offline_on_failure=mode == "online",
        user_settings={"entity": entity, "tags": list(tags), "notes": notes},
    )
    return [run] if run else []


def csv_logger(checkpoint: CheckpointInfo, job_type: str = "training") -> list[Logger]:
    """Return a logger to one CSV file, <ledger>/csv/<name>/<run>/metrics.csv, with a column per metric.

    Raises:
        LedgerError: the file would be written through a link.
    """
    return [CSVLogger(*_file_arguments(checkpoint, "csv", job_type))]


def tensorboard_logger(checkpoint: CheckpointInfo, job_type: str = "training") -> list[Logger]:
    """Return a logger to TensorBoard event files under <ledger>/tensorboard.

    Raises:
        ValueError: TensorBoard is not installed.
        LedgerError: the files would be written through a link.
    """
    try:
        return [TensorBoardLogger(*_file_arguments(checkpoint, "tensorboard", job_type))]
    except ModuleNotFoundError:
        raise ValueError(
            "logger=tensorboard needs the package tensorboard: pip install tensorboard, or use logger=csv"
        ) from None


def no_logger(checkpoint: CheckpointInfo, job_type: str = "training") -> list[Logger]:
    """Return no loggers."""
    return []


def _file_arguments(checkpoint: CheckpointInfo, kind: str, job_type: str) -> tuple[Path, str, str]:
    """Return the folder of all files of a kind, the checkpoint's name, and the run's name as Lightning's version.

    Raises:
        LedgerError: one of the folders is a link.
    """
    folder = checkpoint.ledger / kind
    version = checkpoint.run if job_type == "training" else f"{checkpoint.run}-{job_type}"
    LedgerFiles(checkpoint.ledger).refuse_links(folder / checkpoint.name / version)
    return folder, checkpoint.name, version


class ForwardingLogger(Logger):
    """Hands what callbacks log through a Trainer to the loggers of the checkpoint that is trained to.

    Args:
        log: a function that takes metrics by name.
        folder, run: the folder and the subfolder of Lightning's checkpoints, <folder>/<run>.
    """

    def __init__(self, log: Callable[[dict[str, float]], None], folder: Path, run: str) -> None:
        super().__init__()
        self.log, self.folder, self.run = log, folder, run

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return self.run

    @property
    def save_dir(self) -> str:
        return str(self.folder)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        measured = {name: value for name, value in metrics.items() if name != "epoch"}  # which Lightning adds
        if measured:
            self.log(measured)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: loggers have the settings of the cell."""


@contextmanager
def close_at_end(loggers: list[Logger]) -> Iterator[list[Logger]]:
    """Finalize loggers at the end of the block, as failed if it raises."""
    status = "failed"
    try:
        yield loggers
        status = "success"
    finally:
        for logger in loggers:
            logger.finalize(status)


def is_delivered(loggers: list[Logger]) -> bool:
    """Return whether there is a W&B run, and it took everything. To be called when the loggers are closed."""
    runs = [logger for logger in loggers if isinstance(logger, WandbRun)]
    return bool(runs) and not any(run.lost for run in runs)
