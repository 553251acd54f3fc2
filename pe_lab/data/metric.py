"""The declaration of a metric."""

from dataclasses import dataclass
from typing import Literal

LOWER_IS_BETTER = (
    "loss",
    "bits",
    "perplexity",
    "error",
)  # `statistics.cells.LOWER_IS_BETTER`, by which verdicts are made
METRIC_UNITS = {"loss": "nats", "bits": "bits"}  # `statistics.cells.METRIC_UNITS`, in which margins are declared


@dataclass(frozen=True)
class Metric:
    """A number that measures a model on a split.

    Args:
        name: the name in the tables. `<name>_all` and `<name>_<role>` are the same metric over other answers. Rows have
            no more of it, so that it says which value is the best: it contains one of LOWER_IS_BETTER, or the highest
            is.
        better: which of its values is the best, "min" or "max".
        unit: the unit of the number: nats if the name contains loss, bits if it contains bits. Margins and reports take
            any other number for a share.

    Raises:
        ValueError: the name says otherwise than `better` or `unit`.
    """

    name: str
    better: Literal["min", "max"]
    unit: str

    def __post_init__(self) -> None:
        lowest = any(word in self.name for word in LOWER_IS_BETTER)
        if (self.better == "min") != lowest:
            words = f"{', '.join(LOWER_IS_BETTER[:-1])} or {LOWER_IS_BETTER[-1]}"
            raise ValueError(
                f"name of a metric must contain {words} if the lowest value is the best, and only then, "
                f"got {self.name} with better={self.better}"
            )
        word, unit = next(((word, unit) for word, unit in METRIC_UNITS.items() if word in self.name), ("", self.unit))
        if self.unit != unit:
            raise ValueError(f"unit of a metric with {word} in its name must be {unit}, got {self.unit} of {self.name}")
