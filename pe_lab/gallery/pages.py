"""The pages of the gallery: the lists, and all of them."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pe_lab.benchmark.tasks import benchmark_tasks
from pe_lab.gallery.claims_page import claims_page
from pe_lab.gallery.cost_figure import cost_figure
from pe_lab.gallery.definitions import definitions
from pe_lab.gallery.encoding_page import encoding_page, holds_on
from pe_lab.gallery.gallery_data import LONGER_TEXT, GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, rendered
from pe_lab.gallery.leaderboard_page import leaderboard_page
from pe_lab.gallery.need_recommendations import group_twins
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.shared_values import (
    asks_at_longest,
    facet_choices,
    held_at_longest,
    not_every_seed,
    shared_values,
    twins,
)
from pe_lab.gallery.task_page import task_page


def pages(content: GalleryData) -> list[Page]:
    """Return all pages: the overview, one per encoding, and one per task of the benchmark, measured or not."""
    lists = [
        leaderboard_page(content),
        needs_page(content),
        encodings_page(content),
        tasks_page(content),
        claims_page(content),
    ]
    details = [encoding_page(content, name) for name in content.definitions]
    return [*lists, *details, *(task_page(content, each) for each in benchmark_tasks())]


def encodings_page(content: GalleryData) -> Page:
    """Return the list of all encodings, those that are measured on most tasks first."""
    counts = Counter(pe for results in content.results.values() for pe in results.table["pe"])
    task, length = LONGER_TEXT
    tables = [content.results[task].longer[length].table.set_index("pe")] if task in content.results else []
    ends = {str(pe): tuple(line) for table in tables for pe, *line in table[["low", "mean", "high"]].itertuples()}
    unsolved = {task: not_every_seed(results) for task, results in content.results.items() if not results.is_control}
    lines = [
        {
            "name": name,
            "definition": definition,
            "portrait": content.portraits[name],
            "facets": content.facets(name),
            "parameters": _parameters(content, name),
            "tasks": counts[name],
            "needs": [need for need in content.needs if name in need.advice.use],
            "not_solved": [task for task, names in unsolved.items() if name in names],
            **holds_on(content, name),
            "text": ends[name][1] if name in ends else None,
        }
        for name, definition in sorted(content.definitions.items(), key=lambda item: (-counts[item[0]], item[0]))
    ]
    html = rendered(
        "encodings.html",
        **shared_values(content, ""),
        lines=lines,
        measured=sum(line["tasks"] > 0 for line in lines),
        unbeaten=_most(content, {line["name"]: len(line["needs"]) for line in lines}),
        holders=_most(content, {line["name"]: len(line["holds"]) for line in lines}),
        figure=cost_figure(content.steps, ends),
        asking=max((line["asking"] for line in lines), default=0),
        choices=facet_choices(content),
        count=len(definitions()),
    )
    return Page("encodings", "Encodings", [PageSection("", html)], wide=True)


def _most(content: GalleryData, counts: Mapping[str, int]) -> tuple[list[list[str]], int]:
    """Return the encodings with the highest count as `twins`, and the count; none if it is 0."""
    most = max(counts.values(), default=0)
    return twins(content, [name for name, count in counts.items() if count == most > 0]), most


def tasks_page(content: GalleryData) -> Page:
    """Return the list of all tasks."""
    best = {name: group_twins(results, results.best) for name, results in content.results.items()}
    asking = {name: results for name, results in content.results.items() if asks_at_longest(results)}
    held = {name: list(held_at_longest(results)) for name, results in asking.items()}
    values: dict[str, Any] = {"tasks": benchmark_tasks()}
    values |= {"best": {each.name: best.get(each.name, []) for each in benchmark_tasks()}}
    compared = [best[name] for name, results in content.results.items() if not results.is_control and results.beaten]
    firsts = Counter(pe for groups in compared if groups for pe in groups[0])
    values |= {"compared": len(compared), "most": _most(content, firsts)}
    values |= {"most_held": max(Counter(pe for names in held.values() for pe in names).values(), default=0)}
    html = rendered("tasks.html", **shared_values(content, ""), **values, held=held)
    return Page("tasks", "Tasks", [PageSection("", html)], wide=True)


def _parameters(content: GalleryData, name: str) -> int | None:
    """Return the trained parameters of position in the benchmark's models; None: it is not measured."""
    rows = [
        results.rows.loc[results.rows["pe"] == name, "positional_parameters"] for results in content.results.values()
    ]
    return max((int(each.max()) for each in rows if len(each)), default=None)
