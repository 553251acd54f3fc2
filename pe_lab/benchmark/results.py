"""What shipped results say over all tasks of the benchmark: means, and what may be the best on average."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pe_lab.benchmark.leaderboard import Leaderboard
from pe_lab.benchmark.task_results import ENOUGH, LOSS, TRAINED, Settings, TaskResults
from pe_lab.benchmark.tasks import tasks
from pe_lab.report.standing import Standing
from pe_lab.results import shipped, statistics
from pe_lab.results.statistics import GRID, Families


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
    def leaderboards(self) -> dict[float, Leaderboard]:
        """The table of all encodings on all tasks, at the training length and at each longer one."""
        lengths = {TRAINED}.union(*(found.lengths for found in self.measured))
        return {length: Leaderboard(length, self.measured) for length in sorted(lengths)}

    @property
    def common(self) -> list[TaskResults]:
        """The tasks that means over tasks are of, at the training length."""
        return self.leaderboards[TRAINED].common

    @property
    def overall(self) -> pd.DataFrame:
        """The table of all encodings at the training length."""
        return self.leaderboards[TRAINED].table

    @cached_property
    def pooled(self) -> tuple[Standing | None, str]:
        """Which encodings may be the best on average over the common tasks, and what was averaged, in words.

        None where fewer than two encodings have three seeds on every one of them.
        """
        scored = self.common
        if len(scored) < 2:
            return None, "Almost all encodings are measured on fewer than two tasks."
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
