"""The log of findings: its index has every entry, in order, with a result."""

import re
from pathlib import Path

LOG = (Path(__file__).parents[2] / "sweeps/LOG.md").read_text(encoding="utf-8")
LINE = re.compile(r"^\| (\S+) \| \[(.+)\]\(#(\S+)\) \| (.+) \|$", re.MULTILINE)


def test_the_index_has_every_entry() -> None:
    entries = re.findall(r"^## (\d\S+): (.+)$", LOG, re.MULTILINE)
    assert [line[:2] for line in LINE.findall(LOG)] == entries


def test_links_of_the_index_lead_to_entries() -> None:
    for date, title, anchor, result in LINE.findall(LOG):
        heading = re.sub(r"[^\w\s-]", "", f"{date}: {title}").lower()  # as GitHub and the documentation name it
        assert anchor == heading.replace(" ", "-") == re.sub(r"[-\s]+", "-", heading)
        assert result.strip()
