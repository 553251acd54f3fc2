"""Which encoding for which need, as far as the results tell, and how sure."""

from typing import Any

import pandas as pd

from pe_lab.results.statistics import ranks, wide
from pe_lab.results.table import place

COLUMNS = ["need", "encoding", "value", "how sure", "seeds"]
NAMED = 5  # ties that are named; more are counted


def choices(rows: pd.DataFrame, records: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """A line per need: the encoding with the best mean, and which others the seeds do not tell from it.

    Ties are the encodings that are not better and not worse by a paired t test over shared seeds, Holm-corrected over
    all pairs of the setting.

    Args:
        rows: from frame.load.
        records: likewise; may be empty.
        metric: of the test.

    Returns:
        need, encoding, value (mean of the metric), how sure, seeds.
    """
    lines = []
    for setting, of in _by(rows, place(rows)):
        lines += _best(of, metric, f"test {metric}, {setting}")
    pooled = _pooled(rows, metric)
    if pooled is not None:
        lines += _best(pooled, metric, f"test {metric}, all settings")
        free = pooled[pooled["positional_parameters"] == 0]
        if 1 < free["pe"].nunique() < pooled["pe"].nunique():
            lines += _best(free, metric, f"test {metric}, all settings, no parameters of its own")
        lines += _cheapest(pooled, metric)
    for need, which, of in _longest(records):
        lines += _best(of, which, need)
    return pd.DataFrame(lines, columns=COLUMNS)


def _by(rows: pd.DataFrame, names: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Settings in words, with their rows."""
    varied = [name for name in names if rows[name].nunique(dropna=False) > 1] or ["depth", "epochs"]
    found = []
    for key, of in rows.sort_values(varied, kind="stable").groupby(varied, sort=False, dropna=False):
        words = [f"{name.rpartition('.')[2]} {_plain(value)}" for name, value in zip(varied, key, strict=True)]
        found.append((", ".join(words), of))
    return found


def _best(rows: pd.DataFrame, metric: str, need: str) -> list[list[Any]]:
    """The line of one need; none where fewer than two encodings were tried."""
    if rows["pe"].nunique() < 2:
        return []
    ranked = ranks(rows, metric)
    if ranked.empty:
        return []
    first = ranked.iloc[0]
    tied = list(ranked["pe"].iloc[1:][ranked["best"].iloc[1:] == 1])
    seeds = wide(rows, metric).notna().sum()
    return [
        [need, first["pe"], first["mean"], _sure(first, tied, len(ranked), int(seeds[first["pe"]])), int(seeds.min())]
    ]


def _sure(first: pd.Series, tied: list[str], count: int, seeds: int) -> str:
    if seeds < 2:
        return "not at all: one seed"
    if first["worst"] == 1:
        return f"better than each of the other {count - 1}"
    beaten = count - int(first["worst"])
    told = ", ".join(tied) if len(tied) <= NAMED else f"{', '.join(tied[:NAMED])} and {len(tied) - NAMED} more"
    return f"may also be {told or 'another'}; better than {beaten} of the other {count - 1}"


def _pooled(rows: pd.DataFrame, metric: str) -> pd.DataFrame | None:
    """A row per encoding and seed: the mean over all settings, where there are several and a seed has them all."""
    names = place(rows)
    count = len(rows[names].drop_duplicates())
    if count < 2:
        return None
    means = rows.groupby(["pe", "seed"], sort=False).agg(
        cells=("road", "size"),
        value=(f"test_{metric}", "mean"),
        positional_parameters=("positional_parameters", "max"),
        flops_per_token=("flops_per_token", "sum"),
    )
    whole = means[means["cells"] == count].reset_index()
    if whole["pe"].nunique() < 2:
        return None
    return whole.assign(depth="all", epochs="all").rename(columns={"value": f"test_{metric}"})[
        ["pe", "depth", "epochs", "seed", f"test_{metric}", "positional_parameters", "flops_per_token"]
    ]


def _cheapest(pooled: pd.DataFrame, metric: str) -> list[list[Any]]:
    """The cheapest of those that the seeds do not tell from the best: by FLOPs, then by parameters."""
    ranked = ranks(pooled, metric)
    among = ranked[ranked["best"] == 1]["pe"]
    if len(among) < 2 or pooled["seed"].nunique() < 2:
        return []
    paid = (
        pooled[pooled["pe"].isin(among)].groupby("pe", sort=False)[["flops_per_token", "positional_parameters"]].max()
    )
    chosen = paid.sort_values(list(paid), kind="stable").index[0]
    mean = ranked.set_index("pe").loc[chosen, "mean"]
    sure = f"fewest FLOPs, then parameters, of the {len(among)} that are not told from the best"
    return [[f"test {metric}, all settings, cheapest", chosen, mean, sure, int(pooled["seed"].nunique())]]


def _longest(records: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """The longest length that was measured, by setting: the need, the metric, rows. Whole sequences where known."""
    if records.empty or not (records["kind"] == "length").any():
        return []
    of = records[(records["kind"] == "length") & (records["policy"] == "raw") & (records["offset"] == 0)]
    names = [name for name in of.columns[: list(of.columns).index("kind")] if name not in ("pe", "seed")]
    found = []
    for setting, here in _by(of, names):
        metric = next(name for name in ("exact_match", "accuracy", "loss") if (here["metric"] == name).any())
        length = here["length"].max()
        at = here[(here["metric"] == metric) & (here["length"] == length)]
        if length > 1:
            rows = at[["pe", *names, "seed"]].assign(**{f"test_{metric}": at["value"]})
            found.append((f"{metric} at {length:g} × the training length, {setting}", metric, rows))
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
