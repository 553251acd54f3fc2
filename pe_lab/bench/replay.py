"""Replay the committed cells of a study as if they had come look by look."""

from pathlib import Path

import pandas as pd

from pe_lab.decisions.boundaries import power
from pe_lab.decisions.design import Design
from pe_lab.decisions.looks import looks_between
from pe_lab.decisions.question import Question
from pe_lab.decisions.study import Decision, decide
from pe_lab.results.frame import load
from pe_lab.results.table import as_markdown
from pe_lab.statistics.cells import by_setting, wide
from pe_lab.statistics.margins import Margin, margins


def margins_of(rows: pd.DataFrame, margin: str | None) -> tuple[list[tuple], list[float]]:
    """Return the settings of rows, and the margin of each in nats; None: the default of the task."""
    table = margins(rows, "loss", None if margin is None else Margin.parse(margin))
    keys = table.drop(columns="margin").itertuples(index=False, name=None)
    return list(keys), [float(value) for value in table["margin"]]


def replay(rows: Path, baseline: str | None, margin: str | None) -> list[str]:
    """Decide with committed cells as if they had come look by look, and compare with all seeds at once.

    Args:
        rows: rows.csv of a study whose encodings have the same seeds.
        baseline: an encoding, `all pairs` or `best`; None: rope, or the first.
        margin: as `0.05 gap`; None: the default.

    Returns:
        Paragraphs of Markdown.

    Raises:
        ValueError: there is no such baseline, or fewer than three seeds.
    """
    table = load(rows.parent).cells
    names, found = list(table["pe"].unique()), dict(zip(*margins_of(table, margin), strict=True))
    baseline = baseline or ("rope" if "rope" in names else names[0])
    cells, values = [], {}
    for setting, part in by_setting(wide(table)):
        part = part.sort_index()
        for pe in part:
            cells.append((tuple(setting.values()), pe))
            values |= {(cells[-1], seed): value for seed, value in enumerate(part[pe])}
    most = 1 + max(seed for _, seed in values)
    if most < 3:
        raise ValueError(f"--replay needs rows of at least 3 seeds, got {most}")
    question = Question(cells, baseline)
    sequential = decide(question, Design(looks_between(3, most)), values, found)
    fixed = decide(question, Design((most,), spending=power(1)), values, found)
    return _compared(sequential, fixed, len(cells), most, margin or "default margin")


def _compared(sequential: Decision, fixed: Decision, cells: int, most: int, margin: str) -> list[str]:
    """Describe seeds and verdicts of a replay beside those of all seeds at once."""
    used: dict[tuple, int] = {}
    for line in sequential.lines:
        for pe in (line.pe, line.baseline):
            used[line.setting, pe] = max(line.seeds, used.get((line.setting, pe), 0))
    pairs = [(one.verdict, other.verdict) for one, other in zip(sequential.lines, fixed.lines, strict=True)]
    against = [pair for pair in pairs if contradicts(*pair)]
    counts = pd.crosstab(
        pd.Series([pair[0] for pair in pairs], name="look by look"),
        pd.Series([pair[1] for pair in pairs], name="fixed"),
    )
    counts.columns.name = None
    total, spent = cells * most, sum(used.values())
    early = sum(line.seeds < most for line in sequential.lines)
    return [
        f"{len(pairs)} comparisons with {margin}, looks from 3 to {most} seeds against {most} seeds at once: {early} "
        f"were decided before the last look; {spent} of {total} cells were needed, {total - spent} "
        f"({100 * (total - spent) / total:.0f} %) were saved. {len(against)} verdicts are contradicted. Rows: verdicts "
        f"look by look; columns: those of the fixed design.",
        as_markdown(counts.reset_index(), left=["look by look"]),
    ]


def contradicts(one: str, other: str) -> bool:
    """Return whether two verdicts cannot both be true: better and worse, or equal bits and a difference."""
    first, second = one.partition(",")[0], other.partition(",")[0]
    return {first, second} == {"better", "worse"} or (("equal" in (first, second)) and first != second)
