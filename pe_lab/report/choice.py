"""Which encoding for which need, as far as the results tell, and how sure."""

from typing import Any

import pandas as pd

from pe_lab.results import columns, statistics
from pe_lab.results.columns import setting_columns
from pe_lab.results.statistics import GRID, REMAINING, Families, Pool

COLUMNS = ["need", "encoding", "value", "how sure", "seeds"]
NAMED = 5  # ties that are named; more are counted
POOLED = "pooled over settings"
MARGIN = 0.05  # of the way from the best possible to the level: what a cheaper encoding may be worse by


def families(rows: pd.DataFrame, records: pd.DataFrame, baseline: str | None = None, metric: str = "loss") -> Families:
    """All comparisons of a report: in every setting, pooled over settings, and at the longest length of each setting.

    Args:
        rows: from frame.load.
        records: likewise; may be empty.
        baseline: an encoding; None: the first.
        metric: of the test.

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
    """A line per need: the encoding with the best mean, and which others the seeds do not tell from it.

    Args:
        rows: from frame.load.
        records: likewise; may be empty.
        metric: of the test.
        compared: the families whose verdicts are told; None: those with the first encoding as the baseline.

    Returns:
        need, encoding, value (mean of the metric), how sure, seeds.
    """
    compared = compared or families(rows, records, None, metric)
    lines = []
    for setting, of in _by(compared.ranks(), setting_columns(rows)):
        lines += _best(of, f"test {metric}, {setting}")
    if POOLED in compared.tables:
        lines += _pooled(compared, statistics.pool(rows, metric), metric)
    for need in compared.tables:
        if need not in (GRID, POOLED):
            lines += _best(compared.ranks(need), need)
    return pd.DataFrame(lines, columns=COLUMNS)


def _by(rows: pd.DataFrame, names: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Settings in words, with their rows, in the order of the rows."""
    varied = [name for name in names if rows[name].nunique(dropna=False) > 1] or ["depth", "epochs"]
    found = []
    for key, of in rows.groupby(varied, sort=False, dropna=False):
        words = [f"{name.rpartition('.')[2]} {_plain(value)}" for name, value in zip(varied, key, strict=True)]
        found.append((", ".join(words), of))
    return found


def _best(ranked: pd.DataFrame, need: str) -> list[list[Any]]:
    """The line of one need; none where fewer than two encodings were tried."""
    if len(ranked) < 2:
        return []
    first = ranked.iloc[0]
    tied = list(ranked["pe"].iloc[1:][ranked["best"].iloc[1:] == 1])
    return [[need, first["pe"], first["mean"], _sure(first, tied, len(ranked)), int(ranked["seeds"].min())]]


def _sure(first: pd.Series, tied: list[str], count: int) -> str:
    if first["seeds"] < 2:
        return "not at all: one seed"
    if first["worst"] == 1:
        return f"better than each of the other {count - 1}"
    beaten = count - int(first["worst"])
    told = ", ".join(tied) if len(tied) <= NAMED else f"{', '.join(tied[:NAMED])} and {len(tied) - NAMED} more"
    return f"may also be {told or 'another'}; better than {beaten} of the other {count - 1}"


def _pooled(compared: Families, pool: Pool, metric: str) -> list[list[Any]]:
    """Over all settings: of all encodings, of those without parameters, and the cheapest of those that are as good."""
    need = f"test {metric}, all settings"
    if pool.metric == REMAINING:
        need += " (share of the way that remains)"
    ranked = compared.ranks(POOLED)
    lines = _best(ranked, need)
    free = set(pool.rows.loc[pool.rows["positional_parameters"] == 0, "pe"])
    if 1 < len(free) < len(ranked):
        lines += _best(compared.ranks(POOLED, free), f"{need}, no parameters of its own")
    return lines + _cheapest(ranked, pool, need)


def _cheapest(ranked: pd.DataFrame, pool: Pool, need: str) -> list[list[Any]]:
    """By FLOPs, then by parameters, the cheapest whose mean is worse than the best by the margin at most."""
    if not pool.gap > 0 or ranked["seeds"].min() < 2:
        return []
    most = MARGIN * pool.gap
    among = ranked.set_index("pe")["mean"]
    among = among[(among - among.iloc[0]).abs() <= most]
    paid = pool.rows[pool.rows["pe"].isin(among.index)].groupby("pe", sort=False)
    chosen = paid[["flops_per_token", "positional_parameters"]].max()
    chosen = chosen.sort_values(list(chosen), kind="stable").index[0]
    unit = "" if pool.metric == REMAINING else " nats" if "loss" in pool.metric else f" of {pool.metric}"
    within = f"within {most:.3g}{unit} of the best mean ({100 * MARGIN:g} % of the way from {pool.ends})"
    sure = f"fewest FLOPs, then parameters, of the {len(among)} {within}" if len(among) > 1 else f"no other is {within}"
    return [[f"{need}, cheapest", chosen, among[chosen], sure, int(ranked["seeds"].min())]]


def _longest(records: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """The rows of the longest length that was measured, by setting, and their metric: whole sequences where known."""
    if records.empty or not (records["kind"] == "length").any():
        return {}
    of = records[(records["kind"] == "length") & (records["policy"] == "raw") & (records["offset"] == 0)]
    names = [name for name in of.columns[: list(of.columns).index("kind")] if name not in ("pe", "seed")]
    found = {}
    for setting, here in _by(columns.sort_by_setting(of, names), names):
        metric = next((name for name in ("exact_match", "accuracy", "loss") if (here["metric"] == name).any()), None)
        length = here["length"].max()
        at = here[(here["metric"] == metric) & (here["length"] == length)]
        if length > 1 and at["pe"].nunique() > 1:
            rows = at[["pe", *names, "seed"]].assign(**{f"test_{metric}": at["value"]})
            found[f"{metric} at {length:g} × the training length, {setting}"] = (rows, str(metric))
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
