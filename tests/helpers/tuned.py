"""Rows of pe-bench 2 that nobody trained, with laws that are known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import NAME, BenchmarkTask, task_named

RATES = (1e-3, 3e-3, 1e-2)
MEANS = {"rope": 7.0, "alibi": 7.1, "none": 9.0, "rope_2d": 11.0, "fire": 8.0, "learnable": 9.9, "cope": 12.5}
LOSSES = {"rope": 1.5, "none": 2.2, "alibi": 1.6, "t5": 1.6, "fire": 1.9}


def row(task: BenchmarkTask, pe: str, seed: int, y: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a row.

    Args:
        y: log2 steps to solve, None: it was not solved; of a task without a level the loss, None: all tries diverged.
        more: other values.
    """
    solved = y is not None if task.solvable else None
    reached = y if y is not None else float(np.log2(task.cfg.steps)) if task.solvable else None
    made = {"benchmark": NAME, "task": task.name, "pe": pe, "seed": seed, "settings": "a" * 16, "encoding": "b" * 16}
    made |= {"revision": 1, "y": reached, "solved": solved, "lr": RATES[1], "start_scale": None, "edge": False}
    made |= {"steps": 480, "trained_steps": 1440, "core_seconds": 36.0}
    loss = 0.1 if task.solvable else reached
    for length in task.cfg.evaluate.lengths:
        values = (loss and loss * length, 1.1, 0.0, 0.5, None)
        made |= {f"{name}_x{length:g}": value for name, value in zip(task_rows.METRICS, values, strict=True)}
    for number, rate in enumerate(RATES, 1):
        late = None if y is None or not task.solvable else y + (0, 0.5, 1)[abs(number - 2)]
        known = (rate, None, late, 0.9 - 0.1 * abs(number - 2), 0.9, 480)
        made |= {f"try{number}_{name}": value for name, value in zip(task_rows.CANDIDATE_FIELDS, known, strict=True)}
    made |= {"parameters": 9000, "positional_parameters": 0, "flops_per_token": 2000.0, "attention": "sdpa"}
    made |= {"run": f"{seed:016x}", "python": "3.11.9", "torch": "2.8.0", "pe_lab": "1", "commit": "c", "hardware": "h"}
    return made | {"threads": 1} | more


def table(
    name: str, means: Mapping[str, float], deviation: float = 0.3, fails: Mapping[str, float] | None = None,
    seeds: range = range(5), draw: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Return rows of a task: the steps to solve of each encoding are normal on a log2 scale; some runs fail.

    Args:
        means: of log2 steps, by encoding.
        deviation: of log2 steps between seeds.
        fails: probability of a seed that does not solve the task, by encoding.
        draw: another one gives other rows of the same law.
    """
    task, random, made = task_named(name), np.random.default_rng(draw), []
    low, high = (np.log2(task.cfg.solve.first), np.log2(task.cfg.steps)) if task.solvable else (0.0, np.inf)
    for pe, mean in means.items():
        for seed in seeds:
            y, failed = random.normal(mean, deviation), random.random() < (fails or {}).get(pe, 0.0)
            made.append(row(task, pe, seed, None if failed or y >= high else float(max(y, low))))
    return task_rows.rows_frame(made)
