"""A spreadsheet finds no formula in a table, and what is read back is what was written."""

import csv
import re
from io import StringIO

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pe_lab.system.spreadsheet import escaped, restored, to_csv

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
        for field in re.split(rf"[\r\n{separators}]", escaped(text)):
            assert not re.match(r"[\s\"]*[=+\-@\uff1d]", field), (text, separators)
    assert escaped(text)[0] not in "\t\r\n"
    assert restored(escaped(text)) == text


@pytest.mark.parametrize("text", NAMES)
def test_a_name_stays_as_it_is(text: str) -> None:
    assert escaped(text) == text


@given(CHARACTERS)
@example("''=1")
@example("'\t'=")
def test_every_text_is_restored(text: str) -> None:
    assert restored(escaped(text)) == text


@given(st.lists(CHARACTERS.filter(lambda text: "\0" not in text), min_size=1, max_size=5))
def test_a_table_is_read_back_as_it_was(texts: list[str]) -> None:
    content = to_csv(pd.DataFrame({"=a": texts, "b": range(len(texts))}))
    header, *rows = csv.reader(StringIO(content, newline=""))
    assert [restored(name) for name in header] == ["=a", "b"]
    assert [restored(text) for text, _ in rows] == texts


def test_numbers_stay_numbers() -> None:
    table = pd.DataFrame({"a": [-0.5, None], "b": [-1, 2], "c": pd.Series([-3.5, "-3.5"], dtype=object)})
    assert to_csv(table).split("\r\n") == ["a,b,c", "-0.5,-1,-3.5", ",2,'-3.5", ""]
