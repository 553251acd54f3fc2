"""Verdicts on pairs of encodings: the paired moderated t test, equivalence, and the ranges of ranks that follow."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.statistics.correction import benjamini_hochberg, holm
from pe_lab.statistics.endpoint import Endpoint
from pe_lab.statistics.moderation import VariancePrior, fit_prior
from pe_lab.statistics.verdicts import LEVEL, MIN_SEEDS, Verdict, verdicts_on

NOISE_STD = 0.03  # deviation of a run's measurement error, in margins
EQUALITY_TOLERANCE = 1e-12  # of the values: differences that are closer to each other are equal

Pairs = tuple[np.ndarray, np.ndarray]  # columns of the first encodings, and of those subtracted from them


@dataclass(frozen=True)
class Tests:
    """Tests of the differences of pairs [..., pairs]; NaN where there are fewer than two seeds.

    Attributes:
        seeds: number of seeds that both encodings have.
        difference: mean of the first encoding minus the second.
        deviation: standard deviation of the differences, moderated.
        freedom: the degrees of freedom of the deviation.
        p: the two-sided p value of the hypothesis that the mean is 0.
        p_equivalent: the p value of the hypothesis that the mean is beyond the margin, the larger one of two one-sided
            tests.
        low, high: 95 % confidence interval of the mean, not corrected for other pairs.
        solved, baseline_solved: number of these seeds in which each of the two solved the task; None without a level.
    """

    seeds: np.ndarray
    difference: np.ndarray
    deviation: np.ndarray
    freedom: np.ndarray
    p: np.ndarray
    p_equivalent: np.ndarray
    low: np.ndarray
    high: np.ndarray
    solved: np.ndarray | None = None
    baseline_solved: np.ndarray | None = None


def all_pairs(encodings: int) -> Pairs:
    """Return all pairs of encodings."""
    first, second = np.triu_indices(encodings, 1)
    return first, second


def with_baseline(encodings: int, baseline: int) -> Pairs:
    """Return the pairs of every other encoding with a baseline."""
    others = np.delete(np.arange(encodings), baseline)
    return others, np.full(len(others), baseline)


def sample_differences(
    y: np.ndarray, pairs: Pairs, noise_std: float, of_equal: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seeds, means and variances of paired differences; variances include measurement error.

    Args:
        y: values [..., seeds, encodings]; NaN where there is no run.
        noise_std: the standard deviation of the measurement error of one run.
        of_equal: whether only differences that are equal, and not 0, up to rounding get the measurement error.
    """
    d = y[..., pairs[0]] - y[..., pairs[1]]
    finite = np.isfinite(d)
    seeds = finite.sum(-2)
    mean = np.where(finite, d, 0.0).sum(-2) / np.maximum(seeds, 1)
    apart = np.where(finite, d - mean[..., None, :], 0.0)
    variance = (apart**2).sum(-2) / np.maximum(seeds - 1, 1)
    added = np.asarray(2 * noise_std**2)
    if of_equal:
        size = np.where(finite, np.maximum(np.abs(y[..., pairs[0]]), np.abs(y[..., pairs[1]])), 0.0).max(-2)
        equal = (np.abs(apart).max(-2) <= EQUALITY_TOLERANCE * size) & (mean != 0)
        variance, added = np.where(equal, 0.0, variance), np.where(equal, added, 0.0)
    return seeds, np.where(seeds > 0, mean, np.nan), np.where(seeds > 1, variance + added, np.nan)


def solved_runs(y: np.ndarray, solved: np.ndarray, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of shared seeds in which the first and the second encoding solved the task [..., pairs]."""
    shared = np.isfinite(y[..., pairs[0]] - y[..., pairs[1]])
    first, second = ((shared & solved[..., side]).sum(-2) for side in pairs)
    return first, second


def estimate_prior(
    y: np.ndarray, noise_std: float, solved: np.ndarray | None = None, keep_small: bool = False
) -> VariancePrior:
    """Estimate the distribution of the variances of all pairs of encodings.

    Args:
        y: values [..., seeds, encodings]; NaN where there is no run.
        noise_std: the standard deviation of the measurement error of one run.
        solved: runs that solved the task [..., seeds, encodings]; pairs without any are left out.
        keep_small: see `t_tests`.
    """
    pairs = all_pairs(y.shape[-1])
    seeds, _, variance = sample_differences(y, pairs, noise_std, keep_small)
    if solved is not None:
        first, second = solved_runs(y, solved, pairs)
        variance = np.where(first + second > 0, variance, np.nan)
    used = np.isfinite(variance).astype(float)
    touched = np.zeros((used.shape[-1], y.shape[-1]))
    touched[np.arange(len(touched)), pairs[0]] = touched[np.arange(len(touched)), pairs[1]] = 1
    return fit_prior(variance, np.maximum(seeds - 1, 0), (used @ touched > 0).sum(-1), keep_small)


def paired_tests(
    y: np.ndarray,
    pairs: Pairs,
    endpoint: Endpoint,
    solved: np.ndarray | None = None,
    prior: VariancePrior | None = None,
    noise_std: float = NOISE_STD,
) -> Tests:
    """Test the paired differences of some pairs of encodings.

    The variance of each pair is moderated by the variances of all pairs, tested or not, so a test depends on the other
    encodings in `y`. With fewer than five encodings, variances are not moderated.

    Args:
        y: values of the endpoint [..., seeds, encodings]; NaN where there is no run.
        pairs: the columns of y that make each pair.
        solved: whether each run solved the task [..., seeds, encodings]; None: the endpoint has no level.
        prior: the prior of the variances; None: estimated from y; NO_PRIOR: each pair's own variance, as in a paired t
            test.
        noise_std: the standard deviation of the measurement error of one run, in margins.
    """
    return t_tests(y, pairs, endpoint.margin, solved, prior, noise_std)


def t_tests(
    y: np.ndarray,
    pairs: Pairs,
    margin: float,
    solved: np.ndarray | None = None,
    prior: VariancePrior | None = None,
    noise_std: float = NOISE_STD,
    keep_small: bool = False,
) -> Tests:
    """Test paired differences as `paired_tests` does, with a margin in the unit of y; NaN: no margin.

    Args:
        keep_small: True: pairs whose variance is too small to be due to chance keep it, and only equal differences get
            a measurement error; False: variances are at least the median. See `moderation`.
    """
    noise_std = noise_std * (margin if np.isfinite(margin) else 0.0)
    seeds, mean, variance = sample_differences(y, pairs, noise_std, keep_small)
    if prior is None:  # equal differences say nothing of the others' variances
        prior = estimate_prior(y, 0.0 if keep_small else noise_std, solved, keep_small)
    variance, dof = prior.moderate(variance, np.where(seeds > 1, seeds - 1.0, np.nan))
    error = np.sqrt(variance / np.maximum(seeds, 1))
    positive = np.where(error > 0, error, np.nan)  # equal differences without a measurement error prove nothing
    p = 2 * special.stdtr(dof, -np.abs(mean) / positive)
    p_equivalent = special.stdtr(dof, (np.abs(mean) - margin) / positive)
    half = special.stdtrit(dof, 1 - LEVEL / 2) * error
    tests = Tests(seeds, mean, np.sqrt(variance), dof, p, p_equivalent, mean - half, mean + half)
    return tests if solved is None else replace(tests, **_count_solved(y, solved, pairs))


def _count_solved(y: np.ndarray, solved: np.ndarray, pairs: Pairs) -> dict[str, np.ndarray]:
    return dict(zip(("solved", "baseline_solved"), solved_runs(y, solved, pairs), strict=True))


@dataclass(frozen=True)
class Decisions:
    """Verdicts on pairs with the p values that they follow from, corrected over the family [..., pairs]."""

    p_corrected: np.ndarray
    p_equivalent_corrected: np.ndarray
    verdict: np.ndarray


def decide_pairs(tests: Tests, endpoint: Endpoint, baseline: bool = False) -> Decisions:
    """Return the verdict on each pair; the pairs are one family.

    Better or worse: p below 5 % after correction, and the winner solved at least as many runs; *slightly*, if the mean
    difference is smaller than the margin. Equivalent: not better or worse, all runs of both solved the task, at least
    MIN_SEEDS seeds, and p_equivalent below 5 % after Holm's correction over such pairs. Both unsolved: no run of
    either solved the task, and nothing is tested.

    Args:
        tests: the tests of the pairs.
        baseline: whether the pairs are those with a baseline, corrected by Holm's method; otherwise they are all pairs,
            corrected by the method of Benjamini and Hochberg.
    """
    unsolved, solid, ahead = np.zeros(tests.p.shape, bool), np.True_, np.zeros(tests.p.shape, int)
    if tests.solved is not None and tests.baseline_solved is not None:
        ahead = tests.solved - tests.baseline_solved
        unsolved = (tests.seeds > 0) & (tests.solved == 0) & (tests.baseline_solved == 0)
        solid = (tests.solved == tests.seeds) & (tests.baseline_solved == tests.seeds)
    p = np.where(unsolved, np.nan, tests.p)
    p_equivalent = np.where(solid & (tests.seeds >= MIN_SEEDS), tests.p_equivalent, np.nan)
    p, p_equivalent = (holm if baseline else benjamini_hochberg)(p), holm(p_equivalent)
    verdict = verdicts_on(tests.difference, p, p_equivalent, endpoint.margin, endpoint.lower_is_better, ahead)
    return Decisions(p, p_equivalent, np.where(unsolved, str(Verdict.BOTH_UNSOLVED), verdict))


def rank_ranges(verdict: np.ndarray, encodings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best and worst rank of each encoding: 1 + number better than it, K - number worse.

    *Slightly* better or worse does not count.

    Args:
        verdict: the verdicts on `all_pairs(encodings)` [..., pairs].
    """
    first, second = all_pairs(encodings)
    better, worse = verdict == Verdict.BETTER, verdict == Verdict.WORSE
    ahead = np.zeros((*verdict.shape[:-1], encodings, encodings), bool)  # row is better than column
    ahead[..., first, second], ahead[..., second, first] = better, worse
    return 1 + ahead.sum(-2), encodings - ahead.sum(-1)


def compare(
    frame: pd.DataFrame, endpoint: Endpoint, baseline: str | None = None, one_family: bool = False
) -> pd.DataFrame:
    """Compare encodings by an endpoint, paired by seed: all pairs, or each with a baseline.

    Args:
        frame: a line per run: pe, seed, y (log2 steps, score or loss); solved, if the endpoint has a level; task,
            if there are several.
        endpoint: the endpoint that `y` measures.
        baseline: an encoding; None: all pairs.
        one_family: whether p values are corrected over the pairs of all tasks; otherwise each task is a family.

    Returns:
        A line per task and pair: COMPARISON_COLUMNS and the other fields of `Tests`. Without a baseline, `baseline` is
        the second encoding of the pair.

    Raises:
        ValueError: a column or a value is missing, y is not finite, solved is not true or false, a run occurs twice, or
            a task has one encoding or not the baseline.
    """
    tested: list[tuple[Tests, pd.DataFrame]] = []
    for task, part in split_by_task(frame, "pe", "seed", "y"):
        names, y, solved = as_arrays(part, task)
        if baseline is not None and baseline not in names:
            raise ValueError(f"baseline must be one of {', '.join(names)}{_on_task(task)}, got {baseline!r}")
        pairs = all_pairs(len(names)) if baseline is None else with_baseline(len(names), names.index(baseline))
        line = {"pe": np.array(names)[pairs[0]], "baseline": np.array(names)[pairs[1]]}
        labels = pd.DataFrame(line if task is None else line | {"task": task})
        tested.append((paired_tests(y, pairs, endpoint, solved), labels))
    tables = []
    for family in [tested] if one_family else [[each] for each in tested]:
        tests = _join_tests([each for each, _ in family])
        decisions = decide_pairs(tests, endpoint, baseline is not None)
        columns = vars(tests) | {"margin": endpoint.margin} | vars(decisions)
        columns = {name: column for name, column in columns.items() if column is not None}
        labels = pd.concat([each for _, each in family], ignore_index=True)
        tables.append(pd.concat([labels[["pe", "baseline"]], pd.DataFrame(columns), labels.iloc[:, 2:]], axis=1))
    return pd.concat(tables, ignore_index=True)


def _join_tests(tests: list[Tests]) -> Tests:
    """Return the tests of several tasks as one; all of the tasks have a level, or none has."""
    parts = [vars(each) for each in tests]
    columns: dict[str, Any] = {
        name: None if column is None else np.concatenate([part[name] for part in parts])
        for name, column in parts[0].items()
    }
    return Tests(**columns)


def split_by_task(frame: pd.DataFrame, *needed: str) -> list[tuple[str | None, pd.DataFrame]]:
    """Split runs by task; without a column `task`, return one part named None.

    Args:
        frame: a line per run.
        needed: the columns that the frame must have.

    Raises:
        ValueError: a column or a value is missing, y is not finite, solved is not true or false, or a task has fewer
            than two encodings.
    """
    missing = [name for name in needed if name not in frame]
    if missing:
        columns = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise ValueError(f"runs must have the columns {columns}, got none named {missing[0]}")
    for name in ("pe", "seed", "task"):
        if name in frame:
            _refuse_bad_run(frame, name, frame[name].isna(), "given")
    if "y" in needed:
        _refuse_bad_run(frame, "y", ~np.isfinite(pd.to_numeric(frame["y"], errors="coerce").to_numpy(float)), "finite")
    if "solved" in frame:
        _refuse_bad_run(frame, "solved", ~frame["solved"].isin([True, False]), "true or false")
    parts: list[tuple[str | None, pd.DataFrame]] = [(None, frame)]
    if "task" in frame and len(frame):
        parts = [(str(task), part) for task, part in frame.groupby("task", sort=False)]
    for task, part in parts:
        names = part["pe"].unique()
        if len(names) < 2:
            raise ValueError(
                f"runs{_on_task(task)} must be of two encodings or more, got {', '.join(map(str, names)) or 'none'}"
            )
    return parts


def _refuse_bad_run(frame: pd.DataFrame, name: str, bad: pd.Series | np.ndarray, what: str) -> None:
    """Refuse the first run whose value of a column is bad."""
    if bad.any():
        run = frame[bad].iloc[0]
        keys = [key for key in ("pe", "seed", "task") if key in frame and key != name]
        where = ", ".join(f"{key} {run[key]}" for key in keys)
        raise ValueError(f"{name} must be {what}, got {run[name]} of the run of {where}")


def as_arrays(frame: pd.DataFrame, task: str | None = None) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Return encodings, y and solved [seeds, encodings] of the runs of one task; y is NaN where there is no run.

    Raises:
        ValueError: a run occurs twice.
    """
    twice = frame[frame.duplicated(["pe", "seed"])]
    if len(twice):
        run = twice.iloc[0]
        raise ValueError(f"a run must occur once, got {run['pe']}, seed {run['seed']} twice{_on_task(task)}")
    names = list(frame["pe"].unique())
    table = frame.set_index(["seed", "pe"])
    y = table["y"].unstack().sort_index()[names].to_numpy(float)
    if "solved" not in frame:
        return names, y, None
    return names, y, table["solved"].astype(float).unstack().sort_index()[names].to_numpy() == 1


def _on_task(task: str | None) -> str:
    return "" if task is None else f" of {task}"
