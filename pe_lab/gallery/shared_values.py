"""What the templates of all pages may need."""

from typing import Any

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import margin_in_words
from pe_lab.benchmark.tasks import NAME, BenchmarkTask, benchmark_tasks
from pe_lab.gallery.extrapolation import (
    MIN_HELD,
    NO_NEW_POSITION,
    NOT_ASKED,
    SAME_POSITIONS,
    encodings_that_hold,
    highest_where_none_holds,
    holding_on_average,
    keeps_positions,
    mean_whole,
    seed_range,
)
from pe_lab.gallery.gallery_data import LONGER_TEXT, SHORT_STEP, STEP, TEXT_STUDIES, GalleryData
from pe_lab.gallery.markers import mark
from pe_lab.results.tuned_outcomes import MAX_AT_EDGE

LONGEST = 4.0  # test length of which pages say what holds, in training lengths
FACETS = {
    "family": "family",
    "enters": "where it enters",
    "mask": "defined for",
    "kernels": "fused kernels",
}


def shared_values(content: GalleryData, root: str) -> dict[str, Any]:
    """Return what every template may need.

    Args:
        root: the way from the page to the gallery's folder.
    """
    return {
        "content": content,
        "root": root,
        "docs": f"{root}../" if content.documented else "",
        "batch": STEP.split(" × "),
        "short_batch": SHORT_STEP.split(" × "),
        "most_at_edge": MAX_AT_EDGE,
        "benchmark": NAME,
        "mark": mark,
        "keeps_positions": keeps_positions,
        "not_asked": NOT_ASKED,
        "no_new_position": NO_NEW_POSITION,
        "facet_names": FACETS,
        "longest_length": LONGEST,
        "min_held": MIN_HELD,
        "rates": sorted({float(rate) for task in benchmark_tasks() for rate in task.cfg.tune.rates}),
        "level": next(float(task.cfg.solve.level) for task in benchmark_tasks() if task.solvable),
        "margins": " or ".join(dict.fromkeys(map(margin_in_words, benchmark_tasks()))),
        "inline": lambda text: content.inline(text, root),
    }


def facet_choices(content: GalleryData) -> dict[str, list[str]]:
    """Return the values of each facet, in alphabetical order."""
    values: dict[str, set[str]] = {facet: set() for facet in FACETS}
    for name in content.names:
        for facet, value in content.facets(name).items():
            values[facet] |= set(value.split("|"))
    return {facet: sorted(several) for facet, several in values.items()}


def text_studies(content: GalleryData) -> list[dict[str, Any]]:
    """Return the TEXT_STUDIES with the mean losses of encodings by length and their ranges over seeds.

    The lowest at the longest length comes first.
    """
    studies = []
    for name, rows in content.text_losses.items() if LONGER_TEXT[0] in content.results else ():
        means = rows.pivot_table(index="pe", columns="length", values="loss")[[1.0, LONGER_TEXT[1]]]
        seeds = rows.groupby("pe")["seed"].nunique()
        count = " or ".join(map(str, sorted(set(seeds))))
        losses = means.sort_values(LONGER_TEXT[1]).apply(list, axis=1).to_dict()
        ends = rows.groupby(["pe", "length"])["loss"].agg(["min", "max"]).apply(list, axis=1)
        ranges = {pe: [ends[pe, length] for length in means.columns] for pe in losses}
        studies.append({"name": name, "what": TEXT_STUDIES[name], "seeds": count, "losses": losses, "ranges": ranges})
    return studies


def asks_at_longest(results: TaskResults) -> bool:
    """Return whether a task that is no control asks for new positions at LONGEST, and was measured there."""
    new = not results.is_control and results.task.cfg.data.name not in SAME_POSITIONS
    return new and LONGEST in encodings_that_hold(results)


def held_at_longest(results: TaskResults) -> dict[str, float]:
    """Return `encodings_that_hold` at LONGEST."""
    return encodings_that_hold(results)[LONGEST]


def average_at_longest(results: TaskResults) -> dict[str, float]:
    """Return `holding_on_average` at LONGEST."""
    return holding_on_average(results).get(LONGEST, {})


def not_every_seed(results: TaskResults) -> list[str]:
    """Return the encodings that did not solve a task in every seed; empty of losses."""
    table = results.table
    return list(table.loc[table["solved"] < table["runs"], "pe"]) if results.task.solvable else []


def beyond_training(results: TaskResults) -> dict[str, Any]:
    """Return what templates say of lengths beyond training."""
    held = encodings_that_hold(results) if results.task.cfg.data.name not in SAME_POSITIONS else {}
    return {
        "held": held,
        "highest_where_none_holds": highest_where_none_holds(results) if held else {},
        "average": holding_on_average(results) if held else {},
        "whole": mean_whole(results),
        "by_seed": lambda pe, length: seed_range(results, pe, length),
    }


def decimal_places(task: BenchmarkTask) -> int | None:
    """Return the number of decimal places of what is compared on a task; None: significant digits."""
    return None if task.solvable else 3


def twins(content: GalleryData, names: list[str]) -> list[list[str]]:
    """Return names in their order; encodings whose runs have the same bits on every task of both stand in one list."""
    groups: list[list[str]] = []
    for name in names:
        tasks = content.equal_runs(name)
        both = {
            other: sum({name, other} <= set(each.table["pe"]) for each in content.results.values()) for other in tasks
        }
        same = [other for other in names if other in tasks and len(tasks[other]) == both[other]]
        if not any(name in group for group in groups):
            groups.append([name, *same])
    return groups
