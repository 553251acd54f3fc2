"""Group-sequential t tests: the nominal level of each look, for every overall level.

The overall level is spent look by look (Lan & DeMets 1983), along a function of the share of the seeds. For all levels
at once this makes a p value of each look: the smallest overall level at which that look rejects. From those of the
looks so far comes a sequential p value, see `pe_lab.decisions.sequential`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from pe_lab.decisions import chain

Spending = Callable[[np.ndarray, np.ndarray], np.ndarray]  # level, share of the seeds: what is spent so far

LEVELS = np.r_[np.geomspace(1e-9, 1e-2, 57), np.geomspace(1e-2, 0.95, 40)[1:]]  # overall levels of the table
LEAST = 1e-300  # stands for a level at which a look never rejects


def pocock(level: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Spend early, such that nominal levels of z tests are about equal."""
    return level * np.log1p((np.e - 1) * share)


def obrien_fleming(level: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Spend almost nothing early."""
    spent: np.ndarray = 2 * special.ndtr(special.ndtri(level / 2) / np.sqrt(share))
    return spent


def power(exponent: float, part: float = 1.0) -> Spending:
    """Return a function that spends in proportion to a power of the share of the seeds (Kim & DeMets 1987).

    Args:
        part: of the level that is spent in all.
    """
    return lambda level, share: part * level * share**exponent


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The boundaries of a sequential t test.

    Args:
        looks: numbers of seeds, ascending, from 2.
        spending: how the level is spent.
        sides: 2 for a difference, 1 for a one-sided test.
    """

    looks: tuple[int, ...]
    spending: Spending
    sides: int = 2

    @cached_property
    def nominal(self) -> np.ndarray:
        """The nominal level of each look at each of LEVELS: [looks, levels], increasing along the levels."""
        shares = np.array(self.looks) / self.looks[-1]
        spent = np.stack([self.spending(LEVELS, share) for share in shares])
        mass = np.tile(chain.start(), (len(LEVELS), 1))
        found = []
        for steps, due in zip(chain.at_looks(self.looks), np.diff(spent, axis=0, prepend=0), strict=True):
            for matrix in steps:
                mass = mass @ matrix
            bound = _bounds(mass, due / self.sides)
            inside = chain.kept_below(bound)
            mass = mass * (inside * inside[:, ::-1] if self.sides == 2 else inside)
            found.append(np.maximum(self.sides * special.ndtr(-bound), LEAST))
        return np.maximum.accumulate(np.array(found), axis=1)

    def at(self, look: int, nominal_p: np.ndarray) -> np.ndarray:
        """Return the overall level at which one look rejects, for nominal p values of that look.

        Levels below the least of LEVELS count as that; those above the largest as 1.

        Args:
            look: its index.
        """
        levels = np.log(self.nominal[look])
        p = np.interp(np.log(np.maximum(nominal_p, LEAST)), levels, np.log(LEVELS), right=0.0)
        found: np.ndarray = np.exp(p)
        return found


def _bounds(mass: np.ndarray, due: np.ndarray) -> np.ndarray:
    """Return z above which each distribution has the probability that is due: [levels, grid], [levels] to [levels]."""
    z, above = chain.tails(mass)
    bounds = []
    for tail, wanted in zip(above, due, strict=True):
        known = tail > 1e-18
        logs = np.log(tail[known])
        order = np.argsort(logs, kind="stable")
        bound = np.interp(np.log(max(wanted, LEAST)), logs[order], z[known][order])
        bounds.append(np.inf if wanted < 1e-18 else bound)
    return np.array(bounds)
