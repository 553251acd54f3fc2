"""Comparisons of encodings: with a baseline, of every pair, and the ranks that follow."""

from itertools import combinations

import pandas as pd

from pe_lab.results.columns import lower_is_better
from pe_lab.results.statistics.correction import ALIKE, BETTER, WORSE, add_verdicts
from pe_lab.results.statistics.equivalence import add_equivalence
from pe_lab.results.statistics.margin import Margin
from pe_lab.results.statistics.paired import by_setting, differences, pairing_in_words, wide
from pe_lab.results.statistics.pooling import pool


def compare(
    rows: pd.DataFrame,
    baseline: str | None = None,
    metric: str = "loss",
    pooled: bool = False,
    margin: Margin | None = None,
) -> pd.DataFrame:
    """Compare every encoding with a baseline, paired over shared seeds.

    Args:
        baseline: an encoding; None: the first of the rows.
        metric: a test metric.
        pooled: over all settings, see `pool`.
        margin: the smallest difference that matters, in gap if pooled over several tasks; None: the default of each
            task, see `default_margin`.

    Returns:
        A line per setting and encoding: setting columns (settings, their number, if pooled), pe, baseline; seeds
        (shared); difference, low, high (t interval), deviation (standard, of the differences), freedom (its degrees
        of freedom, see `differences`); p (two-sided paired t test); margin (in the unit of the metric); p_equivalent
        (two one-sided tests against it); p_holm, p_equivalent_holm (each corrected over all lines that have it);
        verdict, see `add_verdicts`: lines that are equal have no p and are not part of the family. Its attribute
        "family" describes the comparisons in words, "comparisons" is their number, "margin" the margin in words.

    Raises:
        ValueError: there is no such encoding or metric, or the margin does not fit the metric or a setting.
    """
    baseline = require_baseline(rows, baseline)
    if pooled:
        together = pool(rows, metric)
        rows, metric = together.rows, together.metric
    table = wide(rows, metric)
    pairs = [(name, baseline) for name in table if name != baseline and baseline in table]
    lines = add_verdicts(add_equivalence(differences(table, pairs), rows, metric, margin), metric)
    others = max(0, len(table.columns) - 1)
    where = _settings_in_words(table)
    if pooled:
        where = f"pooled over {rows['settings'].max() if len(rows) else 0} settings"
    return _with_family(lines, f"{others} encodings with {baseline}, {where}")


def all_pairs(rows: pd.DataFrame, metric: str = "loss", margin: Margin | None = None) -> pd.DataFrame:
    """Compare every pair of encodings in every setting, as one family; arguments and columns as in `compare`."""
    table = wide(rows, metric)
    lines = differences(table, list(combinations(table.columns, 2)))
    lines = add_verdicts(add_equivalence(lines, rows, metric, margin), metric)
    return _with_family(lines, f"every two of {len(table.columns)} encodings, {_settings_in_words(table)}")


def ranks(rows: pd.DataFrame, metric: str = "loss", margin: Margin | None = None) -> pd.DataFrame:
    """Return the range of ranks of each encoding: it ranks behind an encoding only if that one is better.

    One that is better within the margin is not better by enough to rank before.

    Returns:
        A line per setting and encoding, best mean first: mean, seeds, best (1 + number of better encodings), worst
        (number of encodings minus number of worse ones), tied (number of encodings that are neither), equivalent
        (number of those that are tied because the difference is certainly smaller than the margin; the others are
        undecided).
    """
    return rank_ranges(wide(rows, metric), all_pairs(rows, metric, margin), metric)


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
        alike = dict.fromkeys(means.index, 0)  # numbers of equivalent encodings
        here = lines.iloc[number * size : (number + 1) * size]
        for pe, other, verdict in zip(here["pe"], here["baseline"], here["verdict"], strict=True):
            if verdict == BETTER:
                better[other].add(pe)
            elif verdict == WORSE:
                better[pe].add(other)
            elif verdict in ALIKE:
                alike[pe] += 1
                alike[other] += 1
        for name in means.index:
            best = 1 + len(better[name])
            worst = len(means) - sum(name in others for others in better.values())
            line = {"pe": name, "mean": sign * means[name], "seeds": int(part[name].notna().sum())}
            line |= {"best": best, "worst": worst, "tied": worst - best, "equivalent": alike[name]}
            found.append(setting | line)
    settings = [name for name in table.index.names if name != "seed"]
    return pd.DataFrame(found, columns=[*settings, "pe", "mean", "seeds", "best", "worst", "tied", "equivalent"])


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
        f"{count} comparisons: {description}, {pairing_in_words(lines)}; Holm's correction over all of them, for "
        f"differences and for equivalence within {lines.attrs['margin']}"
    )
    return lines
