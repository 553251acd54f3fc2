"""Where metrics are told while a cell trains; the ledger does not depend on it.

Each function makes the loggers of one cell, a list that may be empty.
"""

import netrc
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import lightning as L
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from omegaconf import OmegaConf

if TYPE_CHECKING:
    from pe_lab.cell import Cell

REACH = 2.0  # seconds to wait for the W&B server to answer before going offline


def wandb_logger(cell: "Cell", epochs: int, name: str, project: str, mode: str | None) -> list[Logger]:
    """One W&B run for the cell, grouped by study; metrics are drawn over step, the curve over epoch too.

    Args:
        epochs: the stop that the run leads to.
        mode: "online", "offline" or "disabled"; None: online when there is a key and the server answers, else
            offline. The environment's WANDB_MODE wins. Never a prompt.
    """
    import wandb

    cfg = cell.cfg
    folder = Path(cfg.ledger).absolute()
    run = wandb.init(
        project=project,
        name=cell.name(epochs),
        id=f"{cell.road.name}-{epochs}",
        group=cfg.study_name,
        config=OmegaConf.to_container(OmegaConf.merge(cfg, {"epochs": epochs}), resolve=True)
        | {"attention_resolved": cell.implementation},
        dir=str(folder),
        mode=wandb_mode(mode),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=20, x_disable_stats=True, x_save_requirements=False
        ),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("epoch", hidden=True)
    run.define_metric("*", step_metric="step")
    for split in ("validation", "test", "floor"):
        run.define_metric(f"{split}/*", step_metric="epoch")
    return [Run(experiment=run)]


class Run(WandbLogger):
    """A W&B run that ends with its cell, so that the next cell of the process has one of its own."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log(metrics)

    def finalize(self, status: str) -> None:
        self.experiment.finish(exit_code=0 if status == "success" else 1)


def wandb_mode(asked: str | None) -> str:
    """The mode that neither prompts nor hangs."""
    if os.environ.get("WANDB_MODE") or asked:
        return os.environ.get("WANDB_MODE") or str(asked)
    import wandb

    url = urlsplit(wandb.setup().settings.base_url)
    host = url.hostname or ""
    known = os.environ.get("WANDB_API_KEY") is not None
    with suppress(OSError, netrc.NetrcParseError):
        known = known or netrc.netrc().authenticators(host) is not None
    if not known:
        return "offline"
    try:
        socket.create_connection((host, url.port or 443), timeout=REACH).close()
    except OSError:
        return "offline"
    return "online"


def csv_logger(cell: "Cell", epochs: int, name: str) -> list[Logger]:
    """One CSV file, <ledger>/csv/<name>/<road>/metrics.csv, with a column per metric."""
    return [CSVLogger(Path(cell.cfg.ledger) / "csv", cell.name(epochs), cell.road.name)]


def tensorboard_logger(cell: "Cell", epochs: int, name: str) -> list[Logger]:
    """TensorBoard event files under <ledger>/tensorboard.

    Raises:
        ValueError: TensorBoard is not installed.
    """
    try:
        return [TensorBoardLogger(Path(cell.cfg.ledger) / "tensorboard", cell.name(epochs), cell.road.name)]
    except ModuleNotFoundError:
        raise ValueError(
            "logger=tensorboard needs the package tensorboard: pip install tensorboard, or use logger=csv"
        ) from None


def no_logger(cell: "Cell", epochs: int, name: str) -> list[L.pytorch.loggers.Logger]:
    """None."""
    return []
