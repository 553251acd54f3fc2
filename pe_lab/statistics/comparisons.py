"""Comparisons of encodings in tables of cells: paired differences, their tests, and the verdicts that follow."""

import numpy as np
import pandas as pd

from pe_lab.statistics.cells import (
    keys_of,
    lower_is_better,
    require_baseline,
    setting_columns,
    split_by_setting,
    wide_table,
)
from pe_lab.statistics.correction import holm
from pe_lab.statistics.margins import Margin, margins
from pe_lab.statistics.pairs import Tests, t_tests
from pe_lab.statistics.verdicts import Verdict, verdicts_on

COLUMNS = ("seeds", "difference", "low", "high", "deviation", "freedom", "p", "margin", "p_equivalent")


def paired_differences(
    rows: pd.DataFrame, pairs: list[tuple[str, str]], metric: str = "loss", margin: Margin | None = None
) -> pd.DataFrame:
    """Return uncorrected tests of paired differences: a line per setting and pair of encodings.

    Variances are moderated by those of all pairs of a setting, see `moderation`: each pair's deviation depends on which
    encodings the rows have. Fewer than five encodings share nothing.

    Args:
        rows: a line per cell.
        pairs: an encoding and the one that is subtracted from it (column "baseline").
        metric: a test metric.
        margin: the smallest difference that matters; None: the default of each task, see `default_margin`.

    Returns:
        Setting columns, pe, baseline, and COLUMNS: numbers of shared seeds, mean, t interval, standard deviation and
        its degrees of freedom, p (two-sided), margin (in the unit of the metric), p_equivalent (two one-sided tests
        against it). p values are NaN where differences are equal to the bit, fewer than two seeds are shared, or there
        is no margin. The attribute "margin" is the margin in words.

    Raises:
        ValueError: there is no such metric, a cell occurs twice, or the margin does not fit the metric or a setting.
    """
    table, names = wide_table(rows, metric), setting_columns(rows)
    sizes = margins(rows, metric, margin)
    by_key = dict(zip(keys_of(sizes, names), sizes["margin"], strict=True))
    columns = np.array([table.columns.get_indexer(side) for side in zip(*pairs, strict=True)] or [[], []], int)
    lines, parts = [], []
    for setting, part in split_by_setting(table):
        size = float(by_key[tuple(None if pd.isna(value) else value for value in setting.values())])
        lines += [setting | {"pe": pe, "baseline": other} for pe, other in pairs]
        parts.append(_test_pairs(part.to_numpy(), (columns[0], columns[1]), size))
    tested = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS, dtype=float)
    tested = pd.concat([pd.DataFrame(lines, columns=[*names, "pe", "baseline"]), tested], axis=1)
    tested.attrs["margin"] = sizes.attrs["margin"]
    return tested


def _test_pairs(y: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], margin: float) -> pd.DataFrame:
    """Return COLUMNS of the pairs of one setting: y [seeds, encodings]."""
    tests: Tests = t_tests(y, pairs, margin, keep_small=True)
    table = pd.DataFrame({name: margin if name == "margin" else getattr(tests, name) for name in COLUMNS})
    equal = (np.nan_to_num(y[:, pairs[0]] - y[:, pairs[1]]) == 0).all(0) & (tests.seeds > 1)
    table.loc[equal, ["p", "p_equivalent"]] = np.nan  # to the bit: nothing to test
    table.loc[equal, ["low", "high"]] = 0.0
    return table


def add_verdicts(
    lines: pd.DataFrame, metric: str, different: np.ndarray | None = None, equivalent: np.ndarray | None = None
) -> pd.DataFrame:
    """Add the columns p_corrected, p_equivalent_corrected and verdict to lines of differences.

    Args:
        lines: the table of `paired_differences`.
        metric: the metric of the differences, which decides whether lower is better.
        different: p values of the differences after correction, one per line; None: these lines are the family.
        equivalent: the p values of equivalence after correction, one per line; None: as for `different`.

    Returns:
        The lines, with one of these verdicts: better, worse (the difference is significant); slightly better, slightly
        worse (likewise, with a mean difference below the margin); equivalent (not significant, and significantly
        smaller than the margin); undecided (neither); equal (the same bits in every seed), one seed, no shared seed.
    """
    different = holm(lines["p"].to_numpy(float)) if different is None else different
    equivalent = holm(lines["p_equivalent"].to_numpy(float)) if equivalent is None else equivalent
    difference, seeds = lines["difference"].to_numpy(float), lines["seeds"].to_numpy()
    verdict = verdicts_on(difference, different, equivalent, lines["margin"].to_numpy(float), lower_is_better(metric))
    untested = {
        Verdict.NO_SEED: seeds == 0,
        Verdict.ONE_SEED: seeds == 1,
        Verdict.EQUAL: lines["p"].isna().to_numpy() & (difference == 0),
    }
    verdict = np.select(list(untested.values()), [str(word) for word in untested], verdict)
    return lines.assign(p_corrected=different, p_equivalent_corrected=equivalent, verdict=verdict)


def compare_cells(
    rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss", margin: Margin | None = None
) -> pd.DataFrame:
    """Compare every encoding with a baseline, paired over shared seeds; all lines are one family.

    Args:
        baseline: an encoding; None: the first of the rows.
        metric, margin: see `paired_differences`.

    Returns:
        A line per setting and encoding: the columns of `paired_differences` and of `add_verdicts`. Equal lines have
        no p and are not part of the family. The attribute "family" describes the comparisons in words, "comparisons"
        is their number, "margin" the margin in words.

    Raises:
        ValueError: there is no such encoding or metric, or the margin does not fit the metric or a setting.
    """
    baseline = require_baseline(rows, baseline)
    names = list(rows["pe"].unique())
    pairs = [(name, baseline) for name in names if name != baseline]
    lines = add_verdicts(paired_differences(rows, pairs, metric, margin), metric)
    settings = len(rows[setting_columns(rows)].drop_duplicates())
    count = int(lines["p"].notna().sum())
    lines.attrs["comparisons"] = count
    lines.attrs["family"] = (
        f"{count_in_words(count, 'comparison')}: {count_in_words(len(pairs), 'encoding')} with {baseline}, in "
        f"{count_in_words(settings, 'setting')}, "
        f"{pairing_in_words(lines)}; Holm's correction over all of them, for differences and for equivalence within "
        f"{lines.attrs['margin']}"
    )
    return lines


def exchange_pairs(lines: pd.DataFrame) -> pd.DataFrame:
    """Return comparisons with the two encodings of each exchanged."""
    names = {"pe": "baseline", "low": "high", "solved": "baseline_solved"}
    lines = lines.rename(columns=names | {new: old for old, new in names.items()})[list(lines)]
    signed = {name: -lines[name] for name in ("difference", "low", "high")}
    return lines.assign(**signed, verdict=[str(Verdict(word).reverse) for word in lines["verdict"]])


def comparisons_with(name: str, lines: pd.DataFrame, side: str = "pe") -> pd.DataFrame:
    """Return the comparisons of an encoding with all others, in which it is on one side: `pe` or `baseline`."""
    of_name = lines[(lines["pe"] == name) | (lines["baseline"] == name)]
    return of_name.mask(of_name[side] != name, exchange_pairs(of_name))


def verdicts_by_encoding(lines: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the verdicts on each encoding of one setting, by the name of the other encoding."""
    verdicts: dict[str, dict[str, str]] = {}
    for pe, baseline, verdict in zip(lines["pe"], lines["baseline"], lines["verdict"], strict=True):
        verdicts.setdefault(pe, {})[baseline] = verdict
        verdicts.setdefault(baseline, {})[pe] = str(Verdict(verdict).reverse)
    return verdicts


def pairing_in_words(lines: pd.DataFrame) -> str:
    """Describe how lines are compared: over which runs, and whether with shared variances."""
    shared = ", with variances from all encodings of a setting" if share_variances(lines) else ""
    return f"paired over shared seeds{shared}"


def count_in_words(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural."""
    return f"{number} {noun}{'s' * (number != 1)}"


def share_variances(lines: pd.DataFrame) -> bool:
    """Return whether any variance is estimated from other encodings too."""
    return bool((lines["freedom"] > lines["seeds"] - 1).any())
