"""Write the audit's table as text, CSV and Markdown, with its legend and the reasons for empty cells."""

from inspect import cleandoc
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.audit.cost import COST_COLUMNS, LEGEND
from pe_lab.audit.measures import MEASURES
from pe_lab.system.escaping import in_markdown
from pe_lab.system.files import write_text

PROPERTIES = [measure.__name__ for measure in MEASURES]
PREAMBLE = (
    "Initial parameters (those that start as zeros are drawn from N(0, 0.02^2)); width 64, 4 heads, one layer, "
    "training length 64, float64 and a causal mask unless said otherwise. Encodings of a grid get one with 8 columns. "
    "Numbers below 1e-9 are shown as 0; the CSV has them unrounded. Times depend on the machine."
)


def tabulate_rows(names: list[str], rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with a row per encoding and a column per measure; cells without a measurement are empty."""
    return pd.DataFrame(rows, pd.Index(names, name="pe"), PROPERTIES + COST_COLUMNS)


def legend() -> dict[str, str]:
    """Return how each column is computed, by its name."""
    return {measure.__name__: " ".join(cleandoc(measure.__doc__ or "").split()) for measure in MEASURES} | LEGEND


def render_audit(table: pd.DataFrame, width: int) -> str:
    """Return the table as text, in blocks of at most `width` characters."""
    text: str = table.map(_cell).to_string(line_width=width)
    return text


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return ""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def empty_cells(reasons: dict[str, dict[str, str]]) -> list[str]:
    """Return one line per column and reason, naming the encodings.

    Args:
        reasons: the reasons for empty cells, by encoding and column.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for name, by_column in reasons.items():
        for column, reason in by_column.items():
            names.setdefault((column, reason), []).append(name)
    order = {column: index for index, column in enumerate(PROPERTIES + COST_COLUMNS)}
    lines = sorted(names.items(), key=lambda item: order[item[0][0]])
    return [f"{column}: {reason} ({', '.join(encodings)})" for (column, reason), encodings in lines]


def markdown_page(table: pd.DataFrame, empty: list[str], pictures: list[str]) -> str:
    """Return a Markdown page: properties, cost, how each column is computed, reasons for empty cells, pictures.

    Args:
        empty: the lines on empty cells, from `empty_cells`.
        pictures: the paths of the pictures, relative to the page.
    """
    parts = ["# Properties of encodings", PREAMBLE]
    for title, columns in (("Properties", PROPERTIES), ("Cost", COST_COLUMNS)):
        shown = table[columns].map(_cell).reset_index()
        rows = [[in_markdown(str(value)) for value in row] for row in shown.to_numpy()]
        lines = [list(shown.columns), [":---", *["---:"] * len(columns)], *rows]
        parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    parts += ["## How each column is computed", "\n".join(f"- `{name}`: {text}" for name, text in legend().items())]
    if empty:
        parts += ["## Empty cells", "\n".join(f"- {in_markdown(line)}" for line in empty)]
    if pictures:
        parts += ["## Pictures", "\n\n".join(f"![{Path(path).stem}]({path})" for path in pictures)]
    return "\n\n".join(parts) + "\n"


def write_report(out: Path, table: pd.DataFrame, empty: list[str], pictures: list[str]) -> None:
    """Write table.csv and table.md into the folder `out`."""
    write_text(out / "table.csv", table.to_csv())
    write_text(out / "table.md", markdown_page(table, empty, pictures))
