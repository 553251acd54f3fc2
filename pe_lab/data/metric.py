"""The declaration of a metric."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A number that measures a model on a split.

    Args:
        name: as in the tables. `<name>_all` and `<name>_<role>` are the same metric over other answers.
        better: which of its values is the best.
        unit: of the number.
    """

    name: str
    better: Literal["min", "max"]
    unit: str
