"""W&B runs: opened, logged to and finished, each within a time limit."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb
from lightning.pytorch.loggers import WandbLogger

from pe_lab.data.text.base import Text
from pe_lab.system.errors import in_one_line
from pe_lab.system.termination import TerminatedError
from pe_lab.system.time_limit import LateError, call_within
from pe_lab.tracking.checkpoint_info import CheckpointInfo
from pe_lab.tracking.wandb_config import flat_settings, wandb_tags
from pe_lab.tracking.wandb_mode import how_to_upload, wandb_mode
from pe_lab.tracking.wandb_service import CLOSING_SECONDS, end_service, end_service_at_exit
from pe_lab.training.metrics import metric_directions

if TYPE_CHECKING:
    import pandas as pd

# the x-axis of a metric, by the first part of its name; patterns that overlap would be matched in any order
METRIC_AXES = {"train": "step", "length": "length/tokens", "probe": "probe/layer"}
METRIC_AXES |= dict.fromkeys(("validation", "test", "floor", "cost", "picture"), "epoch")
LOCAL_SECONDS = (
    60.0  # seconds, at least, to open and to finish a W&B run offline: W&B's own service process is waited for
)
# validation metrics whose best value is shown in the W&B summary beside the last, and how the best is chosen
BEST_DIRECTIONS = metric_directions(Text)


def open_run(
    checkpoint: CheckpointInfo,
    group: str | None,
    project: str,
    mode: str | None,
    images: bool = False,
    job_type: str = "training",
    open_timeout: float = 30,
    finish_timeout: float = 60,
    offline_on_failure: bool = False,
    user_settings: Mapping[str, Any] | None = None,
) -> "WandbRun | None":
    """Open a W&B run for a checkpoint: training metrics over steps, all others over epochs.

    Args:
        group: the study, or another name.
        mode: "online", "offline" or "disabled"; None: see `wandb_mode`.
        images: whether pictures are logged.
        job_type: "training", or another name for what is measured on the trained cell in a W&B run of its own.
        open_timeout, finish_timeout: the seconds to wait for the server, see conf/logger/wandb.yaml.
        offline_on_failure: whether to open it offline if it cannot be opened, and stay offline, so that no later cell
            waits.
        user_settings: more arguments of wandb.init: entity, notes and tags, which come after those of the checkpoint.

    Returns:
        The W&B run; None: it could not be opened. The reason is printed, and the ledger has everything.
    """
    mode = wandb_mode(mode)
    if mode != "online":  # no server is waited for
        open_timeout, finish_timeout = max(open_timeout, LOCAL_SECONDS), max(finish_timeout, LOCAL_SECONDS)
    user_settings = user_settings or {}
    arguments = _arguments(checkpoint, group, job_type) | {"project": project, "mode": mode}
    arguments |= {**user_settings, "tags": list(dict.fromkeys([*arguments["tags"], *user_settings.get("tags", ())]))}
    arguments["settings"] = _settings(open_timeout, finish_timeout)
    try:
        with _killing_service_when_ended():
            run = call_within(open_timeout, partial(wandb.init, **arguments), "opening the run")
    except TerminatedError:
        raise
    except Exception as error:  # from W&B's service, its server or its files
        end_service(kill=mode == "online")
        reason = f"{checkpoint.name}: W&B did not start, the ledger has the run: {in_one_line(error)}"
        if not offline_on_failure:
            print(reason, file=sys.stderr)
            return None
        _go_offline(reason, checkpoint.ledger.absolute() / "wandb")
        limits = open_timeout, finish_timeout
        return open_run(checkpoint, group, project, "offline", images, job_type, *limits, user_settings=user_settings)
    end_service_at_exit()
    _define_axes(run, checkpoint.best)
    return WandbRun(run, images and not run.disabled, finish_timeout)


def _arguments(checkpoint: CheckpointInfo, group: str | None, job_type: str) -> dict[str, Any]:
    """Return the arguments of wandb.init that describe the checkpoint.

    Its config holds the cell's settings, and under flat names those that panels group by. A W&B agent's choices, "pe"
    and "model.depth", replace the config's "pe" and stand beside its "model". Its tags are study, task and encoding.
    """
    values = flat_settings(checkpoint.settings)
    identifier = f"{checkpoint.run}-{checkpoint.target}"
    return {
        "name": checkpoint.name,
        # a W&B agent has given its run an id and a project already: W&B ignores others
        "id": identifier if job_type == "training" else f"{identifier}-{job_type}",
        "job_type": job_type.partition("-")[0],
        "group": group,
        "tags": wandb_tags(group, values),
        "config": checkpoint.settings | values | {"attention_resolved": checkpoint.attention},
        "dir": str(checkpoint.ledger.absolute()),
        "reinit": "create_new",
    }


def _define_axes(run: Any, best: Mapping[str, str]) -> None:
    """Set the x axis of each group of metrics, and how the best value of a validation metric is chosen."""
    run.define_metric("step", hidden=True)
    run.define_metric("epoch", hidden=True)
    for split, axis in METRIC_AXES.items():
        run.define_metric(f"{split}/*", step_metric=axis)
    for metric, direction in (BEST_DIRECTIONS | dict(best)).items():
        run.define_metric(f"validation/{metric}", step_metric=METRIC_AXES["validation"], summary=f"{direction},last")


def _settings(open_timeout: float, finish_timeout: float) -> Any:
    """Return W&B's settings: silent, without system statistics, with those time limits that this version knows."""
    limits: dict[str, Any] = {"finish_timeout": finish_timeout, "finish_timeout_raises": True}
    return wandb.Settings(
        silent=True,
        console="off",
        init_timeout=open_timeout * 2 / 3,  # W&B's own error says more than ours
        x_service_wait=open_timeout,
        x_disable_stats=True,
        x_save_requirements=False,
        **{name: value for name, value in limits.items() if name in wandb.Settings.model_fields},
    )


def _go_offline(reason: str, folder: Path) -> None:
    """Open the W&B runs of this process, and of those it starts, offline from here on."""
    print(f"{reason}; the runs of this process are offline from here on: {how_to_upload(folder)}", file=sys.stderr)
    os.environ["WANDB_MODE"] = "offline"


@contextmanager
def _killing_service_when_ended() -> Iterator[None]:
    """Kill W&B's service process when the program is ended while it waits for W&B."""
    try:
        yield
    except (TerminatedError, KeyboardInterrupt, SystemExit):
        end_service(kill=True)
        raise


class WandbRun(WandbLogger):
    """A W&B run that ends with its cell, so that the next cell of the process has one of its own.

    When W&B fails, one line says so, nothing more is logged to it, and the cell goes on.

    Args:
        run: the W&B run that wandb.init returned.
        images: whether pictures are logged.
        finish_timeout: the seconds to upload at the end what is not uploaded yet.
    """

    def __init__(self, run: Any, images: bool, finish_timeout: float) -> None:
        super().__init__(experiment=run)
        self.images = images
        self.finish_timeout = finish_timeout
        self.lost = False

    @contextmanager
    def _catching(self) -> Iterator[None]:
        """Print the first error of W&B as one line, and stop logging to it."""
        try:
            yield
        except TerminatedError:
            raise
        except Exception as error:  # from W&B's service, its server or its files
            if not self.lost:
                name = self.experiment.name
                print(f"{name}: W&B is lost, the ledger has the run: {in_one_line(error)}", file=sys.stderr)
                end_service(kill=isinstance(error, LateError))
            self.lost, self.images = True, False

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if not self.lost:
            with self._catching():
                self.experiment.log(dict(metrics))

    def log_rows(self, name: str, rows: "pd.DataFrame", step: int, epoch: float) -> None:
        """Log a table; missing values are left empty."""
        values = rows.astype(object).where(rows.notna(), None).to_numpy().tolist()
        self.log_metrics({name: wandb.Table(list(rows), values), "step": step, "epoch": epoch})

    def log_pictures(self, pictures: dict[str, Any], step: int, epoch: float) -> None:
        """Log pictures by name: files, or arrays [height, width, 3]."""
        images = {f"picture/{name}": wandb.Image(picture) for name, picture in pictures.items()}
        self.log_metrics(images | {"step": step, "epoch": epoch})

    def finalize(self, status: str) -> None:
        """End the W&B run. What the server has not received in time stays in its files; later runs are offline."""
        if self.lost:
            return
        run, seconds = self.experiment, self.finish_timeout
        name, online, files = run.name, not (run.offline or run.disabled), Path(run.dir).parent
        finish = partial(run.finish, exit_code=0 if status == "success" else 1)
        with self._catching(), _killing_service_when_ended():
            try:
                call_within(seconds + CLOSING_SECONDS, finish, "finishing the run")
            except TimeoutError as error:
                self.lost = True
                hangs = isinstance(error, LateError)
                end_service(kill=hangs)
                reason = f"W&B is lost, the ledger has the run: {error}"
                if not hangs:
                    later = f"wandb sync --no-skip-online {files} uploads it"
                    reason = f"W&B did not take the run in {seconds:g} s: {later}"
                if online:
                    _go_offline(f"{name}: {reason}", files.parent)
                else:
                    print(f"{name}: {reason}", file=sys.stderr)
