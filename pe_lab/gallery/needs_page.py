"""The page of what to use for which need."""

from typing import Any

import numpy as np

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.extrapolation import NOT_ASKED, SAME_POSITIONS, mean_right, mean_whole, value_at_lengths
from pe_lab.gallery.gallery_data import LONGER_TEXT, GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, fixed, number, percent, rendered
from pe_lab.gallery.length_figure import length_figure
from pe_lab.gallery.need_recommendations import Need, group_twins
from pe_lab.gallery.samples import load_data
from pe_lab.gallery.shared_values import (
    LONGEST,
    beyond_training,
    decimal_places,
    not_every_seed,
    shared_values,
    text_studies,
)
from pe_lab.results.learned import MIN_RIGHT
from pe_lab.results.styles import COMMON_NAMES
from pe_lab.statistics import Verdict

LEARNED = "learnable"  # the encoding that has a trained vector for each position
NOT_RELATIVE = ("none", "sinusoidal")  # references without relative position, beside LEARNED
MAX_ALWAYS_SHOWN = 8  # of the encodings in COMMON_NAMES, those that a list to avoid always shows


def needs_page(content: GalleryData) -> Page:
    """Return which encodings to use, which are behind the best and which to avoid, for each need."""
    each_task = sorted(content.results.values(), key=lambda results: results.task.name != LONGER_TEXT[0])
    html = rendered(
        "needs.html",
        **shared_values(content, ""),
        answer=_answer(content),
        vectors=_learned_vectors(content),
        summary=[_summary_line(each) for each in each_task if not each.is_control],
        lines=[_needs_line(need) for need in content.needs],
    )
    return Page("needs", "Which encoding for which need", [PageSection("", html)], wide=True)


def _answer(content: GalleryData) -> dict[str, Any] | None:
    """Return the encodings with the lowest losses on LONGER_TEXT; None where none is recommended."""
    need = next(need for need in content.needs if (need.task.name, need.length) == LONGER_TEXT)
    use = need.advice.use
    if need.results is None or not use:
        return None
    pairs = need.results.pairs
    verdicts = pairs.loc[pairs["pe"].isin(use) & pairs["baseline"].isin(use), "verdict"]
    steps = {pe: content.steps[pe] for pe in use if pe in content.steps}
    losses = [float(need.lines[pe]["mean"]) for pe in use]
    return {
        "length": need.length,
        "use": use,
        "losses": [min(losses), max(losses)],
        "alike": len(use) > 1 and not any(Verdict(word).direction for word in verdicts),
        "figure": length_figure(content.results[need.task.name]),
        "measured": len(need.lines),
        **_count_other_studies(content, use),
        "cheapest": min(steps, key=lambda pe: steps[pe]) if len(steps) == len(use) > 1 else None,
    }


def _count_other_studies(content: GalleryData, use: list[str]) -> dict[str, Any]:
    """Return in how many other studies of the text each recommended encoding has one of as many lowest mean losses.

    Returns:
        studies: of how many; of: how many encodings these have; agreeing: the number, by encoding; contradicted: the
        other studies, by encoding.
    """
    studies = [study for study in text_studies(content) if set(use) <= set(study["losses"])]
    contradicted = {
        pe: [study["what"] for study in studies if pe not in list(study["losses"])[: len(use)]] for pe in use
    }
    agreeing = {pe: len(studies) - len(contradicted[pe]) for pe in use}
    counts = sorted({len(study["losses"]) for study in studies})
    return {"studies": len(studies), "of": counts, "agreeing": agreeing, "contradicted": contradicted}


def _needs_line(need: Need) -> dict[str, Any]:
    """Return what the page of needs shows of one; equal encodings stand together."""
    well_known = set(COMMON_NAMES[:MAX_ALWAYS_SHOWN])
    lists = {}
    for name in ("behind", "unreliable", "avoid"):
        groups = need.groups(getattr(need.advice, name))
        common = [group for group in groups if not well_known.isdisjoint(group)]
        lists[name] = {"common": common, "others": [group for group in groups if group not in common]}
    parameters = {} if need.results is None else need.results.rows.groupby("pe")["positional_parameters"].max()
    line: dict[str, Any] = {"need": need, "use": need.groups(need.advice.use), "parameters": parameters} | lists
    line |= {"unit": "steps" if need.task.solvable else "nats", "places": decimal_places(need.task)}
    data = load_data(need.task)
    about = (
        f"{data.lengths[1.0]} bytes in training, {data.lengths[need.length]} in the test, {data.options.get('corpus')}"
    )
    line |= {"about": about if need.length > 1 else ""}
    line |= {"at": "at the training length" if need.length == 1 else f"at {need.length:g} × the training length"}
    if need.results is not None:
        shares, kept = mean_right(need.results), need.task.cfg.data.name in SAME_POSITIONS
        line |= {"note": NOT_ASKED * kept} | beyond_training(need.results)
        line |= {"at_training": shares[1.0]}
        line |= {"shares": lambda group, length: _shares(shares.get(float(length), {}), group)}
    return line


def _summary_line(results: TaskResults) -> dict[str, Any]:
    """Return the line of a task in the summary of the page of needs: what to use at each length, and what not to."""
    solvable, table, data = results.task.solvable, results.table.set_index("pe"), load_data(results.task)
    last = max(map(float, results.scores["length"].unique()))
    failed = [pe for pe in not_every_seed(results) if pe != "none"]
    failing = {pe: table.loc[pe, ["solved", "runs"]].astype(int).tolist() for pe in failed}
    common = [pe for pe in COMMON_NAMES if pe in failing]
    order = [*common, *(pe for pe in failing if pe not in common)]
    longer = beyond_training(results)
    held = longer["held"]
    shown = [last] if held.get(last) or not any(held.values()) else sorted(held)  # shorter ones where none holds there
    return {
        "task": results.task,
        "lengths": data.lengths,
        "use": [
            (group, number(table.loc[group[0], "mean"]) if solvable else fixed(table.loc[group[0], "mean"], 3))
            for group in group_twins(results, results.best)
        ],
        **longer,
        "held": {length: held[length] for length in shown if length in held},
        "same": results.task.cfg.data.name in SAME_POSITIONS,
        "failing": [(group, failing[group[0]], table.loc[group[0]]) for group in group_twins(results, order)],
        "some_fail": {pe: runs for pe, runs in failing.items() if runs[0]},
        "worse": [] if solvable else _no_better_than_none(results, last),
        "last": last,
        "separable": bool(results.best and results.beaten),
    }


def _no_better_than_none(results: TaskResults, length: float) -> list[str]:
    """Return the encodings with at least the loss at a length that a model without an encoding has."""
    losses = value_at_lengths(results)[length]
    worse = [pe for pe, loss in losses.items() if pe != "none" and loss >= losses.get("none", np.inf)]
    return sorted(worse, key=lambda pe: COMMON_NAMES.index(pe) if pe in COMMON_NAMES else len(COMMON_NAMES))


def _learned_vectors(content: GalleryData) -> dict[str, Any] | None:
    """Return what is right with LEARNED at LONGEST on tasks that ask for new positions.

    Returns:
        right: the lowest and the highest share of answers of a task, of LEARNED and of NOT_RELATIVE; whole: the highest
        of whole sequences with LEARNED. None where that is not measured, or at least MIN_RIGHT.
    """
    new = [each for each in content.results.values() if each.task.cfg.data.name not in SAME_POSITIONS]
    whole = {each.task.name: mean_whole(each).get(LONGEST, {}).get(LEARNED) for each in new}
    most = max((share for share in whole.values() if share is not None), default=MIN_RIGHT)
    if most >= MIN_RIGHT:
        return None
    shares = [mean_right(each)[LONGEST] for each in new if whole[each.task.name] is not None]
    right = {pe: [each[pe] for each in shares if pe in each] for pe in (LEARNED, *NOT_RELATIVE)}
    return {"right": {pe: (min(each), max(each)) for pe, each in right.items() if each}, "whole": most}


def _shares(shares: dict[str, float], group: list[str]) -> list[str]:
    """Return what is right with encodings at a length; one where they are the same."""
    texts = [percent(shares.get(name)) for name in group]
    return texts[:1] if len(set(texts)) == 1 else texts
