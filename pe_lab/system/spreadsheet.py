"""Tables as CSV in which a spreadsheet finds no formula, whoever wrote their texts.

A spreadsheet takes a field that begins with =, +, - or @ for a formula, also behind blanks or in quotes. Where it
separates fields by semicolons or tabs, as in half of the world, a text with such a character goes on in the next field.
An apostrophe in front of each such place makes it a text. Numbers stay numbers.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_BEGINS = r"(?:\A|(?<=[;\t\r\n]))"
_FORMULA = r"""(?=['"\s]*[=+\-@\uff1d\uff0b\uff0d\uff20])"""  # the last four are full-width forms
_BLANK = r"\A(?=['\"]*[\t\r\n\0])"  # dropped by some spreadsheets
_ESCAPE = re.compile(rf"{_BEGINS}{_FORMULA}|{_BLANK}")


def escape_formula(text: str) -> str:
    """Return a text with an apostrophe in front of all that a spreadsheet would take for a formula."""
    return _ESCAPE.sub("'", text)


def to_csv(table: "pd.DataFrame") -> str:
    """Return a table as CSV, without its index, in which texts are escaped; for people."""
    text: str = table.map(_harmless).rename(columns=_harmless).to_csv(index=False, lineterminator="\r\n")
    return text


def _harmless(value: Any) -> Any:
    return escape_formula(value) if isinstance(value, str) else value
