"""Choose an encoding for each need, with the certainty that the results allow."""

from typing import Any

import pandas as pd

from pe_lab.results import statistics
from pe_lab.results.columns import REMAINING, setting_columns, sort_by_setting
from pe_lab.results.statistics import GRID, Families, Pool

COLUMNS = ["need", "encoding", "value", "how sure", "seeds"]
MOST_NAMED = 5  # ties that are named; further ones are counted
POOLED = "pooled over settings"
MARGIN = 0.05  # how much worse a cheaper encoding may be, as a share of the gap from best possible to level


def families(rows: pd.DataFrame, records: pd.DataFrame, baseline: str | None = None, metric: str = "loss") -> Families:
    """Make all comparisons of a report: in every setting, pooled over settings, and at each setting's longest length.

    Args:
        rows: the cells, from frame.load.
        records: likewise; may be empty.
        baseline: an encoding; None: the first.
        metric: a test metric.

    Raises:
        ValueError: there is no such encoding or metric.
    """
    tables = {GRID: (rows, metric)}
    pool = statistics.pool(rows, metric)
    if len(rows[setting_columns(rows)].drop_duplicates()) > 1 and pool.rows["pe"].nunique() > 1:
        tables[POOLED] = (pool.rows, pool.metric)
    return Families.of(tables | _longest(records), baseline)


def choices(
    rows: pd.DataFrame, records: pd.DataFrame, metric: str = "loss", compared: Families | None = None
) -> pd.DataFrame:
    """Return a line per need: the encoding with the best mean, and which others the seeds do not separate from it.

    Args:
        rows: the cells, from frame.load.
        records: likewise; may be empty.
        metric: a test metric.
        compared: the comparisons to use; None: those with the first encoding as the baseline.

    Returns:
        need, encoding, value (mean of the metric), how sure, seeds.
    """
    compared = compared or families(rows, records, None, metric)
    lines = []
    for setting, ranked in _by_setting(compared.ranks(), setting_columns(rows)):
        lines += _best(ranked, f"test {metric}, {setting}")
    if POOLED in compared.tables:
        lines += _pooled(compared, statistics.pool(rows, metric), metric)
    for need in compared.tables:
        if need not in (GRID, POOLED):
            lines += _best(compared.ranks(need), need)
    return pd.DataFrame(lines, columns=COLUMNS)


def _by_setting(rows: pd.DataFrame, names: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return each setting in words with its rows, in the order of the rows."""
    varied = [name for name in names if rows[name].nunique(dropna=False) > 1] or ["depth", "epochs"]
    found = []
    for key, group in rows.groupby(varied, sort=False, dropna=False):
        words = [f"{name.rpartition('.')[2]} {_plain(value)}" for name, value in zip(varied, key, strict=True)]
        found.append((", ".join(words), group))
    return found


def _best(ranked: pd.DataFrame, need: str) -> list[list[Any]]:
    """Return the line of one need; none with fewer than two encodings."""
    if len(ranked) < 2:
        return []
    first = ranked.iloc[0]
    tied = list(ranked["pe"].iloc[1:][ranked["best"].iloc[1:] == 1])
    return [[need, first["pe"], first["mean"], _certainty(first, tied, len(ranked)), int(ranked["seeds"].min())]]


def _certainty(first: pd.Series, tied: list[str], count: int) -> str:
    """Say how sure it is that the first of `count` encodings is the best."""
    if first["seeds"] < 2:
        return "not at all: one seed"
    if first["worst"] == 1:
        return f"better than each of the other {count - 1}"
    beaten = count - int(first["worst"])
    names = ", ".join(tied[:MOST_NAMED])
    if len(tied) > MOST_NAMED:
        names += f" and {len(tied) - MOST_NAMED} more"
    return f"may also be {names or 'another'}; better than {beaten} of the other {count - 1}"


def _pooled(compared: Families, pool: Pool, metric: str) -> list[list[Any]]:
    """Return the lines over all settings: of all encodings, of those without parameters, and the cheapest good one."""
    need = f"test {metric}, all settings"
    if pool.metric == REMAINING:
        need += " (share of the gap that remains)"
    ranked = compared.ranks(POOLED)
    lines = _best(ranked, need)
    free = set(pool.rows.loc[pool.rows["positional_parameters"] == 0, "pe"])
    if 1 < len(free) < len(ranked):
        lines += _best(compared.ranks(POOLED, free), f"{need}, no parameters of its own")
    return lines + _cheapest(ranked, pool, need)


def _cheapest(ranked: pd.DataFrame, pool: Pool, need: str) -> list[list[Any]]:
    """Return the cheapest encoding, by FLOPs, then parameters, whose mean is within the margin of the best one."""
    if not pool.gap > 0 or ranked["seeds"].min() < 2:
        return []
    most = MARGIN * pool.gap
    among = ranked.set_index("pe")["mean"]
    among = among[(among - among.iloc[0]).abs() <= most]
    costs = pool.rows[pool.rows["pe"].isin(among.index)].groupby("pe", sort=False)
    costs = costs[["flops_per_token", "positional_parameters"]].max()
    chosen = costs.sort_values(list(costs), kind="stable").index[0]
    unit = "" if pool.metric == REMAINING else " nats" if "loss" in pool.metric else f" of {pool.metric}"
    within = f"within {most:.3g}{unit} of the best mean ({100 * MARGIN:g} % of the gap from {pool.ends})"
    sure = f"fewest FLOPs, then parameters, of the {len(among)} {within}" if len(among) > 1 else f"no other is {within}"
    return [[f"{need}, cheapest", chosen, among[chosen], sure, int(ranked["seeds"].min())]]


def _longest(records: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """Return the rows at the longest measured length of each setting, with their metric: exact match where known."""
    if records.empty or not (records["kind"] == "length").any():
        return {}
    measured = records[(records["kind"] == "length") & (records["policy"] == "raw") & (records["offset"] == 0)]
    names = [name for name in measured.columns[: list(measured.columns).index("kind")] if name not in ("pe", "seed")]
    found = {}
    for setting, here in _by_setting(sort_by_setting(measured, names), names):
        metric = next((name for name in ("exact_match", "accuracy", "loss") if (here["metric"] == name).any()), None)
        length = here["length"].max()
        last = here[(here["metric"] == metric) & (here["length"] == length)]
        if length > 1 and last["pe"].nunique() > 1:
            rows = last[["pe", *names, "seed"]].assign(**{f"test_{metric}": last["value"]})
            found[f"{metric} at {length:g} × the training length, {setting}"] = (rows, str(metric))
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
