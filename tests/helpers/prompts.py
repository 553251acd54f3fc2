"""Prompts and answers of problems, parsed from their sequences."""

from pe_lab.data.problem import Problems


def parsed(data: Problems, split: str = "test") -> list[tuple[list[int], list[int]]]:
    """Return the prompt and the answer of each sequence of a split."""
    start, sep, end, pad = range(data.task.vocabulary - 4, data.task.vocabulary)
    found = []
    for row in data.whole(split).tokens.tolist():
        at_sep, at_end = row.index(sep), row.index(end)
        assert row[0] == start
        assert set(row[at_end + 1 :]) <= {pad}
        found.append((row[1:at_sep], row[at_sep + 1 : at_end]))
    return found
