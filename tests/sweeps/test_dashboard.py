"""The dashboard shows only metrics and settings that W&B runs have."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.configs import TINY
from pe_lab import config
from pe_lab.experiment.job import Job

pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed", exc_type=ImportError)
# raised by the package about itself
pytestmark = pytest.mark.filterwarnings("ignore:.*:pydantic.warnings.PydanticDeprecatedSince20")

FILE = Path(__file__).parents[2] / "sweeps" / "dashboard.py"
SECTIONS = ["All runs", "floors", "Learning curves", "Lengths", "Probes", "Cost", "Pictures"]
WORDS = ["study_name=question", "pe=rope,none", "epochs=1,4", "model.depth=1,4", "seed=0,1"]
FACETS = [{"depth": depth, "epochs": epochs} for depth in (1, 4) for epochs in (1, 4)]


@pytest.fixture(scope="module")
def dashboard() -> ModuleType:
    named = importlib.util.spec_from_file_location("dashboard", FILE)
    module = importlib.util.module_from_spec(named)
    sys.modules["dashboard"] = module  # where a dataclass looks for its types
    named.loader.exec_module(module)
    yield module
    del sys.modules["dashboard"]


@pytest.fixture(scope="module")
def study(dashboard):
    return dashboard.study_of(WORDS)


@pytest.fixture(scope="module")
def view(dashboard, study) -> dict[str, Any]:
    return dashboard.spec(dashboard.workspace(study, "team", "pe_lab"))["section"]


@pytest.fixture(scope="module")
def blocks(dashboard, study) -> list[dict[str, Any]]:
    return dashboard.spec(dashboard.report(study, "team", "pe_lab", online=False))["blocks"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory, offline_runs) -> dict[str, set[str]]:
    """Return the metrics, media and settings of a W&B run with lengths and probes."""
    ledger = tmp_path_factory.mktemp("logged")
    words = [*TINY, "epochs=1", "evaluate.lengths=[1,2]", "probe=[position,attention,rank]", f"ledger={ledger}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        job = Job.from_config(config.expand_overrides(words, multirun=False)[0])
        job.request()
        job.complete(wait=True)
    (inside,) = offline_runs(ledger).values()
    names = {name for record in inside["history"] for name in record["item"]}
    names |= {name.removesuffix(".path") for name in names}
    names |= {name for summary in inside["summary"] for name in config.flatten_settings(summary["update"])}
    return {"metrics": names, "settings": set(inside["run"][0]["config"]["update"])}


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, str(FILE), *words], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def shown(panel: dict[str, Any]) -> list[str]:
    """Return the metrics, patterns of metrics and settings of a panel, as "section:name"."""
    config = panel["config"]
    if panel["viewType"] == "Run History Line Plot":
        names = [*config.get("metrics", []), config["xAxis"]]
        asked = [f"metric:{name}" for name in names] + [
            f"pattern:{config[key]}" for key in ("metricRegex",) if key in config
        ]
    elif panel["viewType"] == "Bar Chart":
        asked = [f"metric:{name}" for name in config["metrics"]]
    elif panel["viewType"] == "Scatter Plot":
        asked = [config["xAxis"], config["yAxis"]]
    elif panel["viewType"] == "Parallel Coordinates Plot":
        asked = [column["accessor"] for column in config["columns"]]
    elif panel["viewType"] == "Media Browser":
        asked = [f"metric:{name}" for name in config["mediaKeys"]]
    else:
        assert panel["viewType"] == "Weave"
        asked = [f"metric:{name}" for name in re.findall(r'"val": "([^"]+)"', json.dumps(config)) if name != "runs"]
        assert "metric:lengths" in asked
        asked = ["metric:lengths"]
    return asked + ([f"config:{config['groupBy']}"] if config.get("groupBy") else [])


def check(asked: str, logged: dict[str, set[str]]) -> None:
    section, _, name = asked.partition(":")
    if section == "config":
        assert name.removesuffix(".value") in logged["settings"], asked
    elif section == "pattern":
        assert any(re.fullmatch(name, metric) for metric in logged["metrics"]), asked
    else:
        assert section in ("metric", "summary")
        assert name in logged["metrics"], asked


def filtered(runs: dict[str, Any]) -> dict[str, Any]:
    """Return the filters of a set of W&B runs, all of which must hold."""
    assert {(each["op"], each["disabled"], each.get("connector", "AND")) for each in runs["filters"]["filters"]} == {
        ("=", False, "AND")
    }
    return {f"{each['key']['section']}:{each['key']['name']}": each["value"] for each in runs["filters"]["filters"]}


def panels(view: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for section in view["panelBankConfig"]["sections"] for panel in section["panels"]]


def test_the_workspace_has_a_section_for_every_question(view):
    sections = view["panelBankConfig"]["sections"]
    assert len(sections) == len(SECTIONS)
    for section, word in zip(sections, SECTIONS, strict=True):
        assert word in section["name"]
        assert section["panels"]


@pytest.mark.long
def test_every_panel_shows_metrics_that_runs_log(view, blocks, logged):
    grids = [block["metadata"]["panelBankSectionConfig"]["panels"] for block in blocks if block["type"] == "panel-grid"]
    asked = {one for panel in [*panels(view), *(panel for grid in grids for panel in grid)] for one in shown(panel)}
    assert len(asked) > 25
    for one in asked:
        check(one, logged)
    with pytest.raises(AssertionError):
        check("metric:validation/perplexity", logged)


@pytest.mark.long
def test_the_columns_of_the_table_exist_in_runs(dashboard, view, logged):
    (runs,) = view["runSets"]
    columns = runs["runFeed"]["columnOrder"]
    assert columns == ["run:displayName", *dashboard.COLUMNS]
    for column in dashboard.COLUMNS:
        check(column, logged)
    assert [(key["key"]["name"], key["ascending"]) for key in runs["sort"]["keys"]] == [("test/loss", True)]


def test_only_runs_of_the_study_are_shown(dashboard, view, blocks):
    assert [filtered(runs) for runs in view["runSets"]] == [{"run:group": "question"}]
    for block in blocks:
        for runs in block.get("metadata", {}).get("runSets", []):
            assert filtered(runs)["run:group"] == "question"
    (runs,) = dashboard.spec(dashboard.workspace(dashboard.study_of([]), "team", "pe_lab"))["section"]["runSets"]
    assert runs["filters"]["filters"] == []  # without a study, all runs of the project


def test_no_panel_of_the_workspace_averages_over_depth_or_epochs(dashboard, view):
    """A view has one set of W&B runs: panels that average group by all settings but the seed."""
    averaging = [panel["config"] for panel in panels(view) if panel["config"].get("groupAgg")]
    assert len(averaging) > 10
    assert {grid["groupBy"] for grid in averaging} == {"condition.value"}
    lines = [panel["config"] for panel in panels(view) if panel["viewType"] in ("Run History Line Plot", "Bar Chart")]
    assert lines == averaging
    cells = [dashboard.flat_settings(settings) for settings in dashboard.study_of(WORDS).settings]
    together: dict[str, list[dict]] = {}
    for job in cells:
        together.setdefault(job["condition"], []).append(job)
    assert len(together) == 8
    for same in together.values():
        assert len(same) == 2  # its seeds
        assert same[0] == same[1]


def test_the_report_compares_encodings_within_each_depth_and_epochs(blocks):
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    averaging = [grid for grid in grids if any(panel["config"].get("groupAgg") for panel in by_panel(grid))]
    assert len(averaging) == 4 * len(FACETS)
    for number, grid in enumerate(averaging):
        (runs,) = grid["runSets"]
        facet = FACETS[number % len(FACETS)]
        assert filtered(runs) == {"run:group": "question"} | {
            f"config:{name}.value": value for name, value in facet.items()
        }
        assert {panel["config"]["groupBy"] for panel in by_panel(grid)} == {"encoding.value"}
        assert runs["name"] == f"depth {facet['depth']}, epochs {facet['epochs']}"
    headings = [block["children"][0]["text"] for block in blocks if block.get("level") == 2]
    assert headings == [grid["runSets"][0]["name"] for grid in averaging]
    for grid in grids:
        if grid not in averaging:
            assert [filtered(runs) for runs in grid["runSets"]] == [{"run:group": "question"}]


def by_panel(grid: dict[str, Any]) -> list[dict[str, Any]]:
    return grid["panelBankSectionConfig"]["panels"]


def test_no_panel_cuts_a_study(view, blocks):
    """By default a panel shows 10 W&B runs."""
    assert view["settings"]["maxRuns"] >= 10_000
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    for panel in [*panels(view), *(panel for grid in grids for panel in by_panel(grid))]:
        if panel["viewType"] in ("Run History Line Plot", "Bar Chart"):
            assert panel["config"]["limit"] >= 10_000
        if panel["viewType"] == "Bar Chart":
            assert panel["config"]["barLimit"] >= 10_000


@pytest.mark.parametrize(
    ("words", "facets", "averaged"),
    [
        (["pe=rope,none"], [{}], ["seed"]),
        (["data=bag,copy", "model.norm=pre,post"], ["task", "norm"], ["seed"]),
        (["optimizer.lr=3e-4,1e-3", "model.width=32,64"], ["width", "learning_rate"], ["seed"]),
        (["pe.theta=100,1000", "model.depth=1,2"], ["depth"], ["pe.theta", "seed"]),
    ],
)
def test_facets_are_the_settings_that_vary_and_other_differences_are_named(words, facets, averaged, dashboard):
    study = dashboard.study_of(words)
    assert study.averaged == averaged
    if facets == [{}]:
        assert study.facets == facets
    else:
        assert [list(facet) for facet in study.facets] == [facets] * (2 ** len(facets))
    made = dashboard.spec(dashboard.report(study, "team", "pe_lab", online=False))
    assert f"Means are over {', '.join(averaged)}, each" in json.dumps(made)


def test_the_report_has_the_sections_and_the_panels_of_the_workspace(view, blocks):
    sections = view["panelBankConfig"]["sections"]
    headings = [block["children"][0]["text"] for block in blocks if block.get("level") == 1]
    assert headings == [section["name"] for section in sections]
    grids = [block["metadata"]["panelBankSectionConfig"]["panels"] for block in blocks if block["type"] == "panel-grid"]
    titles = [[title(panel) for panel in grid] for grid in grids]
    for section in sections:
        assert [title(panel) for panel in section["panels"]] in titles


def title(panel: dict[str, Any]) -> str:
    return panel["config"].get("chartTitle", panel["viewType"])


def test_it_prints_both_as_json_and_needs_no_server():
    status, out, err = run("study_name=question", "--project", "mine", "epochs=1,2")
    assert status == 0, err
    made = json.loads(out)
    assert set(made) == {"workspace", "report"}
    runsets = [runset for block in made["report"]["blocks"] for runset in block.get("metadata", {}).get("runSets", [])]
    assert [runset["name"] for runset in runsets] == [
        *["question", *["epochs 1", "epochs 2"] * 4, "question", "question"],
    ]
    assert not any("project" in runset for runset in runsets)  # it would have been asked for


def test_pushed_it_is_a_view_and_a_report_of_the_project(dashboard, monkeypatch, capsys):
    from wandb_workspaces.reports.v2 import interface as reports
    from wandb_workspaces.workspaces import interface as workspaces
    from wandb_workspaces.workspaces import internal

    sent = []

    class Api:
        def projects(self, entity: str) -> list:
            return []

        def create_project(self, name: str, entity: str) -> None:
            sent.append({"project": name, "entity": entity})

    def server(api: object, query: object, given: dict) -> dict:
        if "spec" not in given:
            return {"project": {"internalId": "17"}}
        sent.append(given)
        named = {"id": "1", "name": given["name"], "displayName": given["displayName"], "description": ""}
        where = {"project": {"name": given["projectName"], "entityName": given["entityName"]}, "spec": given["spec"]}
        return {"upsertView": {"view": named | where}}

    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setattr(internal.wandb, "Api", Api)
    for module in (internal, reports):
        monkeypatch.setattr(module, "execute_graphql", server)
    monkeypatch.setattr(reports, "_get_api", Api)
    for module in (reports, workspaces):
        monkeypatch.setattr(module, "get_app_url", lambda api: "https://server")
    monkeypatch.setattr(sys, "argv", ["dashboard.py", "--push", "--entity", "team", "--project", "mine", "epochs=1,2"])
    dashboard.main()
    view, project, report = sent
    assert project == {"project": "mine", "entity": "team"}
    assert (view["type"], report["type"]) == ("project-view", "runs")
    for one in (view, report):
        assert (one["entityName"], one["projectName"], one["displayName"]) == ("team", "mine", dashboard.NAME)
    runsets = [
        block["metadata"]["runSets"] for block in json.loads(report["spec"])["blocks"] if block["type"] == "panel-grid"
    ]
    assert {runs["project"]["name"] for runs_of_project in runsets for runs in runs_of_project} == {"mine"}
    assert len([line for line in capsys.readouterr().out.splitlines() if "https://server/team/mine" in line]) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--push"], "--push needs --entity, the user or team that owns the project, got none"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["model.depth=0,1"], "model.depth must be an integer of at least 1, got 0"),
        (
            ["+study=pe_bench_2"],
            "a dashboard shows one study, got 8: give the overrides of one, ['+study=pe_bench_2_recall']",
        ),
    ],
)
def test_bad_input_gets_one_line(words, expected, dashboard, program):
    assert program(dashboard.main, *words) == (1, [], f"error: {expected}\n")


def test_pushing_without_a_key_is_refused_and_nothing_is_asked(dashboard, monkeypatch, program, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    refusal = "error: --push needs a W&B key, got none: wandb login\n"
    assert program(dashboard.main, "--push", "--entity", "team") == (1, [], refusal)


def test_without_the_package_it_says_what_to_install(dashboard, monkeypatch, program):
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb_workspaces"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    expected = 'error: the dashboard needs wandb-workspaces: pip install -e ".[dashboard]"\n'
    assert program(dashboard.main, "epochs=1") == (1, [], expected)
