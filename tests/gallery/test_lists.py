"""The lists of tasks and of encodings."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from helpers import tuned
from helpers.gallery_html import lines_of, names_in
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.pages import encodings_page, tasks_page


def test_the_list_of_tasks_counts_as_many_of_the_best_as_needs(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 11.0, "fire": 7.0, "t5": 7.0, "alibi": 7.0})
    rows = pd.concat([rows, rows[rows["pe"] == "rope"].assign(pe="rope_dynamic_ntk")])
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    lines = lines_of(tasks_page(shown).html())
    assert list(lines) == [one.name for one in benchmark_tasks()]
    assert names_in(lines["induction"]) == shown.results["induction"].best[:1]
    assert "and 3 more" in lines["induction"]  # twins count once
    best = lines_of(needs_page(shown).html(), "summary")["induction"].partition("</td>")[0]
    assert "<summary>and 2 more</summary>" in best
    assert set(names_in(best)) >= set(shown.results["induction"].best)
    assert "not measured yet" in lines["copy"]


def test_the_list_of_encodings_begins_with_those_on_most_tasks_and_has_their_loss_on_longer_text(
    content: GalleryData,
) -> None:
    lines = lines_of(encodings_page(content).html())
    counts = {name: len(content.on_tasks(name)) for name in content.names}
    assert list(lines) == sorted(counts, key=lambda name: (-counts[name], name))
    losses = content.results["causal_text"].at(4.0).table.set_index("pe")["mean"]
    assert [f'data-sort="{losses[name]}"' in lines[name] for name in ("alibi", "none", "rope")] == [True] * 3
    assert list(lines)[-1] == "rope_2d"
    assert 'causal_text.html"' not in lines["rope_2d"]


def test_the_list_of_encodings_says_where_each_is_recommended_where_it_holds_and_what_a_step_costs(
    content: GalleryData,
) -> None:
    task, text = task_named("induction"), content.results["causal_text"]
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 13.0}, 0.05)
    rows["accuracy_x4"] = rows["pe"].map({"rope": 0.1, "alibi": 0.9, "none": 0.0})
    rows.loc[rows["pe"].eq("alibi") & rows["seed"].eq(0), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    results = {"induction": TaskResults(task, rows), "causal_text": text}
    shown = replace(content, results=results, steps={"rope": 1.0, "alibi": 1.25})
    html = encodings_page(shown).html()
    names = [re.sub("<.*?>", "", head) for head in re.findall(r'<button type="button">(.*?)</button>', html)]
    lines = lines_of(html)
    cells = {name: re.split(r"<t[hd]\b", line)[1:] for name, line in lines.items()}
    assert {len(each) for each in cells.values()} == {len(names)}
    at = {name: dict(zip(names, each, strict=True)) for name, each in cells.items()}
    assert [re.findall(r"tasks/(\w+)", at[pe]["not beaten on"]) for pe in ("rope", "alibi", "none", "rope_2d")] == [
        ["causal_text", "induction", "causal_text"],
        [],
        [],
        [],
    ]
    counts = [re.findall(r'data-sort="(\d*)"', at[pe]["not beaten on"])[0] for pe in ("rope", "alibi", "rope_2d")]
    assert counts == ["3", "0", ""]
    unsolved = [re.findall(r"tasks/(\w+)", at[pe]["not solved by every seed on"]) for pe in ("rope", "alibi", "none")]
    assert unsolved == [[], ["induction"], ["induction"]]
    held = [re.findall(r">(\d of \d)<", at[pe]["holds at 4 ×"]) for pe in ("rope", "alibi", "none", "rope_2d")]
    assert held == [["1 of 2"], ["1 of 2"], ["0 of 2"], []]
    steps = [re.findall(r'data-sort="([\d.]*)"', at[pe]["CPU time of a step"]) for pe in ("rope", "alibi", "none")]
    assert steps == [["1.0"], ["1.25"], [""]]
