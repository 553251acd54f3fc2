"""The pages of the gallery: each made of a part of its content."""

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from pe_lab.benchmark.measured import TaskResults
from pe_lab.benchmark.tasks import NAME, BenchmarkTask
from pe_lab.benchmark.tasks import tasks as tasks_of_benchmark
from pe_lab.benchmark.verdicts import decided, margin_in_words
from pe_lab.gallery.advice import NOT_MEASURED, Advice, advice
from pe_lab.gallery.claims import bound, interval, measure, shared_notes, states, subject, tasks_of
from pe_lab.gallery.content import STEP, Content
from pe_lab.gallery.definitions import definitions
from pe_lab.gallery.formulas import mathml
from pe_lab.gallery.marks import mark, strip
from pe_lab.gallery.page import Page, PageSection, rendered
from pe_lab.gallery.samples import data_of, sentence
from pe_lab.results.styles import COMMON
from pe_lab.results.tuned_outcomes import MOST_AT_EDGE
from pe_lab.statistics import FEWEST_SEEDS

LONGER_TEXT = ("causal_text", 4.0, "small causal language model, longer text")  # a need of its own: task and length
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
    name, length, asks = LONGER_TEXT
    measured = content.results.get(name)
    longer = measured.at(length) if measured else None
    lines = [
        _need(content, one, longer) | {"asks": asks, "length": length}
        for one in tasks_of_benchmark()
        if one.name == name
    ]
    lines += [_need(content, one, content.results.get(one.name)) for one in tasks_of_benchmark()]
    lines.sort(key=lambda line: line["advice"].kind == NOT_MEASURED)
    html = rendered("needs.html", **_common(content, ""), lines=lines)
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
    said["shared"] = shared_notes(claim.entry for claim in content.claims.values())
    html = rendered("claims.html", **_common(content, ""), claims=content.claims, about=about, **said)
    return Page("claims", "Claims and their verdicts", [PageSection("", html)], wide=True)


def encoding(content: Content, name: str) -> Page:
    """Return the page of an encoding."""
    said, made = content.definitions[name], content.portraits[name]
    values: dict[str, Any] = _common(content, "../") | {"name": name, "said": said, "made": made}
    on_tasks = content.on_tasks(name)
    parts: dict[str, dict[str, Any]] = {
        "Definition": {"formulas": [mathml(one) for one in said.formula], "what": sentence("pe", name)},
        "Results": {"on_tasks": on_tasks, "tasks": tasks_of_benchmark()}
        | {"measured": {found.task.name for found, _ in on_tasks}},
        "Score against distance": {},
        "Picture": {},
        "Properties": {"properties": content.properties(name), "audited": name in content.audit.index},
        "Known failures": {"failing": content.failures(name)},
        "Claims": {"claims": {one: content.claims[one] for one in said.claims}},
        "Equal to": {"equal_runs": content.equal_runs(name)},
        "Code": {},
    }
    sections = [
        PageSection(title, rendered(f"encoding/{_file(title)}.html", **values, **more), made.code * (title == "Code"))
        for title, more in parts.items()
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


def _need(content: Content, one: BenchmarkTask, found: TaskResults | None) -> dict[str, Any]:
    """Return what to do on a task of the benchmark."""
    line: dict[str, Any] = {"name": one.name, "asks": one.asks, "study": one.study, "length": 1.0}
    if found is None:
        return line | {"advice": Advice(NOT_MEASURED), "seeds": None, "count": 0}
    said, seeds = advice(found), found.rows.groupby("pe")["seed"].nunique()
    fewest, most = int(seeds.min()), int(seeds.max())
    at = found.table.set_index("pe", drop=False).to_dict("index")
    line |= {"advice": said, "seeds": (fewest, most), "count": len(found.table), "margin": margin_in_words(one)}
    line |= {"at": at, "unit": "steps to solve" if one.solvable else "nats", "places": None if one.solvable else 3}
    line |= {"parameters": found.rows.groupby("pe")["positional_parameters"].max().to_dict()}
    return line | {"common": [pe for pe in said.avoid if pe in COMMON[:WELL_KNOWN]]}


def _property(content: Content, name: str, column: str) -> Any:
    return next((value for known, value, _ in content.properties(name) if known == column), None)


def _file(title: str) -> str:
    return title.lower().replace(" ", "_")
