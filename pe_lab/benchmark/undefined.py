"""Which encodings are not defined for which tasks of the benchmark, and why."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.benchmark.tasks import tasks
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import write_text
from pe_lab.system.tables import read_csv

FILE = Path(__file__).with_name("undefined.csv")
COMBINATIONS = ("heads", "interleave", "sum")  # of encodings that one chooses; none is a part of the benchmark


@cache
def undefined() -> dict[tuple[str, str], str]:
    """Return why encodings of the package are not defined for tasks, by encoding and task, as the package says it."""
    lines = read_csv(FILE, keep_default_na=False)
    return {(line.pe, line.task): line.reason for line in lines.itertuples()}


def named() -> list[str]:
    """Return the names of the encodings of the benchmark: those of the package that are no combinations."""
    found = sorted(path.stem for path in (config.folder() / "pe").glob("*.yaml"))
    return [name for name in found if name not in COMBINATIONS]


def defined(task: str) -> list[str]:
    """Return the names of the encodings of the benchmark that are defined for a task."""
    return [name for name in named() if (name, task) not in undefined()]


def write(names: list[str] | None = None) -> None:
    """Write the file of the package again; the lines of other encodings stay if names are given."""
    replace(FILE, measured(names), names, [task.name for task in tasks()])


def replace(file: Path, lines: pd.DataFrame, names: list[str] | None, order: list[str]) -> None:
    """Write lines into a file, in place of those of the same encodings.

    Args:
        names: of encodings; None: all.
        order: of the tasks.
    """
    if names is not None:
        kept = read_csv(file, keep_default_na=False)
        lines = pd.concat([kept[~kept["pe"].isin(names)], lines])
        lines = lines.iloc[np.lexsort([lines["pe"], lines["task"].map(order.index)])]
    write_text(file, lines.to_csv(index=False, lineterminator="\n"))


def measured(names: list[str] | None = None) -> pd.DataFrame:
    """Try every encoding on every task, without training, and return those that do not fit: pe, task, reason.

    Args:
        names: of encodings; None: those of the benchmark.
    """
    encodings = {name: config.expand([f"pe={name}"], multirun=False)[0].pe for name in names or named()}
    lines = []
    for task in tasks():
        (cfg,) = config.expand(config.of_jobs([f"+study={task.study}", "pe=none"]), multirun=True)
        for name, pe in encodings.items():
            cfg.pe = pe
            if reason := unfit(cfg):
                lines.append({"pe": name, "task": task.name, "reason": reason})
    return pd.DataFrame(lines, columns=["pe", "task", "reason"])


def unfit(cfg: DictConfig) -> str:
    """Return why the encoding of a config is not defined for its task; empty: it is."""
    from pe_lab.encodings.base import UnfitError
    from pe_lab.experiment.cell import Cell  # loads torch

    try:
        Cell.from_config(cfg)
    except UnfitError as error:
        return in_one_line(error)
    return ""
