"""Which encodings to use and which to avoid for a need, as far as the results allow."""

from dataclasses import dataclass, field

import pandas as pd

from pe_lab.benchmark.tuned.measured import Measured
from pe_lab.report.standing import Standing

USE, ALIKE, NOT_LEARNED, NOT_MEASURED = "use", "not separable", "not learned", "not measured"


@dataclass(frozen=True)
class Advice:
    """What to do for one need.

    Attributes:
        kind: `use` where `use` and `avoid` are not empty; `not separable` where no encoding is significantly worse;
            `not learned` where no encoding is significantly better than a model without position; `not measured`.
        use: encodings that have learned it and that no other one significantly beats, the best first.
        avoid: encodings that another one significantly beats by more than the margin, or that have not learned it.
        scores: of all encodings, for the picture; empty where a task has no scores.
    """

    kind: str
    use: list[str] = field(default_factory=list)
    avoid: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)


def advice(standing: Standing | None, table: pd.DataFrame) -> Advice:
    """Return what the results say of one need.

    Args:
        standing: of the encodings with enough seeds; None: there are not two.
        table: a line per encoding, indexed by its name, with score and the low end of its 95 % interval. Where no score
            is known, as on a control, every encoding counts as having learned the task.
    """
    if standing is None:
        return Advice(NOT_MEASURED)
    names = list(standing.means)
    found = table.loc[names]
    scored = bool(found["score"].notna().any())
    learned = list(found.index[found["low"] > 0]) if scored else names
    scores = {str(name): float(score) for name, score in found["score"].items()} if scored else {}
    if not learned:
        return Advice(NOT_LEARNED, [], [], scores)
    use = [name for name in standing.open if name in learned]
    avoid = [name for name in names if name in standing.behind or name not in learned]
    if not avoid or not use:
        return Advice(ALIKE, [], [], scores)
    return Advice(USE, use, avoid, scores)


def tuned_advice(found: Measured) -> Advice:
    """Return what pe-bench 2 says of a task at its training length."""
    table = found.table
    scores = table.set_index("pe")["score_1x"].dropna().to_dict() if found.task.solvable else {}
    if found.task.solvable and not table["solved"].astype(float).max() > 0:
        return Advice(NOT_LEARNED, [], [], scores)
    if not found.best or not found.beaten:
        return Advice(ALIKE, [], [], scores)
    return Advice(USE, found.best, found.beaten, scores)
