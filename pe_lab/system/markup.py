"""Escape texts that others wrote, to show them in Markdown."""

import re


def in_markdown(text: str) -> str:
    """Return text as Markdown that shows it as it is, on one line: no end of a cell, no code, no link, no HTML."""
    return re.sub(r"[\\|`]|(?<=\])\(", r"\\\g<0>", " ".join(text.splitlines())).replace("<", "&lt;")
