"""Choose an encoding for each need, with the certainty that the results allow."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pe_lab.results import pooling
from pe_lab.results.columns import REMAINING_METRIC, setting_columns
from pe_lab.results.learned import filter_learned_cells, has_learned, over_seeds, position_use
from pe_lab.results.study_comparisons import POOLED, by_setting_in_words, families, longest, none_right
from pe_lab.statistics import EQUIVALENT_VERDICTS, GRID_TABLE, Families
from pe_lab.statistics.verdicts import Verdict

COLUMNS = ["need", "encoding", "value", "how sure", "seeds"]
BLIND, GUESS = "the best without position", "a guess"  # with which cells are compared, see learned.has_learned
RELATIONS = {  # of the first to those that it ties with: the words, and the verdicts on it
    "slightly better than": (Verdict.SLIGHTLY_BETTER,),
    "slightly worse than": (Verdict.SLIGHTLY_WORSE,),
    "equivalent to": EQUIVALENT_VERDICTS,
    "not compared with": (Verdict.NOT_ASKED,),
}
NOBODY = "–"  # in place of an encoding; one of them is named none


def choices(
    rows: pd.DataFrame, records: pd.DataFrame, metric: str = "loss", compared: Families | None = None
) -> pd.DataFrame:
    """Return a line per need: the encoding with the best mean, which others are equivalent, and which are undecided.

    Settings in which no model has learned the task are left out where there are others.

    Args:
        rows: the cells, from frame.load.
        records: the records of lengths and probes, from frame.load; may be empty.
        metric: a test metric.
        compared: the comparisons to use; None: those with the first encoding as the baseline.

    Returns:
        need, encoding (NOBODY: none has learned it), value (mean of the metric), how sure, seeds.
    """
    compared = compared or families(rows, records, None, metric)
    lines, names, far_off = [], setting_columns(rows), longest(records, rows)
    rows = filter_learned_cells(rows)
    means = over_seeds(rows, names)
    judged = rows[names].assign(learned=has_learned(means), by_position=position_use(means).notna())
    parts = dict(by_setting_in_words(judged, names))
    unlearned = _not_learned(judged)
    for setting, ranked in by_setting_in_words(compared.ranks(), names):
        best = _best(ranked, f"test {metric}, {setting}", compared, GRID_TABLE, names)
        why = _not_learned(parts[setting])
        if not why:
            lines += best
        elif unlearned:  # in every setting; otherwise those that were learned are listed alone
            lines += _without_encoding(best, why)
    pools = POOLED in compared.tables
    if pools and compared.tables[POOLED][1] == "test_loss" and "data" in rows:
        pools = rows["data"].nunique() == 1  # nats of several tasks have no scale in common
    if pools and unlearned:
        best = _best(compared.ranks(POOLED), f"test {metric}, all settings", compared, POOLED)
        lines += _without_encoding(best, unlearned)
    elif pools:
        lines += _pooled_lines(compared, pooling.pool(rows, metric), metric)
    for need in compared.tables:
        if need not in (GRID_TABLE, POOLED):
            lines += _best(compared.ranks(need), need, compared, need)
    for need, far in far_off.items():
        if not far.answered:
            seeds = far.rows.groupby("pe")["seed"].nunique().min()
            highest = far.rows.groupby("pe")[f"test_{far.metric}"].mean().max()
            lines.append([need, NOBODY, highest, none_right(far.metric), seeds])
    return pd.DataFrame(lines, columns=COLUMNS)


def _not_learned(judged: pd.DataFrame) -> str:
    """Say with what cells were compared if none has learned; empty if one has, or if that is unknown of all.

    Args:
        judged: a table with the columns learned (1, 0 or NaN) and by_position (whether it was judged by the best loss
            without position).
    """
    with_level = judged[judged["learned"].notna()]
    if with_level.empty or with_level["learned"].max() == 1:
        return ""
    levels = [level for level, there in ((BLIND, True), (GUESS, False)) if (with_level["by_position"] == there).any()]
    return f"not learned: no encoding is better than {' or, in other settings, than '.join(levels)}"


def _best(
    ranked: pd.DataFrame, need: str, compared: Families, name: str, settings: Sequence[str] = ()
) -> list[list[Any]]:
    """Return the line of one need; none with fewer than two encodings.

    Args:
        ranked: the ranks in one setting.
        name: the table that they are from.
        settings: the columns that make a setting, for a table that has several.
    """
    if len(ranked) < 2:
        return []
    first = ranked.iloc[0]
    tied = list(ranked["pe"].iloc[1:][ranked["best"].iloc[1:] == 1])
    verdicts = compared.verdicts(first["pe"], name, **{column: first[column] for column in settings})
    sure = _certainty(first, tied, verdicts, len(ranked))
    return [[need, first["pe"], first["mean"], sure, int(ranked["seeds"].min())]]


def _without_encoding(lines: list[list[Any]], why: str) -> list[list[Any]]:
    """Return lines of needs that no encoding answers."""
    return [[need, NOBODY, value, why, seeds] for need, _, value, _, seeds in lines]


def _certainty(first: pd.Series, tied: list[str], verdicts: dict[str, str], count: int) -> str:
    """Say how sure it is that the first of `count` encodings is the best.

    Args:
        tied: the other encodings than which none is better.
        verdicts: the verdict on the first, compared with each of the others.
    """
    if first["seeds"] < 2:
        return "not at all: one seed"
    if first["worst"] == 1:
        return f"better than each of the other {count - 1}" if count > 2 else "better than the other"
    beaten = count - int(first["worst"])
    words, undecided = [f"better than {beaten} of the other {count - 1}"] * (beaten > 0), list(tied)
    for relation, of_relation in RELATIONS.items():
        names = [pe for pe in tied if verdicts.get(pe) in of_relation]
        words += [f"{relation} {', '.join(names)}"] if names else []
        undecided = [pe for pe in undecided if pe not in names]
    if undecided or not words:
        words.append(f"not separable from {', '.join(undecided) or 'another'}")
    return "; ".join(words)


def _pooled_lines(compared: Families, pool: pooling.Pool, metric: str) -> list[list[Any]]:
    """Return the lines over all settings: of all encodings, of those without parameters, and the cheapest good one."""
    need = f"test {metric}, all settings"
    if pool.metric == REMAINING_METRIC:
        need += " (share of the gap that remains)"
    ranked = compared.ranks(POOLED)
    lines = _best(ranked, need, compared, POOLED)
    free = set(pool.rows.loc[pool.rows["positional_parameters"] == 0, "pe"])
    if 1 < len(free) < len(ranked):
        lines += _best(compared.ranks(POOLED, free), f"{need}, no parameters of its own", compared, POOLED)
    return lines + _cheapest(compared, ranked, pool, need)


def _cheapest(compared: Families, ranked: pd.DataFrame, pool: pooling.Pool, need: str) -> list[list[Any]]:
    """Return the cheapest encoding, by FLOPs, then parameters, whose mean is within the margin of the best one."""
    margin = compared.lines[POOLED]["margin"].iloc[0]
    if not margin > 0 or ranked["seeds"].min() < 2:
        return []
    means, best = ranked.set_index("pe")["mean"], ranked["pe"].iloc[0]
    among = means[(means - means.iloc[0]).abs() <= margin]
    costs = pool.rows[pool.rows["pe"].isin(among.index)].groupby("pe", sort=False)
    costs = costs[["flops_per_token", "positional_parameters"]].max()
    chosen = costs.sort_values(list(costs), kind="stable").index[0]
    unit = (
        " of the gap" if pool.metric == REMAINING_METRIC else " nats" if "loss" in pool.metric else f" of {pool.metric}"
    )
    within = f"within the margin of {margin:.3g}{unit} of the best mean"
    sure = f"fewest FLOPs, then parameters, of the {len(among)} {within}" if len(among) > 1 else f"no other is {within}"
    if chosen != best:
        equivalent = compared.verdicts(best, POOLED).get(chosen) in EQUIVALENT_VERDICTS
        sure += f"; {'' if equivalent else 'not shown to be '}equivalent to {best}"
    return [[f"{need}, cheapest", chosen, among[chosen], sure, int(ranked["seeds"].min())]]
