"""All encodings on all tasks at one length, with means over the tasks that they have in common."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pe_lab.benchmark.task_results import COSTS, TaskResults

ALMOST_ALL = 0.9  # of the encodings that are ranked on any task, or all but one: others are not averaged over


@dataclass(frozen=True)
class Leaderboard:
    """All encodings on all tasks at one length.

    Attributes:
        length: in training lengths.
        measured: the tasks that have results, at whatever length.
    """

    length: float
    measured: list[TaskResults]

    @property
    def tasks(self) -> list[TaskResults]:
        """The tasks that were measured at this length."""
        return [one for one in self.measured if self.length in one.lengths]

    @cached_property
    def common(self) -> list[TaskResults]:
        """The tasks that means over tasks are of: those with scores on which almost all encodings are ranked.

        A mean over few easy tasks is not compared with one over many: encodings that lack one of these have no mean.
        Tasks with attention to both sides are not among them: one encoding in seven is causal alone.
        """
        ranked = {one.task.name: set(one.ranked.get(self.length, ())) for one in self.tasks if one.scored}
        count = len(set().union(*ranked.values()))
        least = max(1, min(count - 1, ALMOST_ALL * count))
        return [one for one in self.tasks if len(ranked.get(one.task.name, ())) >= least]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line per encoding, the best mean score first: pe, name, tasks (measured), score (the mean over the common
        tasks), ranked (the number of common tasks on which it is ranked), rank_best and rank_worst (the means of the
        ends of its ranges there), costs (means over the tasks that it is measured on), seeds (the fewest). Without all
        common tasks there is no mean score, without a rank on each no mean rank."""
        parts = [one.at(self.length).reset_index(drop=True).assign(task=one.task.name) for one in self.tasks]
        common = [one.task.name for one in self.common]
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
