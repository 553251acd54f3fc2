"""Where metrics are told while a cell trains; the ledger does not depend on it.

Each function makes the loggers of one cell, a list that may be empty.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from pe_lab.data.text.base import Text
from pe_lab.system.errors import in_one_line
from pe_lab.system.termination import TerminatedError
from pe_lab.tracking.wandb_config import flat, tags
from pe_lab.tracking.wandb_mode import agent_run, wandb_mode
from pe_lab.tracking.wandb_service import CLOSING, LateError, end_service, end_service_at_exit, within
from pe_lab.training.metrics import directions

if TYPE_CHECKING:
    import pandas as pd

    from pe_lab.experiment.cell import Cell

# what a metric is drawn over, by the first part of its name; patterns that overlap would be matched in any order
AXES = {"train": "step", "length": "length/tokens", "probe": "probe/layer"}
AXES |= dict.fromkeys(("validation", "test", "floor", "cost", "picture"), "epoch")
LOCAL = 60.0  # seconds at least to open and to finish a run without a server: its own service is waited for
# validation metrics whose best value stands in the summary beside the last, and which of their values that is
BEST = directions(Text)


def load(cfg: DictConfig) -> None:
    """Import what the logger of this config would import later, while a cell's time is counted."""
    if cfg.logger.name == "wandb":
        import wandb.sdk.launch  # noqa: F401 - by wandb.init

        if cfg.logger.images and os.environ.get("WANDB_MODE") != "disabled":
            import pe_lab.audit.pictures  # noqa: F401


def wandb_logger(
    cell: "Cell",
    epochs: int,
    name: str,
    project: str,
    mode: str | None,
    images: bool,
    decide_timeout: float,
    open_timeout: float,
    finish_timeout: float,
    job: str = "training",
) -> list[Logger]:
    """Return one W&B run for the cell, grouped by study. A W&B agent's run logs only the checkpoint it asked for.

    When it cannot be opened online, or not be finished in time, this process goes on offline, and says so.

    Args:
        epochs: the checkpoint that the run leads to.
        mode: "online", "offline" or "disabled"; None: see `wandb_mode`.
        images: whether it gets pictures of the encoding and of attention.
        decide_timeout, open_timeout, finish_timeout: seconds to wait for the server, see conf/logger/wandb.yaml.
        job: "training", or another name for what is measured on the trained cell in a run of its own.
    """
    if agent_run() and epochs != cell.epochs:
        return []  # whoever asked for that stop finds it in the ledger, and tells it
    cell.run.tree.require(Path(cell.cfg.ledger, "wandb"))
    resolved = OmegaConf.merge(cell.cfg, {"epochs": epochs})
    given = {
        "run": cell.run.name,
        "epochs": epochs,
        "name": cell.name(epochs),
        "settings": OmegaConf.to_container(resolved, resolve=True),
        "attention": cell.implementation,
        "folder": Path(cell.cfg.ledger),
        "group": cell.cfg.study_name,
        "project": project,
        "images": images,
        "job": job,
        "best": BEST | directions(cell.dataset),
        "open_timeout": open_timeout,
        "finish_timeout": finish_timeout,
    }
    mode = wandb_mode(mode, decide_timeout)
    return open_run(mode=mode, **given, then_offline=mode == "online")


def open_run(
    run: str,
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
    best: Mapping[str, str] = BEST,
    open_timeout: float = 30,
    finish_timeout: float = 60,
    then_offline: bool = False,
) -> list[Logger]:
    """A W&B run of a checkpoint on a run; train is drawn over steps, all else over epochs.

    Its config is the cell's, and what panels group by under flat names: an agent's choices, "pe" and "model.depth",
    take the place of the config's "pe" and stand beside its "model". Its tags are study, task and encoding.

    A run that cannot be opened is told on the terminal, and there is none: the ledger has all of it.

    Args:
        settings: the cell's resolved config.
        attention: the implementation that ran.
        folder: the ledger; its wandb/ gets the run's files.
        mode, images, job, open_timeout, finish_timeout: as in `wandb_logger`.
        best: "min" or "max" by validation metric: the value of it that the summary keeps beside the last.
        then_offline: open it offline if it cannot be opened, and go on so; its server would be waited for in each cell.
    """
    given = locals() | {"mode": "offline", "then_offline": False}
    import wandb

    mode = wandb_mode(mode)
    if mode != "online":  # no server is waited for
        open_timeout, finish_timeout = max(open_timeout, LOCAL), max(finish_timeout, LOCAL)

    known = flat(settings)
    own = {"finish_timeout": finish_timeout, "finish_timeout_raises": True}
    limits = {name: value for name, value in own.items() if name in wandb.Settings.model_fields}
    start = partial(
        wandb.init,
        project=project,
        name=name,
        # an agent has given its run an id and a project already: W&B ignores others
        id=f"{run}-{epochs}" if job == "training" else f"{run}-{epochs}-{job}",
        job_type=job.partition("-")[0],
        group=group,
        tags=tags(group, known),
        config=settings | known | {"attention_resolved": attention},
        dir=str(folder.absolute()),
        mode=mode,
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=open_timeout * 2 / 3,  # its own error says more than ours
            x_service_wait=open_timeout,
            x_disable_stats=True,
            x_save_requirements=False,
            **limits,
        ),
    )
    try:
        with _killing_service_when_ended():
            wandb_run = within(open_timeout, start, "opening the run")
    except TerminatedError:
        raise
    except Exception as error:  # whatever its service, its server or its files come to
        end_service(kill=mode == "online")
        reason = f"{name}: W&B did not start, the ledger has the run: {in_one_line(error)}"
        if then_offline:
            _go_offline(reason)
            return open_run(**given)
        print(reason, file=sys.stderr)
        return []
    end_service_at_exit()
    wandb_run.define_metric("step", hidden=True)
    wandb_run.define_metric("epoch", hidden=True)
    for split, axis in AXES.items():
        wandb_run.define_metric(f"{split}/*", step_metric=axis)
    for metric, better in best.items():
        wandb_run.define_metric(f"validation/{metric}", step_metric=AXES["validation"], summary=f"{better},last")
    return [WandbRun(wandb_run, images and not wandb_run.disabled, finish_timeout)]


def _go_offline(reason: str) -> None:
    """Open the runs of this process, and of those it starts, offline from here on."""
    print(f"{reason}; the runs of this process are offline from here on (wandb sync uploads them)", file=sys.stderr)
    os.environ["WANDB_MODE"] = "offline"


@contextmanager
def _killing_service_when_ended() -> Iterator[None]:
    """Kill W&B's service when the program is ended while it waits for W&B."""
    try:
        yield
    except (TerminatedError, KeyboardInterrupt, SystemExit):
        end_service(kill=True)
        raise


class WandbRun(WandbLogger):
    """A W&B run that ends with its cell, so that the next cell of the process has one of its own.

    When W&B can no longer be told, that is said once, and the cell goes on.

    Args:
        images: whether it is to get pictures.
        finish_timeout: seconds to upload what is left of it in the end.
    """

    def __init__(self, run: Any, images: bool, finish_timeout: float) -> None:
        super().__init__(experiment=run)
        self.images = images
        self.finish_timeout = finish_timeout
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
                end_service(kill=isinstance(error, LateError))
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
        """End the W&B run. What the server has not received in time stays in its files; later runs are offline."""
        if self.lost:
            return
        wandb_run, seconds = self.experiment, self.finish_timeout
        name, online, files = wandb_run.name, not (wandb_run.offline or wandb_run.disabled), Path(wandb_run.dir).parent
        finish = partial(wandb_run.finish, exit_code=0 if status == "success" else 1)
        with self._telling(), _killing_service_when_ended():
            try:
                within(seconds + CLOSING, finish, "finishing the run")
            except TimeoutError as error:
                self.lost = True
                hangs = isinstance(error, LateError)
                end_service(kill=hangs)
                reason = f"W&B is lost, the ledger has the run: {error}"
                if not hangs:
                    later = f"wandb sync --no-skip-online {files} uploads it"
                    reason = f"W&B did not take the run in {seconds:g} s: {later}"
                if online:
                    _go_offline(f"{name}: {reason}")
                else:
                    print(f"{name}: {reason}", file=sys.stderr)


@contextmanager
def closing(loggers: list[Logger]) -> Iterator[list[Logger]]:
    """Loggers that are told something; in the end they are closed, as failed if it did not end well."""
    status = "failed"
    try:
        yield loggers
        status = "success"
    finally:
        for logger in loggers:
            logger.finalize(status)


def delivered(loggers: list[Logger]) -> bool:
    """Whether there are loggers, now closed, and none was lost on the way."""
    return bool(loggers) and not any(isinstance(logger, WandbRun) and logger.lost for logger in loggers)


def csv_logger(cell: "Cell", epochs: int, name: str, job: str = "training") -> list[Logger]:
    """One CSV file, <ledger>/csv/<name>/<run>/metrics.csv, with a column per metric.

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
    """Of a run's files: the folder of all of a kind, the cell's name, and the run, with the job if it is no training.

    Raises:
        LedgerError: one of them is a link.
    """
    folder, version = Path(cell.cfg.ledger, kind), cell.run.name if job == "training" else f"{cell.run.name}-{job}"
    cell.run.tree.require(folder / cell.name(epochs) / version)
    return folder, cell.name(epochs), version
