"""All encodings on all tasks at one length, with means over the tasks that they have in common."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pe_lab.benchmark.task_results import COSTS, ENOUGH, SHARE, TRAINED, TaskResults
from pe_lab.report.standing import Standing
from pe_lab.results.columns import REMAINING
from pe_lab.statistics import GRID, Families, interval

ALMOST_ALL = 0.9  # of the encodings that are ranked on any task, or all but one: others are not averaged over


def mean_scores(lines: pd.DataFrame, tasks: int) -> pd.DataFrame:
    """Return pe, seed and score of each encoding and seed: its mean over tasks, if it has scores on all of them.

    Args:
        lines: a line per encoding, seed and task: pe, seed, score.
        tasks: how many there are.
    """
    scores = lines.dropna(subset="score").groupby(["pe", "seed"], sort=False)["score"]
    return scores.mean()[scores.size() == tasks].reset_index()


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
        """The tasks that means over tasks are of: those with scores at this length on which almost all are ranked.

        A mean over few easy tasks is not compared with one over many: encodings that lack one of these have no mean.
        Tasks with attention to both sides are not among them: one encoding in seven is causal alone.
        """
        scored = [one for one in self.tasks if one.at(self.length)["score"].notna().any()]
        ranked = {one.task.name: set(one.ranked.get(self.length, ())) for one in scored}
        count = len(set().union(*ranked.values()))
        least = max(1, min(count - 1, ALMOST_ALL * count))
        return [one for one in self.tasks if len(ranked.get(one.task.name, ())) >= least]

    @cached_property
    def means(self) -> pd.DataFrame:
        """A line per encoding and seed with scores on all common tasks: pe, seed, score (their mean)."""
        parts = [one.lines[one.lines["length"] == self.length] for one in self.common]
        lines = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["pe", "seed", "score"])
        return mean_scores(lines, len(parts))

    @cached_property
    def compared(self) -> Families | None:
        """The comparisons of means of every two encodings; None: fewer than two have three seeds on all common tasks.

        Tested is the share of the gap that remains, 1 minus the mean score of a seed.
        """
        counts = self.means.groupby("pe")["seed"].size()
        chosen = self.means[self.means["pe"].isin(counts.index[counts >= ENOUGH])]
        if chosen["pe"].nunique() < 2:
            return None
        rows = chosen[["pe", "seed"]].assign(data="mean", **{SHARE: 1 - chosen["score"]})
        return Families.of({GRID: (rows, REMAINING)})

    @cached_property
    def _ranked(self) -> pd.DataFrame:
        """The ranks of the means, by encoding."""
        if self.compared is None:
            return pd.DataFrame(columns=["best", "worst"])
        return self.compared.ranks(own=True).set_index("pe", drop=False)

    @cached_property
    def standing(self) -> Standing | None:
        """Which encodings may be the best on average over the common tasks; None: no two can be compared."""
        if self.compared is None:
            return None
        count = len(self.common)
        where = f"Averaged over {count} tasks" if count > 1 else "On the only task that almost all are measured on"
        if self.length != TRAINED:
            where += f", at {self.length:g} × the training length"
        what = "share of the gap in test loss that remains (1 minus the mean score)"
        return Standing.of(self._ranked, self.compared.lines[GRID], REMAINING, what, where, own=True)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line per encoding, the best mean score first.

        Columns: pe, name, tasks (measured), common (the number of common tasks that it is measured on), seeds (with
        scores on all of them), score (the mean over these), low and high (its 95 % t interval), rank_best and
        rank_worst (of the mean, with three seeds or more), and costs (means over the tasks that it is measured on).
        """
        read = ["pe", "name", *COSTS]  # other columns may be empty: pandas versions differ in what those become
        parts = [one.at(self.length)[read].reset_index(drop=True).assign(task=one.task.name) for one in self.tasks]
        common, means = [one.task.name for one in self.common], dict(list(self.means.groupby("pe")["score"]))
        lines = []
        for pe, part in pd.concat(parts, ignore_index=True).groupby("pe", sort=False) if parts else []:
            scores = means.get(pe, pd.Series(dtype=float))
            low, high = interval(scores)
            line = {"pe": pe, "name": part["name"].iloc[0], "tasks": len(part)}
            line |= {"common": int(part["task"].isin(common).sum()), "seeds": len(scores)}
            line |= {"score": scores.mean(), "low": low, "high": high}
            for column, end in (("rank_best", "best"), ("rank_worst", "worst")):
                line[column] = int(self._ranked.loc[pe, end]) if pe in self._ranked.index else None
            lines.append(line | {name: part[name].astype(float).mean() for name in COSTS})
        columns = ["pe", "name", "tasks", "common", "seeds", "score", "low", "high", "rank_best", "rank_worst", *COSTS]
        found = pd.DataFrame(lines, columns=columns)
        return found.sort_values(["score", "tasks"], ascending=False, ignore_index=True, kind="stable")
