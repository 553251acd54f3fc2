"""The page of all encodings on all tasks."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.extrapolation import mean_right, mean_whole, range_over_seeds
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, rendered
from pe_lab.gallery.shared_values import (
    LONGEST,
    asks_at_longest,
    average_at_longest,
    facet_choices,
    held_at_longest,
    shared_values,
    twins,
)
from pe_lab.statistics import Verdict


def leaderboard_page(content: GalleryData) -> Page:
    """Return the table of all encodings on all tasks that are measured."""
    fullest = sorted(content.results.items(), key=lambda item: (item[1].is_control, -len(item[1].table)))
    tables = {name: results.table.set_index("pe", drop=False) for name, results in fullest}
    names = list(dict.fromkeys(pe for table in tables.values() for pe in table.index if pe in content.names))
    compared = [results for _, results in fullest if not results.is_control]
    counts = Counter(pe for results in compared for pe in results.table["pe"])
    several = [pe for pe in names if counts[pe] > min(1, len(compared) - 1)]
    groups = {max(group, key=lambda pe: counts[pe]): group for group in twins(content, several)}
    on_all = [results for results in compared if set(groups) <= set(results.table["pe"])]
    won = wins(on_all, list(groups))
    order = sorted(groups, key=lambda pe: -won[pe][0])
    # of the others, those of the fullest task stand together, in its order
    others = [pe for pe in names if pe not in several]
    asking = [each for each in compared if asks_at_longest(each)]
    lines = [
        {
            "name": pe,
            "twins": [other for other in groups.get(pe, []) if other != pe],
            "facets": content.facets(pe),
            "at": {name: _line(table, pe) for name, table in tables.items()},
            "only": {name for name, table in tables.items() if not set(groups.get(pe, [])) <= set(table.index)},
        }
        for pe in (*order, *others)
    ]
    alone = lines[len(order) :]
    html = rendered(
        "leaderboard.html",
        **shared_values(content, ""),
        **_answer(content),
        results=dict(fullest),
        lines=lines[: len(order)],
        alone=alone,
        longest=_longest_length_lines(asking, several),
        longest_alone={line["name"]: line for line in _longest_length_lines(asking, others)},
        asking=[each.task for each in asking],
        alone_on=sorted({name for line in alone for name, at in line["at"].items() if at}, key=list(tables).index),
        wins={pe: count for pe, (count, _) in won.items()},
        comparisons=max((total for _, total in won.values()), default=0),
        on_all=[results.task.name for results in on_all],
        shades={name: results.quality() for name, results in fullest},
        best={name: results.best if results.beaten else [] for name, results in fullest},
        choices=facet_choices(content),
        missing=sorted(content.names - set(names)),
        controls=[name for name, results in fullest if results.is_control],
        losses=[name for name, results in fullest if not results.task.solvable],
    )
    return Page("index", "Leaderboard", [PageSection("", html)], wide=True)


def wins(results: list[TaskResults], names: list[str]) -> dict[str, tuple[int, int]]:
    """Return how many of its comparisons with other encodings each of some wins, and how many it has, on all tasks.

    It wins one in which it is `better`.
    """
    counts = dict.fromkeys(names, (0, 0))
    for pairs in (each.pairs for each in results):
        for pair in pairs[pairs["pe"].isin(names) & pairs["baseline"].isin(names)].itertuples():
            for pe, word in ((str(pair.pe), Verdict.BETTER), (str(pair.baseline), Verdict.WORSE)):
                won, total = counts[pe]
                counts[pe] = won + (pair.verdict == word), total + 1
    return counts


def _answer(content: GalleryData) -> dict[str, Any]:
    """Return which encodings are among the best on the most tasks, and which hold on the most at LONGEST."""
    compared = [each for each in content.results.values() if not each.is_control and each.best and each.beaten]
    counts = Counter(pe for results in compared for pe in results.best)
    best_on = max(counts.values(), default=0)
    most_best = sorted(pe for pe, count in counts.items() if count == best_on)
    measured_on = {pe: sum(pe in set(results.table["pe"]) for results in compared) for pe in most_best}
    held = {each.task.name: held_at_longest(each) for each in compared if asks_at_longest(each)}
    holds = {pe: [task for task, names in held.items() if pe in names] for names in held.values() for pe in names}
    most_held = max(map(len, holds.values()), default=0)
    return {
        "most_best": twins(content, most_best),
        "best_on": best_on,
        "fewer": {pe: count for pe, count in measured_on.items() if count < len(compared)},
        "compared": len(compared),
        "held": held,
        "most_held": most_held,
        "holders": {pe: tasks for pe, tasks in holds.items() if len(tasks) == most_held},
    }


def _longest_length_lines(results: list[TaskResults], names: list[str]) -> list[dict[str, Any]]:
    """Return a line for each encoding with what it gets right, or its loss, at LONGEST.

    Those in `encodings_that_hold` on most tasks come first, of these the highest mean of what is right.
    """
    values = {
        each.task.name: mean_right(each)[LONGEST]
        if each.task.solvable
        else each.longer[LONGEST].table.set_index("pe")["mean"].to_dict()
        for each in results
    }
    shades = {
        each.task.name: values[each.task.name] if each.task.solvable else each.longer[LONGEST].quality()
        for each in results
    }
    whole = {each.task.name: mean_whole(each).get(LONGEST, {}) for each in results}
    lines = []
    for name in names:
        shares = [values[each.task.name].get(name, 0.0) for each in results if each.task.solvable]
        lines.append(
            {
                "name": name,
                "values": {task: each[name] for task, each in values.items() if name in each},
                "shades": {task: each[name] for task, each in shades.items() if name in each},
                "whole": {task: each[name] for task, each in whole.items() if name in each},
                "ranges": {
                    each.task.name: range_over_seeds(each, name, LONGEST)
                    for each in results
                    if each.task.solvable and name in values[each.task.name]
                },
                "average": [each.task.name for each in results if name in average_at_longest(each)],
                "held": [each.task.name for each in results if name in held_at_longest(each)],
                "mean": float(np.mean(shares)) if shares else 0.0,
            }
        )
    return sorted((line for line in lines if line["values"]), key=lambda line: (-len(line["held"]), -line["mean"]))


def _line(table: pd.DataFrame, pe: str) -> dict[str, Any] | None:
    return table.loc[pe].to_dict() if pe in table.index else None
