"""What shipped results say over all tasks of the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pe_lab.benchmark.leaderboard import Leaderboard
from pe_lab.benchmark.task_results import TRAINED, Settings, TaskResults
from pe_lab.benchmark.tasks import tasks
from pe_lab.results import shipped


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

    def cheapest(self, names: Sequence[str], found: TaskResults | None = None) -> str:
        """Return the encoding with the fewest FLOPs per token, then the fewest parameters of its own."""
        costs = (self.overall.set_index("pe") if found is None else found.at()).loc[list(names)]
        order = costs.sort_values(["flops_per_token", "positional_parameters"], kind="stable")
        return str(order.index[0])
