"""All pages: links lead somewhere, every number has its row, nothing comes from the network."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from helpers import tuned
from helpers.gallery_html import Read, advised, lines_of, names_in, right_answers, rows_of_claims, unsolved
from pe_lab.benchmark import task_tables
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_results import read_results as read_measured
from pe_lab.benchmark.task_statistics import edge_shares, endpoints, scores
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.gallery.claims_page import claims_page
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.extrapolation import (
    NO_NEW_POSITION,
    NOT_ASKED,
    highest_where_none_holds,
    keeps_positions,
    mean_right,
    mean_whole,
)
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, fixed, number, percent, signed_number, slot
from pe_lab.gallery.leaderboard_page import leaderboard_page
from pe_lab.gallery.markers import SHAPES, mark
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.pages import pages, tasks_page
from pe_lab.gallery.site import write_site
from pe_lab.gallery.task_page import task_page
from pe_lab.results.styles import MARKERS, NONE_STYLE, OWN_MARKERS, style

NEEDS = re.compile(r'<tr data-need="(\w+)" data-length="([\d.]+)" data-advice="([\w ]+)">')


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Read]:
    return {path: Read(path.read_text()) for path in site.rglob("*.html")}


def printed(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the order of the encodings and the best ones of each task, as the command line prints them."""
    found = {}
    for part in task_tables.format_tables(task_tables.read_all_rows(folder)).split("\n\n"):
        lines = part.splitlines()
        name = lines[0].partition(":")[0]
        best = [line.partition(": ")[2].split(", ") for line in lines if line.startswith(f"{task_tables.UNBEATEN}: ")]
        if best:
            heads = next(number for number, line in enumerate(lines) if line.split()[0] == "pe")
            found[name] = [line.split()[0] for line in lines[heads + 1 :]], best[0]
    return found


def page_ids(page: Page) -> set[str]:
    """The ids of the headings of a page."""
    return {section.id for section in page.sections if section.title}


def test_there_is_a_page_for_everything(site: Path, read: dict[Path, Read]) -> None:
    names = {path.relative_to(site).with_suffix("").as_posix() for path in read}
    assert names >= {"index", "needs", "encodings", "tasks", "claims"}
    assert {name for name in names if name.startswith("encodings/")} == {
        f"encodings/{name}" for name in ("rope", "none", "alibi", "rope_2d")
    }
    assert sum(name.startswith("tasks/") for name in names) == len(benchmark_tasks())


def test_links_resolve_to_files_and_ids(site: Path, read: dict[Path, Read], content: GalleryData) -> None:
    for path, page in read.items():
        for link in page.links:
            if link.startswith("https:"):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            beside = file.stem in {pe for found in content.results.values() for pe in found.table["pe"]} | {
                one for said in content.definitions.values() for one in (equal.name for equal in said.equals)
            }
            if file.parent.name == "encodings" and beside and not file.exists():
                continue  # an encoding that this small gallery leaves out
            assert file.is_file(), f"{path.name}: {link}"
            if anchor and file.suffix == ".html":
                assert anchor in read[file].ids, f"{path.name}: {link}"


def test_ids_are_unique_on_a_page(read: dict[Path, Read]) -> None:
    for path, page in read.items():
        twice = {one for one in page.ids if page.ids.count(one) > 1} if len(page.ids) < 500 else set()
        assert not twice, path.name


def test_pages_load_only_files_beside_them(site: Path, read: dict[Path, Read]) -> None:
    for path, page in read.items():
        for address in page.loaded:
            assert address.startswith("data:") or (path.parent / address).resolve().is_file(), f"{path.name}: {address}"
        text = path.read_text()
        assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\(\s*['\"]?(https?|file):", text), path.name
        assert "file://" not in text
    script = (site / "gallery.js").read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|import\(|XMLHttpRequest|file:", script)


@pytest.mark.parametrize(
    "name", ["index.html", "tasks/induction.html", "encodings/rope.html", "needs.html", "tasks.html"]
)
def test_every_number_of_results_has_its_link(site: Path, read: dict[Path, Read], name: str) -> None:
    numbers = [(text, links) for text, links in read[site / name].cells if re.match(r"−?\d+(\.\d+)?(?! ×)\b", text)]
    if name == "encodings/rope.html":
        text = (site / name).read_text()
        numbers = [
            (one, links)
            for one, links in Read(text[text.index('id="results"') : text.index('id="replication"')]).cells
            if re.match(r"(loss |score )?−?\d", one)
        ]
    if name.startswith("tasks/"):
        text = (site / name).read_text()
        numbers = [
            (one, links) for one, links in Read(text[text.index('id="table-task"') :]).cells if one[:1].isdigit()
        ]
    assert len(numbers) >= 2
    assert [text for text, links in numbers if not links] == []


def test_command_line_and_gallery_have_one_ranking(results: Path, content: GalleryData) -> None:
    said = printed(results)
    assert {one.task.name for one in read_measured(results)} == set(content.results) == {"induction", "causal_text"}
    needed = lines_of(needs_page(content).html().replace('data-length="4"', ""), "need")
    assert set(needed) == {one.name for one in benchmark_tasks()}
    for name, found in content.results.items():
        order, best = said[name]
        assert list(lines_of(task_page(content, task_named(name)).sections[0].html)) == order == list(found.table["pe"])
        assert found.best == best
    assert content.results["induction"].best in (["rope", "alibi"], ["alibi", "rope"])
    for name, found in content.results.items():
        for word, part in advised(needed[name]).items():
            assert set(names_in(part)) == {pe for pe, said in found.advice.items() if said == word}
        for line in task_tables.format_tables(task_tables.read_all_rows(results), [name]).splitlines()[
            -len(found.table) :
        ]:
            assert line.endswith(found.in_words(found.advice[line.split()[0]]))


def test_fresh_seeds_change_nothing_but_their_own_counts(content: GalleryData) -> None:
    """Every number of the pages can be computed from the rows that they link to."""
    task = task_named("induction")
    published = tuned.table("induction", {"rope": 7.0, "none": 13.0, "fire": 13.0, "alibi": 9.0}, 0.05)
    fresh = tuned.table("induction", {"rope": 7.0, "none": 8.0}, seeds=range(100, 105))
    results, alone = TaskResults.from_rows(task, pd.concat([published, fresh])), TaskResults(task, published)
    assert results.advice == alone.advice == {"rope": "use", "alibi": "slower", "none": "avoid", "fire": "avoid"}
    table, counts = results.table.set_index("pe"), ["all_solved", "all_runs"]
    assert table.loc[["rope", "none"], counts].to_numpy().tolist() == [[10, 10], [5, 10]]
    pd.testing.assert_frame_equal(results.table.drop(columns=counts), alone.table.drop(columns=counts))
    one, other = (replace(content, results={"induction": each}) for each in (results, alone))
    count = re.compile(r"(?: |; )<small(?: class=gallery-solved)? data-fresh>fresh seeds: (\d) of (\d)</small>")
    for page, same in zip(pages(one), pages(other), strict=True):
        assert [count.sub("", each.html) for each in page.sections] == [each.html for each in same.sections]
        changed = [found for each in page.sections for found in count.findall(each.html)]
        assert set(changed) <= {("5", "5")}  # none, which solved no published seed; rope solved all of both
        named = page.path in ("index", "needs", "tasks/induction", "encodings/none")
        assert bool(changed) == named, page.path
    assert ("induction", "solved in 0 of 5 seeds") in one.failures("none")


def test_intervals_of_scores_end_at_1() -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 9.0})
    rows.loc[rows["pe"].eq("rope"), "loss_x4"] = rows["level_x4"] * np.tile([0.0, 0.9], 5)
    line = TaskResults(task, rows).scores.set_index(["pe", "length"]).loc[("rope", 4.0)]
    raw = scores(rows, task).set_index(["pe", "length"]).loc[("rope", 4.0)]
    assert raw["high"] > line["high"] == 1
    assert (raw["mean"], raw["low"]) == (line["mean"], line["low"])


def test_means_that_count_failures_are_lower_bounds(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 9.0})
    rows.loc[rows["pe"].eq("none") & rows["seed"].eq(0), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    for page in (leaderboard_page(shown), task_page(shown, task)):
        lines = lines_of(page.sections[0].html)
        assert ["≥" in lines[pe] for pe in ("rope", "none")] == [False, True]
    for page in (encoding_page(shown, pe) for pe in ("rope", "none")):
        opening, results = (section.html for section in page.sections[:2])
        row = results.partition("<tbody>")[2].partition("</tbody>")[0]
        assert ("≥" in row) == page.path.endswith("none")
        assert bool(re.search(r"\d steps", opening)) == page.path.endswith("rope")  # without failures only


def test_pages_say_the_size_of_the_model_and_the_number_of_seeds(content: GalleryData) -> None:
    size = task_named("copy").cfg.model
    counts = set(content.results["induction"].table["runs"]) | set(content.results["causal_text"].table["runs"])
    for number_ in (size.depth, size.width, size.num_heads, *counts):
        assert re.search(rf"\b{number_}\b", content.setting)
    for page in (
        encoding_page(content, "rope"),
        task_page(content, task_named("copy")),
        tasks_page(content),
        needs_page(content),
    ):
        assert content.setting in page.html()
    link = 'larger model was tested, <a href="tasks/causal_text.html#other-studies"'
    without = replace(content, text_losses={})
    assert [link in needs_page(each).html() for each in (content, without)] == [True, False]
    pages_ = [task_page(content, task_named(name)).html() for name in ("causal_text", "copy")]
    assert ["larger model was tested" in html for html in pages_] == [True, False]
    for html, name in zip(pages_, ("causal_text", "copy"), strict=True):
        fold = html.partition("How models were trained")[2].partition("</details>")[0]
        cfg = task_named(name).cfg
        assert [f"{rate:g}" in fold for rate in cfg.tune.rates] == [True] * 3
        assert f"{cfg.steps:,} steps" in fold
        assert ("in a row" in fold) == (cfg.solve.level is not None)


def test_pages_show_what_is_right_at_each_length(content: GalleryData) -> None:
    task = task_named("induction")
    rows = right_answers(tuned.table("induction", {"rope": 7.0, "none": 9.0}), {"rope": 0.88, "none": 0.246})
    results = TaskResults(task, rows)
    assert mean_right(results)[2.0] == pytest.approx({"rope": 0.44, "none": 0.123})
    assert highest_where_none_holds(results) == {2.0: ("rope", pytest.approx(0.44)), 4.0: ("rope", 0.0)}
    assert mean_whole(results)[2.0] == pytest.approx({"rope": 0.044, "none": 0.0123})
    assert mean_whole(content.results["causal_text"]) == {}
    shown = replace(content, results={"induction": results})
    need = lines_of(needs_page(shown).html(), "need")["induction"]
    (row,) = re.findall(
        r"<tr><th scope=\"row\">(?:(?!</tr>).)*<code>rope</code>.*?</tr>", advised(need)["use"], re.DOTALL
    )
    assert [f">{text}\u00a0%</a>" in row for text in ("44", "0")] == [True, True]
    page = task_page(shown, task).sections[0].html
    part = encoding_page(shown, "none").sections[1].html
    for html in (lines_of(page)["none"], part):
        assert re.findall("data-whole>whole ([\\d.]+)", html) == ["2.5", "1.2", "0"]
        assert [f">{text}\u00a0%</a>" in html for text in ("24.6", "12.3", "0")] == [True] * 3
    assert (
        "(24.6\u00a0%)" in encoding_page(replace(shown, results={"induction": unsolved(rows, "none")}), "none").html()
    )


def test_intervals_of_steps_say_where_they_end_at_the_cap(content: GalleryData) -> None:
    task = task_named("induction")
    cap = float(np.log2(task.cfg.steps))
    rows = tuned.table("induction", {"rope": 7.0, "none": 9.0, "alibi": 13.0})
    rows.loc[rows["pe"].eq("none") & rows["seed"].gt(0), ["y", "solved"]] = [cap, False]
    last = rows["pe"].eq("alibi") & rows["seed"].eq(0)
    rows.loc[rows["pe"].eq("alibi"), "y"] = cap
    rows.loc[last, "solved"] = True  # at the last evaluation
    results = TaskResults(task, rows)
    lines = lines_of(task_page(replace(content, results={"induction": results}), task).sections[0].html)
    number_of_cap = number(float(task.cfg.steps))
    intervals = {
        pe: re.findall(r'class="gallery-wide" data-sort="[^"]*"><a[^>]*>([^<]*)<', line)[0]
        for pe, line in lines.items()
    }
    assert results.table.set_index("pe").loc["alibi", ["low", "high"]].tolist() == [task.cfg.steps] * 2
    assert (intervals["alibi"], intervals["none"].endswith("to the cap")) == ("–", True)
    assert not any(number_of_cap in each for each in intervals.values())
    text = task_named("bag")
    losses = tuned.table("bag", {"rope": 0.01, "none": 0.5}, 0.001)
    losses.loc[losses["pe"].eq("rope"), "y"] = [0.0, 0.0, 0.0, 0.0, 0.05]
    lines = lines_of(task_page(replace(content, results={"bag": TaskResults(text, losses)}), text).sections[0].html)
    assert [" (cut) to " in lines[pe] for pe in ("rope", "none")] == [True, False]


def test_longer_sequences_that_ask_at_the_same_positions_are_said_to(content: GalleryData) -> None:
    place = TaskResults(task_named("place"), tuned.table("place", {"rope": 7.0, "alibi": 8.0, "none": 10.0}))
    shown = replace(content, results={"induction": content.results["induction"], "place": place})
    lines = lines_of(needs_page(shown).html(), "need")
    assert [NOT_ASKED in lines[name] for name in ("place", "induction")] == [True, False]
    assert [NOT_ASKED in task_page(shown, task_named(name)).html() for name in lines if name in shown.results] == [
        name == "place" for name in lines if name in shown.results
    ]
    assert "tasks/place.html" not in leaderboard_page(shown).sections[0].html.partition("</p>")[0]
    kept = {name for name, claim in content.claims.items() if keeps_positions(claim.entry)}
    assert {"carried", "carried_small"} <= kept
    assert "blind" not in kept
    html = claims_page(content).html()
    assert html.count(NOT_ASKED) == len(kept)
    assert {name for name, row in rows_of_claims(content).items() if NO_NEW_POSITION in row} == kept
    assert encoding_page(shown, "none").sections[1].html.partition("</table>")[0].count(NO_NEW_POSITION) == 1


def test_encodings_with_the_same_runs_count_once(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 11.0, "fire": 11.2})
    rows = pd.concat([rows, rows[rows["pe"] == "rope"].assign(pe="rope_dynamic_ntk")])
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    first = leaderboard_page(shown).sections[0].html.partition("</p>")[0]
    assert " are among the best" not in first
    assert names_in(first)[:2] == ["rope", "rope_dynamic_ntk"]
    assert " more that no encoding beats" not in task_page(shown, task).sections[0].html


def test_encodings_whose_runs_have_the_same_bits_are_one_line(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 11.0, "fire": 7.2})
    twins = {"rope_dynamic_ntk": "rope", "integer": "none"}
    rows = pd.concat([rows, *(rows[rows["pe"] == one].assign(pe=pe) for pe, one in twins.items())])
    html = needs_page(replace(content, results={"induction": TaskResults(task, rows)})).html()
    parts = advised(lines_of(html, "need")["induction"])
    found = [names_in(item) for item in re.findall(r'<th scope="row">.*?</th>', parts["use"])]
    assert sorted(map(sorted, found)) == [["fire"], ["rope", "rope_dynamic_ntk"]]
    assert parts["slower"].count("(×") == 1  # none and integer
    assert "\u00a0/ " not in parts["use"]
    rows = right_answers(rows, {"rope": 0.5, "rope_dynamic_ntk": 0.5})
    rows.loc[rows["pe"].eq("rope_dynamic_ntk"), "accuracy_x4"] = 0.25
    results = TaskResults(task, rows)
    pair = [percent(mean_right(results)[4.0][pe]) for pe in ("rope", "rope_dynamic_ntk")]
    html = needs_page(replace(content, results={"induction": results})).html()
    shown = "\u00a0/ ".join(pair)
    assert f">{shown}</a>" in advised(lines_of(html, "need")["induction"])["use"]
    assert set(names_in(parts["slower"])) == {"none", "integer"}


def test_rows_are_beside_the_pages(site: Path, results: Path) -> None:
    name = "pe_bench_2_induction.csv"
    assert (site / "rows" / name).read_text().count("\n") == 1 + 5 * len(tuned.MEANS)
    shown, shipped = pd.read_csv(site / "rows" / name), pd.read_csv(results / name)
    pd.testing.assert_frame_equal(shown, shipped)
    assert not (site / "rows" / "pe_bench_2_copy.csv").exists()


def test_without_results_pages_say_so(content: GalleryData, tmp_path: Path) -> None:
    write_site(replace(content, results={}), tmp_path / "site")
    assert "Not measured yet" in (tmp_path / "site/index.html").read_text()
    assert "Not measured yet." in (tmp_path / "site/tasks/copy.html").read_text()
    kinds = {kind for _, _, kind in NEEDS.findall((tmp_path / "site/needs.html").read_text())}
    assert kinds == {"not measured"}
    rope = (tmp_path / "site/encodings/rope.html").read_text()
    assert rope.count("not measured yet") == sum("rope" in one.encodings for one in benchmark_tasks())
    assert not (tmp_path / "site/rows").exists()


def test_markdown_is_filled_with_the_same_html(content: GalleryData) -> None:
    for page in pages(replace(content, documented=True)):
        text = page.markdown()
        filled = page.filled(text)
        for number_, section in enumerate(page.sections):
            assert (slot(number_) in text) == bool(section.html)
            assert section.html in filled
            if section.title:
                assert f"## {section.title} {{#{section.id}}}" in text
        assert "<!-- gallery:" not in filled
        heading = re.sub(r"[^\w]+", "-", page.title.lower()).strip("-")  # its id in the documentation
        assert [one for one in Read(filled).ids if one == heading or one in page_ids(page)] == []
    assert "    ```python\n    class RoPE" in encoding_page(content, "rope").markdown()  # folded


def test_in_the_documentation_pages_link_to_its_other_pages(content: GalleryData) -> None:
    alone, inside = (encoding_page(replace(content, documented=one), "rope").html() for one in (False, True))
    assert "../../audit.html" in inside
    assert "../../audit.html" not in alone


def test_the_edge_counts_all_seeds_in_tables_as_in_claims(content: GalleryData) -> None:
    """Seeds that do not solve a task count; one seed is not enough, even if it is the only one that solves it."""
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 13.0, "none": 13.0, "fire": 13.0}, 0.05)
    first = rows["seed"].eq(0)
    rows.loc[rows["pe"].eq("fire") & first, ["y", "solved"]] = [8.0, True]
    rows["edge"] = rows["pe"].eq("alibi") | (rows["pe"].eq("fire") & first)
    results = TaskResults(task, rows)
    table = results.table.set_index("pe")["edge"]
    assert table.to_dict() == pytest.approx({"rope": 0.0, "fire": 0.2, "alibi": 1.0, "none": 0.0})
    assert edge_shares(rows).to_dict() == pytest.approx(table.to_dict())
    lines = lines_of(task_page(replace(content, results={"induction": results}), task).sections[0].html)
    assert {pe for pe, line in lines.items() if "edge</small>" in line} == {"alibi"}


def test_encodings_at_the_edge_of_the_rates_are_marked(content: GalleryData) -> None:
    task = task_named("causal_text")
    rows = tuned.table("causal_text", tuned.LOSSES, 0.01)
    for pe, seeds in (("t5", 5), ("fire", 2), ("alibi", 1)):
        rows.loc[rows["pe"].eq(pe) & rows["seed"].lt(seeds), ["lr", "edge"]] = [1e-2, True]
    lines = lines_of(task_page(replace(content, results={task.name: TaskResults(task, rows)}), task).sections[0].html)
    assert {pe for pe, line in lines.items() if "edge" in line} == {"t5", "fire"}  # more than 20 %
    none = rows.assign(edge=rows["pe"].eq("none"))
    shown = replace(content, results={task.name: TaskResults(task, none)})
    behind = lines_of(needs_page(shown).html().replace('data-length="4"', ""), "need")[task.name]
    assert "<small>edge</small>" in advised(behind)["higher loss"]
    assert ["edge</small>" in encoding_page(shown, pe).html() for pe in ("none", "rope")] == [True, False]
    found = TaskResults(task, rows.assign(edge=rows["pe"].eq("rope")))
    need = lines_of(
        needs_page(replace(content, results={task.name: found})).html().replace('data-length="4"', ""), "need"
    )
    assert found.best == ["rope"]
    assert "<small>edge</small>" in need[task.name]
    html = needs_page(
        replace(content, results={task.name: TaskResults(task, rows)})
    ).html()  # rope took none at an edge
    uses = re.findall("<strong>Among the lowest losses.*?<strong>Higher", html, re.DOTALL)
    assert uses
    assert not any("<small>edge</small>" in use for use in uses)


def test_means_and_intervals_of_steps_end_at_the_cap() -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 9.0, "alibi": 12.5})
    some = rows["pe"].eq("none") & rows["seed"].gt(0)
    rows.loc[some, ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    table = TaskResults(task, rows).table.set_index("pe")
    raw = endpoints(rows, task).set_index("pe")
    assert raw.loc["none", "high"] > task.cfg.steps
    assert table.loc[["none", "alibi"], "high"].tolist() == [task.cfg.steps] * 2
    assert table.loc["none", "mean"] == raw.loc["none", "mean"] < task.cfg.steps
    assert table.loc["rope", ["mean", "low", "high"]].equals(raw.loc["rope", ["mean", "low", "high"]])
    text = TaskResults(task_named("causal_text"), tuned.table("causal_text", {"rope": 5000.0, "none": 1.0})).table
    assert text["mean"].max() > 4000  # nats have no cap


def test_source_with_a_fence_stays_in_its_block() -> None:
    text = Page("a", "a", [PageSection("Code", "", '"""```\n<script>\n"""')]).markdown()
    assert text.endswith('````python\n"""```\n<script>\n"""\n````\n')


def test_text_of_others_is_escaped() -> None:
    page = Page("a/b", "<b>", [PageSection("x & y", "<p>kept</p>", "if a < b: pass")])
    html = page.html()
    assert "<title>&lt;b&gt;" in html
    assert '<h2 id="x-&-y">x &amp; y</h2>' in html
    assert "if a &lt; b: pass" in html
    assert 'href="../gallery.css"' in html


def test_numbers_are_shown_with_a_minus_sign_and_never_as_minus_zero() -> None:
    assert [fixed(value) for value in (-0.001, -0.25, 1, float("nan"), None)] == ["0.00", "−0.25", "1.00", "", ""]
    assert [number(value) for value in (-0.0123456, 2004, 1234567.0, 1e-9, None)] == [
        "−0.0123",
        "2,004",
        "1,234,567",
        "1e-09",
        "",
    ]


def test_small_numbers_of_parts_are_no_zeros() -> None:
    assert [signed_number(value) for value in (1.234e-16, -0.0587, 0.0, 12.345)] == [
        "+1.23e-16",
        "−0.0587",
        "0",
        "+12.3",
    ]


def test_nothing_is_shown_as_not_a_number(content: GalleryData) -> None:
    for page in pages(content):
        assert "nan" not in re.sub(r"<code>.*?</code>|<script.*?</script>", "", page.html(), flags=re.DOTALL).lower()


def test_marks_are_those_of_the_figures() -> None:
    assert set(SHAPES) == {*MARKERS, *OWN_MARKERS, NONE_STYLE.marker}
    assert f'd="{SHAPES[style("rope").marker]}" fill="{style("rope").colour}"' in mark("rope")
    assert mark("rope") != mark("alibi")
