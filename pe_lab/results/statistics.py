"""What can be said of differences between encodings: paired over seeds, with intervals, corrected for their number.

Cells of one seed share data, order and all weights that are not positional, so that seeds are the independent units and
differences within a seed are what is tested. Stops on one road (1, 4 and 16 epochs of one training) share all of it:
they are settings, never further seeds.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 10_000  # beyond which a number of seeds is not looked for
CERTAIN = 1e9  # noncentrality beyond which the series of its t distribution does not converge
EFFECTS = ("pe", "depth", "epochs")


def interval(values: pd.Series) -> tuple[float, float]:
    """The t interval of the mean; NaN where there is one value."""
    if len(values) < 2:
        return float("nan"), float("nan")
    error = float(stats.sem(values))
    if error == 0 or values.nunique() == 1:
        return values.iloc[0], values.iloc[0]
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=values.mean(), scale=error)
    return float(low), float(high)


def lower_is_better(metric: str) -> bool:
    """Losses and bits fall as a model gets better; accuracies and exact match rise."""
    return "loss" in metric or "bits" in metric or "perplexity" in metric


def column(rows: pd.DataFrame, metric: str) -> str:
    """The column of a metric of the test.

    Raises:
        ValueError: it is not there.
    """
    if f"test_{metric}" not in rows:
        known = [name.removeprefix("test_") for name in rows if name.startswith("test_")]
        raise ValueError(f"metric must be one of {', '.join(known) or 'none'}, got {metric!r}")
    return f"test_{metric}"


def wide(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """A row per setting and seed, a column per encoding; what is not finite is as if it were not there.

    Raises:
        ValueError: a cell stands twice, or the metric is not there.
    """
    from pe_lab.results.table import place

    measured = column(rows, metric)
    keys = [*place(rows), "seed"]
    twice = rows[rows.duplicated([*keys, "pe"])]
    if len(twice):
        one = twice.iloc[0]
        told = ", ".join(f"{name}={one[name]}" for name in ["pe", *keys])
        raise ValueError(
            f"{len(twice)} cells stand more than once, as {told}: cells differ in something not in the table"
        )
    table = rows.set_index([*keys, "pe"])[measured].unstack("pe", sort=False)[list(rows["pe"].unique())]
    return table.where(np.isfinite(table))


def compare(
    rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss", pooled: bool = False
) -> pd.DataFrame:
    """Paired differences from a baseline over shared seeds.

    Args:
        baseline: an encoding; None: the first of the rows.
        metric: of the test.
        pooled: over all settings: of a seed, the mean of its differences in the settings that every shared seed has.

    Returns:
        A line per setting and encoding: setting columns, pe, baseline; seeds (shared), settings (pooled over);
        difference, low, high (t interval), deviation (standard, of the differences); p (two-sided paired t test),
        p_holm (corrected within the family of all lines that have a p); verdict: better, worse, not separable, equal
        (to the bit, in every seed: outside the family), one seed, no shared seed. Its attribute "family" says what
        was compared.

    Raises:
        ValueError: there is no such encoding or metric.
    """
    table = wide(rows, metric)
    baseline = baseline or table.columns[0]
    if baseline not in table:
        raise ValueError(f"baseline must be one of {', '.join(table.columns)}, got {baseline!r}")
    pairs = [(name, baseline) for name in table.columns if name != baseline]
    lines, samples = [], []
    for setting, of in [({}, None)] if pooled else _settings(table):
        for pe, other in pairs:
            sample, count = _pooled(table[pe] - table[other]) if of is None else ((of[pe] - of[other]).dropna(), 1)
            lines.append(setting | {"pe": pe, "baseline": other, "seeds": len(sample), "settings": count})
            samples.append(sample.to_numpy())
    found = _tested(pd.DataFrame(lines, columns=_columns(table, pooled)), samples, metric)
    settings = len(table.index.droplevel("seed").unique())
    where = f"pooled over {settings} settings" if pooled else f"in {settings} setting{'s' if settings > 1 else ''}"
    found.attrs["family"] = (
        f"{int(found['p'].notna().sum())} comparisons: {len(pairs)} encodings with {baseline}, {where}, "
        f"paired over shared seeds; Holm's correction over all of them"
    )
    return found


def all_pairs(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """As `compare`, of every two encodings; the family that is corrected for is all pairs of one setting."""
    table = wide(rows, metric)
    pairs = list(combinations(range(table.shape[1]), 2))
    lines, samples = [], []
    for setting, of in _settings(table):
        values = of.to_numpy()
        for pe, other in pairs:
            sample = values[:, pe] - values[:, other]
            samples.append(sample[np.isfinite(sample)])
            names = {"pe": table.columns[pe], "baseline": table.columns[other]}
            lines.append(setting | names | {"seeds": len(samples[-1]), "settings": 1})
    return _tested(pd.DataFrame(lines, columns=_columns(table)), samples, metric, len(pairs))


def ranks(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """The ranks that the seeds leave open: an encoding is behind those that are better, Holm-corrected, and no others.

    Returns:
        A line per setting and encoding, best mean first: mean, best (1 + how many are better), worst (how many there
        are less those that are worse), tied (how many are not separable from it).
    """
    pairs = all_pairs(rows, metric)
    sign = 1 if lower_is_better(metric) else -1
    table, lines = wide(rows, metric), []
    count = table.shape[1] * (table.shape[1] - 1) // 2
    for number, (setting, of) in enumerate(_settings(table)):
        means = (sign * of.mean()).sort_values(kind="stable").dropna()
        better = {name: set() for name in means.index}  # of each, those that are better than it
        here = pairs.iloc[number * count : (number + 1) * count]
        for pe, other, verdict in zip(here["pe"], here["baseline"], here["verdict"], strict=True):
            if verdict == "better":
                better[other].add(pe)
            elif verdict == "worse":
                better[pe].add(other)
        for name in means.index:
            worse = sum(name in of_other for of_other in better.values())
            best = 1 + len(better[name])
            line = {"pe": name, "mean": sign * means[name], "best": best, "worst": len(means) - worse}
            lines.append(setting | line | {"tied": line["worst"] - best})
    return pd.DataFrame(lines)


def effects(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """How much of what varies is due to encoding, depth and epochs, alone and together.

    Every seed is a grid of its own: an analysis of variance splits its sum of squares into effects, and the
    shares are averaged over seeds with their t interval; so no cell is counted as independent of others of its seed.
    The highest interaction contains the noise.

    Returns:
        A line per effect: effect, share (0 to 1), low, high, seeds. Empty where fewer than two factors vary, something
        else does, or the grid of no seed is complete.

    Raises:
        ValueError: there is no such metric.
    """
    measured = column(rows, metric)
    factors = [name for name in EFFECTS if rows[name].nunique() > 1]
    sizes = [rows[name].nunique() for name in factors]
    shares = []
    for _, of in rows.groupby("seed") if len(factors) > 1 else []:
        values = of.sort_values(factors)[measured].to_numpy()
        whole = len(of) == np.prod(sizes) and not of.duplicated(factors).any() and np.isfinite(values).all()
        if whole and np.ptp(values) > 0:
            squares = _squares(values.reshape(sizes))
            shares.append(squares / squares.sum())
    lines = []
    for chosen, share in zip(_subsets(factors), np.transpose(shares) if shares else [], strict=False):
        low, high = interval(pd.Series(share))
        effect = " × ".join(chosen) + (" and noise" if len(chosen) == len(factors) else "")
        lines.append({"effect": effect, "share": share.mean(), "low": low, "high": high, "seeds": len(share)})
    return pd.DataFrame(lines, columns=["effect", "share", "low", "high", "seeds"])


def seeds_needed(compared: pd.DataFrame) -> pd.DataFrame:
    """How many seeds would separate what was compared, were difference and deviation as observed.

    For a power of 80 % in a paired t test at the level that the first step of Holm's correction has in this family. The
    observed difference is an estimate: take the number as an order of magnitude.

    Returns:
        The lines with seeds_needed (NaN where nothing deviates; inf beyond 10,000; above 100 a few percent high) and
        separable: the smallest difference that the seeds that are there separate with that power.
    """
    level = (1 - CONFIDENCE) / max(1, int(compared["p"].notna().sum()))
    counts = np.unique(np.r_[2:100, np.geomspace(100, MOST_SEEDS, 60).astype(int)])
    needed, separable, least = [], [], {}
    for line in compared.itertuples():
        if line.seeds < 2 or not line.deviation > 0:
            needed.append(np.nan)
            separable.append(np.nan)
            continue
        effect = abs(line.difference) / line.deviation
        enough = counts[_power(effect, counts, level) >= POWER]
        needed.append(enough[0] if len(enough) else np.inf)
        if line.seeds not in least:
            least[line.seeds] = _least(line.seeds, level)
        separable.append(least[line.seeds] * line.deviation)
    return compared.assign(seeds_needed=needed, separable=separable)


def _power(effect: float, seeds: np.ndarray | int, level: float) -> np.ndarray:
    """Of a paired t test, for a difference in units of its deviation; the far tail left out."""
    critical = stats.t.isf(level / 2, seeds - 1)
    return stats.nct.sf(critical, seeds - 1, np.minimum(effect * np.sqrt(seeds), CERTAIN))


def _least(seeds: int, level: float) -> float:
    """The smallest difference, in units of its deviation, that has the power."""
    high = 1.0
    while _power(high, seeds, level) < POWER:
        high *= 2
    return optimize.brentq(lambda effect: _power(effect, seeds, level) - POWER, 0, high)


def coverage(
    seeds: int,
    residuals: np.ndarray,
    method: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    draws: int = 20_000,
) -> float:
    """How often an interval of the mean contains the mean, by simulation.

    Args:
        seeds: the size of a sample.
        residuals: what samples are drawn from, with replacement.
        method: samples [draws, seeds] to low, high [draws].
        draws: how many samples.
    """
    samples = np.random.default_rng(0).choice(residuals, (draws, seeds))
    low, high = method(samples)
    # sums of rounded numbers: without this, an interval of equal values would miss its own mean
    slack = 1e-12 * np.abs(residuals).max()
    return float(np.mean((low - slack <= residuals.mean()) & (residuals.mean() <= high + slack)))


def t_intervals(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The interval that is used here, of many samples at once."""
    half = stats.t.ppf((1 + CONFIDENCE) / 2, samples.shape[1] - 1) * stats.sem(samples, axis=1)
    return samples.mean(1) - half, samples.mean(1) + half


def percentile_bootstraps(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The percentile bootstrap of many samples at once, from 1,000 resamples; to compare with, not used."""
    chosen = np.random.default_rng(1).integers(samples.shape[1], size=(1000, samples.shape[1]))
    weights = (chosen[:, :, None] == np.arange(samples.shape[1])).mean(1)  # of the values in each resample
    means = samples @ weights.T
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    return low, high


def deviations(rows: pd.DataFrame, metric: str = "loss") -> np.ndarray:
    """The differences from the first encoding around their means, each setting's scaled to deviation 1."""
    parts = []
    for _, of in _settings(wide(rows, metric)):
        for name in of.columns[1:]:
            difference = (of[name] - of[of.columns[0]]).dropna()
            if len(difference) > 2 and difference.std() > 0:
                scale = difference.std() * np.sqrt((len(difference) - 1) / len(difference))
                parts.append((difference - difference.mean()) / scale)
    return np.concatenate(parts) if parts else np.array([])


def _settings(table: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Each setting of a wide table, with its rows by seed."""
    names = [name for name in table.index.names if name != "seed"]
    found = []
    for key, of in table.groupby(level=names, sort=False, dropna=False):
        found.append((dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True)), of.droplevel(names)))
    return found


def _pooled(differences: pd.Series) -> tuple[pd.Series, int]:
    """Of each seed, the mean over the settings that all seeds have; and how many those are."""
    by_seed = differences.unstack("seed").dropna(how="all").dropna(axis=1, how="all")
    shared = by_seed.dropna()
    return shared.mean().dropna(), len(shared)


def _columns(table: pd.DataFrame, pooled: bool = False) -> list[str]:
    """What a comparison begins with, whether it has a line or not."""
    return [
        *(name for name in table.index.names if name != "seed" and not pooled),
        "pe",
        "baseline",
        "seeds",
        "settings",
    ]


def _tested(lines: pd.DataFrame, samples: list[np.ndarray], metric: str, family: int | None = None) -> pd.DataFrame:
    """Lines with what their samples of differences say, corrected as families of so many lines, or as one."""
    numbers = _tests(samples)
    found = pd.concat([lines, numbers.set_axis(lines.index)], axis=1)
    tested = found["p"].notna()
    size = family or len(found)
    parts = [_holm(found["p"].to_numpy()[first : first + size]) for first in range(0, len(found), size or 1)]
    found["p_holm"] = np.concatenate([[], *parts])
    down = found["difference"] < 0
    good = np.where(down == lower_is_better(metric), "better", "worse")
    found["verdict"] = np.where(found["p_holm"] < 1 - CONFIDENCE, good, "not separable")
    found.loc[found["seeds"] == 1, "verdict"] = "one seed"
    found.loc[found["seeds"] == 0, "verdict"] = "no shared seed"
    found.loc[(found["seeds"] > 1) & ~tested, "verdict"] = "equal"
    return found


def _holm(p: np.ndarray) -> np.ndarray:
    """Holm's correction (1979) of those that are not NaN: the smallest times their number, the next times one less."""
    order = np.argsort(p)[: np.isfinite(p).sum()]
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def _tests(samples: list[np.ndarray]) -> pd.DataFrame:
    """Of each sample of differences: mean, t interval, deviation, p value; of one seed the mean alone."""
    sizes = np.array([len(sample) for sample in samples])
    found = pd.DataFrame(np.nan, range(len(samples)), ["difference", "low", "high", "deviation", "p"])
    for size in np.unique(sizes[sizes > 0]):
        chosen = np.flatnonzero(sizes == size)
        stacked = np.stack([samples[number] for number in chosen])
        found.loc[chosen, "difference"] = stacked.mean(1)
        if size == 1:
            continue
        found.loc[chosen, "deviation"] = stacked.std(1, ddof=1)
        differ = stacked.any(1)  # equal to the bit: nothing to test
        found.loc[chosen[~differ], ["low", "high"]] = 0.0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # all differences are the same
            tested = stats.ttest_1samp(stacked[differ], 0, axis=1)
        within = tested.confidence_interval(CONFIDENCE)
        found.loc[chosen[differ], ["p", "low", "high"]] = np.stack([tested.pvalue, within.low, within.high], 1)
    return found


def _squares(values: np.ndarray) -> np.ndarray:
    """The sums of squares of a complete grid's effects, in the order of `_subsets`; they are orthogonal."""
    left, squares = values - values.mean(), []
    for chosen in _subsets(range(values.ndim)):
        effect = left.mean(axis=tuple(axis for axis in range(values.ndim) if axis not in chosen), keepdims=True)
        left = left - effect
        squares.append(np.square(effect).sum() * values.size / effect.size)
    return np.array(squares)


def _subsets(factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Smaller ones first, the whole last."""
    return [chosen for size in range(1, len(factors) + 1) for chosen in combinations(factors, size)]
