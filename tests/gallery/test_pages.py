"""The pages of the gallery: links lead somewhere, every number has its row, nothing comes from the network."""

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

import fabricated
from pe_lab import config
from pe_lab.benchmark.pairs import Counts, Pairs
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import STUDY, tasks
from pe_lab.gallery.advice import advice
from pe_lab.gallery.content import Content
from pe_lab.gallery.page import Page, Section, fixed, number, slot
from pe_lab.gallery.pages import claims, encoding, leaderboard, needs, pages, task, task_rows
from pe_lab.gallery.pages import encodings as encodings_page
from pe_lab.gallery.pages import tasks as tasks_page
from pe_lab.gallery.site import write
from pe_lab.replication import judge
from pe_lab.report.standing import Standing
from pe_lab.results import shipped

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
    assert names >= {"index", "needs", "encodings", "tasks", "claims", "longer"}
    assert {name for name in names if name.startswith("encodings/")} == {
        f"encodings/{name}" for name in ("rope", "none", "alibi", "rope_2d")
    }
    assert sum(name.startswith("tasks/") for name in names) == len(tasks())
    assert {name for name in names if name.startswith("rows/")} == {"rows/place", "rows/copy", "rows/recall"}


def test_links_resolve_to_files_and_ids(site: Path, read: dict[Path, Read], content: Content) -> None:
    for path, page in read.items():
        for link in page.links:
            if link.startswith("https:"):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            beside = file.stem in set(content.results.overall["name"]) | {
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


@pytest.mark.parametrize("name", ["index.html", "tasks/copy.html", "encodings/rope.html", "needs.html", "tasks.html"])
def test_every_number_of_results_has_its_link(site: Path, read: dict[Path, Read], name: str) -> None:
    numbers = [(text, links) for text, links in read[site / name].cells if re.match(r"−?\d+(\.\d+)?(?! ×)\b", text)]
    if name == "encodings/rope.html":
        text = (site / name).read_text()
        numbers = [
            (one, links)
            for one, links in Read(text[text.index('id="results"') : text.index('id="properties"')]).cells
            if re.match(r"−?\d[\d.]*$", one)
        ]
    assert len(numbers) > 3
    assert [text for text, links in numbers if not links] == []


def test_a_score_leads_to_the_rows_that_it_is_the_mean_of(site: Path, read: dict[Path, Read], content: Content) -> None:
    score = fixed(
        next(found for found in content.results.tasks if found.task.name == "copy").at(2.0).loc["rope", "score"]
    )
    assert (score, ["../rows/copy.html#rope-x2"]) in read[site / "tasks/copy.html"].cells
    rows = (site / "rows/copy.html").read_text()
    lines = [line for line in re.findall(r"<tr id=.*?</tr>", rows, re.DOTALL) if 'id="rope-x2-s' in line]
    assert len(lines) == 4
    assert 'id="rope-x2"' in lines[0]
    for seed, line in enumerate(lines):
        assert f"python -m pe_lab.run -m +study=pe_bench_1_copy pe=rope seed={seed} optimizer.lr=0.003" in line
    with (site / "rows/copy.csv").open(newline="") as file:
        table = [line for line in csv.DictReader(file) if (line["pe"], line["length"]) == ("rope", "2.0")]
    assert fixed(sum(float(line["score"]) for line in table) / 4) == score
    assert all(
        float(line["score"])
        == pytest.approx((float(line["level"]) - float(line["loss"])) / (float(line["level"]) - float(line["best"])))
        for line in table
    )


def test_the_share_of_decided_pairs_stands_with_each_task(content: Content) -> None:
    found = next(one for one in content.results.tasks if one.task.name == "copy")
    html = task(content, found).html()
    assert [found.pairs[length].words() in html for length in found.lengths] == [True, True]
    line = re.search(r'<tr data-name="copy">.*?</tr>', tasks_page(content).html(), re.DOTALL)
    assert line is not None
    pairs = found.pairs[1.0]
    assert f">{100 * pairs.share(pairs.discovered):.0f} %</a>" in line[0]


def test_the_share_in_the_list_of_tasks_is_at_a_false_discovery_rate(content: Content) -> None:
    found = next(one for one in content.results.tasks if one.task.name == "copy")
    twelve = Pairs(6, 15, certain=Counts(3, 0), discovered=Counts(11, 1))
    changed = replace(found)
    changed.__dict__["pairs"] = dict.fromkeys(found.lengths, twelve)
    results = replace(content.results, tasks=[changed if one is found else one for one in content.results.tasks])
    line = re.search(r'<tr data-name="copy">.*?</tr>', tasks_page(replace(content, results=results)).html(), re.DOTALL)
    assert line is not None
    assert '<td data-sort="0.8"><a href="tasks/copy.html">80 %</a></td>' in line[0]


def test_what_has_one_seed_is_said_not_to_be_ranked(content: Content) -> None:
    found = next(one for one in content.results.tasks if one.task.name == "copy")
    html = task(content, found).html()
    line = next(one for one in re.findall(r"<tr data-name=.*?</tr>", html, re.DOTALL) if ">fire<" in one)
    assert "not ranked: 1 seed" in line
    assert "one seed" in line
    assert "not compared" in line
    assert ">better<" not in line.replace(" ", "")


def test_the_leaderboard_says_what_its_means_are_of(content: Content) -> None:
    definitions, portraits = (said | {"fire": said["alibi"]} for said in (content.definitions, content.portraits))
    html = leaderboard(replace(content, definitions=definitions, portraits=portraits)).html()
    assert "The mean score is over the 3 tasks on which almost all are measured" in " ".join(html.split())
    line = re.search(r'<tr data-name="fire".*?</tr>', html, re.DOTALL)
    assert line is not None
    assert "on 2 of 3 tasks" in line[0]
    one = TaskResults.of(content.results.tasks[0].task, content.results.tasks[0].settings, [])
    empty = replace(content, results=replace(content.results, tasks=[one]))
    assert "Not measured yet" in leaderboard(empty).html()


@pytest.mark.parametrize(("seeds", "said"), [((3, 3, 3), False), ((4, 4, 3), True), ((5, 5, 5), False)])
def test_the_leaderboard_says_where_seeds_were_added(
    content: Content, tmp_path: Path, seeds: tuple[int, int, int], said: bool
) -> None:
    """Not where all encodings have the same number, as in a study of fixed seeds."""
    qualities = {"rope": 0.5, "alibi": 0.52, "none": 0.1}
    cells = [
        fabricated.cell("copy", pe, seed, one)
        for (pe, one), count in zip(qualities.items(), seeds, strict=True)
        for seed in range(count)
    ]
    shipped.write(f"{STUDY}_copy", cells, tmp_path)
    html = leaderboard(replace(content, results=Results.read(tmp_path))).html()
    assert ("Seeds were added where they decide." in html) == said


def test_longer_sequences_have_a_leaderboard_of_their_own(content: Content, tmp_path: Path) -> None:
    page = leaderboard(content, 2.0)
    html = page.html()
    assert (page.path, page.title) == ("longer", "Leaderboard at 2 × the training length")
    copy = next(found for found in content.results.tasks if found.task.name == "copy")
    for pe in ("rope", "alibi"):
        assert f'<a href="rows/copy.html#{pe}-x2" title="loss' in html
        line = re.search(rf'<tr data-name="{pe}".*?</tr>', html, re.DOTALL)
        assert line is not None
        assert f">{fixed(copy.at(2.0).loc[pe, 'score'])}</a>" in line[0]
        scores = [one.at(2.0).loc[pe, "score"] for one in content.results.measured if 2.0 in one.lengths]
        assert f">{fixed(sum(scores) / 2)}</a>" in line[0]
    assert "rows/place.html" not in html  # measured at the training length alone
    assert "over the 2 tasks on which almost all are measured (copy, recall)" in html
    assert 'href="longer.html"' in leaderboard(content).html()
    fabricated.write(tmp_path, tasks=["place"])
    empty = leaderboard(replace(content, results=Results.read(tmp_path)), 2.0).html()
    assert "No task is measured at 2 × the training length." in empty


def test_an_encoding_without_a_mean_is_not_said_to_have_too_few_seeds(content: Content, tmp_path: Path) -> None:
    """Ranked on a task that few others have: that is no task which means are of."""
    fabricated.write(tmp_path, ("none", "alibi", "t5", "sinusoidal"), ["place", "copy"])
    cells = [fabricated.cell("digits", pe, seed, 0.5, longer=False) for pe in ("rope", "shaw") for seed in range(3)]
    shipped.write(f"{STUDY}_digits", cells, tmp_path)
    html = leaderboard(replace(content, results=Results.read(tmp_path))).html()
    line = re.search(r'<tr data-name="rope".*?</tr>', html, re.DOTALL)
    assert line is not None
    assert "not ranked" not in line[0]
    assert "There are no means: no task has almost all encodings." in html


def test_the_mean_of_an_encoding_is_that_of_its_usual_options(content: Content, tmp_path: Path) -> None:
    cells = [fabricated.cell("copy", "alibi", seed, 0.3, slopes="harmonic") for seed in range(3)]
    cells += [fabricated.cell("copy", "alibi", seed, 0.8, slopes="geometric") for seed in range(3)]
    cells += [fabricated.cell("copy", pe, seed, 0.4) for pe in ("rope", "none") for seed in range(3)]
    shipped.write(f"{STUDY}_copy", cells, tmp_path)
    read = Results.read(tmp_path)
    assert set(read.overall["pe"]) >= {"rope", "none"}
    html = encodings_page(replace(content, results=read)).html()
    line = re.search(r'<tr data-name="alibi .*?</tr>', html, re.DOTALL)
    assert line is not None
    usual = read.overall[read.overall["pe"] == "alibi"]["score"]
    assert (fixed(usual.iloc[0]) if len(usual) else "no mean yet") in line[0]
    assert fixed(0.8) not in line[0]


def test_the_leaderboard_has_what_it_is_filtered_by(content: Content) -> None:
    html = leaderboard(content).html()
    line = next(one for one in re.findall(r"<tr data-name=.*?</tr>", html, re.DOTALL) if 'data-name="rope"' in one)
    for facet, value in {
        "family": "Encodings that rotate queries and keys",
        "enters": "logits",
        "mask": "causal and bidirectional",
        "kernels": "yes",
    }.items():
        assert f'data-{facet}="{value}"' in line
        assert f"<option>{value}</option>" in html
    assert "loss 0.636, level 1.25, best 0.25; 4 seeds" in line


def advised(html: str) -> dict[tuple[str, str], str]:
    """Return what the page of needs says to do, by task and length."""
    lines = re.findall(
        r'<tr data-need="(\w+)" data-length="([\d.]+)" data-benchmark="[^"]*" data-advice="([\w ]+)">', html
    )
    return {(task_, length): kind for task_, length, kind in lines}


def test_needs_say_what_to_use_and_what_to_avoid(content: Content) -> None:
    html = needs(content).html()
    found = advised(html)
    assert found["copy", "1"] == found["copy", "2"] == "use"
    assert found["all", "1"] == "use"
    assert found["sort", "1"] == "not measured"
    assert found["causal_text", "4"] == "not measured"  # has a row of its own, measured or not
    commands = re.findall(r'data-need="(\w+)" [^>]*data-advice="not measured".*?\+study=(\w+) ', html, re.DOTALL)
    studies = dict(commands)
    assert set(studies) == {task_ for (task_, _), kind in found.items() if kind == "not measured"}
    assert studies["causal_text"] == "pe_bench_2_causal_text"
    assert set(studies.values()) <= {path.stem for path in (config.folder() / "study").glob("*.yaml")}
    assert {task_ for task_, _ in found} == {"all", *(one.name for one in tasks())}
    line = re.search(r'<tr data-need="copy" data-length="1".*?</tr>', html, re.DOTALL)
    assert line is not None
    use, avoid = line[0].split("<strong>Avoid</strong>")
    assert "<code>t5</code>" in use.split("<strong>Use</strong>")[1]
    assert "<code>none</code>" in avoid


def standing(means: dict[str, float], behind: list[str]) -> Standing:
    free = [name for name in means if name not in behind]
    return Standing("loss", "test loss", "", means, pd.DataFrame(), free, [], behind)


@pytest.mark.parametrize(
    ("scores", "lows", "behind", "expected"),
    [
        ([0.9, 0.5, 0.0], [0.8, 0.4, -0.1], ["b"], ("use", ["a"], ["b", "c"])),
        ([0.0, 0.0, 0.0], [0.0, -0.1, -0.1], [], ("not learned", [], [])),
        ([0.01, 0.0, -0.1], [0.0, -0.1, -0.2], ["c"], ("not learned", [], [])),  # never a value of 0, nor none of all
        ([0.9, 0.9, 0.9], [0.8, 0.8, 0.8], [], ("not separable", [], [])),
        ([float("nan")] * 3, [float("nan")] * 3, ["c"], ("use", ["a", "b"], ["c"])),  # a control, or text
        ([0.9, 0.5, 0.0], [float("nan"), 0.4, -0.1], [], ("use", ["b"], ["a", "c"])),
    ],
)
def test_advice_recommends_only_what_was_learned(
    scores: list[float], lows: list[float], behind: list[str], expected: tuple[str, list[str], list[str]]
) -> None:
    table = pd.DataFrame({"score": scores, "low": lows}, index=list("abc"))
    found = advice(standing(dict.fromkeys("abc", 1.0), behind), table)
    assert (found.kind, found.use, found.avoid) == expected
    assert advice(None, table).kind == "not measured"


def test_the_leaderboard_is_shaded_by_score_and_marks_what_is_behind(content: Content) -> None:
    html = leaderboard(content).html()
    lines = dict(re.findall(r'<tr data-name="(\w+)"(.*?)</tr>', html, re.DOTALL))
    copy = next(found for found in content.results.tasks if found.task.name == "copy").at()
    for name, line in lines.items():
        cell = re.search(r'<td class="gallery-heat" style="--score: ([\d.]+)"[^>]*><a href="rows/copy', line)
        assert cell is not None
        assert float(cell[1]) == pytest.approx(copy.loc[name, "score"], abs=0.006)
        assert ("data-behind" in cell[0]) == (copy.loc[name, "rank_best"] > 1)
        assert f"{fixed(copy.loc[name, 'low'])} to {fixed(copy.loc[name, 'high'])}" in line


def test_a_page_of_an_encoding_has_all_its_parts(content: Content) -> None:
    page = encoding(content, "rope")
    titles = [section.title for section in page.sections]
    assert titles == [
        "Definition",
        "Score against distance",
        "Picture",
        "Results",
        "Properties",
        "Known failures",
        "Claims",
        "Equal to",
        "Code",
    ]
    html = page.html()
    assert html.count("<math") >= len(content.definitions["rope"].formula)
    assert "class RoPE(PositionalEncoding):" in html
    assert 'type="range"' in html
    assert "https://arxiv.org/abs/2104.09864" in html
    assert html.count("not measured yet") == len(tasks()) - 3


def test_claims_have_their_verdicts_and_their_encodings(content: Content) -> None:
    html = claims(content).html()
    for name, claim in content.claims.items():
        part = html[html.index(f'id="{name}"') :]
        part = part[: part.index("</section>")]
        assert str(claim) in part
        assert len(claim.compared) in (0, part.count("<li>"))
    assert "not run" not in str(content.claims["blind"])
    assert 'href="encodings/rope.html"' in html


def test_without_studies_claims_are_not_run(content: Content) -> None:
    untested = {name: judge(claim.entry, {}) for name, claim in content.claims.items()}
    html = claims(replace(content, claims=untested)).html()
    assert html.count("not run: needs") == len(untested)
    assert "reproduced</strong>" not in html


def test_an_average_without_a_best_has_a_page(content: Content, tmp_path: Path) -> None:
    """Each of three encodings is certainly better than the next over the seeds that the two share, in a circle."""
    circle = ("rope", "alibi", "t5")
    for name in ("copy", "recall"):
        cells = []
        for place, pe in enumerate(circle):
            for seed in range(3 * place, 3 * place + 3):
                cells += [fabricated.cell(name, pe, seed, 0.9), fabricated.cell(name, circle[place - 2], seed, 0.5)]
        shipped.write(f"{STUDY}_{name}", cells, tmp_path)
    read = Results.read(tmp_path)
    averaged = read.leaderboards[1.0].standing
    assert averaged is not None
    assert averaged.open == []
    page = needs(replace(content, results=read)).html()
    assert advised(page)["all", "1"] == "not separable"


def test_without_results_pages_say_so(content: Content, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    empty = replace(content, results=Results.read(tmp_path / "none"))
    write(empty, tmp_path / "site")
    assert "Not measured yet: no cell of pe-bench 1 is shipped." in (tmp_path / "site/index.html").read_text()
    assert "Not measured yet." in (tmp_path / "site/tasks/copy.html").read_text()
    assert set(advised((tmp_path / "site/needs.html").read_text()).values()) == {"not measured"}
    assert (tmp_path / "site/encodings/rope.html").read_text().count("not measured yet") == len(tasks())
    assert not (tmp_path / "site/rows").exists()


def test_markdown_is_filled_with_the_same_html(content: Content) -> None:
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
    assert "```python\nclass RoPE" in encoding(content, "rope").markdown()
    rows = task_rows(content, content.results.measured[0]).markdown()
    assert rows.startswith("---\nsearch:\n  exclude: true\n")


def page_ids(page: Page) -> set[str]:
    """The ids of the headings of a page."""
    return {section.id for section in page.sections if section.title}


def test_in_the_documentation_pages_link_to_its_other_pages(content: Content) -> None:
    alone, inside = (encoding(replace(content, documented=one), "rope").html() for one in (False, True))
    assert "../../audit.html" in inside
    assert "../../audit.html" not in alone


def test_source_with_a_fence_stays_in_its_block() -> None:
    text = Page("a", "a", [Section("Code", "", '"""```\n<script>\n"""')]).markdown()
    assert text.endswith('````python\n"""```\n<script>\n"""\n````\n')


def test_text_of_others_is_escaped() -> None:
    page = Page("a/b", "<b>", [Section("x & y", "<p>kept</p>", "if a < b: pass")])
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


def test_pages_of_a_control_show_losses_in_place_of_scores(content: Content, tmp_path: Path) -> None:
    names = ("rope", "none", "alibi")
    cells = [fabricated.cell("bag", pe, seed, 0.5 + len(pe) / 20, gap=0.0) for pe in names for seed in range(3)]
    shipped.write(f"{STUDY}_bag", cells, tmp_path)
    found = Results.read(tmp_path)
    for page in pages(replace(content, results=found)):
        assert "nan" not in re.sub(r"<code>.*?</code>|<script.*?</script>", "", page.html(), flags=re.DOTALL).lower()
    html = leaderboard(replace(content, results=found)).html()
    assert html.count(">loss 0.") == 3
