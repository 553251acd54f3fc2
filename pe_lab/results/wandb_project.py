"""The runs of a W&B project as the same frames that a ledger gives."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.config import Config, flatten
from pe_lab.config.ranges import NAME
from pe_lab.encodings.options import shown
from pe_lab.results.curves import SHOWN
from pe_lab.results.frame import Results
from pe_lab.results.table import Settings, rows_of
from pe_lab.system.plain import complaint

PREFIX = "wandb:"  # of a source that is a project


class FromProject(Results):
    """Results whose curves were fetched; other lengths and probes stay in the runs."""

    def __init__(self, project: str, cells: pd.DataFrame, curves: pd.DataFrame, refused: list[str]) -> None:
        super().__init__(Path(project), project.rpartition("/")[2], cells, refused=refused)
        self.__dict__["curves"] = curves
        self.__dict__["records"] = pd.DataFrame()


def load(project: str, runs: Iterable[Any] | None = None) -> Results:
    """The finished cells of a project, one row per run.

    Args:
        project: "entity/project", or "project" of one's own.
        runs: instead of asking the server.

    Raises:
        ValueError: the server does not answer, there is no such project, or no run of it is a finished cell.
    """
    if runs is None:
        import wandb

        try:
            runs = list(wandb.Api(timeout=20).runs(project))
        except (wandb.errors.Error, ValueError, OSError) as error:
            line = " ".join(str(error).split())
            raise ValueError(f"the W&B project must be one that can be read, got {project!r}: {line}") from None
    settings, summaries, refused, told = [], [], [], []
    for run in runs:
        if run.job_type == "evaluation":
            continue  # of a cell that has a run of its own
        try:
            of_run = _settings(run.config)
            summary = _summary(run, of_run)
        except KeyError as error:
            refused.append(f"run {run.id} must have {error.args[0]}, got none: it is {run.state}")
            continue
        except ValueError as error:
            refused.append(f"run {run.id} {error}")
            continue
        settings.append(of_run)
        summaries.append(summary)
        told.append(run)
    if not settings:
        raise ValueError(
            f"the W&B project must have a finished cell, got none in {project} ({len(refused)} other runs)"
        )
    cells = rows_of(settings, summaries)
    return FromProject(project, cells, _curves(cells, told, summaries), refused)


def _settings(config: dict[str, Any]) -> Settings:
    """The cell's own config; what else a run's config has is left out.

    Raises:
        KeyError: the run is no cell.
        ValueError: somebody else wrote it.
    """
    own = {name: config[name] for name in Config.__dataclass_fields__ if name in config}
    for needed in ("pe", "model", "data", "epochs", "seed"):
        if needed not in own:
            raise KeyError(f"config.{needed}")
    if found := complaint(own):
        raise ValueError(found)
    settings = flatten(own)
    names = all(isinstance(own[group], dict) and NAME.holds(own[group].get("name")) for group in ("pe", "data"))
    if not names or not all(type(settings.get(name)) is int for name in ("model.depth", "epochs", "seed")):
        raise ValueError("must have pe.name, data.name, model.depth, epochs and seed of a cell, got others")
    return settings


def _summary(run: Any, settings: Settings) -> dict[str, Any]:
    """What a cell came to, as the ledger has it.

    Raises:
        KeyError: the run is no finished cell.
        ValueError: somebody else wrote it.
    """
    flat, attention = dict(run.summary), run.config.get("attention_resolved")
    for needed in ("test/loss", "cost/parameters", "cost/seconds"):
        if needed not in flat:
            raise KeyError(needed)
    for name, value in flat.items():
        if name.startswith(("test/", "floor/", "cost/")) and type(value) not in (int, float):
            raise ValueError(f"must have a number as {name}, got {shown(value)}")
    if not (attention is None or NAME.holds(attention)):
        raise ValueError(f"must have as attention_resolved {NAME.words}, got {shown(attention)}")
    floors: dict[str, dict[str, float]] = {}
    for name, value in flat.items():
        if name.startswith("floor/"):
            floor, _, metric = name.removeprefix("floor/").partition("/")
            floors.setdefault(floor, {})[metric] = value
    cost = ("parameters", "positional_parameters", "flops_per_token", "seconds")
    return {
        "test": {name.removeprefix("test/"): value for name, value in flat.items() if name.startswith("test/")},
        "floors": floors,
        "attention": attention,
        "device": settings.get("trainer.device"),
        "run": run.id.rpartition("-")[0] or run.id,
    } | {name: flat.get(f"cost/{name}") for name in cost}


def _curves(cells: pd.DataFrame, runs: list[Any], summaries: list[dict[str, Any]]) -> pd.DataFrame:
    """Validation during training, of each run's longest run."""
    told = list(cells.columns[: [name.startswith("test_") for name in cells].index(True)])
    by_place = {(summary["run"], run.config["epochs"]): run for run, summary in zip(runs, summaries, strict=True)}
    lines = []
    for apart in cells.sort_values("epochs", kind="stable").drop_duplicates("run", keep="last").to_dict("records"):
        run = by_place[apart["run"], apart["epochs"]]
        for metric in SHOWN:
            for row in run.scan_history(keys=["epoch", f"validation/{metric}"]):
                lines.append([*(apart[name] for name in told), row["epoch"], metric, row[f"validation/{metric}"]])
    return pd.DataFrame(lines, columns=[*told, "epoch", "metric", "value"])
