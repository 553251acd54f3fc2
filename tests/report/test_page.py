"""A page begins with its answer, shows verdicts as words with a shape, and fits narrow screens."""

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import pandas as pd
import pytest
from matplotlib.figure import Figure

from pe_lab.report.inline_svg import inline_svg
from pe_lab.report.page import MAX_OPEN_ROWS, html
from pe_lab.report.parts import CaptionedFigure, Code, ReportTable, Section
from pe_lab.results.plots import Plot
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.system.drawing import svg


def drawn(width: float = 4.0) -> CaptionedFigure:
    return CaptionedFigure(Plot(Figure(figsize=(width, 2)), pd.DataFrame({"a": [1]})), "a figure", "code()")


def page(*parts, opening: bool = True) -> str:
    return html("pe_lab: mine", [Section("Which?", list(parts), opening), Section("More", ["text"])])


def test_the_answer_stands_before_the_contents() -> None:
    text = page("The **best** is `a`.", "**Note.** careful", drawn())
    order = [
        text.index(part) for part in ("<h1>Which?</h1>", 'class="answer"', 'class="note"', "<svg", "<nav", "<h2>More")
    ]
    assert order == sorted(order)
    assert text.count("<h1>") == 1
    assert "<h2>Which?" not in text
    assert '<a href="#s1">More</a>' in text
    assert '<section id="s1">' in text
    assert "<title>pe_lab: mine</title>" in text


def test_code_stands_in_lines_that_can_be_copied() -> None:
    lines = "import a\nfrom b import c\n\nx = c('<1>')"
    text = page("text", Code(lines))
    (block,) = re.findall("<pre><code>(.*?)</code></pre>", text, re.DOTALL)
    assert unescape(block) == lines
    assert "<1>" not in block


def test_a_page_without_an_answer_has_its_title_as_heading() -> None:
    text = page("text", opening=False)
    assert "<h1>pe_lab: mine</h1>" in text
    assert "<header>" not in text
    assert '<a href="#s1">Which?</a>' in text


class Cells(HTMLParser):
    """Collects the texts of table cells and the marks in them."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[str, str]] = []  # class and symbol
        self.words: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag, attrs) -> None:
        given = dict(attrs)
        if tag == "td" and "verdict" in (given.get("class") or ""):
            self.inside = "word"
        elif tag == "span" and self.inside:
            self.inside = given["class"]

    def handle_endtag(self, tag) -> None:
        self.inside = {"td": "", "span": "word"}.get(tag, self.inside)

    def handle_data(self, data) -> None:
        if self.inside == "word":
            self.words.append(data)
        elif self.inside:
            self.marks.append((self.inside, data))


def test_verdicts_have_a_word_a_shape_and_a_colour() -> None:
    table = ReportTable(pd.DataFrame({"pe": list(VERDICT_MARKS), "verdict": list(VERDICT_MARKS)}), "Verdicts")
    parser = Cells()
    parser.feed(page(table))
    assert parser.words == list(VERDICT_MARKS)
    assert [symbol for _, symbol in parser.marks] == [mark.symbol for mark in VERDICT_MARKS.values()]
    looks = dict(zip(VERDICT_MARKS, (look for look, _ in parser.marks), strict=True))
    assert looks["better"] == looks["slightly better"] == "mark better"
    assert looks["worse"] == looks["slightly worse"] == "mark worse"
    assert looks["equivalent"] == looks["equal"] == "mark alike"
    assert looks["undecided"] == looks["one seed"] == "mark open"


def test_an_unknown_verdict_is_a_word_without_a_mark() -> None:
    parser = Cells()
    parser.feed(page(ReportTable(pd.DataFrame({"verdict": ["supported", "<b>"]}), "Verdicts")))
    assert (parser.words, parser.marks) == (["supported", "<b>"], [])


def test_only_the_column_verdict_has_marks() -> None:
    parser = Cells()
    text = page(ReportTable(pd.DataFrame({"pe": ["better"], "verdict": ["worse"]}), "Names"))
    parser.feed(text)
    assert parser.marks == [("mark worse", VERDICT_MARKS["worse"].symbol)]
    assert text.count('aria-hidden="true"') == 1


@pytest.mark.parametrize("width", [4.4, 11.6])
def test_figures_keep_a_size_at_which_their_texts_can_be_read(width) -> None:
    (least,) = re.findall(r"<svg[^>]*min-width: (\d+)px", page(drawn(width)))
    assert 0.8 <= float(least) / (96 * width) <= 0.9
    if width < 5:
        assert float(least) <= 368  # of a screen of 400 pixels, without the margins


def grid(across: int, share_y: bool = False) -> Figure:
    figure = Figure(figsize=(4 * across, 3), layout="constrained")
    for number, axes in enumerate(figure.subplots(1, across, squeeze=False, sharey=share_y).flat):
        (line,) = axes.plot([0, 1, 2], [0.0, 1.0, float(number)], "o-")
        axes.set_ylabel("loss" if not share_y or number == 0 else "")
    figure.legend([line], ["a line"], loc="outside lower left")
    return figure


@pytest.mark.parametrize("share_y", [False, True])
def test_panels_and_their_legend_are_parts_that_wrap(share_y: bool) -> None:
    figure = grid(3, share_y)
    text, first = inline_svg(figure, "panels"), figure.axes[0]
    height = 72 * figure.get_figheight()
    ends = [height - first.bbox.y0, min(height - one.get_window_extent().y1 for one in first.get_xticklabels())]
    boxes = [[float(value) for value in box.split()] for box in re.findall(r'viewBox="([^"]*)"(?![^>]*scale)', text)]
    *panels, legend = boxes
    assert len(panels) == 3
    for before, after in pairwise(panels):
        assert before[0] + before[2] == pytest.approx(after[0], abs=0.11)
    assert sum(box[2] for box in panels) == pytest.approx(12 * 72, abs=0.2)
    assert legend[1] == pytest.approx(panels[0][3], abs=0.11)
    assert re.findall(r'<div style="[^"]*">(?=</div>)|<svg viewBox', text)[-2].startswith("<div")  # a row of its own
    assert len(re.findall('class="scale"', text)) == (2 if share_y else 0)  # names of rows, for panels without them
    hidden = [float(share) for share in re.findall(r"inset\(0 0 ([\d.]+)% 0\)", text)]
    assert len(hidden) == (2 if share_y else 0)
    for share in hidden:  # without the numbers of the x axis, which belong to another panel
        bottom = panels[0][1] + panels[0][3] * (1 - share / 100)
        assert 0 < bottom - ends[0] < ends[1] - ends[0]
    assert len(re.findall(r'<g id="f', text)) == 1  # drawn once


@pytest.mark.parametrize("width", [3.861, 3.866, 4.0])
def test_a_row_of_panels_fits_and_one_that_is_not_full_has_panels_of_the_same_size(width: float) -> None:
    figure = Figure(figsize=(3 * width, 6), layout="constrained")
    for axes in list(figure.subplots(2, 3, sharey=True).flat)[4:]:
        axes.set_visible(False)
    text = inline_svg(figure, "panels")
    wide = [int(pixels) for pixels in re.findall(r"--wide: (\d+)px", text)]
    (whole,) = (int(pixels) for pixels in re.findall(r"--whole: (\d+)px", text))
    assert len(wide) == 4
    assert sum(wide[:3]) <= whole
    assert wide[3] == wide[0]


def test_one_column_of_panels_is_one_picture() -> None:
    assert inline_svg(grid(1), "one").count("<svg") == 1


def test_figures_of_a_page_are_small_and_share_no_id() -> None:
    figures = [grid(2), grid(2, share_y=True)]
    htmls = [str(inline_svg(figure, f"figure {number}")) for number, figure in enumerate(figures)]
    ids = [name for html in htmls for name in re.findall(r'id="([^"]+)"', html)]
    assert len(set(ids)) == len(ids)
    for text, figure in zip(htmls, figures, strict=True):
        referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert referred <= set(ids)
        assert len(text) < len(svg(figure, "figure", alone=False)) / 2
        assert re.findall(r"\.\d\d\d", text) == []


def test_marks_stay_at_the_points_of_their_line() -> None:
    text = inline_svg(grid(2), "marks")
    lines = re.findall(r'<path d="M([^"]*)l([^"]*)" [^>]*marker-mid="url', text)
    assert len(lines) == 2
    for start, steps in lines:
        x, _, *steps = (float(number) for number in re.findall(r"-?[\d.]+", f"{start} {steps}"))
        across = [x, x + steps[0], x + steps[0] + steps[2]]
        assert len(steps) == 4
        assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.11)  # drawn at 0, 1 and 2


def test_marks_without_a_line_stay_where_they_are() -> None:
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.plot([0, 1, 3, 2], [0, 1, 0, 1], "^", ms=3, alpha=0.5)
    text = inline_svg(figure, "dots")
    ((points, name),) = re.findall(r'<path d="(M[^"]*)"[^>]*fill="none"[^>]*marker-mid="url\(#(\w+)\)"', text)
    _, _, *steps = (float(number) for number in re.findall(r"-?[\d.]+", points))
    unit = steps[0]
    assert steps[::2] == pytest.approx([unit, 2 * unit, -unit], abs=0.11)
    assert steps[1::2] == pytest.approx([steps[1], -steps[1], steps[1]], abs=0.11)
    assert text.count("<use") < len(re.findall("<use", svg(figure, "dots", alone=False)))
    assert re.search(rf'<marker id="{name}"[^>]*(?:class|style)=', text)


def test_what_is_wide_scrolls_in_its_own_box() -> None:
    text = page(drawn(), ReportTable(pd.DataFrame({"a": [1]}), "t"))
    boxes = re.findall(r'<div class="wide">\s*<(svg|table)', text)
    assert sorted(boxes) == ["svg", "table", "table"]


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_from_the_paper_in_both_schemes() -> None:
    schemes = re.findall(r":root \{([^}]*)\}", page())
    assert len(schemes) == 2
    for scheme, least in zip(schemes, (3.0, 3.0), strict=True):
        colours = dict(re.findall(r"--([a-z]+): (#[0-9a-fA-F]{3,6});", scheme))
        full = {
            name: "#" + "".join(c * 2 for c in value[1:]) if len(value) == 4 else value
            for name, value in colours.items()
        }
        paper = luminance(full["paper"])
        for name in ("ink", "quiet", "better", "worse", "alike", "open", "link"):
            light, dark = sorted((luminance(full[name]), paper), reverse=True)
            contrast = (light + 0.05) / (dark + 0.05)
            assert contrast >= (4.5 if name in ("ink", "quiet", "link") else least), name


@pytest.mark.parametrize(("rows", "folded"), [(MAX_OPEN_ROWS, 0), (MAX_OPEN_ROWS + 1, 1)])
def test_a_long_table_is_folded_with_all_its_rows(rows: int, folded: int) -> None:
    text = page(ReportTable(pd.DataFrame({"a": [f"row {number}" for number in range(rows)]}), "many"))
    assert text.count("<details>") == folded
    assert text.count("<td") == rows
    assert text.find("<details>") < text.index("row 0")


def test_tables_of_a_page_name_their_columns_in_words() -> None:
    names = {"pe": "encoding", "model.norm": "norm", "optimizer.lr": "learning rate", "p_corrected": "corrected p"}
    names |= {"flops_per_token": "FLOPs per token", "1.2 ×": "1.2 ×", "R² of position": "R² of position"}
    page = html("page", [Section("one", [ReportTable(pd.DataFrame([dict.fromkeys(names, 1)]), "all")])])
    assert re.findall(r'<th scope="col">([^<]*)', page) == list(names.values())
