"""Load the W&B runs of a project as the same tables that a ledger gives."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.config import Config, flatten_settings
from pe_lab.config.ranges import NAME
from pe_lab.encodings.options import show_value
from pe_lab.results.cell_rows import Settings, rows_of
from pe_lab.results.columns import CURVE_METRICS
from pe_lab.results.frame import Results
from pe_lab.system.errors import in_one_line
from pe_lab.system.plain import plain_data_error

SOURCE_PREFIX = "wandb:"  # marks a source as a W&B project


class WandbResults(Results):
    """Results of a W&B project: curves are fetched; other lengths and probes are not."""

    def __init__(self, project: str, cells: pd.DataFrame, curves: pd.DataFrame, refused: list[str]) -> None:
        super().__init__(Path(project), project.rpartition("/")[2], cells, refused=refused)
        self.__dict__["curves"] = curves
        self.__dict__["records"] = pd.DataFrame()


def load(project: str, runs: Iterable[Any] | None = None) -> Results:
    """Load the finished cells of a project, one row per W&B run.

    Args:
        project: "entity/project", or "project" of the default entity.
        runs: W&B runs; None: ask the server for them.

    Raises:
        ValueError: the server does not answer, there is no such project, or none of its W&B runs is a finished cell.
    """
    settings, summaries, refused, kept = [], [], [], []
    for run in _fetch_runs(project) if runs is None else runs:
        if run.job_type == "evaluation":
            continue  # of a cell that has a W&B run of its own
        try:
            entries = _settings_of_config(run.config)
            summary = _summary_of_cell(run, entries)
        except KeyError as error:
            refused.append(f"W&B run {run.id} must have {error.args[0]}, got none: it is {run.state}")
            continue
        except ValueError as error:
            refused.append(f"W&B run {run.id} {error}")
            continue
        settings.append(entries)
        summaries.append(summary)
        kept.append(run)
    if not settings:
        raise ValueError(
            f"the W&B project must have a finished cell, got none in {project} ({len(refused)} other W&B runs)"
        )
    cells = rows_of(settings, summaries)
    return WandbResults(project, cells, _validation_curves(cells, kept, summaries), refused)


def _fetch_runs(project: str) -> list[Any]:
    """Ask the server for the W&B runs of a project.

    Raises:
        ValueError: the server does not answer, or there is no such project.
    """
    import wandb  # takes long to import

    try:
        return list(wandb.Api(timeout=20).runs(project))
    except (wandb.errors.Error, ValueError, OSError) as error:
        reason = in_one_line(error)
        raise ValueError(f"the W&B project must be one that can be read, got {project!r}: {reason}") from None


def _settings_of_config(config: dict[str, Any]) -> Settings:
    """Return the settings of a cell; other keys in the config of its W&B run are left out.

    Raises:
        KeyError: the W&B run is no cell.
        ValueError: the settings have values that pe_lab does not write.
    """
    entries = {name: config[name] for name in Config.__dataclass_fields__ if name in config}
    for needed in ("pe", "model", "data", "epochs", "seed"):
        if needed not in entries:
            raise KeyError(f"config.{needed}")
    if problem := plain_data_error(entries):
        raise ValueError(problem)
    settings = flatten_settings(entries)
    names = all(isinstance(entries[group], dict) and NAME.holds(entries[group].get("name")) for group in ("pe", "data"))
    if not names or not all(type(settings.get(name)) is int for name in ("model.depth", "epochs", "seed")):
        raise ValueError("must have pe.name, data.name, model.depth, epochs and seed of a cell, got others")
    return settings


def _summary_of_cell(run: Any, settings: Settings) -> dict[str, Any]:
    """Return the summary of a cell in the form that the ledger has.

    Raises:
        KeyError: the W&B run is no finished cell.
        ValueError: the summary has values that pe_lab does not write.
    """
    flat, attention = dict(run.summary), run.config.get("attention_resolved")
    for needed in ("test/loss", "cost/parameters", "cost/seconds"):
        if needed not in flat:
            raise KeyError(needed)
    for name, value in flat.items():
        if name.startswith(("test/", "floor/", "cost/")) and type(value) not in (int, float):
            raise ValueError(f"must have a number as {name}, got {show_value(value)}")
    if not (attention is None or NAME.holds(attention)):
        raise ValueError(f"must have as attention_resolved {NAME.words}, got {show_value(attention)}")
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


def _validation_curves(cells: pd.DataFrame, runs: list[Any], summaries: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the validation during training, of the longest checkpoint of each training run."""
    names = list(cells.columns[: [name.startswith("test_") for name in cells].index(True)])
    by_cell = {(summary["run"], run.config["epochs"]): run for run, summary in zip(runs, summaries, strict=True)}
    lines = []
    for cell in cells.sort_values("epochs", kind="stable").drop_duplicates("run", keep="last").to_dict("records"):
        run = by_cell[cell["run"], cell["epochs"]]
        for metric in CURVE_METRICS:
            for row in run.scan_history(keys=["epoch", f"validation/{metric}"]):
                lines.append([*(cell[name] for name in names), row["epoch"], metric, row[f"validation/{metric}"]])
    return pd.DataFrame(lines, columns=[*names, "epoch", "metric", "value"])
