"""The pages of the gallery: each made of a part of its content."""

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from pe_lab.benchmark.measured import TaskResults
from pe_lab.benchmark.replication import Replication
from pe_lab.benchmark.tasks import NAME, BenchmarkTask
from pe_lab.benchmark.tasks import task as task_named
from pe_lab.benchmark.tasks import tasks as tasks_of_benchmark
from pe_lab.benchmark.verdicts import decided, margin_in_words
from pe_lab.gallery.advice import Need
from pe_lab.gallery.claims import bound, interval, measure, ours, shared_notes, states, subject, tasks_of
from pe_lab.gallery.content import STEP, Content
from pe_lab.gallery.definitions import definitions
from pe_lab.gallery.formulas import mathml
from pe_lab.gallery.marks import mark, strip
from pe_lab.gallery.page import Page, PageSection, rendered
from pe_lab.gallery.samples import data_of, sentence
from pe_lab.replication import EntryVerdict, Finding
from pe_lab.results.styles import COMMON
from pe_lab.results.tuned_outcomes import MOST_AT_EDGE
from pe_lab.statistics import FEWEST_SEEDS

WELL_KNOWN = 8  # of the encodings in COMMON, those that a list to avoid always shows
FACETS = {
    "family": "family",
    "enters": "where it enters",
    "mask": "defined for",
    "kernels": "fused kernels",
}


def pages(content: Content) -> list[Page]:
    """Return all pages: the overview, one per encoding, and one per task of the benchmark, measured or not."""
    made = [leaderboard(content), needs(content), encodings(content), tasks(content), claims(content)]
    made += [encoding(content, name) for name in content.definitions]
    return made + [task(content, one) for one in tasks_of_benchmark()]


def leaderboard(content: Content) -> Page:
    """Return the table of all encodings on all tasks that are measured."""
    fullest = sorted(content.results.items(), key=lambda item: (item[1].is_control, -len(item[1].table)))
    tables = {name: found.table.set_index("pe", drop=False) for name, found in fullest}
    shades = {name: found.quality() for name, found in fullest}
    names = list(dict.fromkeys(pe for table in tables.values() for pe in table.index if pe in content.names))
    # lists have different lengths, so that a place counts as a share of its list
    listed = [tables[name]["mean"].astype(float) for name, found in fullest if not found.is_control]
    places = {pe: [float((means < means[pe]).mean()) for means in listed if pe in means] for pe in names}
    names.sort(key=lambda pe: (-len(places[pe]), sum(places[pe]) / max(1, len(places[pe]))))
    lines = [
        {"name": pe, "facets": content.facets(pe), "at": {name: _line(table, pe) for name, table in tables.items()}}
        for pe in names
    ]
    html = rendered(
        "leaderboard.html",
        **_common(content, ""),
        results=dict(fullest),
        lines=lines,
        shades=shades,
        choices=_choices(content),
        count=len(tasks_of_benchmark()),
        missing=sorted(content.names - set(names)),
        controls=[name for name, found in fullest if found.is_control],
    )
    return Page("index", "Leaderboard", [PageSection("", html)], wide=True)


def needs(content: Content) -> Page:
    """Return which encodings to use and which to avoid for each need."""
    html = rendered("needs.html", **_common(content, ""), lines=[_line_of(need) for need in content.needs])
    return Page("needs", "Which encoding for which need", [PageSection("", html)], wide=True)


def encodings(content: Content) -> Page:
    """Return the list of all encodings."""
    measured = [pe for found in content.results.values() for pe in found.table["pe"]]
    lines = [
        {
            "name": name,
            "said": said,
            "made": content.portraits[name],
            "facets": content.facets(name),
            "parameters": _property(content, name, "parameters"),
            "tasks": measured.count(name),
        }
        for name, said in content.definitions.items()
    ]
    html = rendered(
        "encodings.html", **_common(content, ""), lines=lines, choices=_choices(content), count=len(definitions())
    )
    return Page("encodings", "Encodings", [PageSection("", html)], wide=True)


def tasks(content: Content) -> Page:
    """Return the list of all tasks."""
    pairs = {name: decided(found.pairs) for name, found in content.results.items()}
    html = rendered("tasks.html", **_common(content, ""), tasks=tasks_of_benchmark(), pairs=pairs)
    return Page("tasks", "Tasks", [PageSection("", html)], wide=True)


def claims(content: Content) -> Page:
    """Return the claims of the literature with their verdicts."""
    about = {name: [pe for pe, said in content.definitions.items() if name in said.claims] for name in content.claims}
    said: dict[str, Any] = {
        "measure": measure,
        "bound": bound,
        "interval": interval,
        "tasks_of": tasks_of,
        "subject": subject,
        "states": states,
    }
    said |= {"ours": ours, "judged": {key: one for key, one in content.numbers.items() if one.compared}}
    said["listed"] = len(content.numbers)
    said["shared"] = shared_notes(claim.entry for claim in content.claims.values())
    html = rendered("claims.html", **_common(content, ""), claims=content.claims, about=about, **said)
    return Page("claims", "Claims and their verdicts", [PageSection("", html)], wide=True)


def encoding(content: Content, name: str) -> Page:
    """Return the page of an encoding."""
    said, made = content.definitions[name], content.portraits[name]
    values: dict[str, Any] = _common(content, "../") | {"name": name, "said": said, "made": made}
    on_tasks = content.on_tasks(name)
    needs = [need for need in content.needs if name in need.lines]
    claims, reported = {one: content.claims[one] for one in said.claims}, content.reported(name)
    judged = {key: one for key, one in reported.items() if one.compared}
    again, failing, equal = _again(content, name), content.failures(name), content.equal_runs(name)
    properties = content.properties(name)
    shown = {
        "use": [need for need in needs if name in need.advice.use],
        "avoid": [need for need in needs if name in need.advice.avoid],
        "formulas": [mathml(one) for one in said.formula],
        "what": sentence("pe", name),
    }
    results = {"on_tasks": on_tasks, "tasks": tasks_of_benchmark()}
    results |= {"measured": {found.task.name for found, _ in on_tasks}}
    replicated = {"claims": claims, "judged": judged, "again": again, "states": states, "ours": ours}
    replicated |= {"not_run": len(reported) - len(judged)}
    counted = {
        "Results": (f"on {len(on_tasks)} tasks, at 1, 2 and 4 times the training length", results),
        "Replication": (_counted([*claims.values(), *judged.values()], len(again)), replicated),
        "Known failures": (
            _number(len(said.failures) + len(failing), "published or measured here"),
            {"failing": failing},
        ),
        "Equal to": (
            _number(len(said.equals) + len(said.published) + len(equal), "with their conditions"),
            {"equal_runs": equal},
        ),
        "Properties": (
            f"{len(properties)}, measured without training",
            {"properties": properties, "audited": name in content.audit.index},
        ),
        "Picture": ("its values, similarities, scores and attention", {}),
        "Code": (f"class {made.code.partition('class ')[2].partition('(')[0].partition(':')[0]}", {}),
    }
    sections = [PageSection("", rendered("encoding/opening.html", **values, **shown))]
    sections += [
        PageSection(
            title, rendered(f"encoding/{_file(title)}.html", **values, **more), made.code * (title == "Code"), fold
        )
        for title, (fold, more) in counted.items()
    ]
    return Page(f"encodings/{name}", f"{said.title} ({name})", sections)


def task(content: Content, one: BenchmarkTask) -> Page:
    """Return the page of a task."""
    found = content.results.get(one.name)
    values: dict[str, Any] = {"task": one, "found": found, "margin": margin_in_words(one), "data": data_of(one)}
    if found is not None:
        lengths = [column for column in found.table if column.startswith(f"{found.unit}_")]
        values |= {"lines": found.table.to_dict("records"), "shades": found.quality(), "lengths": lengths}
        values |= {"choices": _choices(content)} | dict(zip(("strips", "axis"), _strips(found), strict=True))
    html = rendered("task.html", **_common(content, "../"), **values)
    return Page(f"tasks/{one.name}", f"Task: {one.name}", [PageSection("", html)], wide=True)


def _common(content: Content, root: str) -> dict[str, Any]:
    """Return what every template may need.

    Args:
        root: the way from the page to the gallery's folder.
    """
    return {
        "content": content,
        "root": root,
        "docs": f"{root}../" if content.documented else "",
        "batch": STEP.split(" × "),
        "enough": FEWEST_SEEDS,
        "most_at_edge": MOST_AT_EDGE,
        "benchmark": NAME,
        "mark": mark,
        "facet_names": FACETS,
        "inline": lambda text: content.inline(text, root),
    }


def _choices(content: Content) -> dict[str, list[str]]:
    """Return the values of each facet, in alphabetical order."""
    values: dict[str, set[str]] = {facet: set() for facet in FACETS}
    for name in content.names:
        for facet, value in content.facets(name).items():
            values[facet] |= set(value.split("|"))
    return {facet: sorted(found) for facet, found in values.items()}


def _strips(found: TaskResults) -> tuple[dict[str, Markup], tuple[float, float]]:
    """Return the interval of each encoding that solves the task, and the ends of their axis.

    The axis of steps is logarithmic and ends at the cap.
    """
    table = found.table.set_index("pe")[["low", "mean", "high"]].astype(float)
    steps = found.task.cfg.steps
    if found.task.solvable:
        table = table[found.table["solved"].to_numpy() > 0]
    ends = np.array([table["low"].min(), steps if found.task.solvable else table["high"].max()])
    scale = np.log if found.task.solvable else np.asarray
    first, last = scale(ends)
    places = (scale(table.to_numpy()) - first) / (last - first)
    return {str(pe): strip(str(pe), *place) for pe, place in zip(table.index, places, strict=True)}, tuple(ends)


def _line(table: pd.DataFrame, pe: str) -> dict[str, Any] | None:
    return table.loc[pe].to_dict() if pe in table.index else None


def _line_of(need: Need) -> dict[str, Any]:
    """Return what the page of needs shows of one; equal encodings stand together."""
    found, said = need.found, need.advice
    avoid = need.groups(said.avoid)
    common = [group for group in avoid if not set(COMMON[:WELL_KNOWN]).isdisjoint(group)]
    line: dict[str, Any] = {"need": need, "use": need.groups(said.use), "common": common}
    line |= {"others": [group for group in avoid if group not in common], "margin": margin_in_words(need.task)}
    line |= {"unit": "steps" if need.task.solvable else "nats", "places": _places(need.task)}
    return line | {"parameters": {} if found is None else found.rows.groupby("pe")["positional_parameters"].max()}


def _places(task: BenchmarkTask) -> int | None:
    """Return the number of decimal places of what is compared on a task; None: significant digits."""
    return None if task.solvable else 3


def _again(content: Content, name: str) -> list[dict[str, Any]]:
    """Return a line for each task on which an encoding was trained again with fresh seeds."""
    lines = []
    for one in content.again.means[content.again.means["pe"] == name].to_dict("records"):
        on = task_named(one["task"])
        pairs = content.again.of(on.name).pairs
        here = Replication(pairs[(pairs["pe"] == name) | (pairs["baseline"] == name)], content.again.means)
        values = {key: float(one[key]) for key in ("mean", "low", "high", "fresh")}
        cap = float(on.cfg.steps) if on.solvable else None
        if cap is not None:
            values = {key: min(2**value, cap) for key, value in values.items()}
        lines.append({"task": on, "cap": cap, "places": _places(on), "contradicted": here.contradicted} | values)
    return lines


def _property(content: Content, name: str, column: str) -> Any:
    return next((value for known, value, _ in content.properties(name) if known == column), None)


def _number(count: int, what: str) -> str:
    """Return a number of things and what they are."""
    return f"{count}, {what}" if count else "none"


def _counted(findings: list[Finding], again: int) -> str:
    """Return how many claims and numbers have which verdict, and how many tasks were trained again."""
    found = [str(one.verdict) for one in findings]
    counts = [f"{found.count(verdict)} {verdict}" for verdict in EntryVerdict if verdict in found]
    counts += [f"{again} {'tasks' if again > 1 else 'task'} with fresh seeds"] if again else []
    return ", ".join(counts) or "none"


def _file(title: str) -> str:
    return title.lower().replace(" ", "_")
