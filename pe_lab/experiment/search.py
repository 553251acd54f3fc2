"""Successive halving over learning rates and starting scales: which candidates are trained next, for how many epochs.

Pure: it sees mean validation losses and nothing else. `pe_lab.experiment.fair_rates` trains the cells.

Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943): all candidates are trained for a part of the epochs,
the better ones for `factor` times as many, until the last are trained for all epochs. While the best of them stands at
the edge of what was tried, one more step of the ladder is tried beyond it, at all epochs.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

DIGITS = 6  # significant digits of a step beyond a ladder: 0.1, not 0.09999999999999999
FEWEST = 2  # candidates that are trained for all epochs, at least


class NoRateError(ValueError):
    """Every candidate diverged."""


class Candidate(NamedTuple):
    """A learning rate, and the scale at which the encoding starts; None: it has no such option, or that is given."""

    rate: float
    scale: float | None = None


class Rung(NamedTuple):
    """Candidates to be trained for so many epochs."""

    candidates: list[Candidate]
    epochs: int


@dataclass(frozen=True)
class Plan:
    """How candidates are searched.

    Args:
        rates: the ladder of learning rates, ascending.
        scales: the ladder of starting scales, ascending; empty: they are not searched.
        seeds: how many, for each candidate.
        first_seed: of the search; its seeds follow each other.
        rungs: numbers of epochs at which candidates are compared; at most, where epochs are few.
        factor: by which epochs grow and candidates are reduced from rung to rung.
        extensions: steps beyond the ladders, at most.
    """

    rates: tuple[float, ...]
    scales: tuple[float, ...]
    seeds: int
    first_seed: int
    rungs: int
    factor: int
    extensions: int

    def budgets(self, epochs: int) -> list[int]:
        """Return the epochs of the rungs, ascending, without those below 1; the last is that of the study."""
        wanted = (epochs // self.factor**left for left in reversed(range(self.rungs)))
        return [budget for budget in wanted if budget]

    def candidates(self, scaled: bool) -> list[Candidate]:
        """Return the candidates of the first rung.

        Args:
            scaled: whether the encoding has an option for its starting scale.
        """
        scales = self.scales if scaled and self.scales else (None,)
        return [Candidate(rate, scale) for rate in self.rates for scale in scales]


class Choice(NamedTuple):
    """What a search found.

    Attributes:
        best: the candidate with the lowest mean validation loss after all epochs.
        loss: that loss.
        edges: the ladders at whose edge it stands after all extensions: "rate", "scale".
        tried: the number of candidates.
    """

    best: Candidate
    loss: float
    edges: tuple[str, ...]
    tried: int


def halving(plan: Plan, epochs: int, scaled: bool) -> Generator[Rung, list[float], Choice]:
    """Search for the best candidate: yield a rung, and be sent the mean validation loss of each of its candidates.

    A loss that is not finite is worse than any other. Of equal losses the smaller rate wins, then the smaller scale; a
    candidate beyond the ladder must be better than those on it.

    Args:
        plan: of the search.
        epochs: of the study's cells.
        scaled: whether the encoding has an option for its starting scale.

    Raises:
        NoRateError: every candidate of the first rung diverged, or all that were left diverged later.
    """
    candidates = plan.candidates(scaled)
    tried = list(candidates)
    for budget in plan.budgets(epochs):
        losses = yield Rung(candidates, budget)
        found = _finite(candidates, losses, budget)
        kept = max(FEWEST, math.ceil(len(candidates) / plan.factor))
        candidates = sorted(found, key=lambda candidate: (found[candidate], candidate))[:kept]
    best = candidates[0]
    for _ in range(plan.extensions):
        beyond = _beyond(best, tried)
        if not beyond:
            break
        tried += beyond
        losses = yield Rung(beyond, epochs)
        found |= {candidate: loss for candidate, loss in zip(beyond, losses, strict=True) if loss < found[best]}
        best = min((best, *beyond), key=lambda candidate: found.get(candidate, math.inf))
    return Choice(best, found[best], _edges(best, tried), len(tried))


def epochs_needed(plan: Plan, epochs: int, scaled: bool, shared: bool) -> int:
    """Return the epochs of training that a search needs for all its seeds, before extensions.

    Args:
        plan, epochs, scaled: as `halving`.
        shared: whether the rungs of a candidate are checkpoints of one run. With a schedule that depends on the end of
            the training, each is a training of its own.
    """
    count, before, total = len(plan.candidates(scaled)), 0, 0
    for budget in plan.budgets(epochs):
        total += count * (budget - before if shared else budget)
        before, count = budget, min(count, max(FEWEST, math.ceil(count / plan.factor)))
    return total * plan.seeds


def _finite(candidates: list[Candidate], losses: list[float], epochs: int) -> dict[Candidate, float]:
    found = {one: loss for one, loss in zip(candidates, losses, strict=True) if math.isfinite(loss)}
    if not found:
        rates = sorted({candidate.rate for candidate in candidates})
        raise NoRateError(
            f"search.rates must have a rate at which training stays finite, got {rates[0]:g} ... {rates[-1]:g}, all of "
            f"which diverge within {epochs} epochs"
        )
    return found


def _ladder(tried: list[Candidate], name: str) -> list[float]:
    """Return the values of "rate" or "scale" that were tried, ascending; none if it is not searched."""
    return sorted({getattr(candidate, name) for candidate in tried} - {None})


def _edges(best: Candidate, tried: list[Candidate]) -> tuple[str, ...]:
    """Return the ladders at whose lower or upper end a candidate stands."""
    return tuple(
        name
        for name in Candidate._fields
        if len(ladder := _ladder(tried, name)) and getattr(best, name) in (ladder[0], ladder[-1])
    )


def _beyond(best: Candidate, tried: list[Candidate]) -> list[Candidate]:
    """Return the candidates one step beyond each edge at which a candidate stands."""
    beyond = []
    for name in _edges(best, tried):
        ladder = _ladder(tried, name)
        if getattr(best, name) == ladder[0]:
            ladder.reverse()
        beyond.append(best._replace(**{name: step_beyond(ladder)}))
    return beyond


def step_beyond(ladder: list[float]) -> float:
    """Return the value that follows a ladder of at least two, ascending or descending.

    The ratio is that of two steps before: 0.003, 0.01, 0.03 is followed by 0.1, and 0.001, 0.002, 0.004 by 0.008.
    """
    *_, before, last = ladder
    ratio = before / ladder[-3] if len(ladder) > 2 else last / before
    return float(f"{last * ratio:.{DIGITS}g}")
