"""Simulate comparisons of every two encodings, with variances of their own and shared ones: errors, power, coverage."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from benchmarks import RESULTS, run_benchmark
from pe_lab.results.frame import load
from pe_lab.results.summary_table import as_markdown
from pe_lab.statistics import (
    LEVEL,
    NO_PRIOR,
    Tests,
    all_pairs,
    benjamini_hochberg,
    estimate_prior,
    holm,
    wide_table,
)
from pe_lab.statistics.cells import split_by_setting
from pe_lab.statistics.moderation import DOF_SHARE
from pe_lab.statistics.pairs import t_tests
from pe_lab.system.arguments import Parser

CELLS = RESULTS / "all_encodings_41"  # whose residuals are noise too
RUN = np.sqrt(0.5)  # deviation of a typical run, so that a typical difference of two has deviation 1
ENCODINGS = (5, 12, 30, 70)
SEEDS = (3, 5)
GROUPS = 4  # of encodings that are equal; between groups, true losses are a margin apart
MARGIN = 4.4  # in deviations of a typical difference

Shape = tuple[int, ...]  # [..., encodings, seeds]
Noise = Callable[[np.random.Generator, Shape], np.ndarray]

TEXT = """Every two of some encodings are compared, paired by seed. No difference: the share of studies in which any two
are said to differ, where none do. Groups: a quarter of the encodings each has the same true loss, and groups are a
margin apart (4.4 deviations of a typical difference); wrong: the share of studies that say better or worse within a
group or in the wrong direction; equivalent: those that say it across groups; decided: the share of all pairs with a
right verdict; coverage: the share of pairs whose 95 % interval, which is not corrected, contains the true difference.
Each has three numbers: variances of each pair alone; shared, with half of the estimated degrees of freedom (used);
shared, with all of them. These are with a family-wise error of 5 %. At a false discovery rate of 5 %, with shared
variances as they are used: false: the mean share of wrong ones among the differences that are found, without a
difference (where all are wrong, so that this is the share of studies that find any) and in groups; false equivalent:
likewise, in groups, among the equivalences of pairs that are not found to differ; found: the share of all pairs with a
right verdict, in groups. Ranks, likewise with shared variances as they are used, the comparisons of each encoding with
all others corrected by Holm's method, without a difference and in groups: wrong: the share of encodings whose range of
ranks does not contain all of their true ranks (equal encodings share theirs); best excluded: the share of the truly
best that another one is said to be better than; ranks: the mean width of the ranges in groups, as a share of the number
of encodings (a quarter at best). {studies} studies per line. Variances of encodings: equal; of a scaled inverse
chi-squared distribution; log-normal, their logarithms with a deviation of 1.5 or 3; one encoding with 25 times the
deviation of the others; deviations and residuals of committed cells, corrected for the few seeds of each; and solved or
not: each run fails, by 4.2 deviations, with a probability that all encodings of a study share and that is drawn from 0
to 0.6."""


def main() -> None:
    """Read the arguments and make the table."""
    parser = Parser("benchmarks simulate_tables", description=__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="simulated per line of the table (%(default)s)")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    run_benchmark(parser, lambda arguments: write_table(arguments.studies, arguments.to))


def write_table(studies: int, to: Path | None) -> None:
    """Print the table of simulated studies, and write it.

    Args:
        studies: number of simulated studies per line.
        to: a Markdown file; None: only print.

    Raises:
        ValueError: studies is not positive.
    """
    if studies < 1:
        raise ValueError(f"--studies must be at least 1, got {studies}")
    noises = noise_of_spreads() | {"cells": noise_of_cells(load(CELLS).cells), "solved or not": solved_or_not}
    sizes = list(product(ENCODINGS, SEEDS))
    lines = [line(name, noise, *size, studies) for name, noise in noises.items() for size in sizes]
    text = (
        f"# Variances of differences, shared\n\n`python -m benchmarks simulate_tables --studies {studies} --to FILE` "
        f"makes this file. {' '.join(TEXT.format(studies=studies).split())}\n\n"
        f"{as_markdown(pd.DataFrame(lines), left=['noise'])}"
    )
    print(text)
    if to:
        to.write_text(text + "\n", encoding="utf-8")


def line(name: str, noise: Noise, encodings: int, seeds: int, studies: int) -> dict[str, object]:
    """Simulate studies of one kind."""
    groups = np.arange(encodings) * GROUPS // encodings * MARGIN
    results = {
        truth: np.mean([_study(rng, noise, means, seeds) for rng in np.random.default_rng(0).spawn(studies)], axis=0)
        for truth, means in (("none", np.zeros(encodings)), ("groups", groups))
    }
    return {
        "noise": name,
        "encodings": encodings,
        "seeds": seeds,
        "no difference": _percent(results["none"][:, 0]),
        "groups: wrong": _percent(results["groups"][:, 0]),
        "equivalent": _percent(results["groups"][:, 1]),
        "decided": _percent(results["groups"][:, 2], 0),
        "coverage": _percent(results["groups"][:, 3]),
        "FDR: false": _percent([results["none"][1, 4], results["groups"][1, 4]]),
        "false equivalent": _percent(results["groups"][1:2, 5]),
        "found": _percent(results["groups"][1:2, 6], 0),
        "ranks: wrong": _percent([results[truth][1, 7] for truth in results]),
        "best excluded": _percent([results[truth][1, 8] for truth in results]),
        "ranks": _percent(results["groups"][1:2, 9], 0),
    }


def _percent(shares: Sequence[float] | np.ndarray, digits: int = 1) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares) + " %"


def _study(rng: np.random.Generator, noise: Noise, means: np.ndarray, seeds: int) -> list[tuple[float, ...]]:
    """Return, of one study: whether any difference and any equivalence is wrong, the shares of decided pairs and of
    right intervals; then, at a false discovery rate, the shares of wrong differences and equivalences among those that
    are found, and of pairs with a right verdict; then what `_ranks` returns.

    For variances of each pair alone, shared ones as used, and shared ones with all estimated degrees of freedom.
    """
    values = means + noise(rng, (len(means), seeds)).T
    first, second = all_pairs(len(means))
    true = means[first] - means[second]
    used = estimate_prior(values, 0.0, keep_small=True)
    whole = replace(used, dof=used.dof / DOF_SHARE)
    results = []
    for prior in (NO_PRIOR, used, whole):
        tests = t_tests(values, (first, second), MARGIN, prior=prior, keep_small=True)
        results.append((*_judge(tests, true), *_ranks(len(means), tests.difference, tests.p, true)))
    return results


def _ranks(encodings: int, mean: np.ndarray, p: np.ndarray, true: np.ndarray) -> tuple[float, float, float]:
    """Return the shares of encodings with a wrong range of ranks and of the best that another is said to beat, and
    the mean width of the ranges as a share of the encodings. Lower is better.

    Args:
        mean, p, true: the observed mean, the p value and the true mean of the difference of each pair, the first minus
            the second, in the order of np.triu_indices.
    """
    first, second = np.triu_indices(encodings, 1)
    square = np.zeros((3, encodings, encodings))
    square[:, first, second], square[:, second, first] = (mean, p, true), (-mean, p, -true)
    others = ~np.eye(encodings, dtype=bool)
    observed, values, exact = (matrix[others].reshape(encodings, -1) for matrix in square)
    certain = holm(values) < LEVEL
    wrong = (certain & (np.sign(observed) != np.sign(exact))).any(1)
    behind, best = np.any(certain & (observed > 0), axis=1), np.all(exact <= 0, axis=1)
    return float(wrong.mean()), float(behind[best].mean()), 1 - float(certain.sum(1).mean()) / encodings


def _judge(tests: Tests, true: np.ndarray) -> tuple[float, ...]:
    mean, covered = tests.difference, (tests.low <= true) & (true <= tests.high)
    results: list[float] = []
    for correct in (holm, benjamini_hochberg):
        different, equivalent = (correct(values) < LEVEL for values in (tests.p, tests.p_equivalent))
        if correct is benjamini_hochberg:  # a pair that is both counts as different
            equivalent &= ~different
        wrong, unequal = different & (np.sign(mean) != np.sign(true)), equivalent & (true != 0)
        right = float(((different | equivalent) & ~wrong & ~unequal).mean())
        if correct is holm:
            results += [float(wrong.any()), float(unequal.any()), right, float(covered.mean())]
        else:
            results += [wrong.sum() / max(different.sum(), 1), unequal.sum() / max(equivalent.sum(), 1), right]
    return tuple(results)


def solved_or_not(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return noise of runs that solve a task or do not, all encodings with the same probability; mean 0."""
    fails = rng.uniform(0, 0.6)
    noise: np.ndarray = RUN * (rng.standard_normal(shape) / 7 + 6 * ((rng.random(shape) < fails) - fails))
    return noise


def noise_of_spreads() -> dict[str, Noise]:
    """Return normal noise with several distributions of the deviations of encodings."""
    noises: dict[str, Noise] = {
        "equal": lambda rng, shape: np.ones(shape),
        "inverse chi-squared, 8": lambda rng, shape: np.sqrt(8 / rng.chisquare(8, shape)),
        "inverse chi-squared, 4": lambda rng, shape: np.sqrt(4 / rng.chisquare(4, shape)),
        "log-normal, 1.5": lambda rng, shape: np.exp(0.75 * rng.standard_normal(shape)),
        "log-normal, 3": lambda rng, shape: np.exp(1.5 * rng.standard_normal(shape)),
        "one of 25 times": lambda rng, shape: np.where(np.arange(shape[-2])[:, None] == 0, 25.0, np.ones(shape)),
    }
    return {name: _scaled(spread, np.random.Generator.standard_normal) for name, spread in noises.items()}


def noise_of_cells(rows: pd.DataFrame) -> Noise:
    """Return noise with the deviations and the corrected residuals of cells.

    Residuals were divided by a deviation of 5 values, which makes their tails lighter; the correction undoes it.
    """
    residuals, spread = _residuals(rows), _deviations_of_encodings(rows)
    corrected = _corrected(residuals)
    width = 1.06 * len(corrected) ** -0.2  # Silverman's

    def smoothed(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        drawn: np.ndarray = rng.choice(corrected, shape) + width * rng.standard_normal(shape)
        return drawn / math.sqrt(1 + width**2)

    return _scaled(lambda rng, shape: rng.choice(spread, shape) / np.median(spread), smoothed)


def _scaled(spread: Noise, noise: Noise) -> Noise:
    """Return noise times a deviation of each encoding."""
    return lambda rng, shape: RUN * spread(rng, (*shape[:-1], 1)) * noise(rng, shape)


def _corrected(residuals: np.ndarray, seeds: int = 5) -> np.ndarray:
    """Return residuals of samples of so many seeds as they would be if their samples' deviations had been known."""
    # of normal noise, this is a t statistic with seeds - 2 degrees of freedom (an externally studentised residual)
    outside = residuals * np.sqrt((seeds - 2) / np.maximum(seeds - 1 - residuals**2, 1e-9))
    return _standard(special.ndtri(special.stdtr(seeds - 2, outside)))


def _standard(values: np.ndarray) -> np.ndarray:
    standardized: np.ndarray = (values - values.mean()) / values.std()
    return standardized


def _residuals(rows: pd.DataFrame) -> np.ndarray:
    """Return the differences from the first encoding, centred and scaled to deviation 1 within each setting."""
    parts = []
    for _, table in split_by_setting(wide_table(rows, "loss")):
        for name in table.columns[1:]:
            difference = (table[name] - table[table.columns[0]]).dropna()
            if len(difference) > 2 and difference.std() > 0:
                scale = difference.std() * np.sqrt((len(difference) - 1) / len(difference))
                parts.append((difference - difference.mean()) / scale)
    return np.concatenate(parts) if parts else np.array([])


def _deviations_of_encodings(rows: pd.DataFrame) -> np.ndarray:
    """Return deviations of encodings within settings, without what seeds have in common."""
    results = []
    for _, part in split_by_setting(wide_table(rows)):
        values = part.dropna(axis=1).to_numpy()
        left = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
        results.append(left.std(0, ddof=1))
    return np.concatenate(results)
