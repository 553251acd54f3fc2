"""Which encodings to use and which to avoid for a need, as far as the results allow."""

from dataclasses import dataclass, field

from pe_lab.benchmark.measured import TaskResults

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


def advice(found: TaskResults) -> Advice:
    """Return what the results say of a task."""
    table = found.table
    if found.task.solvable and not table["solved"].astype(float).max() > 0:
        return Advice(NOT_LEARNED)
    if not found.best or not found.beaten:
        return Advice(ALIKE)
    return Advice(USE, found.best, found.beaten)
