"""The text of a page."""

import re
from html import unescape

_DRAWN = re.compile(r"<(style|svg)\b.*?</\1>", re.DOTALL)
_OPEN_CELL = re.compile(  # whose end tag is left out
    r"(<t[hd]\b[^>]*>(?:(?!</?t(?:[hdr]|head|body)\b).)*?)(?=\s*(?:<t[hdr]\b|</t(?:r|head|body)\b))", re.DOTALL
)
_MARKS = {
    r"</?code>": "`",
    r"</?strong>": "**",
    r"<h([12])>": lambda found: f"\n{'#' * int(found[1])} ",
    r"</h[12]>": "\n",
    r"<tr>": "\n|",
    r"</t[hd]>": " |",
    r"<t[hd][^>]*>(<span[^>]*>.</span>)?": " ",
    r"<[^>]*>": "",
}


def text_of(page: str) -> str:
    """Return the text of an HTML page: headings after #, code in backticks, a line per row of a table."""
    text = _OPEN_CELL.sub(r"\1</td>", _DRAWN.sub("", page.partition("<body>")[2]))
    for mark, put in _MARKS.items():
        text = re.sub(mark, put, text)
    return unescape(text)
