"""The leaderboard: means, shades, wins, and what holds on longer sequences."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from helpers import tuned
from helpers.gallery_html import lines_of, names_in
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.extrapolation import encodings_that_hold
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import number
from pe_lab.gallery.leaderboard_page import leaderboard_page, wins
from pe_lab.gallery.markers import mark
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.pages import tasks_page
from pe_lab.gallery.task_page import task_page


def test_the_leaderboard_has_means_shades_and_marks_the_best(content: GalleryData) -> None:
    html = leaderboard_page(content).html()
    lines = lines_of(html)
    assert sorted(lines) == ["alibi", "none", "rope", "rope_2d"]
    table = content.results["induction"].table.set_index("pe")
    shades = content.results["induction"].quality()
    for name, line in lines.items():
        cell = re.search(r'<td class="gallery-heat([\w -]*)" style="--score: ([\d.]+)" data-sort="([\d.]+)"', line)
        assert cell is not None
        assert float(cell[2]) == pytest.approx(shades[name], abs=0.006)
        assert float(cell[3]) == table.loc[name, "mean"]
        assert ("gallery-best" in cell[1]) == (name in content.results["induction"].best)
        assert f"{number(table.loc[name, 'low'])} to {number(table.loc[name, 'high'])}" in line
        assert mark(name) in line
    for facet, value in {
        "family": "Rotary",
        "enters": "logits",
        "mask": "causal and bidirectional",
        "kernels": "yes",
    }.items():
        assert f'data-{facet}="{value}"' in lines["rope"]
        assert f"<option>{value}</option>" in html


def test_the_leaderboard_begins_with_what_is_best_and_what_holds_at_4_times_the_length(content: GalleryData) -> None:
    induction, text = (content.results[name] for name in ("induction", "causal_text"))
    names = ["rope", "alibi", "none", "fire", "t5"]
    rows = induction.rows.assign(accuracy_x4=induction.rows["pe"].map(dict.fromkeys(names, 0.92) | {"fire": 0.99}))
    induction = TaskResults(induction.task, rows.fillna({"accuracy_x4": 0.1}))
    shown = replace(content, results={"induction": induction, "causal_text": text})
    first = re.search(r"<p data-answer>(.*?)</p>", leaderboard_page(shown).sections[0].html, re.DOTALL)
    assert first is not None
    best, longer = first[1].split("<br>")
    (most,) = set(induction.best) & set(text.best)
    held = list(encodings_that_hold(induction)[4.0])
    assert (held[0], set(held)) == ("fire", {*names} & set(induction.table["pe"]))
    (holds,) = set(held) & set(text.best_at[4.0])
    assert (names_in(best), names_in(longer)) == ([most], [holds])
    assert ["2 of 2" in part for part in (best, longer)] == [True, True]
    summary = lines_of(needs_page(shown).html(), "summary")["induction"].partition('data-label="longer"')[2]
    longer = summary.partition("</td>")[0]
    assert f"<summary>and {len(held) - 2} more</summary>" in longer
    assert names_in(longer) == held  # those that open as well
    pages_ = (task_page(shown, induction.task).html(), lines_of(needs_page(shown).html(), "need")["induction"])
    assert [f"and {len(held) - 3} more" in html for html in pages_] == [True] * 2
    nothing = TaskResults(induction.task, rows.assign(accuracy_x4=0.1))
    (answer,) = re.findall(
        r"<p data-answer>(.*?)</p>",
        leaderboard_page(replace(content, results={"induction": nothing})).html(),
        re.DOTALL,
    )
    assert "no encoding holds" in answer
    assert 'No encoding holds on <a href="tasks/induction.html">' in answer


def test_the_leaderboard_has_a_table_of_longer_sequences_that_is_ordered_by_what_holds(content: GalleryData) -> None:
    """It has neither tasks that ask for no new position, nor controls."""
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 11.0})
    shares = {"rope": 0.1, "alibi": 0.9, "none": 0.3}
    induction = TaskResults(task_named("induction"), rows.assign(accuracy_x4=rows["pe"].map(shares)))
    place = TaskResults(task_named("place"), tuned.table("place", {"rope": 7.0, "alibi": 8.0, "none": 10.0}))
    losses = tuned.table("causal_text", {"rope": 1.5, "alibi": 1.6, "none": 2.0}, 0.001)
    losses["loss_x4"] += losses["pe"].eq("alibi") * 0.5
    text = TaskResults(task_named("causal_text"), losses)
    shown = replace(content, results={"induction": induction, "causal_text": text, "place": place})
    html = leaderboard_page(shown).sections[0].html
    table = html[html.index('id="table-longer"') :]
    lines = lines_of(table, "longer")
    assert list(lines) == ["alibi", "rope", "none"]  # one task each, of which alibi has the most right; none has none
    cells = {
        name: [float(value) for value in re.findall(r'data-sort="([\d.]+)"', line)] for name, line in lines.items()
    }
    means = text.longer[4.0].table.set_index("pe")["mean"]
    assert cells == {
        name: [float(name != "none"), *sorted([share, means[name]])]  # a share is below a loss
        for name, share in shares.items()
    }
    assert "place" not in table.partition("</thead>")[0]
    assert "data-range" not in table  # every seed has the same
    some = rows.assign(accuracy_x4=rows["pe"].eq("alibi") * (0.5 + 0.1 * rows["seed"]))
    by_seed_ = leaderboard_page(replace(shown, results={"induction": TaskResults(induction.task, some)})).html()
    assert re.findall(r"data-range>([^&]*)", by_seed_) == ["50–90"]


def test_the_leaderboard_counts_the_tasks_of_an_encoding_that_is_not_measured_on_all(content: GalleryData) -> None:
    induction, text = (content.results[name] for name in ("induction", "causal_text"))
    few = TaskResults(induction.task, induction.rows[induction.rows["pe"].ne("alibi")])
    assert few.best == text.best == ["rope"]
    rest = TaskResults(text.task, text.rows[text.rows["pe"].ne("rope")])
    said = [
        leaderboard_page(replace(content, results={"induction": few, "causal_text": each})).sections[0].html
        for each in (text, rest)
    ]
    assert [re.findall(r"of the (\d) it was measured", html.partition("</p>")[0]) for html in said] == [
        [],
        ["1"] * (1 + len(rest.best)),
    ]


def test_encodings_with_the_same_runs_share_a_line_and_a_rank(content: GalleryData) -> None:
    """The line has the name of the one that is measured on more tasks."""
    results = {}
    for name, means in {
        "induction": {"rope": 7.0, "none": 9.0, "alibi": 11.0},
        "copy": {"rope": 7.0, "none": 9.0},
    }.items():
        rows = tuned.table(name, means, 0.05)
        rows = pd.concat([rows[rows["pe"] == "rope"].assign(pe="rope_2d"), rows])
        results[name] = TaskResults(task_named(name), rows)
    results["reverse"] = TaskResults(task_named("reverse"), tuned.table("reverse", {"rope": 8.0, "alibi": 8.0}, 0.05))
    shown = replace(content, results=results)
    html = leaderboard_page(shown).sections[0].html
    lines = lines_of(html[html.index('id="table-leaderboard"') : html.index('id="longer"')])
    assert list(lines) == ["rope", "none", "alibi"]
    assert names_in(lines["rope"]) == ["rope", "rope_2d"]
    wins_of = [re.findall(r'<td data-sort="(\d+)"><a href="tasks.html"', line) for line in lines.values()]
    assert wins_of == [["2"], ["1"], ["0"]]  # on induction, the only task with all three
    assert ["data-only" in cell for cell in re.split("<td", lines["rope"])[1:]] == [False] * 3 + [True]  # reverse
    assert [line.count("gallery-best") for line in lines.values()] == [2, 0, 0]  # none on reverse: not separable
    ranks = {pe: encoding_page(shown, pe).sections[1].html for pe in ("rope", "rope_2d", "alibi")}
    for pe, rank in (("rope", 1), ("rope_2d", 1), ("alibi", 3)):
        assert f">{rank} of 3<" in ranks[pe]
    assert names_in(lines_of(tasks_page(shown).html())["induction"]) == ["rope_2d", "rope"]


def test_encodings_are_ordered_by_the_comparisons_that_they_win(content: GalleryData) -> None:
    """Of those that are on several tasks; an encoding that is on one task alone stands below, and is no opponent."""
    induction = TaskResults(
        task_named("induction"),
        tuned.table("induction", {"rope_2d": 5.0, "rope": 7.0, "alibi": 9.0, "none": 11.0}, 0.01),
    )
    text = TaskResults(task_named("causal_text"), tuned.table("causal_text", {"alibi": 1.5, "rope": 1.6}, 0.001))
    results = [induction, text]
    assert wins(results, ["rope", "alibi"]) == {"rope": (1, 2), "alibi": (1, 2)}
    assert wins(results, ["rope", "alibi", "none"]) == {"rope": (2, 3), "alibi": (2, 3), "none": (0, 2)}
    equal = pd.concat([text.rows, text.rows[text.rows["pe"] == "rope"].assign(pe="none")])
    both = [induction, TaskResults(text.task, equal)]
    assert wins(both, ["rope", "none"]) == {"rope": (1, 2), "none": (0, 2)}  # the same bits: no win
    shown = replace(content, results={"induction": induction, "causal_text": both[1]})
    html = leaderboard_page(shown).sections[0].html
    main, _, alone = html.partition("<summary>1 encodings")
    assert list(lines_of(main)) == ["alibi", "rope", "none"]
    assert re.findall(r'<td data-sort="(\d+)"><a href="tasks.html"', main) == ["3", "2", "0"]
    assert "<small>of 4, ↑</small>" in main
    assert list(lines_of(alone)) == ["rope_2d"]


def test_a_task_on_which_order_says_nothing_ranks_nobody(content: GalleryData) -> None:
    induction, text = (content.results[name] for name in ("induction", "causal_text"))
    rows = text.rows[text.rows["pe"].ne("rope")].copy()
    names = [name for name in rows if name.startswith("level_x")]
    rows[names] = rows[[name.replace("level", "best") for name in names]].to_numpy() + 1e-12
    control = TaskResults(text.task, rows)
    assert (control.is_control, text.is_control, induction.is_control) == (True, False, False)
    shown = {"induction": induction, "causal_text": control}
    assert list(lines_of(leaderboard_page(replace(content, results=shown)).html())) == [
        pe for pe in induction.table["pe"] if pe in content.names
    ]  # although rope is the only one that lacks the control
    assert set(lines_of(leaderboard_page(replace(content, results={"causal_text": control})).html())) == {
        "alibi",
        "none",
    }


def test_the_highest_scores_at_longer_tests_are_of_encodings_with_enough_seeds(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 7.1, "none": 9.0, "fire": 8.0})
    mine = tuned.table("induction", {"learnable": 7.0}, seeds=range(3))
    for pe, share in (("rope", 1.2), ("alibi", 0.5), ("none", 0.9), ("fire", 0.2)):
        rows.loc[rows["pe"].eq(pe), "loss_x4"] = rows["level_x4"] * share
    mine["loss_x4"] = 0.0  # the best, of too few seeds
    found = TaskResults(task, pd.concat([rows, mine]))
    assert [one["pe"] for one in found.highest_at[4.0]] == ["fire", "alibi", "none"]
    assert content.results["causal_text"].highest_at == {}
