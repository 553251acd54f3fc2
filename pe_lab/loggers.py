"""Where metrics are told while a cell trains; the ledger does not depend on it.

Each function makes the loggers of one cell, a list that may be empty.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import in_one_line
from pe_lab.termination import TerminatedError
from pe_lab.wandb_mode import agent_run, wandb_mode

if TYPE_CHECKING:
    import pandas as pd

    from pe_lab.cell import Cell

# what a metric is drawn over, by the first part of its name; patterns that overlap would be matched in any order
AXES = {"train": "step", "length": "length/tokens", "probe": "probe/layer"}
AXES |= dict.fromkeys(("validation", "test", "floor", "cost", "picture"), "epoch")


def load(cfg: DictConfig) -> None:
    """Import what the logger of this config would import later, while a cell's time is counted."""
    if cfg.logger.name == "wandb":
        import wandb.sdk.launch  # noqa: F401 - by wandb.init

        if cfg.logger.images and os.environ.get("WANDB_MODE") != "disabled":
            import pe_lab.audit.pictures  # noqa: F401


def wandb_logger(
    cell: "Cell", epochs: int, name: str, project: str, mode: str | None, images: bool, job: str = "training"
) -> list[Logger]:
    """One W&B run for the cell, grouped by study. A W&B agent's run is for the stop that it asked for, and no other.

    When it cannot be opened online, this process goes on offline, and says so.

    Args:
        epochs: the stop that the run leads to.
        mode: "online", "offline" or "disabled"; None: see `wandb_mode`.
        images: whether it gets pictures of the encoding and of attention.
        job: "training", or another name for what is measured on the trained cell in a run of its own.
    """
    if agent_run() and epochs != cell.epochs:
        return []  # whoever asked for that stop finds it in the ledger, and tells it
    cell.road.tree.require(Path(cell.cfg.ledger, "wandb"))
    resolved = OmegaConf.merge(cell.cfg, {"epochs": epochs})
    given = {
        "road": cell.road.name,
        "epochs": epochs,
        "name": cell.name(epochs),
        "settings": OmegaConf.to_container(resolved, resolve=True),
        "attention": cell.implementation,
        "folder": Path(cell.cfg.ledger),
        "group": cell.cfg.study_name,
        "project": project,
        "images": images,
        "job": job,
    }
    runs = open_run(mode=mode, **given)
    if not runs and wandb_mode(mode) == "online":  # its server would be waited for in every cell
        print("W&B: the runs of this process are offline from here on (wandb sync uploads them)", file=sys.stderr)
        os.environ["WANDB_MODE"] = "offline"
        runs = open_run(mode=mode, **given)
    return runs


def open_run(
    road: str,
    epochs: int,
    name: str,
    settings: dict[str, Any],
    attention: str,
    folder: Path,
    group: str | None,
    project: str,
    mode: str | None,
    images: bool = False,
    job: str = "training",
) -> list[Logger]:
    """A W&B run of a stop on a road; train is drawn over steps, all else over epochs.

    Its config is the cell's, and what panels group by under names of its own: an agent's choices, "pe" and
    "model.depth", take the place of the config's "pe" and stand beside its "model".

    A run that cannot be opened is told on the terminal, and there is none: the ledger has all of it.

    Args:
        settings: the cell's resolved config.
        attention: the implementation that ran.
        folder: the ledger; its wandb/ gets the run's files.
        mode, images, job: as in `wandb_logger`.
    """
    import wandb

    known = {
        "encoding": settings["pe"]["name"],
        "task": settings["data"]["name"],
        "depth": settings["model"]["depth"],
        "attention_resolved": attention,
    }
    try:
        run = wandb.init(
            project=project,
            name=name,
            # an agent has given its run an id and a project already: W&B ignores others
            id=f"{road}-{epochs}" if job == "training" else f"{road}-{epochs}-{job}",
            job_type=job.partition("-")[0],
            group=group,
            config=settings | known,
            dir=str(folder.absolute()),
            mode=wandb_mode(mode),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=20, x_disable_stats=True, x_save_requirements=False
            ),
        )
    except TerminatedError:
        raise
    except Exception as error:  # whatever its service, its server or its files come to
        print(f"{name}: W&B did not start, the ledger has the run: {in_one_line(error)}", file=sys.stderr)
        _start_anew()
        return []
    run.define_metric("step", hidden=True)
    run.define_metric("epoch", hidden=True)
    for group, axis in AXES.items():
        run.define_metric(f"{group}/*", step_metric=axis)
    return [Run(run, images and not run.disabled)]


def _start_anew() -> None:
    """Let go of W&B's service, so that the next run starts another."""
    import wandb

    with suppress(Exception):
        wandb.teardown()


class Run(WandbLogger):
    """A W&B run that ends with its cell, so that the next cell of the process has one of its own.

    When W&B can no longer be told, that is said once, and the cell goes on.

    Args:
        images: whether it is to get pictures.
    """

    def __init__(self, run: Any, images: bool) -> None:
        super().__init__(experiment=run)
        self.images = images
        self.lost = False

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except TerminatedError:
            raise
        except Exception as error:  # whatever its service, its server or its files come to
            if not self.lost:
                name = self.experiment.name
                print(f"{name}: W&B is lost, the ledger has the run: {in_one_line(error)}", file=sys.stderr)
                _start_anew()
            self.lost, self.images = True, False

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if not self.lost:
            with self._telling():
                self.experiment.log(metrics)

    def log_rows(self, name: str, rows: "pd.DataFrame", step: int, epoch: float) -> None:
        """A table; what a row lacks is left empty."""
        import wandb

        values = rows.astype(object).where(rows.notna(), None).to_numpy().tolist()
        self.log_metrics({name: wandb.Table(list(rows), values), "step": step, "epoch": epoch})

    def log_pictures(self, pictures: dict[str, Any], step: int, epoch: float) -> None:
        """Pictures by name: files, or arrays [height, width, 3]."""
        import wandb

        images = {f"picture/{name}": wandb.Image(picture) for name, picture in pictures.items()}
        self.log_metrics(images | {"step": step, "epoch": epoch})

    def finalize(self, status: str) -> None:
        if not self.lost:
            with self._telling():
                self.experiment.finish(exit_code=0 if status == "success" else 1)


@contextmanager
def told(loggers: list[Logger]) -> Iterator[list[Logger]]:
    """Loggers that are told something; in the end they are closed, as failed if it did not end well."""
    status = "failed"
    try:
        yield loggers
        status = "success"
    finally:
        for logger in loggers:
            logger.finalize(status)


def heard(loggers: list[Logger]) -> bool:
    """Whether there are loggers, now closed, and none was lost on the way."""
    return bool(loggers) and not any(isinstance(logger, Run) and logger.lost for logger in loggers)


def csv_logger(cell: "Cell", epochs: int, name: str, job: str = "training") -> list[Logger]:
    """One CSV file, <ledger>/csv/<name>/<road>/metrics.csv, with a column per metric.

    Raises:
        LedgerError: it would be written through a link.
    """
    return [CSVLogger(*_place(cell, "csv", epochs, job))]


def tensorboard_logger(cell: "Cell", epochs: int, name: str, job: str = "training") -> list[Logger]:
    """TensorBoard event files under <ledger>/tensorboard.

    Raises:
        ValueError: TensorBoard is not installed.
        LedgerError: they would be written through a link.
    """
    try:
        return [TensorBoardLogger(*_place(cell, "tensorboard", epochs, job))]
    except ModuleNotFoundError:
        raise ValueError(
            "logger=tensorboard needs the package tensorboard: pip install tensorboard, or use logger=csv"
        ) from None


def no_logger(cell: "Cell", epochs: int, name: str, job: str = "training") -> list[Logger]:
    """None."""
    return []


def _place(cell: "Cell", kind: str, epochs: int, job: str) -> tuple[Path, str, str]:
    """Of a run's files: the folder of all of a kind, the cell's name, and the road, with the job if it is no training.

    Raises:
        LedgerError: one of them is a link.
    """
    folder, version = Path(cell.cfg.ledger, kind), cell.road.name if job == "training" else f"{cell.road.name}-{job}"
    cell.road.tree.require(folder / cell.name(epochs) / version)
    return folder, cell.name(epochs), version
