"""Which encodings to use for a need, which are behind the best, and which to avoid, as far as the results allow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pe_lab.benchmark.task_results import AVOID, HIGHER_LOSS, SLOWER, UNRELIABLE, USE, TaskResults
from pe_lab.benchmark.task_statistics import equal_encodings
from pe_lab.benchmark.tasks import BenchmarkTask

ALIKE, NOT_LEARNED, NOT_MEASURED = "not separable", "not learned", "not measured"


@dataclass(frozen=True)
class Advice:
    """What to do for one need: `TaskResults.advice` as lists, in the order of the table.

    Attributes:
        kind: `use` where `use` is not empty, and one of the others; `not separable` where no encoding is significantly
            worse; `not learned` where no encoding solved a seed; `not measured`.
        use: encodings that have learned it, and than which no other is `better`.
        behind: encodings that solved it in as many seeds, but more slowly; or that have a higher loss.
        unreliable: encodings that solved it in fewer seeds.
        avoid: encodings that solved it in no seed.
    """

    kind: str
    use: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    unreliable: list[str] = field(default_factory=list)
    avoid: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Need:
    """What an encoding is asked for: a task of the benchmark at a length.

    Attributes:
        asks: in words.
        task, length: the task, and the length in training lengths.
        results: at this length; None: not measured.
        step_times: the time of a training step relative to `rope`, by encoding; may be empty.
    """

    asks: str
    task: BenchmarkTask
    length: float
    results: TaskResults | None
    step_times: dict[str, float]

    @cached_property
    def advice(self) -> Advice:
        """What to do."""
        return Advice(NOT_MEASURED) if self.results is None else recommend(self.results)

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """The lines of the table of results, by encoding."""
        return {} if self.results is None else self.results.table.set_index("pe", drop=False).to_dict("index")

    def gap(self, name: str) -> float:
        """Return the steps of an encoding as a multiple of those of the best one; or by how much its loss is higher."""
        mean, best = (float(self.lines[pe]["mean"]) for pe in (name, self.advice.use[0]))
        return mean / best if self.task.solvable else mean - best

    def cost(self, name: str) -> float | None:
        """Return `gap` in steps times the time of a step; None: of losses, or a time is not measured."""
        best = self.advice.use[0]
        if not self.task.solvable or not {name, best} <= set(self.step_times):
            return None
        return self.gap(name) * self.step_times[name] / self.step_times[best]

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Return names in their order; encodings whose runs have the same bits, as twins, stand in one list."""
        return [] if self.results is None else group_twins(self.results, names)


def group_twins(results: TaskResults, names: Iterable[str]) -> list[list[str]]:
    """Return names in their order; encodings whose runs have the same bits, as twins, stand in one list."""
    names, groups = list(names), list[list[str]]()
    for name in names:
        if not any(name in group for group in groups):
            same = equal_encodings(results.pairs, name)
            groups.append([name, *(other for other in names if other in same)])
    return groups


def recommend(results: TaskResults) -> Advice:
    """Return what the results say of a task."""
    if results.task.solvable and not results.table["solved"].astype(float).max() > 0:
        return Advice(NOT_LEARNED)
    if not results.best or not results.beaten:
        return Advice(ALIKE)
    words = results.advice
    behind = HIGHER_LOSS if not results.task.solvable else SLOWER
    kinds = (USE, behind, UNRELIABLE, AVOID)
    return Advice(USE, *([pe for pe, word in words.items() if word == kind] for kind in kinds))
