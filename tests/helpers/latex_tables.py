"""Tables in LaTeX, read back."""

import re


def parsed(text: str) -> list[list[str]]:
    """Return the rows of a table, the head first; raises AssertionError unless its structure is sound."""
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert opened[::-1] == re.findall(r"\\end\{(\w+)\}", text)
    (columns,) = re.findall(r"\\begin\{(?:tabular|longtable)\}\{([lr]+)\}", text)
    assert [text.count(rule) for rule in (r"\toprule", r"\bottomrule")] == [1, 1]
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line.endswith(r" \\")]
    assert {len(row) for row in rows} == {len(columns)}
    for line in body.splitlines():
        assert len(re.findall(r"(?<!\\)[$]", line)) % 2 == 0
        assert not re.search(r"(?<!\\)[%#]", line)
    return rows
