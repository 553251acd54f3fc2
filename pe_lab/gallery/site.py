"""The gallery as files: pages, pictures, rows as CSV, a script and a style sheet."""

from pathlib import Path

from pe_lab.gallery.gallery_data import LONGER_TEXT, GalleryData
from pe_lab.gallery.gallery_page import STATIC
from pe_lab.gallery.pages import pages
from pe_lab.system.files import write_text
from pe_lab.system.spreadsheet import to_csv


def assets(content: GalleryData) -> dict[str, bytes]:
    """Return what the pages load or link to, by path: pictures, and the rows of tasks and of other studies of text."""
    files = {f"pictures/{name}.svg": portrait.picture.encode() for name, portrait in content.portraits.items()}
    tables = {each.task.study: each.rows for each in content.results.values()}
    tables |= content.text_losses if LONGER_TEXT[0] in content.results else {}
    return files | {f"rows/{name}.csv": to_csv(rows).encode() for name, rows in tables.items()}


def write_site(content: GalleryData, out: Path) -> int:
    """Write the gallery as a site of its own, that needs no server and no network, and return the number of pages.

    Files of pages that are no longer made stay.
    """
    every = pages(content)
    for page in every:
        write_text(out / f"{page.path}.html", page.html())
    files = assets(content) | {path.name: path.read_bytes() for path in STATIC.iterdir()}
    for path, data in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(data)
    return len(every)
