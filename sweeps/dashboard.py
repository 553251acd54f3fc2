"""Make the W&B workspace and report of a study: python sweeps/dashboard.py [--push --entity E] [OVERRIDE ...].

The overrides are those of the sweep, by default +study=depth_epochs_pe. Its W&B runs are shown, grouped by the settings
that vary. Prints both as JSON; with --push, sends them as a new view and a new report. Needs the package
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
from pe_lab.tracking.wandb_config import FLAT_NAMES, flat_settings, join_settings
from pe_lab.tracking.wandb_mode import has_key

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from omegaconf import DictConfig
    from wandb_workspaces import expr

NAME = "Positional encodings"
RUNS = 10_000  # W&B runs per panel: as many as W&B advises for a project; its default is 10
# columns of the table of W&B runs, in order: settings, then results
SETTINGS = (*FLAT_NAMES, "seed", "attention_resolved")
RESULTS = ("test/loss", "test/way_to_bayes", "validation/loss.min", "floor/bayes/loss", "floor/position_blind/loss")
COSTS = ("cost/parameters", "cost/positional_parameters", "cost/flops_per_token", "cost/seconds")
COLUMNS = [f"config:{name}.value" for name in SETTINGS] + [f"summary:{name}" for name in (*RESULTS, *COSTS)]
DEFAULT = "+study=depth_epochs_pe"


class Study:
    """The W&B runs to show, and the settings that they are compared within.

    Args:
        cells: the composed configs of their cells.
    """

    def __init__(self, cells: Sequence["DictConfig"]) -> None:
        from omegaconf import OmegaConf

        self.name: str | None = cells[0].study_name
        self.settings = [OmegaConf.to_container(cell, resolve=True) for cell in cells]

    @cached_property
    def facets(self) -> list[dict[str, Any]]:
        """Combinations of the settings, other than encoding and seed, that vary in the study."""
        cells = [flat_settings(settings) for settings in self.settings]
        varying = [name for name in FLAT_NAMES if name != "encoding" and len({cell.get(name) for cell in cells}) > 1]
        found = {tuple(cell[name] for name in varying) for cell in cells}
        return [dict(zip(varying, values, strict=True)) for values in sorted(found)]

    @cached_property
    def averaged(self) -> list[str]:
        """The settings that panels average over: those in which cells of one condition differ."""
        conditions: dict[str, list[dict[str, Any]]] = {}
        for settings in self.settings:
            conditions.setdefault(flat_settings(settings)["condition"], []).append(config.flatten_settings(settings))
        names = set().union(*(cell for cells in conditions.values() for cell in cells))
        differ = {name for name in names for cells in conditions.values() if len({c.get(name) for c in cells}) > 1}
        return sorted(differ | {"seed"})

    def filters(self, facet: Mapping[str, Any]) -> "expr.And | str":
        """Return the filter for the study's W&B runs, or those of a facet."""
        from wandb_workspaces import expr

        group = [expr.Metric("Group") == self.name] if self.name else []
        where = [expr.Config(f"{name}.value") == value for name, value in facet.items()]
        return expr.And(*group, *where) if group or where else ""


@dataclass(frozen=True)
class Part:
    """A section of the workspace, and of the report.

    Attributes:
        apart: whether its panels average over W&B runs; the report then has them once for each facet.
    """

    title: str
    text: str
    panels: list[Any]
    apart: bool = True


class Panels:
    """Makes panels that show the mean over runs with its standard error. A panel belongs to one place: make each anew.

    Args:
        by: the flat name of the setting whose runs are averaged.
        varying: flat names of the settings that vary in the study.
    """

    def __init__(self, by: str, varying: Sequence[str]) -> None:
        import wandb_workspaces.reports.v2 as wr

        self.wr, self.varying = wr, varying
        self.means = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}

    def curve(self, title: str, x: str, *y: str, **more: Any) -> "wr.LinePlot":
        return self.wr.LinePlot(title=title, x=x, y=list(y), max_runs_to_show=RUNS, **self.means, **more)

    def bars(self, title: str, metric: str) -> "wr.BarPlot":
        return self.wr.BarPlot(
            title=title, metrics=[metric], max_bars_to_show=RUNS, max_runs_to_show=RUNS, **self.means
        )

    def points(self, title: str, x: str, **more: Any) -> "wr.ScatterPlot":
        x, y = self.wr.SummaryMetric(x), self.wr.SummaryMetric("test/loss")
        return self.wr.ScatterPlot(title=title, x=x, y=y, **more)

    def coordinates(self, title: str) -> "wr.ParallelCoordinatesPlot":
        column, metric = self.wr.ParallelCoordinatesPlotColumn, self.wr.SummaryMetric
        columns = [column(self.wr.Config(name)) for name in ("encoding", *self.varying)]
        columns += [column(metric(name)) for name in ("test/loss", "cost/seconds")]
        return self.wr.ParallelCoordinatesPlot(columns=columns, title=title)


def parts(by: str, varying: Sequence[str]) -> list[Part]:
    """Return all sections with new panels; for the arguments see `Panels`."""
    panels = Panels(by, varying)
    text = "Each W&B run by itself, from its settings to its test loss in nats."
    first = Part("All runs", text, [panels.coordinates("Settings to test loss")], apart=False)
    sections = (_losses, _learning, _lengths, _probes, _costs, _media)
    return [first, *(section(panels) for section in sections)]


def _losses(panels: Panels) -> Part:
    floors = ("validation/loss", "floor/position_blind/loss", "floor/bayes/loss")
    return Part(
        "Test loss and floors",
        "In nats. Below the position-blind floor a model uses order, or knows the held-out problems; the Bayes floor "
        "is the best possible. On the scale between the two, 0 is the first and 1 the second. Paired differences "
        "with intervals are in the ledger's tables.",
        [
            panels.bars("Test loss", "test/loss"),
            panels.bars("Position-blind floor (0) to Bayes floor (1)", "test/way_to_bayes"),
            panels.curve("Validation loss and floors", "epoch", *floors),
        ],
    )


def _learning(panels: Panels) -> Part:
    return Part(
        "Learning curves",
        "Means with their standard errors.",
        [
            panels.curve("Validation loss", "epoch", "validation/loss", log_x=True),
            panels.curve("Training loss", "step", "train/loss", log_x=True),
            panels.curve("Validation accuracy", "epoch", "validation/accuracy"),
            panels.curve("Gradient norm", "step", "train/gradient_norm", log_y=True),
        ],
    )


def _lengths(panels: Panels) -> Part:
    return Part(
        "Lengths",
        "On sequences longer than those of training; other policies and offsets have curves of their own.",
        [
            panels.curve("Loss over length", "length/tokens", "length/raw/loss", log_x=True),
            panels.curve("Accuracy over length", "length/tokens", "length/raw/accuracy", log_x=True),
            panels.curve("Loss, all policies", "length/tokens", metric_regex="length/[^/]+/loss", log_x=True),
        ],
    )


def _probes(panels: Panels) -> Part:
    heads = "probe/attention/{}/head.*"
    return Part(
        "Probes",
        "Per layer: how well position can be decoded, distance and entropy of attention per head, effective rank.",
        [
            panels.curve("Decoded position (R²)", "probe/layer", "probe/position/r2"),
            panels.curve("Distance of attention, per head", "probe/layer", metric_regex=heads.format("distance")),
            panels.curve(
                "Entropy of attention, per head", "probe/layer", metric_regex=heads.format("entropy_normalised")
            ),
            panels.curve("Effective rank", "probe/layer", "probe/rank/effective_rank"),
        ],
    )


def _costs(panels: Panels) -> Part:
    return Part(
        "Cost against quality",
        "Test loss of each W&B run against its parameters, arithmetic and time in training steps.",
        [
            panels.points("Test loss and parameters", "cost/parameters", log_x=True),
            panels.points("Test loss and positional parameters", "cost/positional_parameters"),
            panels.points("Test loss and FLOPs per token", "cost/flops_per_token", log_x=True),
            panels.points("Test loss and seconds", "cost/seconds", log_x=True),
        ],
        apart=False,
    )


def _media(panels: Panels) -> Part:
    return Part(
        "Pictures and tables",
        "The encoding before training; attention after it, a row per layer and a column per head; other lengths.",
        [
            panels.wr.MediaBrowser(title="Encodings", media_keys=["picture/encoding"], num_columns=2),
            panels.wr.MediaBrowser(title="Attention", media_keys=["picture/attention"], num_columns=4),
            panels.wr.WeavePanelSummaryTable(table_name="lengths"),
        ],
        apart=False,
    )


def workspace(study: Study, entity: str, project: str) -> "ws.Workspace":
    """Return a view of a study's W&B runs: a section per part, and the table of W&B runs.

    A view has one set of W&B runs, so panels group by the condition: no mean is over depths, epochs or other settings.
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
    """Return a report of the same panels with texts and a table of contents; means once for each facet of the study.

    Args:
        online: whether to name the project of the W&B runs, which asks the server.
    """
    import wandb_workspaces.reports.v2 as wr

    place = {"entity": entity, "project": project} if online else {}
    varying = [*study.facets[0]]

    def grid(facet: Mapping[str, Any], panels: list[Any]) -> wr.PanelGrid:
        runs = wr.Runset(
            name=join_settings(facet) or study.name or project,
            filters=study.filters(facet),
            order=[wr.OrderBy(wr.SummaryMetric("test/loss"), ascending=True)],
            pinned_columns=COLUMNS,
            **place,
        )
        return wr.PanelGrid(runsets=[runs], panels=panels)

    blocks: list[Any] = [
        wr.TableOfContents(),
        wr.P(f"Means are over {', '.join(study.averaged)}, each within one combination of all other settings."),
    ]
    for number, part in enumerate(parts("encoding", varying)):
        blocks += [wr.H1(part.title), wr.P(part.text)]
        if not part.apart:
            blocks.append(grid({}, part.panels))
            continue
        for facet in study.facets:
            heading = [wr.H2(join_settings(facet))] if facet else []
            blocks += [*heading, grid(facet, parts("encoding", varying)[number].panels)]
    return wr.Report(entity=entity, project=project, title=title(study), blocks=blocks, width="fluid")


def title(study: Study) -> str:
    """Return the title of a study's workspace and report."""
    return f"{NAME}: {study.name}" if study.name else NAME


def main() -> None:
    parser = Parser(prog="python sweeps/dashboard.py", description=__doc__)
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", default=[DEFAULT], help=f"of the sweep ({DEFAULT})")
    parser.add_argument("--push", action="store_true", help="send them to W&B")
    parser.add_argument("--entity", default="", help="the user or team that owns the project")
    parser.add_argument("--project", default="pe_lab", help="the W&B project (pe_lab)")
    try:
        given = parser.parse_intermixed_args()
        if given.push and not given.entity:
            raise ValueError("--push needs --entity, the user or team that owns the project, got none")
        if given.push and not has_key():
            raise ValueError("--push needs a W&B key, got none: wandb login")
        study = study_of(given.overrides)
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


def study_of(overrides: list[str]) -> Study:
    """Return the study that the overrides of a sweep name.

    Raises:
        ValueError: they are not a sweep's, or name several studies.
    """
    if studies := config.study_overrides(["-m", *overrides]):
        raise ValueError(f"a dashboard shows one study, got {len(studies)}: give the overrides of one, {studies[0]}")
    return Study(config.expand_overrides(config.sweep_overrides(config.as_lists(overrides)), multirun=True))


def spec(made: "ws.Workspace | wr.Report") -> dict[str, Any]:
    """Return a workspace or report as it is sent."""
    return json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


if __name__ == "__main__":
    main()
