"""The parts that a report is made of: sections of text, figures and tables."""

from dataclasses import dataclass, field

import pandas as pd

from pe_lab.results.columns import possible_range
from pe_lab.results.number_text import count_of_seeds
from pe_lab.results.panels import without_wide_intervals
from pe_lab.results.plots import Plot
from pe_lab.statistics import COMPARISON_COLUMNS
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS

# columns of a table of comparisons, whose caption names the baseline: p values as the verdicts take them
COMPARISON = [name for name in COMPARISON_COLUMNS if name not in ("baseline", "p", "p_equivalent")]
TWO_SEEDS = "the seeds, as two are too few for an interval"


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure, its caption, and the line of code that draws it."""

    plot: Plot
    caption: str
    code: str


@dataclass(frozen=True)
class ReportTable:
    """A table, its caption, and the line of code that computes it, if there is one."""

    data: pd.DataFrame
    caption: str
    code: str = ""


@dataclass(frozen=True)
class Code:
    """Lines of Python, to be copied as they are."""

    lines: str


@dataclass(frozen=True)
class Collapsible:
    """Parts that a reader opens, below a line that says what they are."""

    title: str
    parts: "list[Part]"


Part = str | CaptionedFigure | ReportTable | Code | Collapsible


@dataclass(frozen=True)
class Section:
    """A title with the parts below it. A section without parts is not shown.

    Attributes:
        title: a few words; for an opening section, the question of the page.
        parts: texts, figures, tables and code.
        opening: whether this is the first screen of the page, before its contents.
    """

    title: str
    parts: list[Part] = field(default_factory=list)
    opening: bool = False


def without_few_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without intervals of too few seeds, and without their columns where none is left."""
    table = without_wide_intervals(table)
    return table.drop(columns=["low", "high"]) if table["low"].isna().all() else table


def means_in_words(drawn: Plot) -> str:
    """Say that lines of a figure are means, over how many seeds, and what their bands are."""
    without_bands = not drawn.bands and drawn.data["low"].notna().any()
    return f"means over {count_of_seeds(drawn.data['seeds'])}{'' if without_bands else intervals_in_words(drawn)}"


def intervals_in_words(drawn: Plot, kind: str = "95 % t intervals") -> str:
    """Say that a figure has intervals, or why it has none though it has several seeds; empty for one seed.

    Args:
        kind: what the intervals are.
    """
    if drawn.data["low"].notna().any():
        return f" with {kind}"
    return f", and dots for {TWO_SEEDS}" * bool(1 < drawn.data["seeds"].max() < MIN_SHOWN_SEEDS)


def cut_in_words(drawn: Plot, metric: str) -> str:
    """Say that intervals of a figure end at what is possible, where some do; otherwise return nothing."""
    least, most = possible_range(metric)
    ends = (drawn.data["low"] == least).any() or (drawn.data["high"] == most).any()
    return ", cut at what is possible" * bool(ends)
