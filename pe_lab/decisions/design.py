"""What is declared before a sequential study begins: looks, levels, how the levels are spent."""

from dataclasses import dataclass, field
from functools import cached_property

from pe_lab.decisions.boundaries import Boundaries, Spending, power
from pe_lab.decisions.looks import MOST_SEEDS, looks_between

# chosen by simulation, see docs/decisions.md; a quarter of the level is kept for noise with lighter tails than normal
SPENDING = power(1, part=0.75)


@dataclass(frozen=True)
class Design:
    """A sequential design: at each look, every comparison that is still undecided has that many seeds.

    Args:
        looks: numbers of seeds, ascending, from 2.
        level: family-wise error of verdicts `better` and `worse`, and that of `equivalent`.
        spending: how the level of a comparison is spent over the looks.

    Raises:
        ValueError: looks are not ascending from 2, or the level is not between 0 and 1.
    """

    looks: tuple[int, ...] = looks_between(3, 24)
    level: float = 0.05
    spending: Spending = field(default=SPENDING, compare=False)

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.looks, self.looks[1:], strict=False))
        if not self.looks or not ascending or self.looks[0] < 2 or self.looks[-1] > MOST_SEEDS:
            raise ValueError(f"looks must be ascending numbers of seeds in 2 ... {MOST_SEEDS}, got {list(self.looks)}")
        if not 0 < self.level < 1:
            raise ValueError(f"level must be between 0 and 1, got {self.level:g}")

    @cached_property
    def two_sided(self) -> Boundaries:
        """The boundaries of the test for a difference."""
        return Boundaries(self.looks, self.spending, sides=2)

    @cached_property
    def one_sided(self) -> Boundaries:
        """The boundaries of each of the two tests for equivalence."""
        return Boundaries(self.looks, self.spending, sides=1)
