"""Compare published results of pe-bench 2 with those of fresh seeds: a quarter of the cells, trained again."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.benchmark.task_statistics import FRESH_SEEDS, endpoint_of_task, fresh_rows, published_rows, task_runs
from pe_lab.benchmark.tasks import STUDY, BenchmarkTask, benchmark_tasks, task_named
from pe_lab.benchmark.twins import TWINS
from pe_lab.benchmark.undefined_encodings import defined_encodings
from pe_lab.statistics import (
    DIFFERENT_VERDICTS,
    LEVEL,
    Verdict,
    decide_pairs,
    estimate_prior,
    interval,
    paired_tests,
    share_interval,
)
from pe_lab.statistics.pairs import NOISE_STD, all_pairs, as_arrays

DRAWN_SHARE = 0.25  # share of the cells


def drawn_cells() -> list[tuple[str, str]]:
    """Return the cells that are run again, as task and encoding: about a quarter, and each group of twins on a task.

    Each cell is drawn by its own digest, whatever others there are. A task in which fewer than two are drawn gets those
    with the lowest digests, so that it has a pair.
    """
    drawn: set[tuple[str, str]] = set()
    for each in benchmark_tasks():
        order = sorted((_pseudorandom(each.name, pe), pe) for pe in defined_encodings(each))
        drawn |= {(each.name, pe) for place, (number, pe) in enumerate(order) if number < DRAWN_SHARE or place < 2}
    for group in TWINS:
        shared = [
            task.name for task in benchmark_tasks() if set(group) <= set(defined_encodings(task)) and task.solvable
        ]
        drawn |= {
            (name, pe) for name in sorted(shared, key=lambda name: _pseudorandom(name, *group))[:1] for pe in group
        }
    return [(task.name, pe) for task in benchmark_tasks() for pe in defined_encodings(task) if (task.name, pe) in drawn]


def _pseudorandom(*names: str) -> float:
    """Return a number in [0, 1) that looks random and is always the same for these names."""
    return int.from_bytes(sha256(" ".join(names).encode()).digest()[:6]) / 2**48


def training_commands() -> list[str]:
    """Return the commands that run them, one per task."""
    seeds = ",".join(map(str, FRESH_SEEDS))
    chosen = {task.name: [pe for name, pe in drawn_cells() if name == task.name] for task in benchmark_tasks()}
    return [
        f"pe-lab run -m +study={STUDY}_{name} pe={','.join(names)} seed={seeds}"
        for name, names in chosen.items()
        if names
    ]


@dataclass(frozen=True)
class Share:
    """A share of some events, with its exact 95 % interval."""

    count: int
    total: int

    def __str__(self) -> str:
        if not self.total:
            return "0 of 0"
        low, high = share_interval(self.count, self.total)
        return f"{self.count} of {self.total}, {self.count / self.total:.1%} [{low:.1%}, {high:.1%}]"


@dataclass(frozen=True)
class FreshSeeds:
    """Published results beside the results of fresh seeds.

    Attributes:
        pairs: a table with a line per two encodings of a task that were both run again: task, pe, baseline; difference,
            low, high (95 % interval), verdict: as published; fresh, fresh_verdict: mean difference and verdict of the
            fresh seeds; least, most: the 95 % prediction interval of a fresh mean difference.
        means: a table with a line per cell: task, pe, mean, low, high of y as published, and fresh; seeds, fresh_seeds:
            how many; failed, fresh_failed: how many of them did not solve the task, which count as the cap in a mean.
    """

    pairs: pd.DataFrame
    means: pd.DataFrame

    def on_task(self, name: str) -> "FreshSeeds":
        """Return the part that is of one task."""
        return FreshSeeds(self.pairs[self.pairs["task"] == name], self.means[self.means["task"] == name])

    @property
    def predicted(self) -> Share:
        """Fresh mean differences in their prediction intervals: 95 % of them, where the protocol is right."""
        return _share_inside(self._tested_pairs, "least", "most")

    @property
    def contained(self) -> Share:
        """Published 95 % intervals of differences that contain the fresh one, which has an error of its own."""
        return _share_inside(self._tested_pairs, "low", "high")

    @property
    def means_contained(self) -> Share:
        """Published 95 % intervals of means that contain the fresh mean, which has an error of its own."""
        return _share_inside(self.means, "low", "high")

    @property
    def _tested_pairs(self) -> pd.DataFrame:
        return self.pairs[self.pairs["verdict"] != Verdict.BOTH_UNSOLVED]

    @property
    def contradicted(self) -> Share:
        """Published verdicts of which the fresh seeds say the contrary, see `are_contrary`."""
        decided = self.pairs[self.pairs["verdict"].isin([*DIFFERENT_VERDICTS, Verdict.EQUIVALENT])]
        pairs = zip(decided["verdict"], decided["fresh_verdict"], strict=True)
        return Share(sum(are_contrary(Verdict(first), Verdict(other)) for first, other in pairs), len(decided))


def _share_inside(lines: pd.DataFrame, low: str, high: str) -> Share:
    return Share(int(lines["fresh"].between(lines[low], lines[high]).sum()), len(lines))


def are_contrary(verdict: Verdict, other: Verdict) -> bool:
    """Return whether two verdicts on a pair cannot both be right: other directions, or equivalent and a large one."""
    if Verdict.EQUIVALENT in (verdict, other):
        return not {Verdict.BETTER, Verdict.WORSE}.isdisjoint({verdict, other})
    return {verdict.direction, other.direction} == {"better", "worse"}


def compare_fresh_seeds(results: Mapping[str, pd.DataFrame]) -> FreshSeeds:
    """Compare published rows with rows of fresh seeds, task by task.

    Variances are moderated by those of all published pairs, for the fresh ones too: few encodings have fresh seeds.

    Args:
        results: all rows of each task, by its name.
    """
    pairs, means = [], []
    for name, rows in results.items():
        benchmark_task = task_named(name)
        before, again = task_runs(published_rows(rows), benchmark_task), task_runs(fresh_rows(rows), benchmark_task)
        names = [pe for pe in before["pe"].unique() if pe in set(again["pe"])]
        for pe in names:
            sample, fresh = before[before["pe"] == pe], again[again["pe"] == pe]
            low, high = interval(sample["y"])
            line = {"task": name, "pe": pe, "mean": sample["y"].mean(), "low": low, "high": high}
            failed = [int((~each["solved"]).sum()) if benchmark_task.solvable else 0 for each in (sample, fresh)]
            line |= {"fresh": fresh["y"].mean(), "failed": failed[0], "fresh_failed": failed[1]}
            means.append(line | {"seeds": len(sample), "fresh_seeds": len(fresh)})
        if len(names) > 1:
            again = again[again["pe"].isin(names)]
            pairs.append(_compare_pairs(before, again, names, benchmark_task).assign(task=name))
    columns = ["task", "pe", "baseline", "difference", "low", "high", "verdict", "fresh", "fresh_verdict"]
    columns += ["least", "most"]
    table = pd.concat(pairs, ignore_index=True)[columns] if pairs else pd.DataFrame(columns=columns)
    columns = ["task", "pe", "mean", "low", "high", "fresh", "failed", "fresh_failed", "seeds", "fresh_seeds"]
    return FreshSeeds(table, pd.DataFrame(means, columns=columns))


def _compare_pairs(before: pd.DataFrame, again: pd.DataFrame, names: list[str], task: BenchmarkTask) -> pd.DataFrame:
    """Return the lines of a task, of every two of some encodings.

    Args:
        before: all published runs of the task.
        again: the fresh runs of these encodings.
    """
    scale = endpoint_of_task(task)
    pes, y, solved = as_arrays(before)
    prior = estimate_prior(y, NOISE_STD * scale.margin, solved)
    tests = paired_tests(y, all_pairs(len(pes)), scale, solved)
    verdicts = decide_pairs(tests, scale).verdict
    first, second = (np.array(pes)[side] for side in all_pairs(len(pes)))
    here = np.isin(first, names) & np.isin(second, names)
    pes_again, y_again, solved_again = as_arrays(again)
    place = [pes_again.index(pe) for pe in names]
    solved_again = None if solved_again is None else solved_again[:, place]
    checks = paired_tests(y_again[:, place], all_pairs(len(names)), scale, solved_again, prior)
    spread = tests.deviation[here] * np.sqrt(1 / tests.seeds[here] + 1 / np.maximum(checks.seeds, 1))
    half = stats.t.ppf(1 - LEVEL / 2, tests.freedom[here]) * spread
    return pd.DataFrame(
        {"pe": first[here], "baseline": second[here], "difference": tests.difference[here]}
        | {"low": tests.low[here], "high": tests.high[here], "verdict": verdicts[here]}
        | {"fresh": checks.difference, "fresh_verdict": decide_pairs(checks, scale).verdict}
        | {"least": tests.difference[here] - half, "most": tests.difference[here] + half}
    )
