"""Comparisons of encodings: with a baseline, of every pair, and the ranks that follow."""

from itertools import combinations

import pandas as pd

from pe_lab.results.columns import lower_is_better
from pe_lab.results.statistics.correction import add_verdicts, holm
from pe_lab.results.statistics.paired import by_setting, differences, wide
from pe_lab.results.statistics.pooling import pool


def compare(
    rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss", pooled: bool = False
) -> pd.DataFrame:
    """Compare every encoding with a baseline, paired over shared seeds.

    Args:
        baseline: an encoding; None: the first of the rows.
        metric: a test metric.
        pooled: over all settings, see `pool`.

    Returns:
        A line per setting and encoding: setting columns (settings, their number, if pooled), pe, baseline; seeds
        (shared); difference, low, high (t interval), deviation (standard, of the differences); p (two-sided paired t
        test), p_holm (corrected over all lines that have a p); verdict: better, worse, not separable, equal (to the
        bit, in every seed; not part of the family), one seed, no shared seed. Its attribute "family" describes the
        comparisons in words, "comparisons" is their number.

    Raises:
        ValueError: there is no such encoding or metric.
    """
    baseline = require_baseline(rows, baseline)
    if pooled:
        together = pool(rows, metric)
        rows, metric = together.rows, together.metric
    table = wide(rows, metric)
    pairs = [(name, baseline) for name in table if name != baseline and baseline in table]
    lines = differences(table, pairs)
    lines = add_verdicts(lines, holm(lines["p"].to_numpy()), metric)
    others = max(0, len(table.columns) - 1)
    where = _settings_in_words(table)
    if pooled:
        where = f"pooled over {rows['settings'].max() if len(rows) else 0} settings"
    return _with_family(lines, f"{others} encodings with {baseline}, {where}")


def all_pairs(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Compare every pair of encodings in every setting, as one family; columns as in `compare`."""
    table = wide(rows, metric)
    lines = differences(table, list(combinations(table.columns, 2)))
    lines = add_verdicts(lines, holm(lines["p"].to_numpy()), metric)
    return _with_family(lines, f"every two of {len(table.columns)} encodings, {_settings_in_words(table)}")


def ranks(rows: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Return the range of ranks of each encoding: it ranks behind an encoding only if that one is better.

    Returns:
        A line per setting and encoding, best mean first: mean, seeds, best (1 + number of better encodings), worst
        (number of encodings minus number of worse ones), tied (number of encodings not separable from it).
    """
    return rank_ranges(wide(rows, metric), all_pairs(rows, metric), metric)


def rank_ranges(table: pd.DataFrame, lines: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the ranks of `ranks`.

    Args:
        table: from `wide`.
        lines: verdicts of every pair of the table's encodings, setting by setting.
    """
    sign = 1 if lower_is_better(metric) else -1
    size, found = table.shape[1] * (table.shape[1] - 1) // 2, []
    for number, (setting, part) in enumerate(by_setting(table)):
        means = (sign * part.mean()).sort_values(kind="stable").dropna()
        better: dict[str, set[str]] = {name: set() for name in means.index}  # those better than each encoding
        here = lines.iloc[number * size : (number + 1) * size]
        for pe, other, verdict in zip(here["pe"], here["baseline"], here["verdict"], strict=True):
            if verdict == "better":
                better[other].add(pe)
            elif verdict == "worse":
                better[pe].add(other)
        for name in means.index:
            best = 1 + len(better[name])
            worst = len(means) - sum(name in others for others in better.values())
            line = {"pe": name, "mean": sign * means[name], "seeds": int(part[name].notna().sum())}
            found.append(setting | line | {"best": best, "worst": worst, "tied": worst - best})
    names = [*(name for name in table.index.names if name != "seed"), "pe", "mean", "seeds", "best", "worst", "tied"]
    return pd.DataFrame(found, columns=names)


def require_baseline(rows: pd.DataFrame, name: str | None) -> str:
    """Return the baseline: the named encoding, or the first of the rows.

    Raises:
        ValueError: it is not among the rows.
    """
    names = list(rows["pe"].unique())
    if name and name not in names:
        raise ValueError(f"baseline must be one of {', '.join(names)}, got {name!r}")
    return name or names[0]


def _settings_in_words(table: pd.DataFrame) -> str:
    count = len(table.index.droplevel("seed").unique())
    return f"in {count} setting{'s' if count > 1 else ''}"


def _with_family(lines: pd.DataFrame, description: str) -> pd.DataFrame:
    """Set the attributes "comparisons" and "family"."""
    count = int(lines["p"].notna().sum())
    lines.attrs["comparisons"] = count
    lines.attrs["family"] = (
        f"{count} comparisons: {description}, paired over shared seeds; Holm's correction over all of them"
    )
    return lines
