"""Escape texts that others wrote, to show them on a terminal or in Markdown."""

import re


def escape_control(text: str) -> str:
    """Escape control characters, which could move a terminal's cursor or change its title."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def in_markdown(text: str) -> str:
    """Return text as Markdown that shows it as it is, on one line: no end of a cell, no code, no link, no HTML."""
    return re.sub(r"[\\|`]|(?<=\])\(", r"\\\g<0>", " ".join(text.splitlines())).replace("<", "&lt;")
