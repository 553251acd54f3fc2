"""The W&B workspace and report of a study, as code: python sweeps/dashboard.py [--push --entity E] [WORD ...].

The words are those of the sweep, by default +study=depth_epochs_pe: its runs are shown, apart by what varies in it.
Prints both as JSON, as they would be sent; with --push, sends them: a new view and a new report. Needs the package
wandb-workspaces: pip install -e ".[dashboard]".
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pe_lab import config
from pe_lab.system.arguments import Parser
from pe_lab.tracking.wandb_config import FLAT, flat, in_words
from pe_lab.tracking.wandb_mode import has_key

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from omegaconf import DictConfig
    from wandb_workspaces import expr

NAME = "Positional encodings"
RUNS = 10_000  # that a panel shows: as many as W&B advises for a project, so that none is cut; left alone it shows 10
# columns of the table of runs, in order: what tells cells apart, then what they came to
SETTINGS = (*FLAT, "seed", "attention_resolved")
CAME_TO = ("test/loss", "test/way_to_bayes", "validation/loss.min", "floor/bayes/loss", "floor/position_blind/loss",
           "cost/parameters", "cost/positional_parameters", "cost/flops_per_token", "cost/seconds")  # fmt: skip
COLUMNS = [f"config:{name}.value" for name in SETTINGS] + [f"summary:{name}" for name in CAME_TO]
DEFAULT = "+study=depth_epochs_pe"


class Study:
    """The runs to show, and what they are compared within.

    Args:
        cells: their composed configs.
    """

    def __init__(self, cells: Sequence["DictConfig"]) -> None:
        from omegaconf import OmegaConf

        self.name: str | None = cells[0].study_name
        self.settings = [OmegaConf.to_container(cell, resolve=True) for cell in cells]

    @cached_property
    def facets(self) -> list[dict[str, Any]]:
        """The settings that vary in the study beside encoding and seed, as they occur together."""
        cells = [flat(settings) for settings in self.settings]
        varying = [name for name in FLAT if name != "encoding" and len({cell[name] for cell in cells}) > 1]
        found = {tuple(cell[name] for name in varying) for cell in cells}
        return [dict(zip(varying, values, strict=True)) for values in sorted(found)]

    @cached_property
    def averaged(self) -> list[str]:
        """The settings over which panels average: those in which cells of one condition differ."""
        conditions: dict[str, list[dict[str, Any]]] = {}
        for settings in self.settings:
            conditions.setdefault(flat(settings)["condition"], []).append(config.flatten(settings))
        names = set().union(*(cell for cells in conditions.values() for cell in cells))
        differ = {name for name in names for cells in conditions.values() if len({c.get(name) for c in cells}) > 1}
        return sorted(differ | {"seed"})

    def filters(self, facet: Mapping[str, Any]) -> "expr.And | str":
        """The study's runs, or those of a facet."""
        from wandb_workspaces import expr

        group = [expr.Metric("Group") == self.name] if self.name else []
        where = [expr.Config(f"{name}.value") == value for name, value in facet.items()]
        return expr.And(*group, *where) if group or where else ""


@dataclass(frozen=True)
class Part:
    """A section of the workspace, and of the report.

    Attributes:
        apart: whether its panels average over runs, so that the report has them once for each facet.
    """

    title: str
    text: str
    panels: list[Any]
    apart: bool = True


def parts(by: str, varying: Sequence[str]) -> list[Part]:
    """What is shown; each call makes new panels, since a panel belongs to one place.

    Args:
        by: the flat name of the setting whose runs are averaged.
        varying: flat names of what varies in the study.
    """
    import wandb_workspaces.reports.v2 as wr

    means = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}

    def curve(title: str, x: str, *y: str, **more: Any) -> wr.LinePlot:
        return wr.LinePlot(title=title, x=x, y=list(y), max_runs_to_show=RUNS, **more)

    def bars(title: str, metric: str) -> wr.BarPlot:
        return wr.BarPlot(title=title, metrics=[metric], max_bars_to_show=RUNS, max_runs_to_show=RUNS, **means)

    def points(title: str, x: str, **more: Any) -> wr.ScatterPlot:
        return wr.ScatterPlot(title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric("test/loss"), **more)

    grid = [wr.ParallelCoordinatesPlotColumn(wr.Config(name)) for name in ("encoding", *varying)]
    grid += [wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(name)) for name in ("test/loss", "cost/seconds")]
    return [
        Part(
            "All runs",
            "Each run by itself, from its settings to its test loss in nats.",
            [wr.ParallelCoordinatesPlot(columns=grid, title="Settings to test loss")],
            apart=False,
        ),
        Part(
            "Test loss and floors",
            "In nats. Below the position-blind floor a model uses order, or knows what is held out; the Bayes floor is "
            "the best possible. On the way from one to the other, 0 is the first and 1 the second. Paired differences "
            "with intervals are in the ledger's tables.",
            [
                bars("Test loss", "test/loss"),
                bars("Way from the position-blind floor to the Bayes floor", "test/way_to_bayes"),
                curve(
                    "Validation loss and floors",
                    "epoch",
                    *("validation/loss", "floor/position_blind/loss", "floor/bayes/loss"),
                    **means,
                ),
            ],
        ),
        Part(
            "Learning curves",
            "Means with their standard errors.",
            [
                curve("Validation loss", "epoch", "validation/loss", log_x=True, **means),
                curve("Training loss", "step", "train/loss", log_x=True, **means),
                curve("Validation accuracy", "epoch", "validation/accuracy", **means),
                curve("Gradient norm", "step", "train/gradient_norm", log_y=True, **means),
            ],
        ),
        Part(
            "Lengths",
            "On sequences longer than those of training; other policies and offsets have curves of their own.",
            [
                curve("Loss over length", "length/tokens", "length/raw/loss", log_x=True, **means),
                curve("Accuracy over length", "length/tokens", "length/raw/accuracy", log_x=True, **means),
                curve("Loss, all policies", "length/tokens", metric_regex="length/[^/]+/loss", log_x=True, **means),
            ],
        ),
        Part(
            "Probes",
            "Per layer: how well position is read off, how far and how widely heads look, effective rank.",
            [
                curve("Position read off (R²)", "probe/layer", "probe/position/r2", **means),
                curve(
                    "Distance of attention, per head",
                    "probe/layer",
                    metric_regex="probe/attention/distance/head.*",
                    **means,
                ),
                curve(
                    "Entropy of attention, per head",
                    "probe/layer",
                    metric_regex="probe/attention/entropy_normalised/head.*",
                    **means,
                ),
                curve("Effective rank", "probe/layer", "probe/rank/effective_rank", **means),
            ],
        ),
        Part(
            "Cost against quality",
            "What a lower loss costs each run: parameters, arithmetic, time in training steps.",
            [
                points("Test loss and parameters", "cost/parameters", log_x=True),
                points("Test loss and positional parameters", "cost/positional_parameters"),
                points("Test loss and FLOPs per token", "cost/flops_per_token", log_x=True),
                points("Test loss and seconds", "cost/seconds", log_x=True),
            ],
            apart=False,
        ),
        Part(
            "Pictures and tables",
            "The encoding before training; attention after it, a row per layer and a column per head; other lengths.",
            [
                wr.MediaBrowser(title="Encodings", media_keys=["picture/encoding"], num_columns=2),
                wr.MediaBrowser(title="Attention", media_keys=["picture/attention"], num_columns=4),
                wr.WeavePanelSummaryTable(table_name="lengths"),
            ],
            apart=False,
        ),
    ]


def workspace(study: Study, entity: str, project: str) -> "ws.Workspace":
    """A view of a study's runs: a section per part, and the table of runs beside it.

    A view has one set of runs, so panels group by the condition: no mean is over depths, epochs or what else varies.
    """
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    sections = [
        ws.Section(name=part.title, panels=part.panels, is_open=True) for part in parts("condition", [*study.facets[0]])
    ]
    return ws.Workspace(
        name=title(study),
        entity=entity,
        project=project,
        auto_generate_panels=False,
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=RUNS, ignore_outliers=False),
        runset_settings=ws.RunsetSettings(
            filters=study.filters({}),
            pinned_columns=["run:displayName", *COLUMNS],
            order=[expr.Ordering(expr.Summary("test/loss"), ascending=True)],
        ),
    )


def report(study: Study, entity: str, project: str, online: bool) -> "wr.Report":
    """The same panels with what they say, and a table of contents; means over runs once for each facet of the study.

    Args:
        online: whether its runs are named by their project, which W&B is asked about.
    """
    import wandb_workspaces.reports.v2 as wr

    place = {"entity": entity, "project": project} if online else {}
    varying = [*study.facets[0]]

    def grid(facet: Mapping[str, Any], panels: list[Any]) -> wr.PanelGrid:
        runs = wr.Runset(
            name=in_words(facet) or study.name or project,
            filters=study.filters(facet),
            order=[wr.OrderBy(wr.SummaryMetric("test/loss"), ascending=True)],
            pinned_columns=COLUMNS,
            **place,
        )
        return wr.PanelGrid(runsets=[runs], panels=panels)

    blocks: list[Any] = [
        wr.TableOfContents(),
        wr.P(f"Means are over {', '.join(study.averaged)}, each within one setting of all else."),
    ]
    for number, part in enumerate(parts("encoding", varying)):
        blocks += [wr.H1(part.title), wr.P(part.text)]
        if not part.apart:
            blocks.append(grid({}, part.panels))
            continue
        for facet in study.facets:
            heading = [wr.H2(in_words(facet))] if facet else []
            blocks += [*heading, grid(facet, parts("encoding", varying)[number].panels)]
    return wr.Report(entity=entity, project=project, title=title(study), blocks=blocks, width="fluid")


def title(study: Study) -> str:
    return f"{NAME}: {study.name}" if study.name else NAME


def main() -> None:
    parser = Parser(prog="python sweeps/dashboard.py", description=__doc__)
    parser.add_argument("words", metavar="WORD", nargs="*", default=[DEFAULT], help=f"of the sweep ({DEFAULT})")
    parser.add_argument("--push", action="store_true", help="send them to W&B")
    parser.add_argument("--entity", default="", help="the user or team that the project is of")
    parser.add_argument("--project", default="pe_lab", help="the W&B project (pe_lab)")
    try:
        given = parser.parse_intermixed_args()
        if given.push and not given.entity:
            raise ValueError("--push needs --entity, the user or team that the project is of: got none")
        if given.push and not has_key():
            raise ValueError("--push needs a W&B key, got none: wandb login")
        study = asked(given.words)
        place = {"entity": given.entity, "project": given.project}
        made = [workspace(study, **place), report(study, **place, online=given.push)]
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


def asked(words: list[str]) -> Study:
    """The study that the words of a sweep ask for.

    Raises:
        ValueError: they are not a sweep's, or ask for several studies.
    """
    if studies := config.studies(["-m", *words]):
        raise ValueError(f"a dashboard is of one study, got {len(studies)}: give the words of one, {studies[0]}")
    return Study(config.expand(config.of_jobs(config.as_lists(words)), multirun=True))


def spec(made: "ws.Workspace | wr.Report") -> dict[str, Any]:
    """A workspace or report as it is sent."""
    return json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


if __name__ == "__main__":
    main()
