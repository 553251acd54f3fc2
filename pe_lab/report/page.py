"""Sections as one self-contained HTML page."""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from tqdm import tqdm

from pe_lab.report.parts import Code, Drawn, Folded, Part, Section
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import Verdict
from pe_lab.system.drawing import svg

LONGEST = 30  # rows of a table that is not folded
SENTENCE = 40  # letters of a text from which its column is wide, also on a narrow screen
BESIDE = 6.0  # inches: a wider figure of an opening section stands below its text
LEAST_SCALE = 0.82  # of a figure on a narrow screen: texts of 8 pt stay above 8 pixels; wider figures scroll


def html(title: str, sections: list[Section]) -> str:
    """Return a page without scripts or external files: figures are inline SVG, each with its numbers.

    A section that is opening stands before the contents, with its title as the heading of the page.
    """
    drawn = tqdm(sections, "drawing sections", mininterval=0.1 if sys.stderr.isatty() else 10.0)
    shown = [{"title": section.title, "parts": [_part(part) for part in section.parts]} for section in drawn]
    opening = shown.pop(0) if sections and sections[0].opening else None
    page: str = _template().render(title=title, opening=opening, sections=shown, marks=_looks(), longest=LONGEST)
    return page


def as_text(data: pd.DataFrame) -> pd.DataFrame:
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
        return {"kind": "text", "html": _inline(part), "note": part.startswith("**Note.**")}
    if isinstance(part, Code):
        return {"kind": "code", "lines": part.lines}
    if isinstance(part, Folded):
        return {"kind": "folded", "title": part.title, "parts": [_part(inner) for inner in part.parts]}
    if isinstance(part, Drawn):
        figure = part.plot.figure
        drawn = {"kind": "figure", "svg": _svg(figure, part.caption), "table": _table(part.plot.data)}
        return drawn | {"wide": figure.get_figwidth() > BESIDE, "caption": part.caption, "code": part.code}
    return {"kind": "table", "table": _table(part.data), "caption": part.caption, "code": part.code}


def _table(data: pd.DataFrame) -> dict[str, Any]:
    classes = ["" if pd.api.types.is_numeric_dtype(data[name]) else "text" for name in data]
    classes = [
        f"{kind} verdict".strip() if name == "verdict" else kind for name, kind in zip(data, classes, strict=True)
    ]
    lines = as_text(data).to_numpy().tolist()
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(len(classes))]
    classes = [f"{kind} long" if width > SENTENCE else kind for kind, width in zip(classes, widths, strict=True)]
    return {"heads": list(data.columns), "classes": classes, "lines": lines}


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


def _svg(figure: Figure, caption: str) -> Markup:
    """Return a figure as SVG, with its caption as a label for screen readers; equal figures give equal bytes."""
    drawn = svg(figure, caption, alone=False)
    drawn = re.sub(r"\n +", "\n", drawn[drawn.index("<svg") :])
    drawn = re.sub(r'"[^"<>]*"', lambda quoted: re.sub(r"(\.\d\d)\d+", r"\1", quoted[0]), drawn)  # 0.01 px
    drawn = re.sub(r"font-family: [^;\"]*sans-serif", "font-family: sans-serif", drawn)
    # ids must be unique on a page with several figures
    mark = f"f{crc32(drawn.encode()):x}-"
    drawn = re.sub(r'\bid="', f'id="{mark}', drawn)
    drawn = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{mark}", drawn)
    least = LEAST_SCALE * figure.get_size_inches()[0] * 96  # CSS pixels
    opened = f'<svg role="img" aria-label="{escape(caption)}" style="min-width: {least:.0f}px"'
    return Markup(drawn.replace("<svg", opened, 1))


@cache
def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html")
