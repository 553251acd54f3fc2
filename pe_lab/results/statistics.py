"""What can be said of differences between encodings: paired over seeds, with intervals, corrected for their number.

Cells of one seed share data, order and all weights that are not positional, so that seeds are the independent units and
differences within a seed are what is tested. Stops on one road (1, 4 and 16 epochs of one training) share all of it:
they are settings, never further seeds.
"""

import warnings
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 10_000  # beyond which a number of seeds is not looked for
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


def wide(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """A row per setting and seed, a column per encoding.

    Raises:
        ValueError: a cell stands twice, or the metric is not there.
    """
    from pe_lab.results.table import place

    if f"test_{metric}" not in rows:
        known = [name.removeprefix("test_") for name in rows if name.startswith("test_")]
        raise ValueError(f"metric must be one of {', '.join(known)}, got {metric!r}")
    keys = [*place(rows), "seed"]
    twice = rows[rows.duplicated([*keys, "pe"])]
    if len(twice):
        one = twice.iloc[0]
        told = ", ".join(f"{name}={one[name]}" for name in ["pe", *keys])
        raise ValueError(
            f"{len(twice)} cells stand more than once, as {told}: cells differ in something not in the table"
        )
    return rows.set_index([*keys, "pe"])[f"test_{metric}"].unstack("pe", sort=False)[list(rows["pe"].unique())]


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
    found = _tested(pd.DataFrame(lines), samples, metric)
    settings = len(table.index.droplevel("seed").unique())
    where = f"pooled over {settings} settings" if pooled else f"in {settings} setting{'s' if settings > 1 else ''}"
    found.attrs["family"] = (
        f"{int(found['p'].notna().sum())} comparisons: {len(pairs)} encodings with {baseline}, {where}, "
        f"paired over shared seeds; Holm's correction over all of them"
    )
    return found


def all_pairs(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """As `compare`, of every two encodings; the family that is corrected for is all pairs of one setting."""
    parts = []
    for setting, of in _settings(wide(rows, metric)):
        pairs = list(combinations(of.columns, 2))
        samples = [(of[pe] - of[other]).dropna() for pe, other in pairs]
        lines = [
            setting | {"pe": pe, "baseline": other, "seeds": len(sample), "settings": 1}
            for (pe, other), sample in zip(pairs, samples, strict=True)
        ]
        if lines:
            parts.append(_tested(pd.DataFrame(lines), [sample.to_numpy() for sample in samples], metric))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def ranks(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """The ranks that the seeds leave open: an encoding is behind those that are better, Holm-corrected, and no others.

    Returns:
        A line per setting and encoding, best mean first: mean, best (1 + how many are better), worst (how many there
        are less those that are worse), tied (how many are not separable from it).
    """
    pairs = all_pairs(rows, metric)
    sign = 1 if lower_is_better(metric) else -1
    lines = []
    for setting, of in _settings(wide(rows, metric)):
        means = (sign * of.mean()).sort_values(kind="stable").dropna()
        better = {name: set() for name in means.index}  # of each, those that are better than it
        here = pairs
        for name, value in setting.items():
            here = here[here[name].isna() if pd.isna(value) else here[name].eq(value)]
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

    Every seed is a grid of its own: an analysis of variance splits its sum of squares (type 2) into effects, and the
    shares are averaged over seeds with their t interval; so no cell is counted as independent of others of its seed.
    The highest interaction contains the noise.

    Returns:
        A line per effect: effect, share (0 to 1), low, high, seeds. Empty where fewer than two factors vary, or the
        grid of no seed is complete.
    """
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    factors = [name for name in EFFECTS if rows[name].nunique() > 1]
    shares = []
    for _, of in rows.groupby("seed") if len(factors) > 1 else []:
        count = int(np.prod([rows[name].nunique() for name in factors]))
        if len(of) != count or of.duplicated(factors).any() or of[f"test_{metric}"].isna().any():
            continue
        frame = of[factors].astype(str).assign(value=of[f"test_{metric}"].to_numpy())
        terms = [" : ".join(f"C({name})" for name in chosen) for chosen in _subsets(factors)]
        squares = anova_lm(ols(f"value ~ {' + '.join(terms)}", frame).fit(), typ=2)["sum_sq"]
        shares.append(squares / squares.sum())
    if not shares:
        return pd.DataFrame(columns=["effect", "share", "low", "high", "seeds"])
    whole = pd.DataFrame(shares)
    lines = []
    for term in whole:
        chosen = [name for name in factors if f"C({name})" in term] or factors
        low, high = interval(whole[term])
        effect = " × ".join(chosen) + (" and noise" if term == "Residual" else "")
        lines.append({"effect": effect, "share": whole[term].mean(), "low": low, "high": high, "seeds": len(whole)})
    return pd.DataFrame(lines)


def seeds_needed(compared: pd.DataFrame) -> pd.DataFrame:
    """How many seeds would separate what was compared, were difference and deviation as observed.

    For a power of 80 % in a paired t test at the level that the first step of Holm's correction has in this family. The
    observed difference is an estimate: take the number as an order of magnitude.

    Returns:
        The lines with seeds_needed (NaN where one seed or none is shared; inf beyond 10,000) and separable: the
        smallest difference that the seeds that are there separate with that power.
    """
    from statsmodels.stats.power import TTestPower

    level = (1 - CONFIDENCE) / max(1, int(compared["p"].notna().sum()))
    counts = np.unique(np.r_[2:100, np.geomspace(100, MOST_SEEDS, 60).astype(int)])
    needed, separable = [], []
    for line in compared.itertuples():
        if line.seeds < 2 or not line.deviation > 0:
            needed.append(np.nan)
            separable.append(np.nan)
            continue
        effect = abs(line.difference) / line.deviation
        critical = stats.t.isf(level / 2, counts - 1)
        enough = counts[stats.nct.sf(critical, counts - 1, effect * np.sqrt(counts)) >= POWER]
        needed.append(enough[0] if len(enough) else np.inf)
        least = TTestPower().solve_power(nobs=line.seeds, alpha=level, power=POWER)
        separable.append(float(np.squeeze(least)) * line.deviation)
    return compared.assign(seeds_needed=needed, separable=separable)


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
    means = samples[:, chosen].mean(2)
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
    return shared.mean(), len(shared)


def _tested(lines: pd.DataFrame, samples: list[np.ndarray], metric: str) -> pd.DataFrame:
    """Lines with what their samples of differences say, corrected as one family."""
    from statsmodels.stats.multitest import multipletests

    numbers = _tests(samples)
    found = pd.concat([lines, numbers.set_axis(lines.index)], axis=1)
    tested = found["p"].notna()
    found["p_holm"] = np.nan
    if tested.any():
        found.loc[tested, "p_holm"] = multipletests(found.loc[tested, "p"], method="holm")[1]
    down = found["difference"] < 0
    good = np.where(down == lower_is_better(metric), "better", "worse")
    found["verdict"] = np.where(found["p_holm"] < 1 - CONFIDENCE, good, "not separable")
    found.loc[found["seeds"] == 1, "verdict"] = "one seed"
    found.loc[found["seeds"] == 0, "verdict"] = "no shared seed"
    found.loc[(found["seeds"] > 1) & ~tested, "verdict"] = "equal"
    return found


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


def _subsets(factors: list[str]) -> list[tuple[str, ...]]:
    """All but the whole, which is what is left."""
    return [chosen for size in range(1, len(factors)) for chosen in combinations(factors, size)]
