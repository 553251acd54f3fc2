"""Which encodings are not defined for which tasks of pe-bench 2, or cannot tune themselves, and why."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.benchmark.tasks import BenchmarkTask, benchmark_tasks
from pe_lab.system.errors import in_one_line
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.files import write_text

UNDEFINED_FILE = Path(__file__).with_name("undefined.csv")


@cache
def undefined_reasons() -> dict[tuple[str, str], str]:
    """Return why encodings are not measured on tasks that are for them, by encoding and task."""
    lines = read_csv(UNDEFINED_FILE, keep_default_na=False)
    return {(line.pe, line.task): line.reason for line in lines.itertuples()}


def defined_encodings(task: BenchmarkTask) -> list[str]:
    """Return the encodings that are measured on a task."""
    return [name for name in task.encodings if (name, task.name) not in undefined_reasons()]


def write_undefined(names: list[str] | None = None) -> None:
    """Write the file of the package again; the lines of other encodings stay if names are given."""
    replace_lines(UNDEFINED_FILE, measure_undefined(names), names, [task.name for task in benchmark_tasks()])


def replace_lines(file: Path, lines: pd.DataFrame, names: list[str] | None, order: list[str]) -> None:
    """Write lines into a file, in place of the lines of the same encodings.

    Args:
        names: the names of the encodings whose lines are replaced; None: all.
        order: the names of the tasks, in the order of the lines.
    """
    if names is not None:
        existing = read_csv(file, keep_default_na=False)
        lines = pd.concat([existing[~existing["pe"].isin(names)], lines])
        lines = lines.iloc[np.lexsort([lines["pe"], lines["task"].map(order.index)])]
    write_text(file, lines.to_csv(index=False, lineterminator="\n"))


def measure_undefined(names: list[str] | None = None) -> pd.DataFrame:
    """Try every encoding on every task that is for it, without training: pe, task, reason.

    Args:
        names: the names of the encodings to try; None: all.
    """
    from pe_lab.experiment.tuning import is_phased  # loads torch

    lines: list[dict[str, str]] = []
    configs: dict[str, DictConfig] = {}
    for task in benchmark_tasks():
        for name in sorted(task.encodings):
            if names is not None and name not in names:
                continue
            configs[name] = configs.get(name) or config.expand_overrides([f"pe={name}"], multirun=False)[0].pe
            cfg = deepcopy(task.cfg)
            cfg.pe = configs[name]
            reason = unfit_reason(cfg)
            if not reason and is_phased(cfg.pe):
                reason = f"{name} changes in the course of its training, whose length tries do not share"
            if reason:
                lines.append({"pe": name, "task": task.name, "reason": reason})
    return pd.DataFrame(lines, columns=["pe", "task", "reason"])


def unfit_reason(cfg: DictConfig) -> str:
    """Return why the encoding of a config is not defined for its task; empty: it is."""
    from pe_lab.encodings.base import UnfitError
    from pe_lab.experiment.cell import Cell  # loads torch

    try:
        Cell.from_config(cfg)
    except UnfitError as error:
        return in_one_line(error)
    return ""
