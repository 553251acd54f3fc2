"""A spreadsheet finds no formula in a table, and a text gets apostrophes and no other change."""

import csv
import re
from io import StringIO

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pe_lab.system.spreadsheet import escape_formula, to_csv

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-1+2",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n@x",
    "  =1",
    '"=1',
    "'=1",
    "rope;=1",
    "rope\t=1",
    "rope\r\n+1",
    "rope; \"'-1",
    "\uff1d1",
    "\tname",
]
NAMES = ["rope", "rope theta=5", "a-b", "x@y", "heads[rope+alibi]", "it's", "", "python -m pe_lab.run 'a=[1,-2]' b=c"]
CHARACTERS = st.text(alphabet="=+-@'\" ;,\t\r\nab\uff0b\0", max_size=12)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text(text: str) -> None:
    for separators in (";\t", ",", ";", "\t"):
        for field in re.split(rf"[\r\n{separators}]", escape_formula(text)):
            assert not re.match(r"[\s\"]*[=+\-@\uff1d]", field), (text, separators)
    assert escape_formula(text)[0] not in "\t\r\n"


@pytest.mark.parametrize("text", NAMES)
def test_a_name_stays_as_it_is(text: str) -> None:
    assert escape_formula(text) == text


@given(CHARACTERS)
@example("''=1")
@example("'\t'=")
def test_texts_are_other_texts_where_they_are_escaped(text: str) -> None:
    assert escape_formula(text).count("'") == text.count("'") + len(escape_formula(text)) - len(text)
    assert escape_formula(text).replace("'", "") == text.replace("'", "")


def test_a_table_has_escaped_names_and_texts() -> None:
    content = to_csv(pd.DataFrame({"=a": FORMULAS, "b": range(len(FORMULAS))}))
    header, *rows = csv.reader(StringIO(content, newline=""))
    assert header == ["'=a", "b"]
    assert [text for text, _ in rows] == [escape_formula(text) for text in FORMULAS]


def test_numbers_stay_numbers() -> None:
    table = pd.DataFrame({"a": [-0.5, None], "b": [-1, 2], "c": pd.Series([-3.5, "-3.5"], dtype=object)})
    assert to_csv(table).split("\r\n") == ["a,b,c", "-0.5,-1,-3.5", ",2,'-3.5", ""]
