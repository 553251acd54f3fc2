"""A griffe extension: docstrings are plain text, so Markdown shows their brackets, stars and tags as they are."""

import re
from typing import Any

import griffe

SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:", "Examples:", "Example:", "Note:")
CODE = re.compile(r"(`[^`\n]*`)")
MARKS = re.compile(r"([\[<>*]|(?<!\w)_(?=\w+_(?!\w)))")


class PlainDocstrings(griffe.Extension):
    """Escape Markdown's marks in every docstring, except in code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object when it is found."""
        if obj.docstring:
            obj.docstring.value = escaped(obj.docstring.value)


def escaped(text: str) -> str:
    """Return a docstring with Markdown's marks escaped, except between backticks and in indented blocks."""
    lines, before, section, block = [], "", False, False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            section, block = line in SECTIONS, False
        elif line.startswith("    ") and not section and not before:
            block = True
        before = line
        lines.append(line if block else "".join(map(_escaped, CODE.split(line))))
    return "\n".join(lines)


def _escaped(part: str) -> str:
    return part if part.startswith("`") else MARKS.sub(r"\\\1", part)
