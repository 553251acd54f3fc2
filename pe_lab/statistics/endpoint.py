"""Endpoints: steps to solve, score or loss, with the smallest difference that matters."""

from dataclasses import dataclass

import numpy as np

ENDPOINT_UNITS = {"steps": "octave", "score": "score", "loss": "nat"}


@dataclass(frozen=True)
class Endpoint:
    """An endpoint and the smallest difference that matters.

    Args:
        kind: steps (log2 of the steps to solve: lower is better), score (higher is better) or loss (lower is better).
        margin: the smallest difference that matters, in octaves, in units of the score, or in nats.
        range: the largest possible difference, in the same unit: for steps log2(cap / first evaluation), for a score 1.

    Raises:
        ValueError: there is no such endpoint, or the margin does not fit it.
    """

    kind: str = "steps"
    margin: float = 1.0
    range: float = np.inf

    def __post_init__(self) -> None:
        if self.kind not in ENDPOINT_UNITS:
            raise ValueError(f"endpoint must be one of {', '.join(ENDPOINT_UNITS)}, got {self.kind!r}")
        largest = min(self.range, 1.0) if self.kind == "score" else self.range
        if not (self.margin > 0 and np.isfinite(self.margin) and self.margin < largest):
            above = f" and below {largest:g}, the largest possible difference" if np.isfinite(largest) else ""
            raise ValueError(f"margin of {self.kind} must be above 0{above}, in {self.unit}s, got {self.margin:g}")

    @property
    def unit(self) -> str:
        return ENDPOINT_UNITS[self.kind]

    @property
    def lower_is_better(self) -> bool:
        return self.kind != "score"

    @classmethod
    def parse(cls, kind: str, margin: str, range: float = np.inf) -> "Endpoint":
        """Return an endpoint from a margin with its unit, such as `1 octave`, `0.02 nat` or `0.05 score`.

        Raises:
            ValueError: the margin is not a number with the unit of the endpoint.
        """
        number, _, unit = str(margin).strip().partition(" ")
        expected = ENDPOINT_UNITS.get(kind)
        try:
            size = float(number)
        except ValueError:
            size = np.nan
        if expected and (np.isnan(size) or unit.strip().removesuffix("s") != expected):
            raise ValueError(f"margin of {kind} must be a number of {expected}s, as '1 {expected}', got {margin!r}")
        return cls(kind, size, range)
