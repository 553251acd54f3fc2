"""A report as one file: it needs nothing else, escapes names, and looks the same each time."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from matplotlib.figure import Figure

from helpers.paged import text_of
from helpers.reports import made_cells, made_curves, made_records, question, run, store
from pe_lab.report import page as page_module
from pe_lab.report.page import format_values, html
from pe_lab.report.parts import CaptionedFigure, ReportTable, Section
from pe_lab.report.sections import sections
from pe_lab.results import frame, plots


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The page of the study, made of another folder."""
    cells = made_cells()
    folder = store(
        tmp_path_factory.mktemp("page") / "question", cells, curves=made_curves(cells), records=made_records(cells)
    )
    return html("question", sections(question(frame.load(folder))))


def test_the_page_needs_nothing_else_and_shows_the_numbers_of_its_figures(page):
    assert "<script" not in page
    assert "max-height" not in page  # a table shows all of its rows
    assert not re.search(r"""(?:src|href)=["'](?!#)""", re.sub(r"<svg.*?</svg>", "", page, flags=re.S))
    assert page.count("<figure") == page.count("Numbers and code") >= 6
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    inside = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert set(inside) <= set(ids)


@pytest.mark.long
def test_the_same_results_make_the_same_page(study, page):
    assert html("question", sections(question(frame.load(study)))) == page


def test_names_are_escaped():
    hostile = "<script>alert(1)</script>"
    table = ReportTable(pd.DataFrame({hostile: [hostile]}), hostile, hostile)
    page = html(hostile, [Section(hostile, [hostile, table])])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_a_name_with_dollars_or_html_is_a_name(cells, monkeypatch, tmp_path):
    hostile = {"rope": "$\\foo$", "none": "<script>alert(1)</script>", "alibi": "$x|`<img src=x>`"}
    few = cells[(cells["depth"] == 1) & (cells["seed"] < 3)]
    few = few.assign(pe=few["pe"].replace(hostile))
    folder = store(tmp_path / "$\\study$", few, curves=made_curves(few), records=made_records(few))
    run(monkeypatch, folder)
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert page.count(">$\\foo$<") >= 3  # in figures and tables, as written
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "# Which of 4 encodings has the lowest test loss, at depth 1, after 1 and 4 epochs?\n" in text_of(page)
    assert "pe_lab: $\\study$\n" in text_of(page)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1"),
        (0.123456, "0.1235"),
        (float("nan"), ""),
        (float("inf"), "inf"),
        (None, ""),
        (True, "True"),
        (12, "12"),
    ],
)
def test_a_value_is_shown_with_four_digits_or_not_at_all(value, shown):
    assert format_values(pd.DataFrame({"a": [value]}, dtype=object)).loc[0, "a"] == shown


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_shows_the_page_without_complaint(study, monkeypatch, tmp_path):
    run(monkeypatch, study)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=5000"]
    command += ["--dump-dom", f"file://{study / 'report.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == (study / "report.html").read_text().count("<svg")
    assert "Which encoding for which need" in done.stdout


def test_columns_of_sentences_are_wide():
    table = ReportTable(pd.DataFrame({"pe": ["rope"], "how sure": ["better than " * 5]}), "choice")
    assert page_module._part(table)["table"]["classes"] == ["text short", "text long"]


def test_the_end_of_a_long_list_of_names_is_folded_and_all_are_there():
    names = [f"encoding_{number}" for number in range(20)]
    sure = f"better than 3 of the other 23; not separable from {', '.join(names)}"
    page = html("page", [Section("one", [ReportTable(pd.DataFrame({"pe": ["rope"], "how sure": [sure]}), "choice")])])
    cell = page[page.index("better than 3") :].partition("\n")[0]
    folded = re.search("<details><summary>and ([0-9]+) more</summary>, (.*)</details>", cell)
    assert folded is not None
    assert int(folded[1]) == len(folded[2].split(", "))
    assert re.findall("encoding_[0-9]+", cell) == names
    assert "<details" not in html("page", [Section("one", [ReportTable(pd.DataFrame({"how": [sure[:80]]}), "few")])])


def test_rows_with_sentences_are_blocks_that_name_their_columns_on_a_narrow_screen():
    rows = pd.DataFrame({"need": ["x" * 50], "encoding": ["rope"], "value": [1.0]})
    page = html(
        "page", [Section("one", [ReportTable(rows, "wide"), ReportTable(rows[["encoding", "value"]], "short")])]
    )
    assert page.count('class="stacks ') == 1
    assert page.count('data-head="value"') == 1


@pytest.mark.parametrize(("rows", "columns", "stacks"), [(3, 6, True), (3, 2, False), (40, 6, False)])
def test_a_wide_table_of_short_texts_is_blocks_on_a_narrow_screen_unless_it_is_long(rows, columns, stacks):
    table = pd.DataFrame({name: ["a short text"] * rows for name in "abcdef"[:columns]})
    assert page_module._part(ReportTable(table, "texts"))["table"]["stacks"] == stacks


@pytest.mark.parametrize(("width", "place"), [(4.0, "beside"), (8.0, "below"), (12.0, "last")])
def test_a_figure_of_the_first_screen_stands_where_it_has_room(width, place):
    figure = CaptionedFigure(plots.Plot(Figure(figsize=(width, 3)), pd.DataFrame()), "caption", "code")
    assert f'<header class="{place}">' in html("page", [Section("question", ["answer", figure], opening=True)])
