"""What can be said of differences between encodings: paired over seeds, with intervals, corrected for their number.

Cells of one seed share data, order and all weights that are not positional, so that seeds are the independent units and
differences within a seed are what is tested. Stops on one run (1, 4 and 16 epochs of one training) share all of it:
they are settings, never further seeds.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 10_000  # beyond which a number of seeds is not looked for
CERTAIN = 1e9  # noncentrality beyond which the series of its t distribution does not converge
EFFECTS = ("pe", "depth", "epochs")
REMAINING = "remaining"  # a metric: the share of the way from a task's level to the best possible that is left
GRID = "each setting"  # what the cells themselves are called among the tables of a report


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
    return metric == REMAINING or any(word in metric for word in ("loss", "bits", "perplexity"))


def column(rows: pd.DataFrame, metric: str) -> str:
    """The column of a metric of the test.

    Raises:
        ValueError: it is not there.
    """
    if f"test_{metric}" not in rows:
        known = [name.removeprefix("test_") for name in rows if name.startswith("test_")]
        raise ValueError(f"metric must be one of {', '.join(known) or 'none'}, got {metric!r}")
    return f"test_{metric}"


def in_order(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Rows by their settings: numbers upwards, tasks and other names as they come; encodings stay as they come."""
    keys = [name for name in names if name in rows]
    first = {name: {value: number for number, value in enumerate(rows[name].unique())} for name in [*keys, "pe"]}

    def key(column: pd.Series) -> pd.Series:
        numbers = pd.api.types.is_numeric_dtype(column) and column.name != "pe"
        return column if numbers else column.map(first[str(column.name)])

    return rows.sort_values([*keys, "pe"], kind="stable", key=key, na_position="first")


def wide(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """A row per setting and seed, settings in order, a column per encoding; what is not finite is as if it were absent.

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
    names = list(rows["pe"].unique())
    rows = in_order(rows, place(rows))
    table = rows.set_index([*keys, "pe"])[measured].unstack("pe", sort=False)[names]
    return table.where(np.isfinite(table))


@dataclass(frozen=True)
class Pool:
    """Settings taken together.

    Attributes:
        rows: a row per encoding and seed: settings (how many), test_<metric> (the mean over them),
            positional_parameters, flops_per_token (summed). Empty where nothing can be pooled.
        metric: that of the settings, or REMAINING.
        note: what was pooled and in which unit, or why not.
        way: from the best possible to the level, in the unit of the metric; NaN where a task has no level.
        ends: the names of these two.
    """

    rows: pd.DataFrame
    metric: str
    note: str
    way: float
    ends: str


def pool(rows: pd.DataFrame, metric: str = "loss") -> Pool:
    """The mean over all settings, of each encoding and seed that has them all.

    Settings of one task are averaged as they are. A nat of one task is not a nat of another: over tasks, what is
    averaged is the share of the way from the level to the best possible that remains, (loss - best) / (level - best).
    The level is that of `table.by_task`; the best possible is the floor bayes, or no loss where that is not known.

    Raises:
        ValueError: there is no such metric.
    """
    from pe_lab.results.table import place

    measured, names = column(rows, metric), place(rows)
    rows = rows[np.isfinite(rows[measured])]
    count = len(rows[names].drop_duplicates())
    tasks = rows.groupby("data", sort=False) if "data" in rows else [("", rows)]
    ways = {str(task): _way(of, metric) for task, of in tasks}
    without = [task for task, way in ways.items() if way is None]
    if several := len(ways) > 1:
        unit = f"share of the way to the best possible that remains, (test {metric} − best) / (level − best)"
        unit += "".join(f"; {task} from {way.ends}" for task, way in ways.items() if way)
        shares = [((rows[measured] - way.best) / (way.level - way.best)).dropna() for way in ways.values() if way]
        rows = rows.assign(value=pd.concat(shares) if shares else np.nan)
    else:
        unit = f"test {metric}{', in nats' * ('loss' in metric)}"
        rows = rows.assign(value=rows[measured])
    pooled = REMAINING if several else metric
    costs = {"positional_parameters": "max", "flops_per_token": "sum"}
    means = rows.groupby(["pe", "seed"], sort=False).agg(
        settings=("value", "size"),
        **{f"test_{pooled}": ("value", "mean")},
        **{name: (name, how) for name, how in costs.items() if name in rows},
    )
    means = means[means["settings"] == count].reset_index()
    means = means[["settings", *(name for name in means if name != "settings")]]
    if several and without:
        note = f"Not pooled over tasks: of test {metric}, no level is known for {', '.join(without)}."
        return Pool(means.head(0), pooled, note, float("nan"), "")
    note = f"Pooled over {count} settings: of each seed, the mean {unit}."
    if left := [name for name in rows["pe"].unique() if name not in set(means["pe"])]:
        note += f" Not in it: {', '.join(left)}, which no seed has in all settings."
    if several:
        return Pool(means, pooled, note, 1.0, "level to best possible")
    way = None if without or rows.empty else ways.popitem()[1]
    if way is None:
        return Pool(means, pooled, note, float("nan"), "")
    sizes = (way.level - way.best).abs().groupby([rows[name] for name in names], dropna=False).mean()
    return Pool(means, pooled, note, float(sizes.mean()), way.ends)


class _Way(NamedTuple):
    """The two ends of each row's way, and what they are called."""

    best: pd.Series
    level: pd.Series
    ends: str


def _way(rows: pd.DataFrame, metric: str) -> _Way | None:
    """The ends of a task: of each setting, their means over its cells. None where it has no level."""
    from pe_lab.results.table import floors, levels, place

    known = [floor for floor in floors(rows, metric) if rows[f"floor_{floor}_{metric}"].notna().all()]
    if "bayes" not in known and not lower_is_better(metric):
        return None
    settings = rows.groupby(place(rows), sort=False, dropna=False)
    means = {floor: settings[f"floor_{floor}_{metric}"].transform("mean") for floor in known}
    best = means.get("bayes", 0.0 * rows[f"test_{metric}"])
    sign = 1 if lower_is_better(metric) else -1
    for floor in levels(known):
        if (sign * (means[floor] - best)).gt(1e-9).all():
            zero = "bayes" if "bayes" in known else f"no {metric}"
            return _Way(best, means[floor], f"{floor.replace('_', '-')} to {zero}")
    return None


def compare(
    rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss", pooled: bool = False
) -> pd.DataFrame:
    """Paired differences from a baseline over shared seeds.

    Args:
        baseline: an encoding; None: the first of the rows.
        metric: of the test.
        pooled: over all settings, see `pool`.

    Returns:
        A line per setting and encoding: setting columns (settings, how many, where pooled), pe, baseline; seeds
        (shared); difference, low, high (t interval), deviation (standard, of the differences); p (two-sided paired t
        test), p_holm (corrected within the family of all lines that have a p); verdict: better, worse, not separable,
        equal (to the bit, in every seed: outside the family), one seed, no shared seed. Its attribute "family" says
        what was compared, "comparisons" how many.

    Raises:
        ValueError: there is no such encoding or metric.
    """
    baseline = _baseline(rows, baseline)
    if pooled:
        together = pool(rows, metric)
        rows, metric = together.rows, together.metric
    table = wide(rows, metric)
    lines = _tested(table, [(name, baseline) for name in table if name != baseline and baseline in table])
    lines = _judged(lines, _holm(lines["p"].to_numpy()), metric)
    count = len(table.index.droplevel("seed").unique())
    where = f"pooled over {rows['settings'].max() if len(rows) else 0} settings" if pooled else _count(count, "setting")
    return _named(lines, f"{len(table.columns) - 1 if len(table.columns) else 0} encodings with {baseline}, {where}")


def all_pairs(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """As `compare`, of every two encodings in every setting: one family."""
    table = wide(rows, metric)
    lines = _tested(table, list(combinations(table.columns, 2)))
    lines = _judged(lines, _holm(lines["p"].to_numpy()), metric)
    count = len(table.index.droplevel("seed").unique())
    return _named(lines, f"every two of {len(table.columns)} encodings, {_count(count, 'setting')}")


def ranks(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """The ranks that the seeds leave open: an encoding is behind those that are better, in `all_pairs`, and no others.

    Returns:
        A line per setting and encoding, best mean first: mean, seeds, best (1 + how many are better), worst (how many
        there are less those that are worse), tied (how many are not separable from it).
    """
    return _ranked(wide(rows, metric), all_pairs(rows, metric), metric)


@dataclass(frozen=True)
class Families:
    """All comparisons of a report, made once; whatever the report says of two encodings is read from here.

    They are two families, and each is corrected by Holm's method: the comparisons with the baseline, in whatever
    setting, and those of two other encodings. The question of a report is its baseline; asking about all other pairs as
    well must not hide the answer.

    Attributes:
        baseline: an encoding.
        tables: the rows in which encodings are compared, with their metric, by what they are called.
        lines: of each of these, a line per setting and pair, as `compare` has them.
    """

    baseline: str
    tables: dict[str, tuple[pd.DataFrame, str]]
    lines: dict[str, pd.DataFrame]

    @classmethod
    def of(cls, tables: dict[str, tuple[pd.DataFrame, str]], baseline: str | None = None) -> "Families":
        """Compare every two encodings in every setting of every table.

        Args:
            tables: rows and a metric of the test, by name; the first one's first encoding is the baseline if none is
                named.

        Raises:
            ValueError: there is no such encoding or metric.
        """
        baseline = _baseline(next(iter(tables.values()))[0], baseline)
        lines = {}
        for name, (rows, metric) in tables.items():
            table = wide(rows, metric)
            pairs = [(b, a) if a == baseline else (a, b) for a, b in combinations(table.columns, 2)]
            lines[name] = _tested(table, pairs)
        p = np.concatenate([[], *(of["p"] for of in lines.values())])
        first = np.concatenate([[], *(of["baseline"] == baseline for of in lines.values())]).astype(bool)
        holm = np.full(len(p), np.nan)
        for family in (first, ~first):
            holm[family] = _holm(p[family])
        done, judged = 0, {}
        for name, of in lines.items():
            judged[name] = _judged(of, holm[done : done + len(of)], tables[name][1])
            done += len(of)
        return cls(baseline, tables, judged)

    def __str__(self) -> str:
        """What is compared, in a sentence."""
        first, second = self.sizes()
        places = "; ".join(f"{name} {' and '.join(map(str, self.sizes(name)))}" for name in self.tables)
        return (
            f"{first} comparisons with {self.baseline}, and {second} of two other encodings ({places}), paired over "
            "shared seeds; Holm's correction over each of the two"
        )

    def sizes(self, name: str | None = None) -> tuple[int, int]:
        """How many comparisons each family has, in one table or in all."""
        counts = [0, 0]
        for of in self.lines.values() if name is None else [self.lines[name]]:
            tested = of["p"].notna()
            counts[0] += int((tested & (of["baseline"] == self.baseline)).sum())
            counts[1] += int((tested & (of["baseline"] != self.baseline)).sum())
        return counts[0], counts[1]

    def compare(self, name: str = GRID) -> pd.DataFrame:
        """The lines of a table that compare with the baseline."""
        lines = self.lines[name]
        lines = lines[lines["baseline"] == self.baseline].reset_index(drop=True)
        lines.attrs["comparisons"] = self.sizes()[0]
        return lines

    def ranks(self, name: str = GRID, among: Collection[str] | None = None) -> pd.DataFrame:
        """As `statistics.ranks`, by the verdicts of these families.

        Args:
            among: only these encodings; None: all.
        """
        (rows, metric), lines = self.tables[name], self.lines[name]
        table = wide(rows, metric)
        if among is not None:
            table = table[[pe for pe in table if pe in among]]
            lines = lines[lines["pe"].isin(among) & lines["baseline"].isin(among)]
        return _ranked(table, lines, metric)


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
    from pe_lab.results.table import place

    measured = column(rows, metric)
    factors = [name for name in EFFECTS if rows[name].nunique() > 1]
    if any(rows[name].nunique(dropna=False) > 1 for name in place(rows) if name not in EFFECTS):
        factors = []  # a task or a rate that varies with depth would pass for it
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
    count = compared.attrs.get("comparisons", int(compared["p"].notna().sum()))
    level = (1 - CONFIDENCE) / max(1, count)
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


def _baseline(rows: pd.DataFrame, name: str | None) -> str:
    """The encoding that is named, or the first.

    Raises:
        ValueError: it is not among the rows.
    """
    names = list(rows["pe"].unique())
    if name and name not in names:
        raise ValueError(f"baseline must be one of {', '.join(names)}, got {name!r}")
    return name or names[0]


def _count(number: int, noun: str) -> str:
    return f"in {number} {noun}{'s' if number > 1 else ''}"


def _named(lines: pd.DataFrame, what: str) -> pd.DataFrame:
    """Lines that say of what family they are."""
    count = int(lines["p"].notna().sum())
    lines.attrs["comparisons"] = count
    lines.attrs["family"] = f"{count} comparisons: {what}, paired over shared seeds; Holm's correction over all of them"
    return lines


def _tested(table: pd.DataFrame, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """A line per setting and pair of encodings, with what its differences say by themselves."""
    at = [(table.columns.get_loc(pe), table.columns.get_loc(other)) for pe, other in pairs]
    lines, samples = [], []
    for setting, of in _settings(table):
        values = of.to_numpy()
        for (pe, other), (first, second) in zip(pairs, at, strict=True):
            sample = values[:, first] - values[:, second]
            samples.append(sample[np.isfinite(sample)])
            lines.append(setting | {"pe": pe, "baseline": other, "seeds": len(samples[-1])})
    names = [*(name for name in table.index.names if name != "seed"), "pe", "baseline", "seeds"]
    return pd.concat([pd.DataFrame(lines, columns=names), _tests(samples)], axis=1)


def _judged(lines: pd.DataFrame, holm: np.ndarray, metric: str) -> pd.DataFrame:
    """Lines with their corrected p values, and what follows from these."""
    down = lines["difference"] < 0
    good = np.where(down == lower_is_better(metric), "better", "worse")
    found = lines.assign(p_holm=holm, verdict=np.where(holm < 1 - CONFIDENCE, good, "not separable"))
    found.loc[found["seeds"] == 1, "verdict"] = "one seed"
    found.loc[found["seeds"] == 0, "verdict"] = "no shared seed"
    found.loc[(found["seeds"] > 1) & found["p"].isna(), "verdict"] = "equal"
    return found


def _ranked(table: pd.DataFrame, lines: pd.DataFrame, metric: str) -> pd.DataFrame:
    """See `ranks`.

    Args:
        lines: of every two of the table's encodings, setting by setting.
    """
    sign = 1 if lower_is_better(metric) else -1
    size, found = table.shape[1] * (table.shape[1] - 1) // 2, []
    for number, (setting, of) in enumerate(_settings(table)):
        means = (sign * of.mean()).sort_values(kind="stable").dropna()
        behind: dict[str, set[str]] = {name: set() for name in means.index}  # of each, those that are better than it
        here = lines.iloc[number * size : (number + 1) * size]
        for pe, other, verdict in zip(here["pe"], here["baseline"], here["verdict"], strict=True):
            if verdict == "better":
                behind[other].add(pe)
            elif verdict == "worse":
                behind[pe].add(other)
        for name in means.index:
            best = 1 + len(behind[name])
            worst = len(means) - sum(name in better for better in behind.values())
            line = {"pe": name, "mean": sign * means[name], "seeds": int(of[name].notna().sum())}
            found.append(setting | line | {"best": best, "worst": worst, "tied": worst - best})
    names = [*(name for name in table.index.names if name != "seed"), "pe", "mean", "seeds", "best", "worst", "tied"]
    return pd.DataFrame(found, columns=names)


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
