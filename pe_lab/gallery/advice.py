"""Which encodings to use and which to avoid for a need, as far as the results allow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from pe_lab.benchmark.measured import TaskResults
from pe_lab.benchmark.tasks import BenchmarkTask
from pe_lab.benchmark.verdicts import equals

USE, ALIKE, NOT_LEARNED, NOT_MEASURED = "use", "not separable", "not learned", "not measured"


@dataclass(frozen=True)
class Advice:
    """What to do for one need.

    Attributes:
        kind: `use` where `use` and `avoid` are not empty; `not separable` where no encoding is significantly worse;
            `not learned` where no encoding solved a seed; `not measured`.
        use: encodings that have learned it, and than which no other is `better`.
        avoid: encodings than which another one is `better`, or that have not learned it.
    """

    kind: str
    use: list[str] = field(default_factory=list)
    avoid: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Need:
    """What an encoding is asked for: a task of the benchmark at a length.

    Attributes:
        asks: in words.
        task, length: the task, and the length in training lengths.
        found: the results at this length; None: not measured.
    """

    asks: str
    task: BenchmarkTask
    length: float
    found: TaskResults | None

    @cached_property
    def advice(self) -> Advice:
        """What to do."""
        return Advice(NOT_MEASURED) if self.found is None else advice(self.found)

    @cached_property
    def lines(self) -> dict[str, dict[str, object]]:
        """The lines of the table of results, by encoding."""
        return {} if self.found is None else self.found.table.set_index("pe", drop=False).to_dict("index")

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Return names in their order; encodings whose runs have the same bits, as twins, stand in one list."""
        names, groups = list(names), []
        for name in names:
            if self.found is not None and not any(name in group for group in groups):
                same = equals(self.found.pairs, name)
                groups.append([name, *(other for other in names if other in same)])
        return groups


def advice(found: TaskResults) -> Advice:
    """Return what the results say of a task."""
    table = found.table
    if found.task.solvable and not table["solved"].astype(float).max() > 0:
        return Advice(NOT_LEARNED)
    if not found.best or not found.beaten:
        return Advice(ALIKE)
    return Advice(USE, found.best, found.beaten)
