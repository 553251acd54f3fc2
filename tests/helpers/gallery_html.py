"""What tests of the gallery read from its pages, and results that they fabricate."""

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery.claims_page import claims_page
from pe_lab.gallery.gallery_data import GalleryData

HEADS = {
    "Within a factor of": "use",
    "Among the lowest losses": "use",
    "Slower": "slower",
    "Higher loss": "higher loss",
    "Not solved by every seed": "unreliable",
    "Not solved within": "avoid",
}
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


def rows_of_claims(content: GalleryData) -> dict[str, str]:
    """Return the rows of the tables of claims by name."""
    return dict(re.findall(r'<tr data-claim="(\w+)"[^>]*>(.*?)</tr>', claims_page(content).html(), re.DOTALL))
