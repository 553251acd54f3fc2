"""Differences between encodings, paired by seed, and the t test of each."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.decisions.shared_variance import NOTHING_KNOWN, Prior, prior_of
from pe_lab.results.columns import metric_column, setting_columns, sort_by_setting
from pe_lab.results.statistics.intervals import CONFIDENCE


def wide(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Return a row per setting and seed, settings sorted, and a column per encoding; non-finite values become NaN.

    Raises:
        ValueError: a cell occurs twice, or there is no such metric.
    """
    measured = metric_column(rows, metric)
    keys = [*setting_columns(rows), "seed"]
    twice = rows[rows.duplicated([*keys, "pe"])]
    if len(twice):
        one = twice.iloc[0]
        example = ", ".join(f"{name}={one[name]}" for name in ["pe", *keys])
        raise ValueError(
            f"cells must differ in the columns of the table, got {len(twice)} that occur more than once, as {example}"
        )
    names = pd.Index(rows["pe"].unique(), name="pe")
    rows = sort_by_setting(rows, setting_columns(rows))
    lines = rows.groupby(keys, sort=False, dropna=False).ngroup()
    values = np.full((lines.nunique(), len(names)), np.nan)
    values[lines, names.get_indexer(rows["pe"])] = rows[measured].where(np.isfinite(rows[measured]))
    return pd.DataFrame(values, pd.MultiIndex.from_frame(rows.loc[~lines.duplicated(), keys]), names)


def by_setting(table: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return each setting of a wide table with its part of the table, indexed by seed."""
    names = [name for name in table.index.names if name != "seed"]
    found = []
    for key, part in table.groupby(level=names if len(names) > 1 else names[0], sort=False, dropna=False):
        found.append((dict(zip(names, key if len(names) > 1 else (key,), strict=True)), part.droplevel(names)))
    return found


def differences(table: pd.DataFrame, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """Return a line per setting and pair of encodings, with the uncorrected test of its differences.

    Deviations are estimated from all encodings of a setting together, see `decisions.shared_variance`: each pair's
    deviation depends on which encodings the table has. Fewer than five encodings share nothing.

    Args:
        table: from `wide`.
        pairs: an encoding and the one that is subtracted from it (column "baseline").
    """
    columns = [(table.columns.get_loc(pe), table.columns.get_loc(other)) for pe, other in pairs]
    names = [*(name for name in table.index.names if name != "seed"), "pe", "baseline", "seeds"]
    lines, tests = [], []
    for setting, part in by_setting(table):
        values, samples = part.to_numpy(), []
        for (pe, other), (first, second) in zip(pairs, columns, strict=True):
            sample = values[:, first] - values[:, second]
            samples.append(sample[np.isfinite(sample)])
            lines.append(setting | {"pe": pe, "baseline": other, "seeds": len(samples[-1])})
        tests.append(_t_tests(samples, prior_of(values)))
    tested = pd.concat(tests, ignore_index=True) if tests else _t_tests([], NOTHING_KNOWN)
    return pd.concat([pd.DataFrame(lines, columns=names), tested], axis=1)


def pairing_in_words(lines: pd.DataFrame) -> str:
    """Say how the comparisons of some lines are made: over which runs, and whether they share variances."""
    shared = ", with variances from all encodings of a setting" if share_variances(lines) else ""
    return f"paired over shared seeds{shared}"


def share_variances(lines: pd.DataFrame) -> bool:
    """Return whether the variance of any line is estimated from more than its own differences."""
    return bool((lines["freedom"] > lines["seeds"] - 1).any())


def _t_tests(samples: list[np.ndarray], prior: Prior) -> pd.DataFrame:
    """Return mean, t interval, standard deviation, its degrees of freedom and p value of each sample.

    Only the mean for one seed.
    """
    sizes = np.array([len(sample) for sample in samples])
    found = pd.DataFrame(np.nan, range(len(samples)), ["difference", "low", "high", "deviation", "freedom", "p"])
    for size in np.unique(sizes[sizes > 0]):
        chosen = np.flatnonzero(sizes == size)
        stacked = np.stack([samples[number] for number in chosen])
        found.loc[chosen, "difference"] = stacked.mean(1)
        if size == 1:
            continue
        variance, freedom = prior.moderate(stacked.var(1, ddof=1), np.full(len(chosen), size - 1.0))
        found.loc[chosen, "deviation"] = np.sqrt(variance)
        found.loc[chosen, "freedom"] = freedom
        differ = stacked.any(1)  # equal to the bit: nothing to test
        found.loc[chosen[~differ], ["low", "high"]] = 0.0
        mean, error, freedom = stacked.mean(1)[differ], np.sqrt(variance[differ] / size), freedom[differ]
        with np.errstate(divide="ignore"):  # all differences are the same, and nothing is known beforehand
            p = 2 * stats.t.sf(np.abs(mean) / error, freedom)
        half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
        found.loc[chosen[differ], ["p", "low", "high"]] = np.stack([p, mean - half, mean + half], 1)
    return found


def deviations(rows: pd.DataFrame, metric: str = "loss") -> np.ndarray:
    """Return the differences from the first encoding, centred and scaled to deviation 1 within each setting."""
    parts = []
    for _, table in by_setting(wide(rows, metric)):
        for name in table.columns[1:]:
            difference = (table[name] - table[table.columns[0]]).dropna()
            if len(difference) > 2 and difference.std() > 0:
                scale = difference.std() * np.sqrt((len(difference) - 1) / len(difference))
                parts.append((difference - difference.mean()) / scale)
    return np.concatenate(parts) if parts else np.array([])
