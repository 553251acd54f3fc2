"""A page of the gallery, as Markdown for the documentation and as an HTML file of its own."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from textwrap import indent
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

STATIC = Path(__file__).with_name("static")
NAV = (
    ("index", "Leaderboard"),
    ("needs", "Needs"),
    ("encodings", "Encodings"),
    ("tasks", "Tasks"),
    ("claims", "Claims"),
)


@dataclass(frozen=True)
class PageSection:
    """A part of a page.

    Attributes:
        title: its heading; empty: none.
        html: its content.
        code: Python source, shown after the content.
        fold: what is said of its content, which is folded; empty: it is not.
    """

    title: str
    html: str
    code: str = ""
    fold: str = ""

    @property
    def id(self) -> str:
        return "-".join(self.title.lower().split())


@dataclass(frozen=True)
class Page:
    """A page of the gallery.

    Attributes:
        path: its file, relative to the gallery, without its ending.
        title: its heading.
        sections: in order.
        searched: whether the search of the documentation finds it.
        wide: whether it has a wide table, and no table of contents beside it.
    """

    path: str
    title: str
    sections: list[PageSection] = field(default_factory=list)
    searched: bool = True
    wide: bool = False

    @property
    def root(self) -> str:
        """The way from the page to the gallery's folder."""
        return "../" * self.path.count("/")

    def markdown(self) -> str:
        """Return the page in Markdown, with `slot` in the place of each section's HTML: see `filled`."""
        meta = [] if self.searched else ["search:", "  exclude: true"]
        meta += ["hide:", "  - toc"] if self.wide else []
        parts = ["\n".join(["---", *meta, "---"])] if meta else []
        parts.append(f"# {self.title}")
        for number, section in enumerate(self.sections):
            parts += [f"## {section.title} {{#{section.id}}}"] if section.title else []
            parts += [slot(number)] if section.html else []
            if section.code:
                code = _code_block(section.code)
                parts += [f'??? quote "{section.fold}"\n\n{indent(code, "    ")}' if section.fold else code]
        return "\n\n".join(parts) + "\n"

    def filled(self, html: str) -> str:
        """Return the HTML that was made of the page's Markdown, with the sections in their places.

        They are not in the Markdown itself, which would take a minute for the largest tables.
        """
        for number, section in enumerate(self.sections):
            folded = section.fold and not section.code
            shown = f"<details><summary>{section.fold}</summary>\n{section.html}</details>" if folded else section.html
            html = html.replace(slot(number), shown)
        return html

    def html(self) -> str:
        """Return the page as a file that needs only the files of STATIC beside it."""
        parts = []
        for section in self.sections:
            heading = f'<h2 id="{section.id}">{escape(section.title)}</h2>\n' if section.title else ""
            code = f'<pre class="gallery-scroll" tabindex="0"><code>{escape(section.code)}</code></pre>'
            shown = f"{section.html}{code if section.code else ''}"
            if section.fold:
                summary = f"<summary>{heading}<span>{section.fold}</span></summary>"
                parts.append(f'<details class="gallery-part">{summary}\n{shown}</details>')
            else:
                parts.append(f"{heading}{shown}")
        return rendered("page.html", page=self, parts=parts, nav=NAV)


def _code_block(code: str) -> str:
    """Return Python source as a block of Markdown, whose fence is longer than any in the source."""
    fence = "`" * max([3, *(len(fence) + 1 for fence in re.findall("`{3,}", code))])
    return f"{fence}python\n{code.rstrip()}\n{fence}"


def slot(number: int) -> str:
    """Return the comment in the place of a section's HTML."""
    return f"<!-- gallery: section {number} -->"


def rendered(template: str, **values: Any) -> str:
    """Return a template with values."""
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    loader = PackageLoader("pe_lab.gallery")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS
    return environment


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits; an empty text for none."""
    if value is None or value != value:
        return ""
    text = f"{value:.{digits}g}"
    text = f"{value:,.0f}" if "e+" in text and abs(value) < 1e7 else text
    return text.replace("-", "−", 1) if text.startswith("-") else text


def fixed(value: float | None, places: int = 2) -> str:
    """Return a number with so many decimal places; an empty text for none."""
    if value is None or value != value:
        return ""
    text = f"{value:.{places}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def percent(share: float | None) -> str:
    """Return a share in percent with at most one decimal place; a dash for none."""
    return "–" if share is None or share != share else f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"


def signed_number(value: float) -> str:
    """Return a number with three significant digits and its sign."""
    return f"{'+' * (value > 0)}{number(value)}"


def plain(value: Any) -> str:
    """Return the value of an option as it is written on a command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


FILTERS: dict[str, Callable[..., str]] = {
    "number": number,
    "fixed": fixed,
    "percent": percent,
    "plain": plain,
}
