"""What a sequential study asks: which encodings are compared, in which settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pe_lab.system.names import unknown_name

ALL_PAIRS, BEST = "all pairs", "best"

Setting = tuple[Any, ...]
Cell = tuple[Setting, str]  # an encoding in a setting


@dataclass(frozen=True)
class Question:
    """What a sequential study asks.

    Args:
        cells: the encodings of each setting, in the order of the study.
        baseline: an encoding that all others are compared with; `all pairs`; or `best`, a race for the best `best`.
        best: how many encodings are to be left in each setting; only with `best`.
        lower_is_better: whether a lower value is better.

    Raises:
        ValueError: there is no such encoding in a setting, only one encoding, or not fewer than `best` ones.
    """

    cells: Sequence[Cell]
    baseline: str
    best: int | None = None
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        settings = self.settings
        for setting, encodings in settings.items():
            where = f" in setting {', '.join(map(str, setting))}" if len(settings) > 1 else ""
            if len(encodings) < 2:
                raise ValueError(f"decide needs at least two encodings{where}, got {', '.join(encodings)}")
            if self.baseline not in (ALL_PAIRS, BEST, *encodings):
                raise ValueError(unknown_name("decide.baseline", (*encodings, ALL_PAIRS, BEST), self.baseline, where))
            if self.baseline == BEST and not 1 <= self.places < len(encodings):
                raise ValueError(f"decide.best must be in 1 ... {len(encodings) - 1}{where}, got {self.best}")
        if self.best is not None and self.baseline != BEST:
            raise ValueError(f"decide.best={self.best} needs decide.baseline={BEST}, got {self.baseline!r}")

    @property
    def places(self) -> int:
        return 1 if self.best is None else self.best

    @property
    def settings(self) -> dict[Setting, list[str]]:
        """The encodings of each setting."""
        found: dict[Setting, list[str]] = {}
        for setting, pe in self.cells:
            found.setdefault(setting, []).append(pe)
        return found

    @property
    def comparisons(self) -> list[tuple[Setting, str, str]]:
        """The family: setting, encoding and the one that is subtracted from it."""
        found: list[tuple[Setting, str, str]] = []
        for setting, encodings in self.settings.items():
            if self.baseline in (ALL_PAIRS, BEST):
                found += [(setting, pe, other) for pe, other in combinations(encodings, 2)]
            else:
                found += [(setting, pe, self.baseline) for pe in encodings if pe != self.baseline]
        return found
