"""Pages in a browser: nothing is logged, tables sort and filter, sliders redraw, at two widths, light and dark."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from helpers.browser import Browser, browsing, executable

ROOT = Path(__file__).parents[2]
PROGRAM = executable()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs chromium, chromium-browser or google-chrome on the path"),
]
LINK = re.compile(r'href="((?!https?:|data:|javascript:)[^"#]*)(?:#([^"]+))?"')
KINDS = ("index", "needs", "encodings", "encodings/rope", "tasks/induction", "claims", "tasks")
FIRST = "[...document.querySelectorAll('#table-leaderboard tbody tr:not([hidden])')].map(row => row.dataset.name)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(str(PROGRAM), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_pages_fit_and_log_nothing(browser: Browser, site: Path, width: int, scheme: str) -> None:
    for kind in KINDS:
        browser.open(site / f"{kind}.html", width, scheme)
        wide = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide == [width, width], kind
        assert browser.complaints == [], kind
    assert {address.split(":")[0] for address in browser.requested} <= {"file", "about", "data"}


def test_a_line_says_that_a_wide_table_scrolls_and_the_leaderboard_fits_1200_pixels(
    browser: Browser, site: Path
) -> None:
    state = (
        "[document.querySelector('{0}').parentElement.previousElementSibling.hidden,"
        " document.querySelector('{0}').parentElement.hasAttribute('data-more')]"
    )
    browser.open(site / "index.html", 1200)
    assert browser.evaluate(state.format("#table-leaderboard")) == [True, False]
    browser.open(site / "tasks/induction.html", 300)
    assert browser.evaluate(state.format(".gallery-sample")) == [False, True]


@pytest.mark.parametrize("kind", ["index", "encodings", "tasks", "tasks/induction", "encodings/rope#results", "needs"])
def test_tables_fit_400_pixels(browser: Browser, site: Path, kind: str) -> None:
    name, _, anchor = kind.partition("#")
    browser.open(site / f"{name}.html", 400, anchor=f"#{anchor}" if anchor else "")
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.gallery-scroll:has(> .gallery-table)')].filter(box => box.clientWidth)"
        ".map(box => box.scrollWidth - box.clientWidth)"
    )
    assert boxes
    assert max(boxes) <= 1


def test_a_list_chooses_the_columns_of_the_leaderboard_on_a_narrow_screen(browser: Browser, site: Path) -> None:
    shown = (
        "[...document.querySelectorAll('#table-leaderboard thead th')].slice(2).filter(head => head.clientWidth)"
        ".map(head => head.querySelector('button').textContent)"
    )
    choose = (
        "[...document.querySelectorAll('select[data-table=table-leaderboard] option')].map(option => {"
        " const list = option.parentElement; list.value = option.value; list.dispatchEvent(new Event('input'));"
        " return [option.text.split(', '),"
        f" {shown}] }})"
    )
    browser.open(site / "index.html", 1200)
    every = browser.evaluate(shown)
    browser.open(site / "index.html", 400)
    chosen = browser.evaluate(choose)
    assert [names for names, _ in chosen] == [names for _, names in chosen]
    assert [name for names, _ in chosen for name in names] == every


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_background(browser: Browser, site: Path, scheme: str) -> None:
    browser.open(site / "encodings/rope.html", scheme=scheme)
    seen = browser.evaluate(
        "[...document.querySelectorAll('p, td a, .gallery-missing, .gallery-drawing text, .gallery-drawing .line')]"
        ".map(one => [getComputedStyle(one)[one.matches('.line') ? 'stroke' : one.matches('text') ? 'fill' : 'color'],"
        " one.matches('.line') ? 3 : 4.5])"
    )
    (background,) = {browser.evaluate("getComputedStyle(document.body).backgroundColor")}
    assert luminance(background) > 0.9 if scheme == "light" else luminance(background) < 0.1
    for colour, least in seen:
        assert contrast(colour, background) >= least, colour
    assert len({colour for colour, least in seen if least == 3}) == 4


def test_a_table_is_sorted_by_its_headers(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    assert browser.evaluate(FIRST) == ["rope", "alibi", "none"]
    click = "document.querySelectorAll('#table-leaderboard thead button')[{}].click()"
    state = "document.querySelectorAll('#table-leaderboard thead th')[{}].getAttribute('aria-sort')"
    browser.evaluate(click.format(0))
    assert browser.evaluate(FIRST) == ["alibi", "none", "rope"]
    assert browser.evaluate(state.format(0)) == "ascending"
    browser.evaluate(click.format(0))
    assert browser.evaluate(FIRST) == ["rope", "none", "alibi"]
    assert browser.evaluate(state.format(0)) == "descending"
    browser.evaluate(click.format(3))  # the loss on text
    assert browser.evaluate(FIRST) == ["none", "alibi", "rope"]
    assert browser.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_numbers_are_sorted_as_numbers_and_what_is_missing_stays_last(browser: Browser, site: Path) -> None:
    browser.open(site / "encodings/rope.html")
    table = "#properties-table"
    values = (
        f"[...document.querySelectorAll('{table} tbody tr')].map(row => row.cells[1].dataset.sort"
        " ?? row.cells[1].textContent.trim())"
    )
    for order in ("descending", "ascending"):
        browser.evaluate(f"document.querySelectorAll('{table} thead button')[1].click()")
        found = browser.evaluate(values)
        numbers = [float(one) for one in found if re.fullmatch(r"-?[\d.]+(e-?\d+)?", one)]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert len(numbers) > 10
        assert found[: len(numbers)] == [one for one in found if re.fullmatch(r"-?[\d.]+(e-?\d+)?", one)]


def test_a_table_is_filtered_by_name_and_by_facets(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    count = "document.querySelector('.gallery-filters output').textContent"
    assert browser.evaluate(count) == "3 of 3"
    choose = (
        "(() => {{ const select = document.querySelector('.gallery-filters select[name={}]'); select.value = '{}';"
        " select.dispatchEvent(new Event('input', {{bubbles: true}})) }})()"
    )
    browser.evaluate(choose.format("enters", "logits"))
    assert browser.evaluate(FIRST) == ["rope", "alibi"]
    browser.evaluate("document.querySelector('.gallery-filters input').focus()")
    browser.type("ALI")
    assert browser.evaluate(FIRST) == ["alibi"]
    assert browser.evaluate(count) == "1 of 3"
    browser.evaluate("document.querySelector('.gallery-filters button').click()")
    browser.evaluate("new Promise(done => setTimeout(done, 20))")
    assert browser.evaluate(FIRST) == ["rope", "alibi", "none"]
    assert browser.evaluate(count) == "3 of 3"


def test_tables_are_used_by_the_keyboard_alone(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    focused = "document.activeElement.textContent.trim() || document.activeElement.name"
    for _ in range(30):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.closest('#table-leaderboard thead') !== null"):
            break
    assert browser.evaluate(focused) == "encoding"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.evaluate(outline) == "solid"
    browser.press("Enter")
    assert browser.evaluate(FIRST) == ["alibi", "none", "rope"]
    browser.press("Space")
    assert browser.evaluate(FIRST) == ["rope", "none", "alibi"]


def test_a_link_to_a_folded_part_opens_it(browser: Browser, site: Path) -> None:
    opened = "[...document.querySelectorAll('details[open] h2')].map(one => one.id)"
    browser.open(site / "encodings/rope.html")
    assert browser.evaluate(opened) == []
    browser.open(site / "encodings/rope.html", anchor="#replication")
    assert browser.evaluate(opened) == ["replication"]


def test_a_slider_draws_another_curve_by_mouse_and_keyboard(browser: Browser, site: Path) -> None:
    browser.open(site / "encodings/rope.html")
    line = "document.querySelector('.gallery-drawing .line').getAttribute('d')"
    output = "document.querySelector('.gallery-slider output').textContent"
    caption = "document.querySelector('.gallery-curve figcaption').textContent"
    before = browser.evaluate(line)
    assert browser.evaluate(output) == "10000"
    browser.evaluate("document.querySelector('.gallery-slider input').focus()")
    browser.press("ArrowLeft")
    assert browser.evaluate(output) == "1000"
    assert browser.evaluate("document.querySelector('.gallery-slider input').getAttribute('aria-valuetext')") == "1000"
    assert browser.evaluate(caption).startswith("theta=1000: logit at distance 55: head 1 ")
    assert browser.evaluate(line) != before
    browser.press("ArrowRight")
    assert browser.evaluate(line) == before
    assert browser.evaluate("document.querySelector('label[for=slider-1]').textContent") == "theta"


def test_the_curve_is_that_of_the_data(browser: Browser, site: Path) -> None:
    browser.open(site / "encodings/alibi.html")
    drawn = browser.evaluate(
        "[...document.querySelectorAll('.gallery-drawing .line')].map(line => line.getAttribute('d'))"
    )
    points = [[tuple(map(float, point.split())) for point in line[1:].split("L")] for line in drawn if "L" in line]
    assert len(points) == 4
    heights = [at[1] for line in points for at in line]
    upright = browser.evaluate("document.querySelector('.gallery-drawing .grid[d*=V]').getAttribute('d')")
    _, top, bottom = map(float, re.findall(r"[\d.]+", upright))
    assert top < min(heights) < max(heights) < bottom
    entries = browser.evaluate(
        "[...document.querySelectorAll('.gallery-drawing text')].filter(one => one.textContent.startsWith('head '))"
        ".map(one => [one.getBBox().x, one.getBBox().x + one.getBBox().width, one.getBBox().y + one.getBBox().height])"
    )
    assert len(entries) == 4
    assert all(low < top for _, _, low in entries)  # the legend stands above the curves
    assert all(before[1] < after[0] for before, after in pairwise(entries))
    drops = [line[-1][1] - line[0][1] for line in points]
    assert drops[0] > drops[1] > drops[2] > drops[3] > 0  # the slopes of the heads fall by a factor of 4
    assert drops[0] / drops[1] == pytest.approx(4, rel=0.02)
    browser.open(site / "encodings/none.html")
    assert browser.evaluate("document.querySelector('figcaption').textContent") == "the same at every distance"


@pytest.mark.parametrize("width", [400, 1200])
def test_the_labels_of_a_figure_of_lengths_stay_within_it_and_apart(browser: Browser, site: Path, width: int) -> None:
    browser.open(site / "tasks/causal_text.html", width)
    boxes = browser.evaluate(
        "(() => { const all = document.querySelector('.gallery-lengths').getBoundingClientRect();"
        " return [...document.querySelectorAll('.gallery-lengths text')].map(one => one.getBoundingClientRect())"
        ".map(box => [box.left - all.left, all.right - box.right, box.top - all.top, all.bottom - box.bottom,"
        " box.left, box.right, box.top, box.bottom]) })()"
    )
    assert len(boxes) > 12
    assert all(min(box[:4]) >= 0 for box in boxes)
    for place, (*_, left, right, top, bottom) in enumerate(boxes):
        for *_, left_, right_, top_, bottom_ in boxes[place + 1 :]:
            assert min(right, right_) <= max(left, left_) or min(bottom, bottom_) - max(top, top_) < 4


def test_the_axis_of_a_curve_has_a_zero(browser: Browser, site: Path) -> None:
    page = site / "encodings" / "curve.html"
    heads = [[0, -0.1405], [0, -0.3063]]
    curves = {"sliders": [], "quantity": "logit", "unit": "logit", "distances": [0, 1], "curves": {"": heads}}
    data = json.dumps(curves)
    text = (site / "encodings/alibi.html").read_text()
    page.write_text(re.sub(r'(<script type="application/json">).*?(</script>)', rf"\g<1>{data}\g<2>", text))
    browser.open(page)
    labels = browser.evaluate("[...document.querySelectorAll('.gallery-drawing text')].map(one => one.textContent)")
    page.unlink()
    assert labels.count("0") == 2  # of both axes
    assert not [one for one in labels if "e" in one.removeprefix("head") and one != "distance"]


@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("latex2mathml") is None, reason="needs the extra docs")
def test_pages_of_the_documentation_fit_and_log_nothing(browser: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    for kind in ("index", "needs", "encodings", "encodings/rope", "tasks/copy", "claims"):
        for width, scheme in ((400, "light"), (1200, "dark")):
            browser.open(tmp_path / f"gallery/{kind}.html", width, scheme)
            assert browser.evaluate("document.documentElement.scrollWidth") == width, kind
            background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (luminance(background) > 0.5) == (scheme == "light"), kind
            assert browser.complaints == [], kind
    ids: dict[Path, set[str]] = {}
    broken = []
    for page in (tmp_path / "gallery").rglob("*.html"):
        for link, anchor in set(
            re.findall(r'href="((?!https?:|data:|javascript:)[^"#]*)(?:#([^"]+))?"', page.read_text())
        ):
            file = (page.parent / link).resolve() if link else page.resolve()
            if file.suffix == ".html" and file.exists() and file not in ids:
                ids[file] = set(re.findall(r'\bid="([^"]+)"', file.read_text()))
            if not file.exists() or (anchor and file.suffix == ".html" and anchor not in ids[file]):
                broken.append(f"{page.name}: {link}#{anchor}")
    assert broken == []
    shutil.rmtree(tmp_path)


def luminance(colour: str) -> float:
    """The relative luminance of rgb(...), as WCAG defines it."""
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, background: str) -> float:
    """The contrast of two colours, as WCAG defines it; a transparent colour is laid on the background."""
    numbers, under = (list(map(float, re.findall(r"[\d.]+", one))) for one in (colour, background))
    alpha = numbers[3] if len(numbers) > 3 else 1.0
    over = f"rgb({', '.join(str(alpha * a + (1 - alpha) * b) for a, b in zip(numbers[:3], under[:3], strict=True))})"
    light, dark = sorted((luminance(over), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
