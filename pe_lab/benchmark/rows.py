"""The results of the benchmark as a tidy table: a line per cell and length, with the command that makes it."""

import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from pe_lab import config
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import NAME
from pe_lab.config import flatten, resolved
from pe_lab.results.columns import ENVIRONMENT
from pe_lab.results.shipped import Shipped

COLUMNS = (
    *("benchmark", "task", "pe", "name", "seed", "length", "tokens"),
    *("score", "loss", "level", "best", "accuracy", "exact_match"),
    *("parameters", "positional_parameters", "flops_per_token", "seconds", "lr", "epochs", "run"),
    *ENVIRONMENT,
    "command",
)
# one cell of a study: no search, no look, and nothing is taken from the shipped results
ONE_CELL = "search=none decide.baseline=null decide.seeds=5..12 shipped=false"


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
    words += [f"optimizer.lr={lr!r}"] if lr is not None else []
    return " ".join(["python -m pe_lab.run -m", *map(shlex.quote, words), ONE_CELL])


def table(found: TaskResults) -> pd.DataFrame:
    """Return a line per cell and length of a task, with the columns of COLUMNS."""
    lines = found.lines
    owners = [found.cells[pe, seed] for pe, seed in zip(lines["pe"], lines["seed"], strict=True)]
    more: dict[str, Any] = {
        column: [owner.environment.get(name) for owner in owners] for column, name in ENVIRONMENT.items()
    }
    more["epochs"] = [owner.epochs for owner in owners]
    more["command"] = [
        command(found.task.study, owner, _defaults(name)) for name, owner in zip(lines["name"], owners, strict=True)
    ]
    return lines.assign(benchmark=NAME, task=found.task.name, **more)[list(COLUMNS)]


def tables(results: Iterable[TaskResults]) -> pd.DataFrame:
    """Return the lines of several tasks."""
    parts = [table(found) for found in results if len(found.lines)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))


@cache
def _defaults(name: str) -> dict[str, Any]:
    """Return the options of an encoding in conf/pe by dotted name; none for one that has no file there."""
    if name not in config.folders().names("pe"):
        return {}
    (cfg,) = config.expand([f"pe={name}"], multirun=False)
    return flatten(resolved(cfg.pe))


def _word(value: Any) -> str:
    """Return a value as a word of a command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
