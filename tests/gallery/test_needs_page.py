"""The page of needs: what to use, what to avoid, and what was not measured."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from helpers import tuned
from helpers.gallery_html import advised, lines_of, names_in, right_answers
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import margin_in_words
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import number
from pe_lab.gallery.leaderboard_page import leaderboard_page
from pe_lab.gallery.need_recommendations import recommend
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.samples import load_data
from pe_lab.gallery.task_page import task_page

NEEDS = re.compile(r'<tr data-need="(\w+)" data-length="([\d.]+)" data-advice="([\w ]+)">')


def test_needs_say_what_to_use_what_to_avoid_and_how_to_measure(content: GalleryData) -> None:
    html = needs_page(content).html()
    found = {(name, length): kind for name, length, kind in NEEDS.findall(html)}
    assert found["induction", "1"] == found["causal_text", "1"] == found["causal_text", "4"] == "use"
    assert {name for (name, _), kind in found.items() if kind == "not measured"} == {
        one.name for one in benchmark_tasks()
    } - {*content.results}
    assert html.index('data-need="causal_text"') < html.index('data-need="copy"')  # what is measured comes first
    assert "+study=pe_bench_2_copy pe=" in lines_of(html, "need")["copy"]
    parts = {word: names_in(part) for word, part in advised(lines_of(html, "need")["induction"]).items()}
    assert ("rope" in parts["use"], "none" in parts["slower"], "cope" in parts["avoid"]) == (True, True, True)
    assert "none" in names_in(
        advised(lines_of(html.replace('data-length="4"', ""), "need")["causal_text"])["higher loss"]
    )


def test_encodings_that_solve_fewer_seeds_are_unreliable_and_those_that_solve_none_to_be_avoided(
    content: GalleryData,
) -> None:
    """Slower ones have their factor in steps, and in cost: steps times the time of a step."""
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 9.0, "fire": 12.5}, 0.05)
    rows.loc[rows["pe"].eq("none") & rows["seed"].eq(0), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    results = TaskResults(task, rows)
    assert results.advice == {"rope": "use", "alibi": "slower", "none": "unreliable", "fire": "avoid"}
    shown = replace(content, results={"induction": results}, steps={}, short_steps={"rope": 1.0, "alibi": 2.0})
    need = next(need for need in shown.needs if need.task == task)
    assert need.gap("alibi") == pytest.approx(4, rel=0.1)
    assert need.cost("alibi") == pytest.approx(2 * need.gap("alibi"))
    parts = advised(lines_of(needs_page(shown).html(), "need")["induction"])
    assert f"(× {need.gap('alibi'):.1f}, CPU cost × {need.cost('alibi'):.1f})" in parts["slower"]
    html = encoding_page(shown, "alibi").sections[0].html
    assert ("<strong>Slower than the best" in html, "<strong>Not solved" in html) == (True, False)
    assert "<strong>Not solved by every seed</strong>" in encoding_page(shown, "none").sections[0].html


def test_longer_text_is_a_need_of_its_own_as_soon_as_it_is_measured(content: GalleryData) -> None:
    longer = content.results["causal_text"].at(4.0)
    assert longer.rows["y"].tolist() == content.results["causal_text"].rows["loss_x4"].tolist()
    assert longer.best == ["rope"]
    line = re.search(
        r'<tr data-need="causal_text" data-length="4".*?<strong>Higher', needs_page(content).html(), re.DOTALL
    )
    assert line is not None
    assert 'data-advice="use"' in line[0]
    assert re.findall(r'html"><code>(\w+)</code>', line[0]) == ["rope"]
    page = task_page(content, task_named("causal_text")).sections[0].html
    best = dict(re.findall(r'<p data-length="([\d.]+)">(.*?)</p>', page))
    named = {float(length): re.findall(r"<code>(\w+)</code>", text) for length, text in best.items()}
    assert named == {length: content.results["causal_text"].best_at[length] for length in (1, 4)}
    with pytest.raises(ValueError, match="induction"):
        content.results["induction"].at(4.0)


def test_an_unsolved_task_is_learned_by_nobody_and_recommends_nothing() -> None:
    task = task_named("induction")
    unsolved = TaskResults(task, tuned.table("induction", {"rope": 13.0, "none": 13.0}))
    assert (unsolved.best, set(unsolved.beaten)) == ([], {"rope", "none"})
    assert recommend(unsolved).kind == "not learned"
    alike = TaskResults(task, tuned.table("induction", {"rope": 7.0, "alibi": 7.0}))
    assert recommend(alike).kind == "not separable"
    some = recommend(TaskResults(task, tuned.table("induction", tuned.MEANS)))
    assert (some.kind, "cope" in some.avoid, set(some.use) & set(some.avoid)) == ("use", True, set())


def test_the_summary_of_needs_has_what_to_use_at_each_length_and_what_not_to(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 7.0, "learnable": 8.5, "none": 13.0})
    rows = right_answers(rows, {"rope": 0.9, "alibi": 0.8, "learnable": 0.7, "none": 0.1})
    rows["accuracy_x2"] = rows["pe"].map({"rope": 0.4, "alibi": 0.92, "learnable": 0.95, "none": 0.0})
    text = task_named("causal_text")
    losses = tuned.table("causal_text", {"alibi": 1.5, "learnable": 1.6, "none": 2.0}, 0.001)
    losses["loss_x4"] = losses["pe"].map({"alibi": 1.4, "learnable": 2.5, "none": 2.1})
    results = {"induction": TaskResults(task, rows), "causal_text": TaskResults(text, losses)}
    html = needs_page(replace(content, results=results)).html()
    lines = dict(re.findall(r'<tr data-summary="(\w+)">(.*?)</tr>', html, re.DOTALL))
    cells = {name: [names_in(cell) for cell in re.split("<td", line)[1:]] for name, line in lines.items()}
    assert cells["induction"] == [results["induction"].best, ["learnable", "alibi"], []]
    assert cells["causal_text"][1:] == [["alibi", "none", "learnable"], []]  # alibi holds; learnable is worse than none
    steps = results["induction"].table.set_index("pe")["mean"]
    assert [number(steps[pe]) in lines["induction"] for pe in results["induction"].best] == [True, True]
    data = load_data(task)
    assert f"induction {data.lengths[1.0]} and {data.lengths[4.0]}" in html
    assert "1.400" in lines["causal_text"]
    vectors = "Learned position vectors do not work beyond"
    assert html.index(vectors) < html.index("data-summary") < html.index("data-need")
    words = unescape(re.sub("<[^>]+>", "", html))
    assert "has 0 to 0\u00a0% of the answers right, and at most 0\u00a0% of whole" in words
    assert re.search(r"whole sequences\. [^.]*none 0 to 0\u00a0%", words)
    other = rows.assign(accuracy_x4=rows["accuracy_x4"] + 0.6 * rows["pe"].eq("learnable"), exact_match_x4=0.01)
    two = {"induction": TaskResults(task, rows), "copy": TaskResults(task_named("copy"), other.assign(task="copy"))}
    words = unescape(re.sub("<[^>]+>", "", needs_page(replace(content, results=two)).html()))
    assert "has 0 to 60\u00a0% of the answers right, and at most 1\u00a0% of whole" in words
    better = replace(content, results={"induction": TaskResults(task, rows.assign(exact_match_x4=0.2))})
    assert vectors not in needs_page(better).html()


def test_an_encoding_that_holds_but_is_unreliable_has_its_seeds_beside_it(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 13.0}).assign(accuracy_x4=0.95)
    failed = rows["pe"].eq("alibi") & rows["seed"].lt(2)
    rows.loc[failed, ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    html = needs_page(replace(content, results={"induction": TaskResults(task, rows)})).html()
    _, _, longer, failing = re.split("<t[hd]", lines_of(html, "summary")["induction"])[1:]
    assert re.findall(r"<code>(\w+)</code>(?:</a>)?\s[^<]*</span> <small data-some>\((\d of \d)", longer) == [
        ("alibi", "3 of 5")
    ]
    assert "alibi" in names_in(failing)


def test_needs_begin_with_the_answer_for_longer_text(content: GalleryData) -> None:
    answer, _, rest = needs_page(content).html().partition("data-answer")[2].partition("</p>")
    assert (names_in(answer)[0], "differ" in answer) == ("rope", False)
    assert next(iter(lines_of(rest, "summary"))) == "causal_text"
    rows = tuned.table("causal_text", {"rope": 1.0, "alibi": 1.0001, "none": 2.0}, 0.01)
    alike = replace(content, results={"causal_text": TaskResults(task_named("causal_text"), rows)})
    answer = needs_page(alike).html().partition("data-answer")[2].partition("</p>")[0]
    assert (set(names_in(answer)), "do not differ" in answer) == ({"rope", "alibi"}, True)
    assert "data-answer" not in needs_page(replace(content, results={})).html()


def test_the_cap_is_never_shown_as_a_measured_number_of_steps(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 13.0, "none": 11.5})
    last = rows["pe"].eq("none") & rows["seed"].lt(2)
    rows.loc[last, ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    found = TaskResults(task, rows)
    shown = replace(content, results={"induction": found})
    cap = number(float(task.cfg.steps))
    for html in (leaderboard_page(shown).html(), task_page(shown, task).sections[0].html):
        lines = lines_of(html)
        assert ("not solved" in lines["alibi"], f">{cap}<" in lines["alibi"]) == (True, False)
        assert ("not solved" in lines["none"], "3 of 5 solved" in lines["none"]) == (False, True)
        assert "solved" not in lines["rope"]
    need = lines_of(needs_page(shown).html().replace('data-length="4"', ""), "need")["induction"]
    assert ("not solved" in need, cap in advised(need)["avoid"]) == (False, False)


def test_needs_show_interval_and_cost_of_what_to_use_and_the_margin(content: GalleryData) -> None:
    html = needs_page(content).html()
    assert NEEDS.findall(html)[0][:2] == ("causal_text", "4")  # the need that readers ask first
    table = content.results["induction"].table.set_index("pe")
    line = lines_of(html, "need")["induction"]
    use = re.findall(r'<tr><th scope="row">.*?</tr>', line.partition("<strong>Not solved")[0], re.DOTALL)
    for name, item in zip(content.results["induction"].best, use, strict=True):
        low, high = (number(table.loc[name, end]) for end in ("low", "high"))
        for text in (f"{low} to {high}", ">0</a>", f">{content.short_steps[name]:.2f}</a>"):
            assert text in item
    assert margin_in_words(task_named("induction")) in html
    assert content.steps["rope"] == content.short_steps["rope"] == 1
    assert ">1.00</a>" not in needs_page(replace(content, steps={}, short_steps={})).html()
    text, short = (content.steps_of(task_named(name)) for name in ("causal_text", "induction"))
    assert (text, short) == (content.steps, content.short_steps)  # 128 and 32 tokens
    assert text != short
