"""The pages of the gallery: each made of a part of its content."""

from typing import Any

import pandas as pd

from pe_lab.benchmark import rows
from pe_lab.benchmark.leaderboard import Leaderboard
from pe_lab.benchmark.task_results import ENOUGH, TRAINED, TaskResults
from pe_lab.benchmark.tasks import NAME, STUDY
from pe_lab.benchmark.tuned.measured import Measured
from pe_lab.benchmark.tuned.tasks import NAME as TUNED
from pe_lab.benchmark.tuned.tasks import tasks as tuned_tasks
from pe_lab.gallery.advice import advice, tuned_advice
from pe_lab.gallery.content import Content
from pe_lab.gallery.formulas import mathml
from pe_lab.gallery.marks import mark, point
from pe_lab.gallery.page import Page, Section, rendered
from pe_lab.results.verdicts import MARKS

LONGER = 2.0  # the length beyond training of the benchmark's tasks, in training lengths
ASKED_MOST = {("causal_text", 4.0): "small causal language model, longer text"}  # has a row, measured or not
FACETS = {
    "family": "family",
    "enters": "where it enters",
    "mask": "defined for",
    "kernels": "fused kernels",
}


def pages(content: Content) -> list[Page]:
    """Return all pages: the overview, one per encoding, one per task, and the rows of each task that is measured."""
    made = [
        leaderboard(content),
        leaderboard(content, LONGER),
        needs(content),
        encodings(content),
        tasks(content),
        claims(content),
    ]
    made += [encoding(content, name) for name in content.definitions]
    made += [task(content, found) for found in content.results.tasks]
    return made + [task_rows(content, found) for found in content.results.measured]


def leaderboard(content: Content, length: float = TRAINED) -> Page:
    """Return the table of all encodings on all tasks at one length."""
    found = content.results.leaderboards.get(length) or Leaderboard(length, [])
    overall = found.table[found.table["name"].isin(content.names)]
    tables = {one.task.name: one.at(length) for one in found.tasks}
    lines = [
        {
            "facets": content.facets(line["name"]),
            "at": {task: _line(table, line["pe"]) for task, table in tables.items()},
        }
        | line
        for line in overall.to_dict("records")
    ]
    html = rendered(
        "leaderboard.html",
        **_common(content, ""),
        lines=lines,
        length=length,
        measured=found.tasks,
        common=found.common,
        average=_average([one.task.name for one in found.common]),
        all_tasks=content.results.tasks,
        missing=sorted(content.names - set(overall["name"])),
        cells=sum(len(one.cells) for one in found.tasks),
        choices=_choices(content),
        caution=any(one.seeds_added for one in found.tasks),
    )
    if length == TRAINED:
        old = "Superseded: pe-bench 1" if content.tuned else ""
        return Page("index", "Leaderboard", [*_tuned_leaderboard(content), Section(old, html)], wide=True)
    return Page("longer", f"Leaderboard at {content.of_length(length)}", [Section("", html)], wide=True)


def _tuned_leaderboard(content: Content) -> list[Section]:
    """Return the table of pe-bench 2: a line per encoding, and the measured tasks; none without any."""
    if not content.tuned:
        return []
    tables = {name: found.table.set_index("pe", drop=False) for name, found in content.tuned.items()}
    shades = {name: found.quality() for name, found in content.tuned.items()}
    names = list(dict.fromkeys(pe for table in tables.values() for pe in table.index if pe in content.names))
    # the order of one task is that of its table; of several, by the mean rank over the tasks that an encoding has
    places = {pe: [list(table.index).index(pe) for table in tables.values() if pe in table.index] for pe in names}
    names.sort(key=lambda pe: (-len(places[pe]), sum(places[pe]) / len(places[pe])))
    lines = [
        {"name": pe, "facets": content.facets(pe), "at": {name: _line(table, pe) for name, table in tables.items()}}
        for pe in names
    ]
    count = len(tuned_tasks())
    html = rendered(
        "tuned_leaderboard.html",
        **_common(content, ""),
        lines=lines,
        shades=shades,
        choices=_choices(content),
        count=count,
    )
    return [Section(TUNED, html)]


def _tuned_task(content: Content, name: str) -> list[Section]:
    """Return the table of pe-bench 2 on a task; none where it is not measured."""
    if name not in content.tuned:
        return []
    found = content.tuned[name]
    values = {"found": found, "lines": found.table.to_dict("records"), "shades": found.quality()}
    lengths = [column for column in found.table if column.startswith(f"{found.unit}_")]
    return [Section(TUNED, rendered("tuned_task.html", **_common(content, "../"), **values, lengths=lengths))]


def _average(names: list[str]) -> str:
    """Return what means over tasks are of, in words."""
    if len(names) < 2:
        return f"the task {names[0]}" if names else "tasks that have scores"
    return f"the {len(names)} tasks on which almost all are measured ({', '.join(names)})"


def needs(content: Content) -> Page:
    """Return which encodings to use and which to avoid for each need."""
    found = content.results
    lines = [_on_average(content, board) for board in found.leaderboards.values()]
    measured = {(one.task.name, length): one for one in found.tasks for length in one.standings}
    tasks_of = {one.task.name: one for one in found.tasks}
    wanted = [(name, length, asks) for (name, length), asks in ASKED_MOST.items() if name in tasks_of]
    wanted += [
        (name, length, tasks_of[name].task.asks) for name, length in measured if (name, length) not in ASKED_MOST
    ]
    again = {one.name: one.study for one in tuned_tasks()}
    wanted += [(name, TRAINED, one.task.asks) for name, one in tasks_of.items() if (name, TRAINED) not in measured]
    first = [_tuned_need(content, found) for found in content.tuned.values()]
    for name, length, asks in wanted:
        tuned = content.tuned.get(name)
        if tuned and (name, length) in ASKED_MOST and not tuned.task.solvable:
            first.append(_tuned_need(content, tuned.at(length)) | {"asks": asks, "length": length})
            continue
        if tuned and length == TRAINED:
            continue
        one, standing = tasks_of[name], tasks_of[name].standings.get(length)
        line = {
            "name": name,
            "asks": asks,
            "length": length,
            "link": f"tasks/{name}.html",
            "seeds": None,
            "cheapest": "",
            "benchmark": NAME if standing is not None or name not in again else TUNED,
            "study": again.get(name, f"{STUDY}_{name}"),
        }
        if standing is not None:
            table = one.at(length)
            seeds = table.loc[list(standing.means), "seeds"]
            line |= {"seeds": (int(seeds.min()), int(seeds.max())), "rows": f"rows/{name}.html"}
        said = advice(standing, one.at(length) if standing is not None else pd.DataFrame())
        cheapest = found.cheapest(said.use, one) if said.use else ""
        lines.append(line | {"advice": said, "cheapest": cheapest, "count": len(standing.means) if standing else 0})
    average = _average([one.task.name for one in found.common])
    html = rendered("needs.html", **_common(content, ""), lines=first + lines, average=average)
    return Page("needs", "Which encoding for which need", [Section("", html)], wide=True)


def encodings(content: Content) -> Page:
    """Return the list of all encodings."""
    overall = content.results.overall
    usual = overall[(overall["pe"] == overall["name"]) | ~overall["name"].duplicated(keep=False)]
    scores = usual.set_index("name")["score"].to_dict()
    lines = [
        {
            "name": name,
            "said": said,
            "made": content.portraits[name],
            "facets": content.facets(name),
            "parameters": _property(content, name, "parameters"),
            "score": scores.get(name),
            "measured": name in set(overall["name"]),
        }
        for name, said in content.definitions.items()
    ]
    average = _average([one.task.name for one in content.results.common])
    html = rendered("encodings.html", **_common(content, ""), lines=lines, choices=_choices(content), average=average)
    return Page("encodings", "Encodings", [Section("", html)], wide=True)


def tasks(content: Content) -> Page:
    """Return the list of all tasks."""
    html = rendered("tasks.html", **_common(content, ""), tasks=content.results.tasks)
    return Page("tasks", "Tasks", [Section("", html)], wide=True)


def claims(content: Content) -> Page:
    """Return the claims of the literature with their verdicts."""
    about = {name: [pe for pe, said in content.definitions.items() if name in said.claims] for name in content.claims}
    html = rendered("claims.html", **_common(content, ""), claims=content.claims, about=about)
    return Page("claims", "Claims and their verdicts", [Section("", html)], wide=True)


def encoding(content: Content, name: str) -> Page:
    """Return the page of an encoding."""
    said, made = content.definitions[name], content.portraits[name]
    values: dict[str, Any] = _common(content, "../") | {"name": name, "said": said, "made": made}
    on_tasks = [(found, lines.to_dict("records")) for found, lines in content.on_tasks(name)]
    parts: dict[str, dict[str, Any]] = {
        "Definition": {"formulas": [mathml(one) for one in said.formula], "facets": content.facets(name)},
        "Score against distance": {},
        "Picture": {},
        "Results": {"on_tasks": on_tasks, "undefined": content.undefined(name), "on_tuned": _on_tuned(content, name)},
        "Properties": {"properties": content.properties(name), "audited": name in content.audit.index},
        "Known failures": {},
        "Claims": {"claims": {one: content.claims[one] for one in said.claims}},
        "Equal to": {},
        "Code": {},
    }
    sections = [
        Section(title, rendered(f"encoding/{_file(title)}.html", **values, **more), made.code * (title == "Code"))
        for title, more in parts.items()
    ]
    return Page(f"encodings/{name}", f"{said.title} ({name})", sections)


def _on_tuned(content: Content, name: str) -> list[tuple[Measured, dict[str, Any]]]:
    """Return the lines of an encoding in the tables of pe-bench 2, with their tasks."""
    tables = [(found, found.table.set_index("pe", drop=False)) for found in content.tuned.values()]
    return [(found, table.loc[name].to_dict()) for found, table in tables if name in table.index]


def task(content: Content, found: TaskResults) -> Page:
    """Return the page of a task."""
    html = rendered(
        "task.html",
        **_common(content, "../"),
        found=found,
        tables={length: found.at(length).to_dict("records") for length in found.lengths},
        choices=_choices(content),
        facets=content.facets,
    )
    tuned = _tuned_task(content, found.task.name)
    sections = [*tuned, Section("Superseded: pe-bench 1" if tuned else "", html)]
    return Page(f"tasks/{found.task.name}", f"Task: {found.task.name}", sections, wide=True)


def task_rows(content: Content, found: TaskResults) -> Page:
    """Return the rows of a task: every number of the gallery links to one of them."""
    lines = rows.table(found).to_dict("records")
    first: set[str] = set()
    for line in lines:
        group = rows.anchor(line["pe"], line["length"])
        line["group"] = "" if group in first else group
        first.add(group)
    html = rendered("rows.html", **_common(content, "../"), found=found, lines=lines)
    path = f"rows/{found.task.name}"
    return Page(path, f"Rows: {found.task.name}", [Section("", html)], searched=False, wide=True)


def _common(content: Content, root: str) -> dict[str, Any]:
    """Return what every template may need.

    Args:
        root: the way from the page to the gallery's folder.
    """
    return {
        "content": content,
        "root": root,
        "docs": f"{root}../" if content.documented else "",
        "anchor": rows.anchor,
        "marks": MARKS,
        "enough": ENOUGH,
        "benchmark": NAME,
        "tuned": TUNED,
        "mark": mark,
        "point": point,
        "trained": TRAINED,
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


def _line(table: pd.DataFrame, pe: str) -> dict[str, Any] | None:
    return table.loc[pe].to_dict() if pe in table.index else None


def _on_average(content: Content, board: Leaderboard) -> dict[str, Any]:
    """Return the need of all tasks at one length."""
    table = board.table.set_index("pe")
    said = advice(board.standing, table)
    names = [] if board.standing is None else list(board.standing.means)
    seeds = table.loc[names, "seeds"]
    return {
        "name": "all",
        "asks": "all tasks",
        "benchmark": NAME,
        "length": board.length,
        "link": "index.html" if board.length == TRAINED else "longer.html" if board.length == LONGER else "",
        "rows": "index.html" if board.length == TRAINED else "longer.html",
        "seeds": (int(seeds.min()), int(seeds.max())) if names else None,
        "advice": said,
        "cheapest": content.results.cheapest(said.use) if said.use else "",
        "count": len(names),
    }


def _tuned_need(content: Content, found: Measured) -> dict[str, Any]:
    """Return the need of a task of pe-bench 2."""
    said, seeds = tuned_advice(found), found.rows.groupby("pe")["seed"].nunique()
    costs = found.rows.drop_duplicates("pe").set_index("pe").loc[said.use, ["flops_per_token", "positional_parameters"]]
    return {
        "name": found.task.name,
        "asks": found.task.asks,
        "benchmark": TUNED,
        "length": TRAINED,
        "link": f"tasks/{found.task.name}.html",
        "rows": f"rows/{found.task.study}.csv",
        "seeds": (int(seeds.min()), int(seeds.max())),
        "advice": said,
        "cheapest": str(costs.sort_values(list(costs), kind="stable").index[0]) if said.use else "",
        "count": len(found.table),
    }


def _property(content: Content, name: str, column: str) -> Any:
    return next((value for known, value, _ in content.properties(name) if known == column), None)


def _file(title: str) -> str:
    return title.lower().replace(" ", "_")
