"""The rows that every number of the gallery links to: a line per cell and length, with the command that makes it."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pe_lab.config import flatten
from pe_lab.gallery.results import TaskResults
from pe_lab.results.shipped import Shipped

COLUMNS = (
    *("pe", "seed", "length", "tokens", "score", "loss", "level", "best", "accuracy", "exact_match"),
    *("parameters", "positional_parameters", "flops_per_token", "seconds", "lr", "run", "command"),
)
# one cell of a study: no search, no look, and nothing is taken from the shipped results
ONE_CELL = "search=none decide.baseline=null decide.seeds=3..24 shipped=false"


def anchor(pe: str, length: float, seed: int | None = None) -> str:
    """Return the id of a row; without a seed, of the first row of an encoding at a length."""
    name = re.sub(r"[^\w.-]+", "-", pe).strip("-")
    return f"{name}-x{length:g}" + ("" if seed is None else f"-s{seed}")


def command(study: str, cell: Shipped, defaults: Mapping[str, Any]) -> str:
    """Return the command that trains a cell and measures it.

    Args:
        defaults: the options of the encoding in conf/pe, by dotted name; those that differ are given.
    """
    given = flatten(cell.identity["pe"])
    options = [
        f"pe.{name}={_word(value)}" for name, value in given.items() if name in defaults and value != defaults[name]
    ]
    words = [f"+study={study}", f"pe={given['name']}", *options, f"seed={cell.identity['seed']}"]
    lr = cell.identity.get("optimizer", {}).get("lr")
    words += [f"optimizer.lr={lr:g}"] if lr is not None else []
    return " ".join(["python -m pe_lab.run -m", *words, ONE_CELL])


def table(found: TaskResults, defaults: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a line per cell and length of a task, with the columns of COLUMNS.

    Args:
        defaults: options in conf/pe by encoding.
    """
    lines = found.lines
    commands = [
        command(found.task.study, found.cells[line.pe, line.seed], defaults.get(line.name, {}))
        for line in lines[["pe", "seed", "name"]].itertuples(index=False)
    ]
    return lines.assign(command=commands)[list(COLUMNS)]


def _word(value: Any) -> str:
    """Return a value as a word of a command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
