"""Sections as one self-contained HTML page."""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tqdm import tqdm

from pe_lab.report.inline_svg import inline_svg
from pe_lab.report.parts import CaptionedFigure, Code, Collapsible, Part, Section
from pe_lab.results.columns import column_in_words
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict

MAX_OPEN_ROWS = 30  # rows of a table that is not folded
MAX_COLUMNS = 40  # of a table that can hold texts
MAX_NARROW_LETTERS = 48  # of all columns of a table that fits a narrow screen, two of space for each included
MAX_STACKED_ROWS = 12  # of a wider one whose rows become blocks there; a longer one scrolls
MAX_LETTERS = 110  # of a text in a table, behind which the rest of a list is folded
MIN_FOLDED = 2  # names that are folded
MAX_UNWRAPPED_LETTERS = 20  # letters of a column of texts up to which these stay in one line
MIN_SENTENCE_LETTERS = 40  # letters of a text from which its column is wide, also on a narrow screen
MAX_WIDTH_BESIDE_TEXT = 6.0  # inches: a wider figure of an opening section stands below its answer
MAX_WIDTH_BELOW_ANSWER = 8.0  # inches: a wider one has the whole width, also below what stands beside the answer


def html(title: str, sections: list[Section]) -> str:
    """Return a page without scripts or external files: figures are inline SVG, each with its numbers.

    A section that is opening stands before the contents, with its title as the heading of the page.
    """
    drawn = tqdm(sections, "drawing sections", mininterval=0.1 if sys.stderr.isatty() else 10.0)
    shown = [{"title": section.title, "parts": [_part(part) for part in section.parts]} for section in drawn]
    opening = shown.pop(0) if sections and sections[0].opening else None
    if opening is not None:
        opening["place"] = _place(opening["parts"])
    page: str = _template().render(
        title=title, opening=opening, sections=shown, marks=_looks(), longest=MAX_OPEN_ROWS, columns=MAX_COLUMNS
    )
    return page


def format_values(data: pd.DataFrame) -> pd.DataFrame:
    """Return every value as text: four significant digits; missing values are empty."""
    return pd.DataFrame({name: [_value(value) for value in data[name]] for name in data}, dtype=object)


def _value(value: Any) -> str:
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return ""
    if isinstance(value, (bool, np.bool_, str)):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return str(value)
    whole = np.isfinite(value) and abs(value) < 1e15 and value == round(value)
    return f"{value:.0f}" if whole else f"{value:.4g}"


def _part(part: Part) -> dict[str, Any]:
    """Return a part in the form that page.html takes."""
    if isinstance(part, str):
        lines = part.split("\n")
        return {
            **{"kind": "text", "html": _inline(lines[0]), "note": part.startswith("**Note.**")},
            **{"items": [_inline(line[2:]) for line in lines[1:] if line.startswith("- ")]},
            **{"after": [_inline(line) for line in lines[1:] if not line.startswith("- ")]},
        }
    if isinstance(part, Code):
        return {"kind": "code", "lines": part.lines}
    if isinstance(part, Collapsible):
        return {"kind": "collapsible", "title": part.title, "parts": [_part(inner) for inner in part.parts]}
    if isinstance(part, CaptionedFigure):
        figure = part.plot.figure
        drawn = {"kind": "figure", "svg": inline_svg(figure, part.caption), "table": _table(part.plot.data)}
        return drawn | {
            "width": figure.get_figwidth(),
            "caption": part.caption,
            "code": part.code,
        }
    return {"kind": "table", "table": _table(part.data), "caption": part.caption, "code": part.code}


def _place(parts: list[dict[str, Any]]) -> str:
    """Return where the first screen has its figures and tables: "beside" or "below" the answer, or below all text."""
    widest = max((part["width"] for part in parts if part["kind"] == "figure"), default=0.0)
    if widest > MAX_WIDTH_BELOW_ANSWER:
        return "last"
    below = widest > MAX_WIDTH_BESIDE_TEXT or any(part["kind"] == "table" for part in parts)
    return "below" if below else "beside"


def _table(data: pd.DataFrame) -> dict[str, Any]:
    classes = ["" if pd.api.types.is_numeric_dtype(data[name]) else "text" for name in data]
    classes = [
        f"{kind} verdict".strip() if name == "verdict" else kind for name, kind in zip(data, classes, strict=True)
    ]
    lines = format_values(data).to_numpy().tolist()
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(len(classes))]
    heads = [column_in_words(str(name)) for name in data]
    for column, (kind, width) in enumerate(zip(classes, widths, strict=True)):
        if width > MIN_SENTENCE_LETTERS:
            classes[column] = f"{kind} long"
        elif kind == "text" and max(width, len(heads[column])) <= MAX_UNWRAPPED_LETTERS:
            classes[column] = "text short"
    stacks = len(heads) > 1 and any("long" in kind or kind == "text" for kind in classes)
    letters = sum(2 + max(width, len(head)) for width, head in zip(widths, heads, strict=True))
    has_text = any("text" in kind for kind in classes)
    stacks |= has_text and letters > MAX_NARROW_LETTERS and len(lines) <= MAX_STACKED_ROWS
    parts = [[_shown_and_folded(value) for value in line] for line in lines]
    return {"heads": heads, "classes": classes, "lines": parts, "stacks": stacks}


def _shown_and_folded(text: str) -> tuple[str, list[str]]:
    """Return what a cell of a table shows, and the rest of a list of names, which a reader opens."""
    names = text.split(", ")
    shown = [name for at, name in enumerate(names) if len(", ".join(names[: at + 1])) <= MAX_LETTERS]
    few = len(names) - len(shown) < MIN_FOLDED or any(" " in name for name in names[len(shown) :])
    return (text, []) if few else (", ".join(shown), names[len(shown) :])


def _looks() -> dict[str, dict[str, str]]:
    """Return symbol and class of each verdict, for page.html."""
    alike = dict.fromkeys((Verdict.EQUIVALENT, Verdict.EQUAL), "alike")
    return {
        verdict: {"symbol": mark.symbol, "look": verdict.direction or alike.get(verdict, "open")}
        for verdict, mark in VERDICT_MARKS.items()
    }


def _inline(text: str) -> Markup:
    """Return text as HTML, with `code` and **emphasis**; all else is escaped."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked))


@cache
def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html")
