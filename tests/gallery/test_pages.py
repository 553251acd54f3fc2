"""The pages of the gallery: links lead somewhere, every number has its row, nothing comes from the network."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.utils import instantiate
from markupsafe import escape

from helpers import tuned
from pe_lab.benchmark import task_tables
from pe_lab.benchmark.fresh_seeds import compare_fresh_seeds
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_results import read_results as read_measured
from pe_lab.benchmark.task_statistics import edge_shares, endpoints, margin_in_words, scores
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.config import config_folder
from pe_lab.data.base import IGNORE
from pe_lab.encodings.layout import PADDING
from pe_lab.gallery.claim_figure import place
from pe_lab.gallery.claim_tests import (
    CANNOT,
    at_edge,
    by_support,
    by_verdict,
    claimed_side,
    encodings_of,
    unlearned,
    verdict_of_claim,
    weakest,
    without_room,
)
from pe_lab.gallery.claim_text import (
    UNPUBLISHED,
    conditions,
    is_cut,
    levels,
    mean_and_interval,
    ours,
    parts_tables,
    shared_notes,
    states,
)
from pe_lab.gallery.claims_page import claims_page
from pe_lab.gallery.definitions import Failure, definitions
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.extrapolation import (
    NO_NEW_POSITION,
    NOT_ASKED,
    by_seed,
    highest_where_none_holds,
    holding,
    holding_on_average,
    keeps_positions,
    mean_right,
    mean_whole,
)
from pe_lab.gallery.gallery_data import TEXT_STUDIES, GalleryData, studies_by_dataset
from pe_lab.gallery.gallery_page import Page, PageSection, fixed, number, percent, plain, signed, slot
from pe_lab.gallery.leaderboard_page import leaderboard_page, wins
from pe_lab.gallery.markers import SHAPES, mark
from pe_lab.gallery.need_recommendations import recommend
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.pages import encodings_page, pages, tasks_page
from pe_lab.gallery.pairwise import compare_on_task
from pe_lab.gallery.samples import data_of
from pe_lab.gallery.site import write
from pe_lab.gallery.task_page import task_page
from pe_lab.replication import EntryVerdict, Finding, judge_entry
from pe_lab.replication.entry import Claimed
from pe_lab.results.styles import MARKERS, NONE_STYLE, OWN_MARKERS, style
from pe_lab.statistics import Agreement

SAMPLE = re.compile(r'<tr><th scope="row">(tokens|asked|class)</th>(.*?)</tr>')
NEEDS = re.compile(r'<tr data-need="(\w+)" data-length="([\d.]+)" data-advice="([\w ]+)">')
HEADS = {
    "Within a factor of": "use",
    "Among the lowest losses": "use",
    "Slower": "slower",
    "Higher loss": "higher loss",
    "Not solved by every seed": "unreliable",
    "Not solved within": "avoid",
}
CHOICES = ("use", "behind", "unreliable", "avoid")
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Read(HTMLParser):
    """Links, ids, loaded addresses and the cells of tables on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.cells: list[tuple[str, list[str]]] = []  # text and links of each td
        self._open: list[str] | None = None
        self._text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])
            if self._open is not None:
                self._open.append(given["href"])
        if tag in LOADING and LOADING[tag] in given:
            self.loaded.append(given[LOADING[tag]])
        if tag == "td":
            self._open, self._text = [], ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._open is not None:
            self.cells.append((" ".join(self._text.split()), self._open))
            self._open = None


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Read]:
    return {path: Read(path.read_text()) for path in site.rglob("*.html")}


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


def lines_of(html: str, key: str = "name") -> dict[str, str]:
    """Return the lines of tables by the name of their encoding, task or need."""
    line = rf'(<tr data-{key}="([^"]+)".*?</tr>)(?=\s*<tr data-{key}|\s*</tbody>\s*</table>\s*</div>)'
    return {name.split()[0]: text for text, name in re.findall(line, html, re.DOTALL)}


def advised(line: str) -> dict[str, str]:
    """Return the parts of a need by the advice that they hold: use, slower, higher loss, unreliable, avoid."""
    parts = re.split(rf"<strong>(?:{'|'.join(HEADS)})[^<]*</strong>", line)[1:]
    words = [HEADS[head] for head in re.findall(rf"<strong>({'|'.join(HEADS)})[^<]*</strong>", line)]
    found = dict(zip(words, parts, strict=True))
    return found | {"use": found["use"].partition("<table")[2]} if "use" in found else found


def names_in(html: str) -> list[str]:
    """Return the encodings that are named, in order."""
    return re.findall(r"<code>(\w+)</code>", html)


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


def test_a_page_of_a_task_begins_with_the_best_encoding(content: GalleryData) -> None:
    html = task_page(content, task_named("induction")).sections[0].html
    best = re.search('<p data-length="1">(.*?)</p>', html, re.DOTALL)
    assert best is not None
    assert names_in(best[1]) == content.results["induction"].best
    assert html.index('data-length="1"') < html.index("data-held>") < html.index("A validation sequence")


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
    held = list(holding(induction)[4.0])
    assert (held[0], set(held)) == ("fire", {*names} & set(induction.table["pe"]))
    (holds,) = set(held) & set(text.best_at[4.0])
    assert (names_in(best), names_in(longer)) == ([most], [holds])
    assert ["2 of 2" in part for part in (best, longer)] == [True, True]
    summary = lines_of(needs_page(shown).html(), "summary")["induction"].partition('data-label="longer"')[2]
    assert f"+{len(held) - 2}</small>" in summary.partition("</td>")[0]
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


def right_answers(rows: pd.DataFrame, shares: dict[str, float]) -> pd.DataFrame:
    """Return rows whose accuracy is a share at the training length, half of it at twice, and 0 at 4 times.

    The exact match is a tenth of it.
    """
    right = {length: rows["pe"].map(shares).astype(float) * factor for length, factor in ((1, 1.0), (2, 0.5), (4, 0.0))}
    columns = {f"accuracy_x{length}": each for length, each in right.items()}
    return rows.assign(**columns, **{f"exact_match_x{length}": each / 10 for length, each in right.items()})


def unsolved(rows: pd.DataFrame, pe: str) -> TaskResults:
    """Return results of induction in which an encoding solves no seed."""
    task, each = task_named("induction"), rows["pe"].eq(pe)
    cap = float(np.log2(task.cfg.steps))
    return TaskResults(task, rows.assign(y=rows["y"].mask(each, cap), solved=rows["solved"].mask(each, False)))


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
    assert holding(results)[4.0] == pytest.approx({"alibi": 0.953, "rope": 0.9})
    assert (holding(results)[2.0], list(highest_where_none_holds(results))) == ({}, [2.0])
    assert {length: list(names) for length, names in holding(text).items()} == {
        length: names for length, names in text.best_at.items() if length > 1
    }
    shown = replace(content, results={"induction": results, "causal_text": text})
    (page,) = re.findall(r"<p data-held>(.*?)</p>", task_page(shown, task).html())
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
    assert (list(holding(results)[4.0]), list(holding_on_average(results)[4.0])) == (["rope"], ["alibi"])
    assert holding_on_average(content.results["causal_text"]) == {}
    shown = replace(content, results={"induction": results})
    (page,) = re.findall(r"<p data-held>(.*?)</p>", task_page(shown, task).html())
    held, average = page.split("data-average")
    assert ("whole 60" in held, "whole 3\u00a0%" in average) == (True, True)
    box = re.findall(r"<p data-holds>(.*?)</p>", encoding_page(shown, "alibi").html())[0]
    assert ("on 0 of 1" in box, "whole 3\u00a0%" in box.partition("data-average")[2]) == (True, True)
    line = dict(re.findall(r'<tr data-longer="(\w+)">(.*?)</tr>', leaderboard_page(shown).html(), re.DOTALL))
    assert [("0 of 1" in line[pe], "data-average" in line[pe]) for pe in ("rope", "alibi", "none")] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    assert "whole 3\u00a0%" in line["alibi"]


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


def test_an_encoding_is_compared_with_rope_and_rope_with_alibi(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 13.0, "fire": 13.0}, 0.05)
    rows["accuracy_x4"] = rows["pe"].map({"rope": 0.1, "alibi": 0.9}).fillna(0.0)
    rows.loc[rows["pe"].eq("alibi") & rows["seed"].eq(0), "accuracy_x4"] = 0.7
    results = TaskResults(task, rows)
    line, back = compare_on_task(results, "alibi", "rope"), compare_on_task(results, "rope", "alibi")
    assert line is not None
    assert back is not None
    assert (line["verdict"], back["verdict"]) == ("worse", "better")
    means = results.table.set_index("pe")["mean"]
    ratios = [float(each["difference"].split()[1]) for each in (line, back)]
    assert ratios == pytest.approx([means["alibi"] / means["rope"], means["rope"] / means["alibi"]], abs=0.006)
    assert line["at"][4.0] == (["86\u00a0% (70 to 90)", "10\u00a0%"], "")
    unsolved, neither = compare_on_task(results, "none", "rope"), compare_on_task(results, "none", "fire")
    assert unsolved is not None
    assert neither is not None
    assert unsolved["difference"].endswith(" or more")
    assert (neither["verdict"], neither["difference"]) == ("both unsolved", "")
    assert compare_on_task(results, "rope", "t5") is None
    text = compare_on_task(content.results["causal_text"], "none", "rope")
    longer = content.results["causal_text"].longer[4.0].table.set_index("pe")["mean"]
    assert text is not None
    assert text["at"][4.0][0] == [fixed(longer[pe], 3) for pe in ("none", "rope")]
    assert text["at"][4.0][1].startswith("worse, +")
    shown = replace(content, results={"induction": results, "causal_text": content.results["causal_text"]})
    tables = {
        name: encoding_page(shown, name).sections[1].html.partition('id="against"')[2] for name in ("alibi", "rope")
    }
    assert [re.findall('data-against="(\\w+)"', table) for table in tables.values()] == [
        ["induction", "causal_text"]
    ] * 2
    assert tables["rope"].startswith("><summary>Against <code>alibi</code>")
    without = replace(shown, results={"induction": TaskResults(task, rows[rows["pe"].ne("rope")])})
    assert 'id="against"' not in encoding_page(without, "alibi").html()


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


def test_an_encoding_that_did_not_solve_a_task_has_what_is_right_and_where_it_holds(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 13.0, "none": 13.0})
    for length in (2, 4):
        rows[f"accuracy_x{length}"] = rows["pe"].map({"rope": 0.2, "none": 0.2, "alibi": 0.9})
    rows["accuracy_x1"] = rows["pe"].eq("rope") * 0.25 + 0.7
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    part = advised(lines_of(needs_page(shown).html(), "need")["induction"])["avoid"]
    assert part.count("70\u00a0%") == 2
    assert re.findall(r"<code>(\w+)</code>(?:</a>)?</span> 70\u00a0% \(.*?at 2 ×, 4 ×\)", part) == ["alibi"]
    assert "(70\u00a0%)" in encoding_page(shown, "none").sections[0].html


def test_where_nothing_holds_the_highest_is_named_with_its_range(content: GalleryData) -> None:
    task = task_named("induction")
    rows = right_answers(tuned.table("induction", {"rope": 7.0, "none": 9.0}), {"rope": 0.9, "none": 0.1})
    rows.loc[rows["pe"].eq("rope"), "accuracy_x2"] = [0.0, 0.0, 0.1, 0.2, 0.2]
    results = TaskResults(task, rows)
    assert highest_where_none_holds(results) == {2.0: ("rope", pytest.approx(0.1)), 4.0: ("rope", 0.0)}
    assert by_seed(results, "rope", 2.0) == "0 to 20\u00a0% by seed"
    assert by_seed(results, "none", 2.0) == ""
    assert list(highest_where_none_holds(TaskResults(task, rows.assign(accuracy_x4=0.9)))) == [2.0]
    assert highest_where_none_holds(content.results["causal_text"]) == {}
    shown = replace(content, results={"induction": results})
    need = lines_of(needs_page(shown).html(), "need")["induction"]
    assert 0 < need.index("Within a factor of") < need.index("0 to 20\u00a0% by seed")
    later = rows.assign(accuracy_x4=rows["accuracy_x2"])
    (line,) = re.findall(
        r"<p data-held>(.*?)</p>",
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
    data = data_of(task)
    assert f"induction {data.lengths[1.0]} and {data.lengths[4.0]}" in html
    assert "1.400" in lines["causal_text"]
    vectors = "Learned position vectors do not work beyond"
    assert html.index(vectors) < html.index("data-summary") < html.index("data-need")
    words = unescape(re.sub("<[^>]+>", "", html))
    assert "has 0 to 0\u00a0% of the answers right (at most 0\u00a0% of whole" in words
    assert re.search(r"whole sequences\); [^.]*none 0 to 0\u00a0%", words)
    other = rows.assign(accuracy_x4=rows["accuracy_x4"] + 0.6 * rows["pe"].eq("learnable"), exact_match_x4=0.01)
    two = {"induction": TaskResults(task, rows), "copy": TaskResults(task_named("copy"), other.assign(task="copy"))}
    words = unescape(re.sub("<[^>]+>", "", needs_page(replace(content, results=two)).html()))
    assert "has 0 to 60\u00a0% of the answers right (at most 1\u00a0% of whole" in words
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


def test_encodings_that_are_trained_in_another_way_than_in_their_paper_say_so(content: GalleryData) -> None:
    said = {name for name, definition in definitions().items() if definition.trained}
    assert {"rope_pi", "yarn"} <= said
    rope = replace(content.definitions["rope"], trained="From the start.")
    shown = replace(content, definitions={**content.definitions, "rope": rope})
    for page in (encoding_page(shown, "rope"), leaderboard_page(shown), task_page(shown, task_named("induction"))):
        assert "From the start." in page.html()
        assert page.html().count("data-trained") == 1


def test_all_losses_of_the_best_are_on_the_page_of_a_task_with_rates_at_an_edge(content: GalleryData) -> None:
    text = content.results["causal_text"]
    rows = text.rows.assign(edge=text.rows["pe"].eq("rope"))
    shown = replace(content, results={"causal_text": TaskResults(text.task, rows)})
    page = task_page(shown, text.task).sections[0].html
    for length, line in re.findall(r'<p data-length="([\d.]+)">(.*?)</p>', page):
        results = text if length == "1" else text.at(float(length))
        means = results.table.set_index("pe")["mean"]
        assert [f"{fixed(means[pe], 3)}" in line for pe in results.best] == [True] * len(results.best)
    assert [pe for pe, line in lines_of(page).items() if "<small>edge</small>" in line] == ["rope"]
    assert "needs.html#edge" in page


@pytest.mark.parametrize("loss", [1.9, 4.0])
def test_the_axis_of_intervals_leaves_none_out_where_it_lies_beyond_all_others(
    content: GalleryData, loss: float
) -> None:
    task = task_named("causal_text")
    rows = tuned.table("causal_text", {"rope": 1.8, "alibi": 2.0, "none": loss}, 0.01)
    results = TaskResults(task, rows)
    html = task_page(replace(content, results={"causal_text": results}), task).sections[0].html
    table = results.table.set_index("pe")
    inside = table.drop("none") if loss > 2 else table
    low, high = inside["low"].min(), inside["high"].max()
    assert f'aria-label="{low:.3f} to {high:.3f}"' in html
    assert [name for name, line in lines_of(html).items() if "beyond:" in line] == ["none"] * (loss > 2)
    assert html.count(f"beyond: {table.loc['none', 'mean']:.3f}") == (loss > 2)


def test_other_studies_of_text_stand_beside_its_results(content: GalleryData) -> None:
    html = task_page(content, task_named("causal_text")).html()
    assert html.count("data-text-studies") == 1
    cells_ = re.sub(r"</?a\b[^>]*>", "", html)
    lines = dict(
        re.findall(
            r"<code>(\w+)</code></span></th>((?:<td>[\d.]+<br><small data-range>[\d.]+ to [\d.]+</small></td>){6})",
            cells_,
        )
    )
    studies = {name: content.text_losses[name] for name in TEXT_STUDIES}
    for pe, cells in lines.items():
        rows = [each[each["pe"] == pe] for each in studies.values()]
        means = [each.loc[each["length"] == length, "loss"].mean() for each in rows for length in (1, 4)]
        assert re.findall(r"<td>([\d.]+)<", cells) == [fixed(mean, 3) for mean in means]
        ends = [each.loc[each["length"] == length, "loss"].agg(["min", "max"]) for each in rows for length in (1, 4)]
        assert re.findall("[\\d.]+ to [\\d.]+", cells) == [" to ".join(fixed(end, 3) for end in both) for both in ends]
    assert len(lines) == 8
    assert all(name in html for name in studies)
    first = [each[each["length"] == 4].groupby("pe")["loss"].mean().nsmallest(1).index[0] for each in studies.values()]
    for pe in {*first, "rope"}:  # needs name the studies in which the recommended one is not the first
        rows = tuned.table("causal_text", {pe: 1.0, "alibi": 1.6, "none": 2.0}, 0.01)
        shown = replace(content, results={"causal_text": TaskResults(task_named("causal_text"), rows)})
        answer = needs_page(shown).html().partition("data-confirmed")[2].partition("</p>")[0]
        assert [what in answer for what in TEXT_STUDIES.values()] == [pe != each for each in first]
        for study, rows in studies.items():
            losses = rows.loc[rows["pe"].eq(pe) & rows["length"].eq(4), "loss"]
            ends = f"{TEXT_STUDIES[study]}: {fixed(losses.min(), 3)} to {fixed(losses.max(), 3)} by seed"
            assert (ends in answer) == (TEXT_STUDIES[study] in answer)
    rows = tuned.table("causal_text", {"stick_breaking": 1.0, "forgetting": 1.0, "t5": 1.0, "none": 2.0}, 0.001)
    shown = replace(content, results={"causal_text": TaskResults(task_named("causal_text"), rows)})
    confirmed = needs_page(shown).html().partition("data-confirmed")[2].partition("</p>")[0]
    agreeing = re.findall(r"<code>(\w+)</code>(?:</a>)? in (\d)", confirmed)
    assert sorted(agreeing) == [("forgetting", "3"), ("stick_breaking", "3"), ("t5", "2")]  # alibi is ahead of t5 once
    assert "data-text-studies" not in task_page(content, task_named("copy")).html()
    no_studies = task_page(replace(content, text_losses={}), task_named("causal_text")).html()
    assert "data-text-studies" not in no_studies


def test_needs_begin_with_the_answer_for_longer_text(content: GalleryData) -> None:
    answer, _, rest = needs_page(content).html().partition("data-answer")[2].partition("</p>")
    assert (names_in(answer)[0], "differ" in answer) == ("rope", False)
    assert next(iter(lines_of(rest, "summary"))) == "causal_text"
    rows = tuned.table("causal_text", {"rope": 1.0, "alibi": 1.0001, "none": 2.0}, 0.01)
    alike = replace(content, results={"causal_text": TaskResults(task_named("causal_text"), rows)})
    answer = needs_page(alike).html().partition("data-answer")[2].partition("</p>")[0]
    assert (set(names_in(answer)), "do not differ" in answer) == ({"rope", "alibi"}, True)
    assert "data-answer" not in needs_page(replace(content, results={})).html()


def test_studies_of_a_dataset_are_found_by_their_rows(tmp_path: Path, content: GalleryData) -> None:
    for name, data in (("first", "copy"), ("second", "reverse"), ("third", "copy")):
        (tmp_path / name).mkdir()
        file = "outcomes.csv" if name == "third" else "rows.csv"
        pd.DataFrame({"pe": ["rope"] * 2, "data": [data] * 2}).to_csv(tmp_path / name / file, index=False)
    assert studies_by_dataset(tmp_path) == {"copy": ["first"], "reverse": ["second"]}  # no report is made of outcomes
    page = task_page(replace(content, studies={"copy": ["first", "third"]}), task_named("copy")).sections[0].html
    assert [name in page for name in ("first", "second", "third")] == [True, False, True]


def test_encodings_with_the_same_runs_count_once(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 11.0, "fire": 11.2})
    rows = pd.concat([rows, rows[rows["pe"] == "rope"].assign(pe="rope_dynamic_ntk")])
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    first = leaderboard_page(shown).sections[0].html.partition("</p>")[0]
    assert " are among the best" not in first
    assert names_in(first)[:2] == ["rope", "rope_dynamic_ntk"]
    assert " more that no encoding beats" not in task_page(shown, task).sections[0].html


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


def test_results_at_each_length_are_columns_that_sort_as_numbers(content: GalleryData) -> None:
    rows = right_answers(tuned.table("induction", {"rope": 7.0, "none": 9.0}), {"rope": 0.88, "none": 0.246})
    results = {"induction": TaskResults(task_named("induction"), rows), "causal_text": content.results["causal_text"]}
    part = encoding_page(replace(content, results=results), "rope").sections[1].html
    for found in results.values():
        line = re.search(rf'<th scope="row"><a href="[^"]*tasks/{found.task.name}.html">.*?</tr>', part, re.DOTALL)
        assert line is not None
        values = [float(one) for one in re.findall(r'data-sort="([-\d.e]+)"', line[0])][-3:]
        row = found.table.set_index("pe").loc["rope"]
        shares = [each["rope"] for each in mean_right(found).values()]
        assert values == (shares if found.task.solvable else [row[f"loss_{length}x"] for length in (1, 2, 4)])


def test_the_list_of_tasks_counts_as_many_of_the_best_as_needs(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 11.0, "fire": 7.0, "t5": 7.0, "alibi": 7.0})
    rows = pd.concat([rows, rows[rows["pe"] == "rope"].assign(pe="rope_dynamic_ntk")])
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    lines = lines_of(tasks_page(shown).html())
    assert list(lines) == [one.name for one in benchmark_tasks()]
    assert names_in(lines["induction"]) == shown.results["induction"].best[:1]
    assert "and 3 more" in lines["induction"]  # twins count once
    assert "+2</small>" in lines_of(needs_page(shown).html(), "summary")["induction"]
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


def test_rows_are_beside_the_pages(site: Path, results: Path) -> None:
    name = "pe_bench_2_induction.csv"
    assert (site / "rows" / name).read_text().count("\n") == 1 + 5 * len(tuned.MEANS)
    shown, shipped = pd.read_csv(site / "rows" / name), pd.read_csv(results / name)
    pd.testing.assert_frame_equal(shown, shipped)
    assert not (site / "rows" / "pe_bench_2_copy.csv").exists()


def test_a_page_of_an_encoding_has_all_its_parts(content: GalleryData) -> None:
    page = encoding_page(content, "rope")
    titles = [section.title for section in page.sections]
    assert titles == [
        "",
        "Results",
        "Untrained curve",
        "Replication",
        "Known failures",
        "Equal to",
        "Properties",
        "Picture",
        "Code",
    ]
    html = page.html()
    assert html.count("<math") >= len(content.definitions["rope"].formula)
    assert "class RoPE(PositionalEncoding):" in html
    assert 'type="range"' in html
    assert "https://arxiv.org/abs/2104.09864" in html
    results = page.sections[1].html
    assert "loss " in results
    assert results.count("not measured yet") == sum("rope" in one.encodings for one in benchmark_tasks()) - 2


def test_a_page_of_an_encoding_begins_with_what_to_use_it_for_and_folds_the_rest(content: GalleryData) -> None:
    for name in content.definitions:
        first, *others = encoding_page(content, name).sections
        said = {
            word: re.findall(r">([^<>]+)</a>\s*\(", part)
            for word, part in re.findall(
                rf"<p><strong>({'|'.join(HEADS)}|Not solved by any)[^<]*</strong>(.*?)</p>",
                first.html,
                re.DOTALL,
            )
        }
        behind = said.pop("Slower", []) + said.pop("Higher loss", [])
        asked = {
            chosen: [need.asks for need in content.needs if name in getattr(need.advice, chosen)] for chosen in CHOICES
        }
        assert sorted(behind) == sorted(asked["behind"])
        best = [*said.get("Within a factor of", []), *said.get("Among the lowest losses", [])]
        assert sorted(best) == sorted(asked["use"])
        assert said.get("Not solved by every seed", []) == asked["unreliable"]
        assert said.get("Not solved by any", []) == asked["avoid"]
        assert ("causal mask" in first.html) == (name == "none")
        assert not first.fold
        unfolded = [one.title for one in others if not one.fold]
        assert unfolded == [*["Results"] * bool(content.on_tasks(name)), "Untrained curve"]


def test_a_page_of_an_encoding_has_the_verdicts_of_its_claims_and_numbers(content: GalleryData) -> None:
    part = {name: encoding_page(content, name).sections[3].html for name in ("none", "rope_2d")}
    found = dict(re.findall(r'claims.html#([\w-]+)".*?data-verdict="([\w ]+)"', part["none"]))
    numbers = {name: one for name, one in content.reported("none").items() if one.compared}
    assert {"pattern/none_claimed", "formal_algorithms/bin_majority_nope"} <= set(numbers)
    on_rows = {"none_competitive", "none_extends", "none_longer", "fire_longer"}  # conf/replication/papers.yaml
    claims = {*content.definitions["none"].claims, *on_rows}
    assert found == {name: str(content.claims[name].verdict) for name in claims} | {
        name.replace("/", "-"): str(one.verdict) for name, one in numbers.items()
    }
    one = content.numbers["pattern/none_claimed"]
    low, high = (f"{float(end):+.3g}" for end in (one.compared["accuracy"].low, one.compared["accuracy"].high))
    for text in ("0.676", "0.35", f"(+0.326 [{low}, {high}])", "5 seeds", "0.05"):
        assert text in " ".join(ours(one))
    assert "<br>".join(ours(one)) in part["none"]
    assert "<table" not in part["rope_2d"]
    compared = ["alibi_keeps", "alibi_longer", "none_competitive", "xpos_better", "alibi_costs", "fire_longer"]
    words = re.sub(r"<[^>]+>", "", encoding_page(content, "alibi").sections[3].html)
    assert [content.claims[name].entry.says in words for name in (*compared, "stick_drop_in")] == [True] * 6 + [False]


def test_a_page_of_an_encoding_has_the_means_of_fresh_seeds(content: GalleryData) -> None:
    means, again = {"rope": 7.0, "none": 10.0, "fire": 8.0}, {"rope": 7.1, "none": 10.0}
    rows = [tuned.table("induction", means, 0.05), tuned.table("induction", again, 0.05, seeds=range(100, 105), draw=1)]
    made = compare_fresh_seeds({"induction": pd.concat(rows)})
    part = encoding_page(replace(content, again=made), "rope").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    here = made.means.set_index("pe").loc["rope"]
    low, mean, high, fresh = (number(2 ** here[name]) for name in ("low", "mean", "high", "fresh"))
    assert re.findall(r"<td>(.*?)</td>", line) == [f"{mean} <small>{low} to {high}</small>", fresh, "0 of 1"]
    assert "with fresh seeds" in encoding_page(replace(content, again=made), "rope").sections[3].fold
    unsolved = [
        tuned.table("induction", {"rope": 7.0, "none": 13.0}, seeds=seeds) for seeds in (range(5), range(100, 105))
    ]
    made = compare_fresh_seeds({"induction": pd.concat(unsolved)})
    part = encoding_page(replace(content, again=made), "none").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    assert re.findall(r"<td>(.*?)</td>", line)[:2] == ["not solved <small>–</small>", "not solved"]
    once = pd.concat(unsolved)
    once.loc[once["pe"].eq("none") & once["seed"].eq(0), "solved"] = True  # at the cap
    made = compare_fresh_seeds({"induction": once})
    part = encoding_page(replace(content, again=made), "none").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    published = re.findall(r"<td>(.*?)</td>", line)[0]
    assert ("not solved" in published, "1 of 5 solved" in published) == (False, True)
    assert "again-table" not in encoding_page(content, "rope").html()


def test_claims_have_their_verdicts_and_their_encodings(content: GalleryData) -> None:
    html = claims_page(content).html()
    for name, claim in content.claims.items():
        part = html[html.index(f'id="{name}"') :]
        part = part[: part.index("</section>")]
        assert escape(str(claim.verdict if claim.compared else claim)) in part
        cells = re.findall(r'<td class="gallery-verdict" data-verdict="([\w ]+)">', part)
        assert sorted(cells) == sorted(str(one.agreement) for one in claim.compared.values())
        verdict = re.search(r'<strong class="gallery-verdict" data-verdict="([\w ]+)">', part)
        assert verdict is not None
        assert not ({"not reproduced", "undecided"} & set(cells) and verdict[1] == "reproduced")
    assert "not run" not in str(content.claims["blind"])
    assert 'href="encodings/rope.html"' in html


def test_claims_of_papers_come_first_by_verdict_and_rows_name_them(content: GalleryData) -> None:
    rows = rows_of_claims(content)
    assert rows.keys() == content.claims.keys()
    papers = {name: claim.entry.paper for name, claim in content.claims.items()}
    published = [papers[name] != UNPUBLISHED for name in rows]
    assert published == sorted(published, reverse=True)
    assert len(set(published)) == 2
    assert all(f'href="{papers[name]}"' in row for name, row in rows.items() if papers[name] != UNPUBLISHED)
    for name, row in rows.items():
        assert f'href="#{name}"' in row
    judged = [verdict_of_claim(content.claims[name]) for name in rows if papers[name] == UNPUBLISHED]
    assert [verdict for verdict, _ in groupby(judged)] == ["mixed", "not reproduced", "undecided", CANNOT]


def test_parts_of_claims_are_tables_with_metric_unit_tasks_and_tolerance(content: GalleryData) -> None:
    html = claims_page(content).html()
    parts = {name: html[html.index(f'id="{name}"') :].partition("</section>")[0] for name in content.claims}
    for name, claim in content.claims.items():
        listed = [label for table in parts_tables(claim) for row in table.rows for label in row.labels]
        assert sorted(listed) == sorted(claim.entry.values)
        for words in claim.entry.studies.values():
            assert not claim.compared or f"pe-lab run -m {' '.join(words)}" in parts[name]
    alone, grid = parts_tables(content.claims["lowest"])
    assert (len(alone.rows), len(grid.rows), len(grid.columns)) == (1, 9, 4)
    assert alone.rows[0].claimed == "near 0 (within 0.05)"
    (trails,) = parts_tables(content.claims["rope_trails"])
    assert (trails.measured, trails.tasks, trails.columns) == ("difference in test loss, nats", ["structured"], ("",))
    accuracies, differences = parts_tables(content.claims["ranking"])
    assert accuracies.measured == "accuracy, share of answers"
    assert (len(accuracies.rows), len(differences.rows)) == (5, 4)
    signed_ = {name: "+" in "".join(re.findall("<td.*?</td>", parts[name])) for name in ("collapses", "longer")}
    assert signed_ == {"collapses": False, "longer": True}  # signs are those of differences
    (longer,) = parts_tables(content.claims["longer"])
    assert (longer.tasks, len(longer.rows), len(longer.columns)) == (["copy", "reverse", "repeat"], 3, 6)
    (ratio,) = parts_tables(content.claims["collapses"])
    assert not re.search("share|nats", ratio.measured)  # a ratio has no unit
    assert [table.tasks for table in parts_tables(content.claims["blind"])] == [
        *[["audit of untrained models"]] * 2,
        ["pattern"],
    ]


def test_claims_say_which_models_have_not_learned_their_task(content: GalleryData, tmp_path: Path) -> None:
    entry = content.claims["fades"].entry
    (tmp_path / "layers").mkdir()
    for losses, count in (((1.0, 1.0), 1), ((1.0, 0.2), 1), ((0.2, 0.2), 0)):  # in all settings, in one and in none
        rows = pd.DataFrame({"pe": "rope", "depth": [1, 2], "test_loss": losses, "floor_position_blind_loss": 0.5})
        rows.to_csv(tmp_path / "layers/rows.csv", index=False)
        assert len(unlearned(entry, tmp_path)) == count
    assert unlearned(content.claims["blind"].entry, tmp_path) == {}
    html = claims_page(replace(content, unlearned={"fades": {"layers": "Nothing."}})).html()
    assert re.findall(r'id="(\w+)"(?:(?!</section>).)*data-unlearned="(\w+)"', html, re.DOTALL) == [("fades", "layers")]
    rows = rows_of_claims(replace(content, unlearned={"fades": {"layers": "Nothing."}}))
    assert [name for name, row in rows.items() if "models that had not learned" in row] == ["fades"]


def test_verdicts_that_cannot_be_tested_or_are_of_unlearned_models_say_so(content: GalleryData) -> None:
    limited = {
        name: found[1]
        for name, row in rows_of_claims(content).items()
        if (found := re.search("data-limited>(.*?)</span>", row))
    }
    kept = {name for name, claim in content.claims.items() if keeps_positions(claim.entry)}
    missed = {name for name, studies in content.unlearned.items() if studies}
    assert set(limited) == kept | missed
    assert {name for name, text in limited.items() if CANNOT in text} == kept
    assert all(str(content.claims[name].verdict) + ", on models" in limited[name] for name in missed - kept)
    rope = encoding_page(content, "rope").sections[3]
    assert rope.html.count("data-limited") == len((kept | missed) & set(content.definitions["rope"].claims)) > 0
    assert "on models that had not learned" in rope.fold
    unpublished = {name: claim for name, claim in content.claims.items() if claim.entry.paper == UNPUBLISHED}
    groups = by_verdict(unpublished, {})
    names = [name for several in groups.values() for name in several]
    assert (sorted(names), set(groups[CANNOT])) == (sorted(unpublished), kept)
    overview = claims_page(content).html().partition('id="unpublished"')[2].partition("</table>")[0]
    in_groups = [verdict_of_claim(content.claims[name]) for name in re.findall(r'href="#(\w+)"', overview)]
    assert in_groups == [word for word, several in groups.items() for _ in several]


def some_claim(content: GalleryData, name: str, rows: pd.DataFrame) -> tuple[Finding, dict[str, TaskResults]]:
    """Return a claim on one task of the benchmark, judged on rows, and their results."""
    entry = content.claims[name].entry
    results = {entry.tasks[0]: TaskResults(task_named(entry.tasks[0]), rows)}
    values = {}
    for label, test in entry.values.items():
        cells = [{**test.value, **change} for change in ({}, *test.others)]
        seeds = [rows[rows["pe"] == cell["pe"]][f"{cell['metric']}_x{cell['length']}"].to_numpy() for cell in cells]
        values[label] = list(seeds[0] - seeds[1])
    return judge_entry(entry, values), results


def test_a_claim_of_which_most_parts_leave_no_room_for_a_difference_cannot_be_tested(content: GalleryData) -> None:
    """Both encodings have all right, or nothing; one decided part is enough for a verdict."""
    means = dict.fromkeys(("cope", "learnable", "rope"), 7.0)
    rows = tuned.table("flip_flop", means)
    spread = np.tile([0.0, 0.001, -0.001, 0.002, -0.002], 3)
    for length in (1, 2, 4):
        rows[f"accuracy_x{length}"] = 0.995 + spread * rows["pe"].map({"cope": 1, "learnable": 0.5, "rope": -1})
    claim, results = some_claim(content, "cope_flip_flop", rows)
    assert set(without_room(claim, results)) == set(claim.compared)
    assert without_room(claim, {}) == {}
    assert verdict_of_claim(claim, without_room(claim, results)) == CANNOT
    assert verdict_of_claim(claim) == "undecided"
    assert verdict_of_claim(claim, list(claim.compared)[:3]) == "undecided"  # half of them
    lower = rows.assign(accuracy_x4=rows["accuracy_x4"] - 0.3 * rows["pe"].eq("rope"))
    claim, results = some_claim(content, "cope_flip_flop", lower)
    roomless = without_room(claim, results)
    assert set(claim.compared) - set(roomless) == {"`cope` − `rope` at 4 ×"}
    assert verdict_of_claim(claim, roomless) == "undecided"
    assert "1 of 6 parts shown" in states(claim, roomless)
    assert states(claim, roomless) != states(claim)
    few = rows.assign(accuracy_x4=rows["accuracy_x4"] - 0.3)  # 2 of 6 parts that have room, both open
    claim, results = some_claim(content, "cope_flip_flop", few)
    assert len(without_room(claim, results)) == 4
    html = claims_page(replace(content, results=results, claims={"cope_flip_flop": claim})).html()
    assert f'data-verdict="{CANNOT}"' in html
    section = html.partition('<section class="gallery-claim"')[2]
    assert ("4 of 6 parts" in section, section.count("</span> ") >= 6) == (True, True)
    longer = content.claims["longer"]
    shares = without_room(longer, {}, content.unseen["longer"])
    assert {label.partition(":")[0] for label in shares} == {"data copy", "data reverse", "data repeat"}
    assert len(shares) == 12
    assert "data copy: exact match on unseen lengths, `none` − `alibi`" not in shares  # alibi has 19 %


def test_parts_of_claims_have_the_encodings_whose_rate_was_at_an_edge(content: GalleryData) -> None:
    rows = tuned.table("causal_text", {"alibi": 1.5, "rope": 1.4}, 0.001)
    rows["edge"] = (rows["pe"].eq("rope") & rows["seed"].lt(2)) | (rows["pe"].eq("alibi") & rows["seed"].lt(1))
    claim, results = some_claim(content, "alibi_costs", rows)
    assert at_edge(claim, results) == {label: ["rope"] for label in claim.compared}  # more than 20 % of the seeds
    assert at_edge(content.claims["longer"], results) == {}
    unsolved = {task: replace(each, rows=each.rows.assign(solved=False)) for task, each in results.items()}
    assert at_edge(claim, unsolved) == at_edge(claim, results)
    row = rows_of_claims(replace(content, results=results, claims={"alibi_costs": claim}))["alibi_costs"]
    assert re.findall("data-edge>edge: ([^<]*)<", row) == ["rope"]
    assert "data-edge" not in rows_of_claims(replace(content, results={}))["alibi_costs"]


def test_claims_on_the_change_with_length_of_text_have_the_margin_of_its_windows(content: GalleryData) -> None:
    """A count model's loss falls by 0.010 and 0.017 nats at 2 and 4 times the length."""
    bounds = [
        test.bound
        for claim in content.claims.values()
        for test in claim.entry.values.values()
        if isinstance(test, Claimed) and list(claim.entry.tasks) == ["causal_text"]
        if [set(change) for change in test.others] == [{"length"}]
    ]
    assert len(bounds) == 14
    assert min(map(abs, bounds)) >= 0.02


def test_claims_are_filtered_by_encoding_paper_and_verdict(content: GalleryData) -> None:
    html = claims_page(content).html()
    form = html.partition('<form class="gallery-filters" data-table="papers-table"')[2].partition("</form>")[0]
    choices = {
        facet: re.findall("<option>(.*?)</option>", options)
        for facet, options in re.findall(r'<select name="(\w+)">(.*?)</select>', form, re.DOTALL)
    }
    table = html.partition('id="papers-table"')[2].partition("</table>")[0]
    rows = re.findall(r'<tr data-claim="(\w+)"([^>]*)>', table)
    found: dict[str, set[str]] = {facet: set() for facet in choices}
    for name, attributes in rows:
        data = {facet: re.findall(f'data-{facet}="([^"]*)"', attributes)[0].split("|") for facet in choices}
        assert set(data["encoding"]) == encodings_of(content.claims[name].entry)
        assert data["paper"][0].rpartition(":")[2] in content.claims[name].entry.paper
        for facet, values in data.items():
            found[facet] |= set(values)
    assert {facet: set(several) for facet, several in choices.items()} == found
    assert set(choices) == {"encoding", "paper", "verdict"}


def test_the_page_of_none_begins_with_what_it_solves(content: GalleryData) -> None:
    rows = tuned.table("induction", {"rope": 7.0, "none": 13.0})
    text = tuned.table("causal_text", {"rope": 1.0, "alibi": 1.5, "none": 2.0}, 0.01)
    tables = {"induction": rows, "causal_text": text}
    results = {name: TaskResults(task_named(name), each) for name, each in tables.items()}
    first = {name: encoding_page(replace(content, results=results), name).sections[0].html for name in ("none", "rope")}
    overall = first["none"].partition("data-overall")[2].partition("</p>")[0]
    assert first["none"].index("data-overall") < first["none"].index("gallery-verdicts")
    share = content.unseen["longer"].shares["repeat"]["none"]
    for part in ("0 of 1", percent(share)):
        assert part in overall
    assert "data-overall" not in first["rope"]
    behind = replace(content.unseen["longer"], shares={"repeat": {"none": share, "rope": share + 0.01}})
    shown = replace(content, results=results, unseen={"longer": behind})
    last = encoding_page(shown, "none").sections[0].html.partition("data-overall")[2].partition("</p>")[0]
    assert ["not ahead" in part for part in (overall, last)] == [False, True]
    assert names_in(last)[-2:] == ["rope", "none"]


def test_numbers_without_a_publication_stand_apart(content: GalleryData) -> None:
    html = claims_page(content).html()
    published, unpublished = html[html.index('id="numbers-table"') :].split('id="unpublished-table"')
    for name, finding in content.numbers.items():
        there = [f'id="{name.replace("/", "-")}"' in part for part in (published, unpublished)]
        assert there == [bool(finding.compared) and (finding.entry.paper == UNPUBLISHED) == last for last in (0, 1)]


def rows_of_claims(content: GalleryData) -> dict[str, str]:
    """Return the rows of the tables of claims by name."""
    return dict(re.findall(r'<tr data-claim="(\w+)"[^>]*>(.*?)</tr>', claims_page(content).html(), re.DOTALL))


def test_the_row_of_a_claim_draws_the_part_that_supports_it_least(content: GalleryData) -> None:
    states_of = {EntryVerdict.REPRODUCED: "reproduced", EntryVerdict.UNDECIDED: "undecided"}
    for name, row in rows_of_claims(content).items():
        claim = content.claims[name]
        label = weakest(claim, content.roomless[name])
        assert (label is None) == (not claim.compared)
        assert ("<circle" in row) == bool(claim.compared)
        if label is not None:
            state = states_of.get(claim.verdict, "not reproduced")
            assert str(claim.compared[label].agreement) == state
            assert f'data-weakest="{state}"' in row
            assert mean_and_interval(claim.entry.values[label], claim.compared[label])[0] in row
            alike = [other for other, one in claim.compared.items() if str(one.agreement) == state]
            assert claimed_side(claim, label)[1] == min(claimed_side(claim, other)[1] for other in alike)
    ordered = list(by_support(content.claims).values())
    assert {claim.verdict for claim in ordered[-1:]} <= {EntryVerdict.NOT_REPRODUCED, EntryVerdict.NOT_RUN}


def test_a_part_is_drawn_to_the_right_of_its_bound_exactly_where_it_is_as_claimed(content: GalleryData) -> None:
    rules = set()
    for claim in content.claims.values():
        for label, one in claim.compared.items():
            rule = claim.entry.values[label].rule
            low, mean, high = claimed_side(claim, label)
            assert low <= mean <= high
            if rule != "near":
                assert (low > 0) == (one.agreement == Agreement.REPRODUCED)
                assert (high < 0) == (one.agreement == Agreement.NOT_REPRODUCED)
            elif one.agreement == Agreement.NOT_REPRODUCED:
                assert mean < 0
            elif one.agreement == Agreement.REPRODUCED:
                assert mean > 0
            rules.add(rule)
    assert rules == {"above", "below", "near"}
    places = [place(distance) for distance in (-9, -1.5, -0.2, -0.01, 0, 0.01, 0.2, 1.5, 9)]
    assert places == pytest.approx([-x for x in reversed(places)])
    assert (places[0], places[1], places[4]) == (-1, pytest.approx(-1), 0)
    assert places[1:-1] == sorted(set(places[1:-1]))


def test_a_claim_on_rows_of_the_benchmark_says_what_each_encoding_reaches(content: GalleryData) -> None:
    claim, rows = content.claims["alibi_costs"], content.results["causal_text"].rows
    lines = levels(claim.entry, content.results)
    means = rows[rows["pe"].isin(["alibi", "rope"])].groupby("pe")["loss_x4"].mean()
    assert [line.partition(":")[0] for line in lines] == [f"causal_text, loss at {length} ×" for length in (1, 2, 4)]
    assert lines[2].endswith(f": `rope` {number(means['rope'])}, `alibi` {number(means['alibi'])}")
    assert levels(content.claims["longer"].entry, content.results) == []
    section = claims_page(content).html().partition('id="alibi_costs"')[2].partition("</section>")[0]
    assert "pe-lab run -m +study=pe_bench_2_causal_text pe=alibi,rope seed=0,1,2,3,4" in section
    assert str(claim.verdict) == "mixed"  # of fabricated losses, which grow with the length by the same factor


def test_claims_have_what_is_right_on_unseen_lengths(content: GalleryData) -> None:
    html = claims_page(content).html()
    part = html.partition('<section class="gallery-claim" id="longer"')[2].partition("</section>")[0]
    longer, label = content.claims["longer"], "data repeat: exact match on unseen lengths, `none` − `rope`"
    assert list(content.unseen) == ["longer"]
    unseen = content.unseen["longer"]
    assert (unseen.lengths, sorted(unseen.few)) == ([1.2, 1.5, 2.0], ["copy", "reverse"])
    shares = unseen.shares["repeat"]
    assert shares["none"] - shares["rope"] == pytest.approx(float(longer.compared[label].difference), abs=1e-6)
    assert "data-unseen" in part
    assert percent(shares["none"]) in part


def test_claims_of_the_same_words_are_told_apart_and_say_what_is_tested(content: GalleryData) -> None:
    one, other = (content.claims[name].entry for name in ("carried", "carried_small"))
    assert one.says == other.says
    assert shared_notes(each.entry for each in content.claims.values() if not each.entry.tasks) == list(one.chosen)
    assert shared_notes([replace(one, chosen=("a", "b")), replace(one, chosen=("a", "c", "d"))]) == ["a"]
    assert len(other.chosen) == len(one.chosen) + 1
    html = claims_page(content).html()
    parts = {name: html[html.index(f'id="{name}"') :].partition("</section>")[0] for name in content.claims}
    assert escape(other.chosen[-1].replace("`carried` ", "")[-40:]) in parts["carried_small"]
    for name, claim in content.claims.items():
        if claim.compared:
            first, *others = list(map(int, re.findall(r"\d+", states(claim))))
            assert first + sum(others[1:]) == others[0]
            assert states(claim, content.roomless[name]) in parts[name]


def test_intervals_of_parts_end_at_what_is_possible(content: GalleryData) -> None:
    shown = {"accuracy": (0.0, 1.0), "exact_match": (0.0, 1.0), "loss": (0.0, np.inf)}
    cut_ = 0
    for claim in content.claims.values():
        for name, comparison in claim.compared.items():
            test = claim.entry.values[name]
            if test.ratio or len(test.others) > 1 or test.value["metric"] not in shown:
                continue
            low, high = mean_and_interval(test, comparison)[1].strip("[]").replace("−", "-").split(", ")
            least, most = shown[test.value["metric"]]
            if test.is_difference:
                least, most = least - most, most - least
            assert least <= float(low) <= float(high) <= most
            cut_ += not least <= float(comparison.low) <= float(comparison.high) <= most
    assert cut_
    html, tables = (
        claims_page(content).html(),
        [(claim, t) for claim in content.claims.values() for t in parts_tables(claim)],
    )
    ended = sum(is_cut(claim, table) for claim, table in tables if claim.compared)
    assert 0 < html.count("which end at what is possible</caption>") == ended < len(tables)


def test_numbers_of_the_same_words_or_setting_have_their_conditions(content: GalleryData) -> None:
    told = conditions(content.numbers)
    said = {name: (finding.entry.says, told[name]) for name, finding in content.numbers.items() if finding.compared}
    assert len(set(said.values())) == len(said)
    assert told["pattern/none_claimed"] != told["pattern/none_run"]
    assert "`optimizer.lr=0.0001`" in told["formal_algorithms_search/majority_ape_1l1h16_slow"]


def test_without_studies_claims_are_not_run(content: GalleryData) -> None:
    untested = {name: judge_entry(claim.entry, {}) for name, claim in content.claims.items()}
    html = claims_page(replace(content, claims=untested, numbers={})).html()
    assert html.count("not run: needs") == len(untested)
    assert "reproduced</strong>" not in html


def test_without_results_pages_say_so(content: GalleryData, tmp_path: Path) -> None:
    write(replace(content, results={}), tmp_path / "site")
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


def page_ids(page: Page) -> set[str]:
    """The ids of the headings of a page."""
    return {section.id for section in page.sections if section.title}


def test_in_the_documentation_pages_link_to_its_other_pages(content: GalleryData) -> None:
    alone, inside = (encoding_page(replace(content, documented=one), "rope").html() for one in (False, True))
    assert "../../audit.html" in inside
    assert "../../audit.html" not in alone


def test_code_is_introduced_with_the_options_of_an_encoding(content: GalleryData) -> None:
    for name, made in content.portraits.items():
        (said,) = (section.html for section in encoding_page(content, name).sections if section.title == "Code")
        first = re.sub(r"<[^>]+>", "", said).partition(". ")[0]
        options = [f"{key}={plain(value)}" for key, value in made.options.items() if key != "name"]
        assert first.split(" with ") == [made.target, *([", ".join(options)] if options else [])]
    assert len(content.portraits["none"].options) == 1
    assert len(content.portraits["rope"].options) > 1
    assert [plain(value) for value in (None, True, 1e4, "x")] == ["null", "true", "10000.0", "x"]


def test_a_definition_begins_with_the_encoding_and_names_its_family(content: GalleryData) -> None:
    for name, made in content.portraits.items():
        html = encoding_page(content, name).sections[0].html
        words = re.sub(r"<[^>]+>", "", html)
        own = (config_folder() / "pe" / f"{name}.yaml").read_text().partition("\n")[0].removeprefix("# ")
        assert words.startswith(own.replace("`", ""))
        assert made.family[1:] in words


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


def test_failures_are_found_in_the_rows(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 8.0})
    rope, none = (rows["pe"].eq(pe) for pe in ("rope", "none"))
    rows.loc[rope & rows["seed"].lt(3), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    rows.loc[rope, "loss_x4"] = rows.loc[rope, "level_x4"] * 2 - rows.loc[rope, "best_x4"]  # a score of -1
    rows.loc[none & rows["seed"].lt(2), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    made = replace(content, results={"induction": TaskResults(task, rows)})
    uncertain = rope & rows["seed"].ne(0)  # in all seeds but one a little below 0, in one far above
    rows.loc[rope, "loss_x2"] = rows.loc[rope, "level_x2"] * 0.8
    rows.loc[uncertain, "loss_x2"] = rows.loc[uncertain, "level_x2"] * 1.1
    said = "solved in 2 of 5 seeds; test score −1.00 [−1.00, −1.00] at 4 × the training length"
    at_2 = made.results["induction"].scores.set_index(["pe", "length"]).loc[("rope", 2.0)]
    assert at_2["mean"] < 0 < at_2["high"]
    assert made.failures("rope") == [("induction", said)]
    assert made.failures("none") == []
    pages_ = {name: {one.title: one.html for one in encoding_page(made, name).sections} for name in ("rope", "none")}
    assert f'<li><a href="../tasks/induction.html">induction</a>: {said}</li>' in pages_["rope"]["Known failures"]
    assert "tasks/induction.html" not in pages_["none"]["Known failures"]
    assert content.failures("alibi") == []  # a loss, as of causal_text, is no score


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


def test_measured_failures_say_where_also_outside_of_the_documentation(content: GalleryData) -> None:
    rows = ("audit.md#cost", "your-model.md#decoding-with-a-cache", "findings.md#2026-11-21-mutants")
    said = replace(content.definitions["rope"], failures=tuple(Failure("It fails.", row=row) for row in rows))
    shown: dict[bool, list[str]] = {}
    for documented in (False, True):
        made = replace(content, definitions={"rope": said}, documented=documented)
        (html,) = (one.html for one in encoding_page(made, "rope").sections if one.title == "Known failures")
        shown[documented] = re.findall(r"It fails. \((.*)\)</li>", html)
    assert shown[False] == [
        '<a href="#properties">measured here</a>',
        "measured here: <code>docs/your-model.md</code>, decoding with a cache",
        "measured here: <code>sweeps/LOG.md</code>, 2026-11-21, mutants",
    ]
    links = [f"../../{row.replace('.md', '.html')}" for row in rows]
    assert shown[True] == [f'<a href="{link}">measured here</a>' for link in links]


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
    assert [signed(value) for value in (1.234e-16, -0.0587, 0.0, 12.345)] == ["+1.23e-16", "−0.0587", "0", "+12.3"]


def test_nothing_is_shown_as_not_a_number(content: GalleryData) -> None:
    for page in pages(content):
        assert "nan" not in re.sub(r"<code>.*?</code>|<script.*?</script>", "", page.html(), flags=re.DOTALL).lower()


@pytest.mark.parametrize("name", [one.name for one in benchmark_tasks()])
def test_the_page_of_a_task_has_its_data_and_a_sequence(content: GalleryData, name: str) -> None:
    one = task_named(name)
    html = task_page(content, one).sections[0].html
    dataset = instantiate(one.cfg.data)(seed=0)
    few = dataset.batch("validation", torch.arange(4))
    sizes = (few.layout.segment != PADDING).sum(1)
    size, batch = int(sizes.max()), few[sizes.argmax()[None]]
    lines = {head: re.findall(r"<td[^>]*>(.*?)</td>", cells) for head, cells in SAMPLE.findall(html)}
    first = {"copy": "START", "reverse": "START", "flip_flop": "w"}  # its words, not their numbers
    assert lines["tokens"][0] == first.get(name, lines["tokens"][0])
    assert lines.pop("tokens") == [escape(word) for word in dataset.token_texts(batch.tokens[0, :size])]
    (answers,) = lines.values()
    asked = batch.targets[0, :size] != IGNORE
    assert [bool(answer) for answer in answers] == asked.tolist()
    said = re.sub(r"<[^>]+>", "", html)
    lengths = [dataset.task.length, *(dataset.longer(factor).task.length for factor in (2.0, 4.0))]
    for number_ in (*lengths, dataset.task.vocabulary, one.cfg.trainer.batch_size, one.cfg.steps):
        assert re.search(rf"\b{number_:,}\b", said), number_
    assert (f"{dataset.size('train'):,} training sequences" in said) != one.cfg.trainer.fresh
    assert ("some of them again" in said) == (name == "causal_text")
    assert f"data={one.cfg.data.name} " in said
    assert "data.vocabulary_size" not in said  # text is read as bytes


def test_marks_are_those_of_the_figures() -> None:
    assert set(SHAPES) == {*MARKERS, *OWN_MARKERS, NONE_STYLE.marker}
    assert f'd="{SHAPES[style("rope").marker]}" fill="{style("rope").colour}"' in mark("rope")
    assert mark("rope") != mark("alibi")
