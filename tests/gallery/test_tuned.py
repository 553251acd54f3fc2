"""Tasks of pe-bench 2 come first as soon as they are measured, ranked as on the command line."""

import re
import shutil
from pathlib import Path

import pytest

import tuned
from pe_lab.benchmark.tuned import rows, tables
from pe_lab.benchmark.tuned.measured import Measured, read
from pe_lab.benchmark.tuned.tasks import task
from pe_lab.gallery.advice import tuned_advice
from pe_lab.gallery.content import STUDIES, Content
from pe_lab.gallery.marks import SHAPES, mark
from pe_lab.gallery.pages import encoding, leaderboard, needs
from pe_lab.gallery.pages import task as page_of
from pe_lab.gallery.site import assets
from pe_lab.results.styles import MARKERS, style

MEANS = {"rope": 7.0, "alibi": 7.1, "none": 9.0, "rope_2d": 11.0, "fire": 8.0, "learnable": 9.9, "cope": 12.5}
LOSSES = {"rope": 1.5, "none": 2.2, "alibi": 1.6, "t5": 1.6, "fire": 1.9}
SHOWN = ("rope", "none", "alibi", "rope_2d")


@pytest.fixture(scope="module")
def folder(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shipped results: of pe-bench 1, and of two tasks of pe-bench 2, a third with too few seeds."""
    made = Path(shutil.copytree(results, tmp_path_factory.mktemp("both") / "results"))
    rows.write(task("induction"), tuned.table("induction", MEANS, fails={"learnable": 0.5}), made)
    rows.write(task("causal_text"), tuned.table("causal_text", LOSSES, 0.01), made)
    rows.write(task("copy"), tuned.table("copy", MEANS, seeds=range(3)), made)
    return made


@pytest.fixture(scope="module")
def both(folder: Path, cache: Path) -> Content:
    return Content.gather(folder, STUDIES, cache, names=SHOWN)


def printed(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the order of the encodings and the best ones of each task, as the command line prints them."""
    found = {}
    for part in tables.text(tables.read(folder)).split("\n\n"):
        lines = part.splitlines()
        name = lines[0].partition(" (")[0]
        if lines[1:] and lines[1].startswith("no other encoding significantly beats: "):
            best = lines[1].partition(": ")[2].split(", ")
            found[name] = [line.split()[0] for line in lines[3:]], best
    return found


def names_in(html: str) -> list[str]:
    return re.findall(r'<tr data-name="([\w]+)"', html)


def test_command_line_and_gallery_have_one_ranking(folder: Path, both: Content) -> None:
    said = printed(folder)
    assert {one.task.name for one in read(folder)} == set(both.tuned) == {"induction", "causal_text"} <= set(said)
    html = needs(both).html()
    for name, found in both.tuned.items():
        order, best = said[name]
        page = page_of(both, next(one for one in both.results.tasks if one.task.name == name))
        assert page.sections[0].title == "pe-bench 2"
        assert names_in(page.sections[0].html) == order == list(found.table["pe"])
        assert found.best == best
        line = re.search(rf'<tr data-need="{name}" data-length="1".*?</tr>', html, re.DOTALL)
        assert line is not None
        assert 'data-benchmark="pe-bench 2"' in line[0]
        use = line[0].partition("<strong>Use</strong>")[2].partition("Cheapest")[0]
        assert re.findall(r"<code>(\w+)</code>", use) == best
        assert re.findall(r"Cheapest: .*?<code>(\w+)</code>", line[0])[0] in best
    assert both.tuned["induction"].best in (["rope", "alibi"], ["alibi", "rope"])


def test_longer_text_is_a_need_of_its_own_as_soon_as_it_is_measured(both: Content) -> None:
    longer = both.tuned["causal_text"].at(4.0)
    assert longer.rows["y"].tolist() == both.tuned["causal_text"].rows["loss_x4"].tolist()
    assert longer.best == ["rope"]
    line = re.search(r'<tr data-need="causal_text" data-length="4".*?</tr>', needs(both).html(), re.DOTALL)
    assert line is not None
    assert 'data-benchmark="pe-bench 2" data-advice="use"' in line[0]
    assert re.findall(r"<code>(\w+)</code>", line[0].partition("Cheapest")[0]) == ["rope"]
    with pytest.raises(ValueError, match="induction"):
        both.tuned["induction"].at(4.0)


def test_the_leaderboard_begins_with_what_supersedes(both: Content, content: Content) -> None:
    first, second = leaderboard(both).sections
    assert (first.title, second.title) == ("pe-bench 2", "Superseded: pe-bench 1")
    shown = names_in(first.html)
    assert set(shown) == set(SHOWN)
    assert shown.index("rope") < shown.index("none")
    assert [section.title for section in leaderboard(content).sections] == [""]
    for name in shown:
        line = re.search(rf'<tr data-name="{name}".*?</tr>', first.html, re.DOTALL)
        assert line is not None
        mean = both.tuned["induction"].table.set_index("pe")["mean"]
        assert (f'data-sort="{mean[name]}"' in line[0]) == (name in mean)
        assert mark(name) in line[0]


def test_an_unsolved_task_is_learned_by_nobody_and_recommends_nothing() -> None:
    of = task("induction")
    unsolved = Measured(of, tuned.table("induction", {"rope": 13.0, "none": 13.0}))
    assert (unsolved.best, set(unsolved.beaten)) == ([], {"rope", "none"})
    assert tuned_advice(unsolved).kind == "not learned"
    alike = Measured(of, tuned.table("induction", {"rope": 7.0, "alibi": 7.0}))
    assert tuned_advice(alike).kind == "not separable"
    some = tuned_advice(Measured(of, tuned.table("induction", MEANS)))
    assert (some.kind, "cope" in some.avoid, set(some.use) & set(some.avoid)) == ("use", True, set())


def test_rows_are_beside_the_pages_and_an_encoding_has_its_lines(both: Content) -> None:
    files = assets(both)
    assert files["rows/pe_bench_2_induction.csv"].count(b"\n") == 1 + 5 * len(MEANS)
    results = next(section for section in encoding(both, "rope").sections if section.title == "Results").html
    assert results.index("pe-bench 2") < results.index("pe-bench 1")
    assert "solved by 5 of 5 seeds" in results


def test_marks_are_those_of_the_figures() -> None:
    assert set(SHAPES) == set(MARKERS)
    assert f'd="{SHAPES[style("rope").marker]}" fill="{style("rope").colour}"' in mark("rope")
    assert mark("rope") != mark("alibi")
