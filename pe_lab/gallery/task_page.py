"""The page of a task."""

from typing import Any

import numpy as np
from markupsafe import Markup

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import margin_in_words
from pe_lab.benchmark.tasks import BenchmarkTask
from pe_lab.gallery.extrapolation import NOT_ASKED, SAME_POSITIONS, mean_whole, value_at_lengths
from pe_lab.gallery.gallery_data import LONGER_TEXT, GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, fixed, number, rendered
from pe_lab.gallery.length_figure import length_figure
from pe_lab.gallery.markers import beyond, interval_axis, interval_strip
from pe_lab.gallery.need_recommendations import group_twins
from pe_lab.gallery.samples import blind_accuracy, load_data
from pe_lab.gallery.shared_values import (
    beyond_training,
    decimal_places,
    facet_choices,
    shared_values,
    text_studies,
)


def task_page(content: GalleryData, task: BenchmarkTask) -> Page:
    """Return the page of a task."""
    results, data = content.results.get(task.name), load_data(task)
    values: dict[str, Any] = {"task": task, "results": results, "data": data, "margin": margin_in_words(task)}
    values |= {"blind": blind_accuracy(task.name, content.cache) if task.solvable else {}}
    values |= {"text_studies": text_studies(content) if task.name == LONGER_TEXT[0] else []}
    if results is not None:
        lines = results.table.to_dict("records")
        values |= {"lines": lines, "shades": results.quality(), "places": decimal_places(task)}
        tables = {1.0: results.table} | {length: each.table for length, each in results.longer.items()}
        values |= {"at": {length: table.set_index("pe").to_dict("index") for length, table in tables.items()}}
        values |= {"by_length": value_at_lengths(results), "whole": mean_whole(results)}
        values |= {"choices": facet_choices(content), "best": group_twins(results, results.best)}
        values |= beyond_training(results)
        values |= {"note": NOT_ASKED * (task.cfg.data.name in SAME_POSITIONS), "figure": length_figure(results)}
        values |= dict(zip(("strips", "axis"), _strips(results), strict=True))
    html = rendered("task.html", **shared_values(content, "../"), **values)
    return Page(f"tasks/{task.name}", f"Task: {task.name}", [PageSection("", html)], wide=True)


def _strips(results: TaskResults) -> tuple[dict[str, Markup], Markup]:
    """Return the interval of each encoding that solves the task, and their axis.

    The axis of steps is logarithmic and ends at the cap. That of losses leaves `none` out where it lies beyond all
    others, which could not be told apart otherwise.
    """
    table = results.table.set_index("pe")[["low", "mean", "high"]].astype(float)
    steps = results.task.cfg.steps
    if results.task.solvable:
        table = table[results.table["solved"].to_numpy() > 0]
    others = table.drop("none", errors="ignore")
    far = not results.task.solvable and "none" in table.index and table.loc["none", "low"] > others["high"].max()
    inside = others if far else table
    ends = np.array([inside["low"].min(), steps if results.task.solvable else inside["high"].max()])
    scale = np.log if results.task.solvable else np.asarray
    first, last = scale(ends)
    places = (scale(table.to_numpy()) - first) / (last - first)
    strips = {str(pe): interval_strip(str(pe), *place) for pe, place in zip(table.index, places, strict=True)}
    if far:
        strips["none"] = beyond("none", fixed(table.loc["none", "mean"], 3))
    return strips, interval_axis(*(number(end) if results.task.solvable else fixed(end, 3) for end in ends))
