"""The results of a task of pe-bench 2: one table and one ranking, for the command line and the gallery."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.benchmark import task_rows, task_statistics
from pe_lab.benchmark.tasks import BenchmarkTask, benchmark_tasks
from pe_lab.results.columns import cut_interval
from pe_lab.statistics import MIN_SEEDS, Verdict

MAX_NAMED_ENCODINGS = 3  # encodings that are named at a length at which there are no verdicts
CAP_ROUNDING = 1e-9  # relative error of a mean of logarithms
USE, SLOWER, HIGHER_LOSS, UNRELIABLE, AVOID = "use", "slower", "higher loss", "unreliable", "avoid"


@dataclass(frozen=True, eq=False)  # equal only to itself, so that functions of it can be cached
class TaskResults:
    """The published rows of a task, with the table, ranking and advice that follow from them.

    Attributes:
        task: the task.
        rows: the published rows, one per encoding and seed.
        fresh: the rows of fresh seeds, which count only in the columns all_solved and all_runs of the table.
    """

    task: BenchmarkTask
    rows: pd.DataFrame = field(repr=False)
    fresh: pd.DataFrame = field(default_factory=lambda: task_rows.rows_frame([]), repr=False)

    @classmethod
    def from_rows(cls, task: BenchmarkTask, rows: pd.DataFrame) -> "TaskResults":
        """Return the results of a task from all of its rows, those of fresh seeds among them."""
        return cls(task, task_statistics.published_rows(rows), task_statistics.fresh_rows(rows))

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The verdicts on all pairs of encodings."""
        return task_statistics.compare_pairs(self.rows, self.task)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line per encoding, the best mean first: `task_statistics.endpoints`, then score_1x and more, or loss_1x.

        Of tasks with a level also cap, in steps, and all_solved and all_runs: `solved` and `runs` with the fresh seeds.
        Means of steps and their intervals end at the cap: a mean of steps that count as the cap cannot exceed it.
        Intervals of losses end at 0.
        """
        wide = self.scores.pivot(index="pe", columns="length", values="mean")
        wide.columns = [f"{self.unit}_{length:g}x" for length in wide.columns]
        table = task_statistics.endpoints(self.rows, self.task)
        if self.task.solvable and len(table):
            shown = ["mean", "low", "high"]
            table["cap"] = self.task.cfg.steps
            table[shown] = table[shown].map(lambda steps: end_at_cap(self.task, steps))
            again = task_statistics.task_runs(self.fresh, self.task).groupby("pe")["solved"].agg(["sum", "count"])
            again = again.reindex(table["pe"], fill_value=0).astype(int).set_axis(table.index)
            table["all_solved"], table["all_runs"] = table["solved"] + again["sum"], table["runs"] + again["count"]
        elif len(table):
            table["low"] = table["low"].clip(lower=0)
        return table.merge(wide.reset_index(), on="pe", how="left") if len(table) else table

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A line per encoding and length, with a 95 % interval cut at what is possible: `task_statistics.scores`."""
        scores = task_statistics.scores(self.rows, self.task)
        low, high = cut_interval(self.unit, scores["mean"], scores["low"], scores["high"])
        return scores.assign(low=low, high=high)

    @cached_property
    def is_control(self) -> bool:
        """Whether order carries no information: the best loss without position is the best possible one."""
        return bool((task_rows.gap(self.rows) == 0).all())

    @property
    def unit(self) -> str:
        """What is shown at each length: the score, or the loss of a task without a level."""
        return "score" if self.task.solvable else "loss"

    @property
    def is_complete(self) -> bool:
        """Whether most encodings that have rows have enough seeds: see `task_statistics.is_complete`."""
        return task_statistics.is_complete(self.rows)

    @cached_property
    def best(self) -> list[str]:
        """The encodings with enough seeds that learned the task and than which none is `better`, best mean first."""
        enough = (self.table["runs"] >= MIN_SEEDS).to_numpy()
        return list(self.table.loc[(self.table["first"] == 1) & self._is_learned.to_numpy() & enough, "pe"])

    @cached_property
    def best_at(self) -> dict[float, list[str]]:
        """As `best`, by length in training lengths; of a task that is compared by its steps to solve, at 1 only."""
        return {1.0: self.best} | {length: results.best for length, results in self.longer.items()}

    @cached_property
    def longer(self) -> dict[float, "TaskResults"]:
        """`at` of each length beyond training; empty for a task that is compared by its steps to solve."""
        lengths = [] if self.task.solvable else task_rows.measured_lengths(self.rows)
        return {length: self.at(length) for length in lengths if length > 1}

    @cached_property
    def highest_at(self) -> dict[float, list[dict[str, Any]]]:
        """The lines of `scores` with the highest means above 0 and enough seeds, by length beyond training.

        At most MAX_NAMED_ENCODINGS of each length.

        They are no verdicts: no margin is declared for scores. Empty for a task that is compared by its loss.
        """
        longer = (
            [length for length in task_rows.measured_lengths(self.rows) if length > 1] if self.task.solvable else []
        )
        enough = self.scores[(self.scores["runs"] >= MIN_SEEDS) & (self.scores["mean"] > 0)]
        return {
            length: enough[enough["length"] == length].nlargest(MAX_NAMED_ENCODINGS, "mean").to_dict("records")
            for length in longer
        }

    @cached_property
    def beaten(self) -> list[str]:
        """The encodings than which another one is `better`, or that solved no seed."""
        lost = {str(line.pe) for line in self.pairs.itertuples() if line.verdict == Verdict.WORSE}
        lost |= {str(line.baseline) for line in self.pairs.itertuples() if line.verdict == Verdict.BETTER}
        lost |= set(self.table.loc[~self._is_learned.to_numpy(), "pe"])
        return [pe for pe in self.table["pe"] if pe in lost]

    @cached_property
    def advice(self) -> dict[str, str]:
        """What to do with each encoding, by name.

        Returns:
            The advice by name. USE: the encoding is among `best`. Otherwise, among `beaten`: AVOID: it solved no seed;
            UNRELIABLE: it solved a smaller share of its seeds than the first of `best`; SLOWER or HIGHER_LOSS.
            Encodings with too few seeds that none beats are left out.
        """
        if not self.task.solvable:
            return dict.fromkeys(self.best, USE) | dict.fromkeys(self.beaten, HIGHER_LOSS)
        table = self.table.set_index("pe")
        shares = table["solved"].astype(float) / table["runs"]
        enough = shares[self.best[0]] if self.best else np.inf
        words = {pe: AVOID if not shares[pe] else UNRELIABLE if shares[pe] < enough else SLOWER for pe in self.beaten}
        return dict.fromkeys(self.best, USE) | words

    def in_words(self, advice: str) -> str:
        """Return an advice in words, as the pages of the gallery have them."""
        return {
            USE: f"within {task_statistics.margin_in_words(self.task)} of the fastest"
            if self.task.solvable
            else "among the lowest losses",
            SLOWER: "slower",
            HIGHER_LOSS: "higher loss",
            UNRELIABLE: "not solved by every seed",
            AVOID: f"not solved within {self.task.cfg.steps:,} steps",
        }[advice]

    @property
    def _is_learned(self) -> pd.Series:
        if self.task.solvable:
            return self.table["solved"].astype(float) > 0
        return pd.Series(True, self.table.index)

    def at(self, length: float) -> "TaskResults":
        """Return the same runs, compared by their test loss at a length, in training lengths.

        Raises:
            ValueError: the task is compared by its steps to solve.
        """
        if self.task.solvable:
            raise ValueError(f"task must be one that is compared by its loss, got {self.task.name}")
        return replace(self, rows=self.rows.assign(y=self.rows[f"loss_x{length:g}"]))

    def quality(self) -> dict[str, float]:
        """Return, by encoding, how good its mean is, from 0 to 1.

        Of steps to solve: the share of the octaves from the cap to the first evaluation that the mean saves. Of losses:
        the share of what the best encoding gains over `none`; empty where `none` is not significantly worse than it.
        """
        if not self.task.solvable:
            losses = self.table.set_index("pe")["mean"].astype(float)
            if "none" not in self.beaten:
                return {}
            gains = (losses["none"] - losses) / (losses["none"] - losses.min())
            return dict(gains.clip(0, 1))
        first, cap = np.log2(self.task.cfg.solve.first), np.log2(self.task.cfg.steps)
        shares = (cap - np.log2(self.table["mean"].astype(float))) / (cap - first)
        return dict(zip(self.table["pe"], shares.clip(0, 1), strict=True))


def end_at_cap(task: BenchmarkTask, steps: float) -> float:
    """Return a number of steps, or the cap of a task for one that reaches it, but for rounding."""
    cap = float(task.cfg.steps)
    return cap if steps > cap * (1 - CAP_ROUNDING) else steps


def read_results(folder: Path | None = None) -> list[TaskResults]:
    """Return the tasks of which most encodings that have rows have enough seeds, in the order of the benchmark.

    Args:
        folder: the folder of shipped results; None: the package's own.

    Raises:
        LedgerError: a file was changed.
        ValueError: a row is invalid.
    """
    results = [TaskResults.from_rows(task, task_rows.read_rows(task, folder)) for task in benchmark_tasks()]
    return [result for result in results if len(result.rows) and result.is_complete]
