"""What shipped results say over all tasks of the benchmark: means, and what may be the best on average."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pe_lab.benchmark.task_results import COSTS, ENOUGH, LOSS, TRAINED, Settings, TaskResults
from pe_lab.benchmark.tasks import tasks
from pe_lab.report.standing import Standing
from pe_lab.results import shipped, statistics
from pe_lab.results.statistics import GRID, Families

ALMOST_ALL = 0.85  # of the encodings that are ranked on any task: a task with fewer is not averaged over


@dataclass(frozen=True)
class Results:
    """The results of all tasks, in the order of the benchmark.

    Attributes:
        tasks: one of each task, measured or not.
    """

    tasks: list[TaskResults]

    @classmethod
    def read(cls, folder: Path | None = None) -> "Results":
        """Read the shipped results.

        Args:
            folder: of the shipped results; None: that of the package.

        Raises:
            ValueError: there is no such folder.
            LedgerError: results were changed.
        """
        if folder is not None and not folder.is_dir():
            raise ValueError(f"--results must be a folder of shipped results, got {str(folder)!r}")
        present = set(shipped.studies(folder))
        found = []
        for task in tasks():
            cells = shipped.read(task.study, folder) if task.study in present else []
            found.append(TaskResults.of(task, Settings.of(task), cells))
        return cls(found)

    @property
    def measured(self) -> list[TaskResults]:
        """The tasks that have results."""
        return [found for found in self.tasks if len(found.lines)]

    @cached_property
    def common(self) -> list[TaskResults]:
        """The tasks that means over tasks are of: those with scores on which almost all encodings are ranked.

        A mean over few easy tasks is not compared with one over many: encodings that lack one of these have no mean.
        Tasks with attention to both sides are not among them, since some encodings are defined for causal attention.
        """
        ranked = {one.task.name: set(one.ranked.get(TRAINED, ())) for one in self.measured if one.scored}
        least = max(1, ALMOST_ALL * len(set().union(*ranked.values())))
        return [one for one in self.measured if len(ranked.get(one.task.name, ())) >= least]

    @cached_property
    def overall(self) -> pd.DataFrame:
        """A line per encoding, the best mean score first: pe, name, tasks (measured), score (the mean over the common
        tasks, at the training length), ranked (the number of common tasks on which it is ranked), rank_best and
        rank_worst (the means of the ends of its ranges there), costs (means over the tasks that it is measured on),
        seeds (the fewest). Without all common tasks there is no mean score, without a rank on each no mean rank."""
        parts = [found.at().reset_index(drop=True).assign(task=found.task.name) for found in self.measured]
        common = [found.task.name for found in self.common]
        lines = []
        for pe, part in pd.concat(parts, ignore_index=True).groupby("pe", sort=False) if parts else []:
            there = part[part["task"].isin(common)]
            ranked = there[there["rank_best"].notna()]
            score = there["score"].mean() if len(there) == len(common) else float("nan")
            line = {"pe": pe, "name": part["name"].iloc[0], "tasks": len(part), "score": score}
            line |= {"ranked": len(ranked), "seeds": int(part["seeds"].min())}
            everywhere = ranked if len(ranked) == len(common) else ranked.head(0)
            line |= {name: everywhere[name].astype(float).mean() for name in ("rank_best", "rank_worst")}
            lines.append(line | {name: part[name].astype(float).mean() for name in COSTS})
        columns = ["pe", "name", "tasks", "score", "ranked", "seeds", "rank_best", "rank_worst", *COSTS]
        found = pd.DataFrame(lines, columns=columns)
        return found.sort_values(["score", "tasks"], ascending=False, ignore_index=True, kind="stable")

    @cached_property
    def pooled(self) -> tuple[Standing | None, str]:
        """Which encodings may be the best on average over the common tasks, and what was averaged, in words.

        None where fewer than two encodings have three seeds on every one of them.
        """
        scored = self.common
        if len(scored) < 2:
            return None, "Fewer than two tasks are measured."
        parts = [rows for found in scored if (rows := found.ranked_rows()) is not None]
        pool = statistics.pool(pd.concat(parts, ignore_index=True), LOSS) if len(parts) == len(scored) else None
        if pool is None or pool.rows.empty:
            return None, f"No encoding has {ENOUGH} seeds on every task." if pool is None else pool.note
        counts = pool.rows.groupby("pe", sort=False)["seed"].nunique()
        rows = pool.rows[pool.rows["pe"].isin(counts.index[counts >= ENOUGH])]
        if rows["pe"].nunique() < 2:
            return None, f"Fewer than two encodings have {ENOUGH} seeds on every task."
        compared = Families.of({GRID: (rows, pool.metric)})
        where = f"Averaged over {len(parts)} tasks"
        what = "share of the gap in test loss that remains"
        return Standing.of(compared.ranks(), compared.lines[GRID], pool.metric, what, where), pool.note

    def cheapest(self, names: Sequence[str], found: TaskResults | None = None) -> str:
        """Return the encoding with the fewest FLOPs per token, then the fewest parameters of its own."""
        costs = (self.overall.set_index("pe") if found is None else found.at()).loc[list(names)]
        order = costs.sort_values(["flops_per_token", "positional_parameters"], kind="stable")
        return str(order.index[0])
