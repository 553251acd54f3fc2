"""Comparisons of encodings: with a baseline, of every pair, and the ranks that follow."""

from itertools import combinations

import pandas as pd

from pe_lab.results.columns import lower_is_better
from pe_lab.results.statistics.correction import ALIKE, BETTER, WORSE, add_verdicts, reverse
from pe_lab.results.statistics.equivalence import add_equivalence
from pe_lab.results.statistics.margin import Margin
from pe_lab.results.statistics.paired import by_setting, differences, pairing_in_words, wide
from pe_lab.results.statistics.pooling import pool
from pe_lab.system.names import unknown_name


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


def rank_ranges(table: pd.DataFrame, lines: pd.DataFrame, metric: str, own: bool = False) -> pd.DataFrame:
    """Return the ranks of `ranks`.

    Args:
        table: from `wide`.
        lines: comparisons of every pair of the table's encodings, setting by setting.
        own: whether verdicts are those of `own_family`; otherwise those of the lines.
    """
    sign = 1 if lower_is_better(metric) else -1
    size, found = table.shape[1] * (table.shape[1] - 1) // 2, []
    for number, (setting, part) in enumerate(by_setting(table)):
        means = (sign * part.mean()).sort_values(kind="stable").dropna()
        here = lines.iloc[number * size : (number + 1) * size]
        for name in means.index:
            verdicts = verdicts_on(name, here, metric, own)
            best, worst = 1 + (verdicts == WORSE).sum(), len(means) - (verdicts == BETTER).sum()
            line = {"pe": name, "mean": sign * means[name], "seeds": int(part[name].notna().sum())}
            line |= {"best": best, "worst": worst, "tied": worst - best, "equivalent": verdicts.isin(ALIKE).sum()}
            found.append(setting | line)
    settings = [name for name in table.index.names if name != "seed"]
    return pd.DataFrame(found, columns=[*settings, "pe", "mean", "seeds", "best", "worst", "tied", "equivalent"])


def verdicts_on(pe: str, lines: pd.DataFrame, metric: str, own: bool = False) -> pd.Series:
    """Return the verdicts on an encoding against each other one, in one setting.

    Args:
        lines: comparisons of every pair.
        own: whether its comparisons are corrected as a family of their own, see `own_family`.
    """
    if own:
        return own_family(pe, lines, metric)["verdict"]
    first, second = lines["pe"] == pe, lines["baseline"] == pe
    return pd.concat([lines.loc[first, "verdict"], lines.loc[second, "verdict"].map(reverse)])


def own_family(pe: str, lines: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the comparisons of an encoding with all others, corrected by Holm's method as a family of their own.

    The range of ranks that follows contains the true rank of this encoding with 95 % confidence: it is a marginal
    confidence set, as the interval of a mean is (Mogstad, Romano, Shaikh and Wilhelm 2024, doi:10.1093/restud/rdad006).
    With the same confidence the true best is among the encodings that no other is better than.

    Args:
        lines: comparisons of every pair, in one setting.

    Returns:
        Lines as of `add_verdicts`, with the encoding as pe and each other one as baseline.
    """
    turned = lines["baseline"] == pe
    found = lines[turned | (lines["pe"] == pe)].copy()
    turned = turned[found.index]
    found.loc[turned, "baseline"], found["pe"] = found.loc[turned, "pe"], pe
    found.loc[turned, "difference"] *= -1
    found.loc[turned, ["low", "high"]] = -found.loc[turned, ["high", "low"]].to_numpy()
    return add_verdicts(found, metric)


def require_baseline(rows: pd.DataFrame, name: str | None) -> str:
    """Return the baseline: the named encoding, or the first of the rows.

    Raises:
        ValueError: it is not among the rows.
    """
    names = list(rows["pe"].unique())
    if name and name not in names:
        raise ValueError(unknown_name("baseline", names, name))
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
