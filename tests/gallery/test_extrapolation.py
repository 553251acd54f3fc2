"""What holds on longer sequences, on all pages that say it."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from helpers import tuned
from helpers.gallery_html import lines_of, names_in, right_answers
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.extrapolation import encodings_that_hold, highest_where_none_holds, holding_on_average, seed_range
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.leaderboard_page import leaderboard_page
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.task_page import task_page


def test_encodings_hold_where_nine_of_ten_answers_are_right_or_the_loss_is_among_the_lowest(
    content: GalleryData,
) -> None:
    """One rule on the page of the task, of needs and of the encoding; too few seeds do not count."""
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 7.1, "fire": 8.0, "none": 9.0})
    rows = pd.concat([rows, tuned.table("induction", {"t5": 7.0}, seeds=range(3))])
    rows["accuracy_x4"] = rows["pe"].map({"rope": 0.9, "alibi": 0.953, "fire": 0.899, "none": 0.0, "t5": 1.0})
    rows["accuracy_x2"] = 0.25
    rows["exact_match_x4"] = rows["pe"].eq("none") * 1.0
    results, text = TaskResults(task, rows), content.results["causal_text"]
    assert encodings_that_hold(results)[4.0] == pytest.approx({"alibi": 0.953, "rope": 0.9})
    assert (encodings_that_hold(results)[2.0], list(highest_where_none_holds(results))) == ({}, [2.0])
    assert {length: list(names) for length, names in encodings_that_hold(text).items()} == {
        length: names for length, names in text.best_at.items() if length > 1
    }
    shown = replace(content, results={"induction": results, "causal_text": text})
    (page,) = re.findall(r"data-held>(.*?)</div>", task_page(shown, task).html())
    html = needs_page(shown).html()
    (need,) = re.findall(r'data-held="4">(.*?)</div>', lines_of(html, "need")["induction"], re.DOTALL)
    assert [names_in(part) for part in (page, need)] == [["alibi", "rope"]] * 2
    boxes = {
        name: re.findall(r"<p data-holds>(.*?)</p>", encoding_page(shown, name).html()) for name in ("alibi", "none")
    }
    assert [re.findall(r"tasks/(\w+)", *boxes[name]) for name in boxes] == [["induction"], []]
    assert "95.3\u00a0%" in boxes["alibi"][0]


def test_an_encoding_whose_mean_alone_is_high_holds_on_average_only(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 7.1, "none": 9.0})
    rows["accuracy_x4"] = rows["pe"].map({"rope": 0.95, "alibi": 0.96, "none": 0.5})
    rows.loc[rows["pe"].eq("alibi") & rows["seed"].eq(0), "accuracy_x4"] = 0.8  # a mean of 0.93
    rows["exact_match_x4"] = rows["pe"].map({"rope": 0.6, "alibi": 0.03, "none": 0.0})
    results = TaskResults(task, rows)
    assert (list(encodings_that_hold(results)[4.0]), list(holding_on_average(results)[4.0])) == (["rope"], ["alibi"])
    assert holding_on_average(content.results["causal_text"]) == {}
    shown = replace(content, results={"induction": results})
    (page,) = re.findall(r"data-held>(.*?)</div>", task_page(shown, task).html())
    held, average = page.split("data-average")
    assert ("whole sequences 60" in held, "whole sequences 3\u00a0%" in average) == (True, True)
    box = re.findall(r"<p data-holds>(.*?)</p>", encoding_page(shown, "alibi").html())[0]
    assert ("on 0 of 1" in box, "whole 3\u00a0%" in box.partition("data-average")[2]) == (True, True)
    line = dict(re.findall(r'<tr data-longer="(\w+)">(.*?)</tr>', leaderboard_page(shown).html(), re.DOTALL))
    assert [("0 of 1" in line[pe], "data-average" in line[pe]) for pe in ("rope", "alibi", "none")] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    assert "whole 3\u00a0%" in line["alibi"]


def test_where_nothing_holds_the_highest_is_named_with_its_range(content: GalleryData) -> None:
    task = task_named("induction")
    rows = right_answers(tuned.table("induction", {"rope": 7.0, "none": 9.0}), {"rope": 0.9, "none": 0.1})
    rows.loc[rows["pe"].eq("rope"), "accuracy_x2"] = [0.0, 0.0, 0.1, 0.2, 0.2]
    results = TaskResults(task, rows)
    assert highest_where_none_holds(results) == {2.0: ("rope", pytest.approx(0.1)), 4.0: ("rope", 0.0)}
    assert seed_range(results, "rope", 2.0) == "0 to 20\u00a0% by seed"
    assert seed_range(results, "none", 2.0) == ""
    assert list(highest_where_none_holds(TaskResults(task, rows.assign(accuracy_x4=0.9)))) == [2.0]
    assert highest_where_none_holds(content.results["causal_text"]) == {}
    shown = replace(content, results={"induction": results})
    need = lines_of(needs_page(shown).html(), "need")["induction"]
    assert 0 < need.index("Within a factor of") < need.index("0 to 20\u00a0% by seed")
    later = rows.assign(accuracy_x4=rows["accuracy_x2"])
    (line,) = re.findall(
        r"data-held>(.*?)</div>",
        task_page(replace(content, results={"induction": TaskResults(task, later)}), task).html(),
    )
    assert (names_in(line), "0 to 20\u00a0% by seed" in line) == (["rope"], True)
    for each, highest_there in ((rows, []), (later, ["rope"])):  # at 4 × nothing is right, or a tenth
        results = {"induction": TaskResults(task, each)}
        (line,) = re.findall(
            r'<tr data-summary="induction">.*?</tr>', needs_page(replace(content, results=results)).html(), re.DOTALL
        )
        _, best, longer, failing = re.split("<t[hd]", line)[1:]
        assert names_in(best) == ["rope"]
        assert ("4 ×" in longer, "2 ×" in longer, names_in(longer)) == (True, False, highest_there)
        assert names_in(failing) == []
