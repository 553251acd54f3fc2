"""Runs of made-up studies: curves of validation scores, and the outcomes that tuning inside each seed makes of them.

Every run is a curve over the grid of evaluations, so that the choice of a rate at a fraction of the cap, the censoring
and the interpolation are those of `pe_lab.statistics`. The laws of the times to solve are made up, or those of cells.
"""

import gzip
import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from benchmarks import ROOT
from pe_lab.statistics import steps_to_solve
from pe_lab.statistics.look_levels import LOOKS, SPENT_SHARES
from pe_lab.statistics.steps import first_pass

CAP, LEVEL = 4000, 0.95
FIRST = 60  # steps before the first evaluation
FIELDS = ("mean", "low", "high", "deviation", "stuck", "slow", "later", "width", "start")


@dataclass(frozen=True)
class Law:
    """The law of the runs of each encoding [studies, encodings]. Times in log2 steps.

    Attributes:
        mean: the mean time to solve at the middle rate.
        low, high: how many octaves slower the lowest and the highest rate are.
        deviation: the standard deviation of the time between runs.
        stuck: chance that a run never solves the task.
        slow, later: chance that a run is slower by so many octaves.
        together: share of what makes a run stuck or slow that all rates of a seed have in common (1: all of it).
        width: the octaves over which the score rises; start: the score before.
        shape: the shape of the noise: normal, t (3 degrees of freedom), or residuals of cells.
        twin: index of the encoding whose random draws are shared but for 1 part in 200 [encodings]; None: nobody's.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    deviation: np.ndarray
    stuck: np.ndarray
    slow: np.ndarray
    later: np.ndarray
    width: np.ndarray
    start: np.ndarray
    together: float = 0.3
    shape: str = "normal"
    twin: np.ndarray | None = None

    def take(self, index: np.ndarray) -> "Law":
        """Return the law of chosen encodings of a population of one study."""
        return replace(self, **{name: getattr(self, name)[0][index] for name in FIELDS})


@dataclass(frozen=True)
class Design:
    """How each seed tunes, and how pairs are judged."""

    rates: int = 3
    fraction: float = 0.25
    noise_std: float = 0.03
    moderation: str = "used"
    correction: str = "bh"
    margin: float = 1.0
    cap: int = CAP
    looks: tuple[int, ...] = LOOKS
    spent: tuple[float, ...] = SPENT_SHARES


@dataclass
class Runs:
    """Outcomes of races [..., seeds, encodings]."""

    y: np.ndarray
    solved: np.ndarray
    steps: np.ndarray
    edge: np.ndarray = field(default_factory=lambda: np.zeros(0))


def constant_law(encodings: int, **changed: np.ndarray | float | str) -> Law:
    """Return the law of one study of equal encodings, apart from what is changed."""
    usual: dict[str, Any] = {
        "mean": 9.5, "low": 0.7, "high": 1.0, "deviation": 0.35, "stuck": 0.0, "slow": 0.0, "later": 0.0,
        "width": 0.3, "start": 0.3,
    }  # fmt: skip
    settings = usual | changed
    arrays: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(settings.pop(name), float), (1, encodings)) for name in FIELDS
    }
    return Law(**arrays, **settings)


def cycle(values: list[float], encodings: int) -> np.ndarray:
    return np.resize(np.array(values, float), encodings)


SHIFTS = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 0.0, 0.5]


def fixed_laws(encodings: int) -> dict[str, Law]:
    """Return fixed laws by name: where no two encodings differ, and where they do."""
    shift, ones = cycle(SHIFTS, encodings), np.ones(encodings)
    fails = cycle([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.0], encodings)
    first = (np.arange(encodings) == 0).astype(float)
    half = cycle([0.0, 1.0], encodings)
    laws: dict[str, dict[str, np.ndarray | float | str]] = {
        "normal": {},
        "normal, shifts": {"mean": 9.0 + shift},
        "t, 3 degrees": {"shape": "t"},
        "t, 3 degrees, shifts": {"shape": "t", "mean": 9.0 + shift},
        "residuals of cells": {"shape": "cells"},
        "residuals of cells, shifts": {"shape": "cells", "mean": 9.0 + shift},
        "unequal deviations": {"deviation": cycle([0.1, 0.2, 0.35, 0.35, 0.7, 1.0, 0.1, 0.35], encodings)},
        "unequal deviations, shifts": {
            "deviation": cycle([0.1, 0.2, 0.35, 0.35, 0.7, 1.0, 0.1, 0.35], encodings),
            "mean": 9.0 + np.roll(shift, 1),
        },
        "one of 10 times": {"deviation": 0.1 + 0.9 * first},
        "one of 10 times, at the margin": {"deviation": 0.1 + 0.9 * first, "mean": 9.5 - 1.02 * first},
        "half are stuck": {"stuck": 0.5, "together": 1.0},
        "half are stuck, shifts": {"stuck": 0.5, "together": 1.0, "mean": 9.0 + shift},
        "half are slow": {"slow": 0.5, "later": 2.0, "mean": 8.5, "together": 1.0},
        "half are slow, shifts": {"slow": 0.5, "later": 2.0, "mean": 8.0 + shift, "together": 1.0},
        "at the cap": {"mean": np.log2(CAP), "deviation": 0.6},
        "at the cap, shifts": {"mean": np.log2(CAP) - 1 + shift, "deviation": 0.6},
        "jumps between evaluations": {"width": 0.02, "deviation": 0.12, "mean": 9.35},
        "jumps between evaluations, shifts": {"width": 0.02, "deviation": 0.12, "mean": 8.85 + shift},
        "before the first evaluation": {"mean": 5.5, "deviation": 0.35},
        "unequal failures": {"stuck": fails, "together": 1.0},
        "unequal failures, shifts": {"stuck": fails, "together": 1.0, "mean": 8.0 + np.roll(shift, 3)},
        "constant beside slow": {
            "deviation": np.where(first, 0.05, 0.2), "slow": 0.5 * (ones - first), "later": 3.0,
            "mean": np.where(first, 9.5, 8.0), "together": 1.0,
        },
        "constant beside stuck": {
            "deviation": np.where(first, 0.05, 0.2), "stuck": 0.5 * (ones - first), "together": 1.0,
            "mean": np.where(first, 10.0, 8.0),
        },
        "half constant, half slow": {
            "deviation": np.where(half, 0.2, 0.05), "slow": 0.5 * half, "later": 3.0,
            "mean": np.where(half, 8.0, 9.5), "together": 1.0,
        },
        "one of eight fails": {"stuck": cycle([0, 0, 0, 0.3, 0, 0, 0, 0], encodings), "together": 1.0, "mean": 8.0},
        "one of eight is slow": {
            "deviation": 0.2, "slow": cycle([0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0], encodings), "later": 3.0,
            "mean": cycle([9.5, 9.5, 9.5, 8.0, 9.5, 9.5, 9.5, 9.5], encodings), "together": 1.0,
        },
        "equal means, other mixtures": {
            "slow": cycle([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.0], encodings), "later": 3.0, "together": 1.0,
            "deviation": 0.2, "mean": 9.6 - 3.0 * cycle([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.0], encodings),
        },
    }  # fmt: skip
    return {name: constant_law(encodings, **changed) for name, changed in laws.items()}


def population_of_rows(rng: np.random.Generator, size: int) -> Law:
    """Draw a population of encodings from the law fitted to the committed rows and the pilot.

    Of pe-bench 1, 500 steps: between runs of one encoding a deviation of 0.29 octaves in the median, which spreads by a
    factor of 2 over encodings; between encodings 0.9 to 1.9 octaves about a median between 500 and 3,000 steps; 1e-3
    slower than 3e-3 by 0.2 to 1.9 octaves on four tasks, with a deviation of 0.6 between encodings; 1e-2 slower by -0.2
    to 1.7. Most encodings solve a task in all runs or in none: 15 to 25 % in none, 5 % in some.
    """
    shape = (1, size)
    return Law(
        mean=rng.normal(10.3, 1.6, shape),
        low=rng.normal(0.9, 0.7, shape),
        high=rng.normal(0.9, 1.0, shape),
        deviation=0.3 * np.exp(0.7 * rng.standard_normal(shape)),
        stuck=rng.choice([0.0, 0.02, 0.1, 0.4, 1.0], shape, p=[0.5, 0.15, 0.12, 0.08, 0.15]),
        slow=np.zeros(shape),
        later=np.zeros(shape),
        width=rng.choice([0.12, 0.3, 0.8], shape),
        start=rng.uniform(0.0, 0.6, shape),
    )


def cells() -> dict[str, np.ndarray]:
    """Return the scores of committed cells with five seeds: [encodings, seeds] by task.

    A score is 1 at the best possible loss and 0 at that of a model without positions.
    """
    results = {}
    for file in sorted((ROOT / "sweeps/results/pe_bench_1").glob("*.jsonl.gz")):
        scores: dict[str, list[float]] = {}
        for line in gzip.decompress(file.read_bytes()).decode().splitlines():
            row = json.loads(line)
            floors, loss = row["summary"]["floors"], row["summary"]["test"].get("loss")
            if loss is not None and floors.get("position_blind", {}).get("loss", 0) > 1e-9:
                level, best = floors["position_blind"]["loss"], floors["bayes"]["loss"]
                scores.setdefault(row["identity"]["pe"]["name"], []).append((level - loss) / (level - best))
        of_five = [values for values in scores.values() if len(values) == 5]
        if "-search" not in file.name and len(of_five) >= 60:
            results[file.name] = np.array(of_five)
    return results


def cell_residuals() -> np.ndarray:
    """Return residuals of committed cells, deviation 1, as if the deviation of each sample had been known.

    Scores are turned into times by their logit, for encodings whose five scores all lie between 0.05 and 0.95.
    """
    scores = np.concatenate(list(cells().values()))
    times = special.logit(scores[(scores.min(1) > 0.05) & (scores.max(1) < 0.95)])
    residuals = ((times - times.mean(1, keepdims=True)) / times.std(1, keepdims=True)).ravel()
    outside = residuals * np.sqrt(3 / np.maximum(4 - residuals**2, 1e-9))  # externally studentised: t with 3 degrees
    corrected = special.ndtri(np.clip(special.stdtr(3, outside), 1e-6, 1 - 1e-6))
    scaled: np.ndarray = (corrected - corrected.mean()) / corrected.std()
    return scaled


@dataclass(frozen=True)
class Cells:
    """Encodings of committed cells: runs are drawn from the five that each has, in margins of 0.05, lower is better."""

    values: np.ndarray
    task: np.ndarray

    @classmethod
    def load(cls, equal: bool) -> "Cells":
        """Load them; equal: with the mean of each encoding taken off."""
        parts = list(cells().values())
        y = -np.concatenate(parts) / 0.05
        mean = y.mean(1, keepdims=True)
        y = mean * (not equal) + (y - mean) * np.sqrt(5 / 4)  # deviations of five
        return cls(y, np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    @property
    def truth(self) -> "Truth":
        less, same = (
            compared(self.values[:, None, :, None], self.values[None, :, None, :]).mean((2, 3))
            for compared in (np.less, np.equal)
        )
        mean = self.values.mean(1)
        return Truth(mean, mean, np.ones(len(mean)), less + same / 2)

    def studies(self, studies: int, encodings: int, rng: np.random.Generator) -> np.ndarray:
        """Return which encodings some studies have [studies, encodings]: of one task each."""
        tasks = rng.integers(self.task.max() + 1, size=studies)
        return np.stack([rng.choice(np.flatnonzero(self.task == task), encodings, replace=False) for task in tasks])

    def draw(self, index: np.ndarray, seeds: int, rng: np.random.Generator) -> Runs:
        shape = (len(index), seeds, index.shape[1])
        pool = self.values[index][:, None]
        y = np.take_along_axis(np.broadcast_to(pool, (*shape, 5)), rng.integers(5, size=(*shape, 1)), -1)[..., 0]
        y = y + 0.2 * pool.std(-1) * rng.standard_normal(shape)
        return Runs(y, np.ones(shape, bool), np.zeros(shape), np.zeros(shape, bool))


def noise(law: Law, rng: np.random.Generator, shape: tuple[int, ...], residuals: np.ndarray) -> np.ndarray:
    if law.shape == "t":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if law.shape == "cells":
        return (rng.choice(residuals, shape) + 0.2 * rng.standard_normal(shape)) / math.sqrt(1.04)
    return rng.standard_normal(shape)


def log_steps_to_level(law: Law, seeds: int, rates: int, rng: np.random.Generator, residuals: np.ndarray) -> np.ndarray:
    """Return log2 of the steps to the level [studies, seeds, encodings, rates]; infinite where a run is stuck."""
    studies, encodings = law.mean.shape
    full = (studies, seeds, encodings, rates)

    def drawn(shape: tuple[int, ...], independent: bool = False) -> np.ndarray:
        z = noise(law, rng, shape, residuals) if independent else rng.standard_normal(shape)
        if law.twin is not None and shape[2] == encodings:
            z = np.sqrt(0.995) * z[:, :, law.twin] + np.sqrt(0.005) * rng.standard_normal(shape)
        return z

    of_seed, of_both, alone = drawn((studies, seeds, 1, 1)), drawn((studies, seeds, encodings, 1), True), drawn(full)
    slower = np.stack([law.low, np.zeros_like(law.mean), law.high], -1)[:, None]
    slower = slower[..., 1 - (rates - 1) // 2 - (rates == 2) : 3 if rates == 3 else 2]
    normal = np.sqrt(0.08) * of_seed + np.sqrt(0.5) * of_both + np.sqrt(0.42) * alone
    if law.shape != "normal":  # the shape of the residuals, not that of a sum
        normal = np.sqrt(0.08) * of_seed + np.sqrt(0.87) * of_both + np.sqrt(0.05) * alone

    def happens(chance: np.ndarray) -> np.ndarray:
        common, residual = drawn((studies, seeds, encodings, 1)), drawn(full)
        u = special.ndtr(np.sqrt(law.together) * common + np.sqrt(1 - law.together) * residual)
        happening: np.ndarray = u < chance[:, None, :, None]
        return happening

    times = law.mean[:, None, :, None] + slower + law.deviation[:, None, :, None] * normal
    times = times + np.where(happens(law.slow), law.later[:, None, :, None], 0.0)
    return np.where(happens(law.stuck), np.inf, times)


def race(law: Law, seeds: int, design: Design, rng: np.random.Generator, residuals: np.ndarray) -> Runs:
    """Train all rates to the fraction of the cap, and the best by validation to its pass or to the cap."""
    passing = log_steps_to_level(law, seeds, design.rates, rng, residuals)
    grid = evaluation_steps(design.cap, design.fraction)
    scores = curves(law, passing, grid, rng)
    return judge_races(scores, grid, design)


def evaluation_steps(cap: int, fraction: float = 0.25, first: int = FIRST) -> tuple[int, ...]:
    """Return the steps of the evaluations: first * 2^(k/2) up to the cap, with fraction * cap and the cap itself.

    A step of the series that is within a tenth of an octave of the other two is left out.

    Raises:
        ValueError: fraction * cap is before the first evaluation, or the cap is not beyond it.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction:g}")
    fixed = [round(fraction * cap), cap]
    if first < 1 or fixed[0] < first:
        raise ValueError(f"fraction * cap must be at least the first evaluation, {first} steps, got {fixed[0]}")
    series = [round(first * 2 ** (k / 2)) for k in range(int(2 * np.log2(cap / first)) + 1)]
    near = 2**0.1
    kept = [step for step in series if all(not other / near < step < other * near for other in fixed)]
    return tuple(sorted({*kept, *fixed}))


def curves(law: Law, passing: np.ndarray, grid: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return validation scores at the evaluations, [..., rates, evaluations], which pass the level at given times."""
    start, width = (each[:, None, :, None, None].astype(np.float32) for each in (law.start, law.width))
    at_level = special.logit((LEVEL - start) / (0.995 - start))
    when = np.log2(grid).astype(np.float32)
    rising = special.expit((when - passing[..., None].astype(np.float32)) / width + at_level)
    scores: np.ndarray = start + (np.float32(0.995) - start) * rising
    spread = np.where(rising > 0.9, np.float32(0.005), np.float32(0.015))
    return scores + spread * rng.standard_normal(scores.shape, dtype=np.float32)


def judge_races(scores: np.ndarray, grid: tuple[int, ...], design: Design) -> Runs:
    """Return what `pe_lab.statistics.plan_outcomes` returns, for arrays of scores [..., rates, evaluations]."""
    steps = np.array(grid)
    choice = grid.index(round(design.fraction * design.cap)) + 1
    early, _ = steps_to_solve(grid[:choice], scores[..., :choice], LEVEL, grid[choice - 1])
    index = first_pass(scores[..., :choice], LEVEL)
    confirmed = np.where(index >= 0, index + 2, 99)
    due = np.minimum(confirmed.min(-1), choice)
    first = np.where((confirmed == due[..., None]) & (index >= 0), early, np.inf)
    passed = np.isfinite(first).any(-1)
    best = np.where(passed, first.argmin(-1), scores[..., choice - 1].argmax(-1))
    chosen = np.take_along_axis(scores, best[..., None, None], -2)[..., 0, :]
    late, solved = steps_to_solve(grid, chosen, LEVEL, design.cap)
    index = first_pass(chosen, LEVEL)
    end = np.where(index >= 0, steps[np.minimum(index + 1, len(grid) - 1)], design.cap)
    cost = np.where(passed, design.rates * steps[due - 1], design.rates * steps[choice - 1] + end - steps[choice - 1])
    edge = (best == 0) | (best == design.rates - 1)  # for two rates always
    return Runs(np.where(passed, first.min(-1), late), passed | solved, cost, edge)


@dataclass(frozen=True)
class Truth:
    """What is true of each encoding and pair, from many runs [encodings] or [encodings, encodings].

    Attributes:
        mean: the mean of y, censored at the cap.
        solved: the mean of y over the runs that solve the task.
        share: the share of runs that solve it.
        faster: chance that the first has a smaller y than the second, plus half that of a tie.
    """

    mean: np.ndarray
    solved: np.ndarray
    share: np.ndarray
    faster: np.ndarray


def truth_of(law: Law, design: Design, residuals: np.ndarray, runs: int) -> Truth:
    """Simulate many seeds of the encodings of one study; those of equal law get the same truth."""
    group = same_law(law)
    _, first = np.unique(group, return_index=True)
    rng, distinct = np.random.default_rng(1), law.take(first[None])
    parts = [race(distinct, 500, design, rng, residuals) for _ in range(runs // 500)]
    y, solved = (np.concatenate([getattr(part, name)[0] for part in parts]) for name in ("y", "solved"))
    count = solved.sum(0)
    of_solved = np.where(count > 0, np.where(solved, y, 0).sum(0) / np.maximum(count, 1), np.nan)
    mine, other = y[:4000], np.roll(y[:4000], 1, 0)  # of another seed: what encodings share in a seed is small
    faster = np.stack([(run[:, None] < other).mean(0) + 0.5 * (run[:, None] == other).mean(0) for run in mine.T])
    faster = np.where(np.eye(len(faster), dtype=bool), 0.5, faster)
    return Truth(y.mean(0)[group], of_solved[group], solved.mean(0)[group], faster[np.ix_(group, group)])


def same_law(law: Law) -> np.ndarray:
    """Return a number for each encoding of one study, equal for those of equal law."""
    columns = np.stack([getattr(law, name)[0] for name in FIELDS])
    return np.unique(columns, axis=1, return_inverse=True)[1].ravel()


def population(noise_name: str, encodings: int, design: Design, residuals: np.ndarray, runs: int) -> tuple[Law, Truth]:
    """Return the law and the truth of the encodings that studies draw from: as many as they have, or more."""
    if noise_name.startswith("law of rows"):
        law = population_of_rows(np.random.default_rng(2), 160)
    else:
        law = fixed_laws(encodings)[noise_name]
    return law, truth_of(law, design, residuals, runs)


def studies_of(
    noise_name: str, encodings: int, law: Law, studies: int, rng: np.random.Generator
) -> tuple[Law, np.ndarray]:
    """Return the law of some studies, and which encodings of the population they have [studies, encodings]."""
    size = law.mean.shape[1]
    if not noise_name.startswith("law of rows"):
        index = np.tile(np.arange(encodings), (studies, 1))
        return law.take(index), index
    index = np.stack([rng.choice(size, encodings, replace=False) for _ in range(studies)])
    if noise_name.endswith("twins"):
        index[:, 1::2] = index[:, ::2]
        return replace(law.take(index), twin=np.arange(encodings) // 2 * 2), index
    return law.take(index), index
