"""The W&B workspace and report of the lab, as code: python sweeps/dashboard.py [--push --entity E] [--project pe_lab].

Prints both as JSON, as they would be sent; with --push, sends them: a new view and a new report. Needs the package
wandb-workspaces: pip install -e ".[dashboard]".
"""

import argparse
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pe_lab.wandb_mode import has_key

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

NAME = "Positional encodings"
# columns of the table of runs, in order: what tells cells apart, then what they came to
SETTINGS = ("encoding", "task", "depth", "epochs", "seed", "attention_resolved")
CAME_TO = ("test/loss", "test/way_to_bayes", "floor/bayes/loss", "floor/position_blind/loss", "cost/parameters",
           "cost/positional_parameters", "cost/flops_per_token", "cost/seconds")  # fmt: skip
COLUMNS = [f"config:{name}.value" for name in SETTINGS] + [f"summary:{name}" for name in CAME_TO]


@dataclass(frozen=True)
class Part:
    """A section of the workspace, and of the report."""

    title: str
    text: str
    panels: list[Any]


def parts() -> list[Part]:
    """What is shown; each call makes new panels, since a panel belongs to one place."""
    import wandb_workspaces.reports.v2 as wr

    by_encoding = {"groupby": wr.Config("encoding"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}

    def curve(title: str, x: str, *y: str, **more: Any) -> wr.LinePlot:
        return wr.LinePlot(title=title, x=x, y=list(y), max_runs_to_show=100, **more)

    def bars(title: str, *metrics: str, **more: Any) -> wr.BarPlot:
        return wr.BarPlot(title=title, metrics=list(metrics), max_bars_to_show=60, max_runs_to_show=500, **more)

    def points(title: str, x: str, **more: Any) -> wr.ScatterPlot:
        return wr.ScatterPlot(title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric("test/loss"), **more)

    grid = [wr.ParallelCoordinatesPlotColumn(wr.Config(name)) for name in ("encoding", "depth", "epochs")]
    grid += [wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(name)) for name in ("test/loss", "cost/seconds")]
    return [
        Part(
            "The grid: encoding x depth x epochs",
            "Test loss in nats, means over the runs that are shown; filter by task, depth and epochs before comparing "
            "bars. Paired differences with intervals are in the ledger's tables.",
            [
                wr.ParallelCoordinatesPlot(columns=grid, title="Encoding, depth and epochs to test loss"),
                bars("Test loss by encoding", "test/loss", **by_encoding),
                bars("Test loss by depth", "test/loss", **by_encoding | {"groupby": wr.Config("depth")}),
                bars("Test loss by epochs", "test/loss", **by_encoding | {"groupby": wr.Config("epochs")}),
            ],
        ),
        Part(
            "Learning curves by encoding",
            "Mean over depths and seeds of what is shown, with its standard error.",
            [
                curve("Validation loss", "epoch", "validation/loss", log_x=True, **by_encoding),
                curve("Training loss", "step", "train/loss", log_x=True, **by_encoding),
                curve("Validation accuracy", "epoch", "validation/accuracy", **by_encoding),
                curve("Gradient norm", "step", "train/gradient_norm", log_y=True, **by_encoding),
            ],
        ),
        Part(
            "Floors",
            "Below the position-blind floor a model uses order, or knows what is held out; the Bayes floor is the best "
            "possible. On the way from one to the other, 0 is the first and 1 the second.",
            [
                curve(
                    "Validation loss and floors",
                    "epoch",
                    *("validation/loss", "floor/position_blind/loss", "floor/bayes/loss"),
                ),
                bars("Way from the position-blind floor to the Bayes floor", "test/way_to_bayes", **by_encoding),
            ],
        ),
        Part(
            "Lengths",
            "On sequences longer than those of training; other policies and offsets have curves of their own.",
            [
                curve("Loss over length", "length/tokens", "length/raw/loss", log_x=True, **by_encoding),
                curve("Accuracy over length", "length/tokens", "length/raw/accuracy", log_x=True, **by_encoding),
                wr.LinePlot(
                    title="Loss, all policies", x="length/tokens", metric_regex="length/[^/]+/loss", log_x=True
                ),
                wr.WeavePanelSummaryTable(table_name="lengths"),
            ],
        ),
        Part(
            "Cost against quality",
            "What a lower loss costs: parameters, arithmetic, time in training steps.",
            [
                points("Test loss and parameters", "cost/parameters", log_x=True),
                points("Test loss and positional parameters", "cost/positional_parameters"),
                points("Test loss and FLOPs per token", "cost/flops_per_token", log_x=True),
                points("Test loss and seconds", "cost/seconds", log_x=True),
            ],
        ),
        Part(
            "Probes",
            "Per layer: how well position is read off, how far and how widely heads look, effective rank. Pictures of "
            "the encoding before training; and of attention after it, a row per layer and a column per head.",
            [
                curve("Position read off (R²)", "probe/layer", "probe/position/r2", **by_encoding),
                wr.LinePlot(
                    title="Distance of attention, per head",
                    x="probe/layer",
                    metric_regex="probe/attention/distance/head.*",
                ),
                wr.LinePlot(
                    title="Entropy of attention, per head",
                    x="probe/layer",
                    metric_regex="probe/attention/entropy_normalised/head.*",
                ),
                curve("Effective rank", "probe/layer", "probe/rank/effective_rank", **by_encoding),
                wr.MediaBrowser(title="Encodings", media_keys=["picture/encoding"], num_columns=2),
                wr.MediaBrowser(title="Attention", media_keys=["picture/attention"], num_columns=4),
            ],
        ),
    ]


def workspace(entity: str, project: str) -> "ws.Workspace":
    """A view of a project: a section per part, and the table of runs beside it."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    return ws.Workspace(
        name=NAME,
        entity=entity,
        project=project,
        auto_generate_panels=False,
        sections=[ws.Section(name=part.title, panels=part.panels, is_open=True) for part in parts()],
        settings=ws.WorkspaceSettings(max_runs=100, ignore_outliers=False),
        runset_settings=ws.RunsetSettings(
            pinned_columns=["run:displayName", *COLUMNS],
            order=[expr.Ordering(expr.Summary("test/loss"), ascending=True)],
        ),
    )


def report(entity: str, project: str, online: bool) -> "wr.Report":
    """The same panels with what they say, and a table of contents.

    Args:
        online: whether its runs are named by their project, which W&B is asked about.
    """
    import wandb_workspaces.reports.v2 as wr

    place = {"entity": entity, "project": project} if online else {}
    blocks: list[Any] = [wr.TableOfContents()]
    for part in parts():
        runs = wr.Runset(
            name=project,
            order=[wr.OrderBy(wr.SummaryMetric("test/loss"), ascending=True)],
            pinned_columns=COLUMNS,
            **place,
        )
        blocks += [wr.H1(part.title), wr.P(part.text), wr.PanelGrid(runsets=[runs], panels=part.panels)]
    return wr.Report(entity=entity, project=project, title=NAME, blocks=blocks, width="fluid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python sweeps/dashboard.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--push", action="store_true", help="send them to W&B")
    parser.add_argument("--entity", default="", help="the user or team that the project is of")
    parser.add_argument("--project", default="pe_lab", help="the W&B project (pe_lab)")
    parser.error = _refuse  # type: ignore[method-assign]
    try:
        given = parser.parse_args()
        if given.push and not given.entity:
            raise ValueError("--push needs --entity, the user or team that the project is of: got none")
        if given.push and not has_key():
            raise ValueError("--push needs a W&B key, got none: wandb login")
        made = [workspace(given.entity, given.project), report(given.entity, given.project, online=given.push)]
        if given.push:
            for one in made:
                print(one.save().url)
        else:
            print(
                json.dumps({name: spec(one) for name, one in zip(("workspace", "report"), made, strict=True)}, indent=1)
            )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "wandb_workspaces":
            raise
        print('error: the dashboard needs wandb-workspaces: pip install -e ".[dashboard]"', file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        sys.exit(1)


def spec(made: "ws.Workspace | wr.Report") -> dict[str, Any]:
    """A workspace or report as it is sent."""
    return json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


if __name__ == "__main__":
    main()
