"""The table of a sweep: encoding x depth x epochs, each mean with its interval and its floor."""

from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from scipy import stats

from pe_lab.config import flatten

CONFIDENCE = 0.95
SHOWN = ("pe", "depth", "epochs")


def tabulate(cells: list[tuple[DictConfig, dict[str, Any]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells as tidy rows, and the table made of them.

    Args:
        cells: the config and the summary of each.

    Returns:
        rows: one per cell: pe, depth, epochs, seed, every other setting that differs between the cells, test metrics,
            floors, parameters, seconds.
        table: one per setting: seeds, mean headline loss, its t interval, the Bayes and position-blind floors, and the
            paired difference from the baseline (the first encoding) over shared seeds with its t interval.
    """
    flat = [flatten(OmegaConf.to_container(cfg, resolve=True)) for cfg, _ in cells]
    keys = dict.fromkeys(key for one in flat for key in one)
    varied = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
    others = [
        key
        for key in varied
        if key not in ("model.depth", "epochs", "seed") and not key.startswith(("pe.", "logger", "ledger", "hydra"))
    ]
    records = []
    for one, (cfg, summary) in zip(flat, cells, strict=True):
        record = {"pe": _encoding(one, flat), "depth": cfg.model.depth, "epochs": cfg.epochs, "seed": cfg.seed}
        record |= {key: one.get(key) for key in others}
        record |= {f"test_{name}": value for name, value in summary["test"].items()}
        record |= {
            f"floor_{floor}_{name}": value
            for floor, values in summary["floors"].items()
            for name, value in values.items()
        }
        record |= {name: summary[name] for name in ("parameters", "positional_parameters", "flops_per_token")}
        record |= {name: summary[name] for name in ("seconds", "attention", "device", "road")}
        records.append(record)
    rows = pd.DataFrame(records).drop_duplicates(["road", "epochs"])
    return rows, _summarise(rows, others)


def _summarise(rows: pd.DataFrame, others: list[str]) -> pd.DataFrame:
    baseline = rows["pe"].iloc[0]
    place = ["depth", "epochs", *others]
    lines = []
    for key, group in rows.groupby(["pe", *place], sort=False, dropna=False):
        where = dict(zip(["pe", *place], key, strict=True))
        losses = group.set_index("seed")["test_loss"]
        low, high = interval(losses)
        line = where | {"seeds": len(losses), "loss": losses.mean(), "low": low, "high": high}
        for floor in ("bayes", "position_blind"):
            column = f"floor_{floor}_loss"
            line[floor] = group[column].mean() if column in group else float("nan")
        same = rows[rows["pe"] == baseline]
        for name in place:
            same = same[same[name].eq(where[name]) | (same[name].isna() & pd.isna(where[name]))]
        difference = (losses - same.set_index("seed")["test_loss"]).dropna()
        if where["pe"] != baseline and len(difference):
            low, high = interval(difference)
            line |= {"difference": difference.mean(), "difference_low": low, "difference_high": high}
        lines.append(line)
    table = pd.DataFrame(lines)
    table.attrs["baseline"] = baseline
    order = {name: number for number, name in enumerate(dict.fromkeys(rows["pe"]))}
    return table.sort_values([*place, "pe"], key=lambda c: c.map(order) if c.name == "pe" else c, ignore_index=True)


def interval(values: pd.Series) -> tuple[float, float]:
    """The t interval of the mean; NaN where there is one value."""
    if len(values) < 2:
        return float("nan"), float("nan")
    error = float(stats.sem(values))
    if error == 0 or values.nunique() == 1:
        return values.iloc[0], values.iloc[0]
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=values.mean(), scale=error)
    return float(low), float(high)


def render(table: pd.DataFrame) -> str:
    """The table as text."""
    several = table["seeds"].max() > 1
    columns: dict[str, list[str]] = {
        name: [str(value) for value in table[name]] for name in table.columns[: list(table.columns).index("seeds")]
    }
    if several:
        columns["seeds"] = [str(value) for value in table["seeds"]]
    columns["loss"] = [f"{value:.4f}" for value in table["loss"]]
    if several:
        columns["95 % interval"] = _intervals(table["low"], table["high"])
    for floor in ("bayes", "position_blind"):
        if table[floor].notna().any():
            columns[f"floor: {floor.replace('_', '-')}"] = ["" if pd.isna(v) else f"{v:.4f}" for v in table[floor]]
    if several and "difference" in table:
        baseline = table.attrs["baseline"]
        columns[f"minus {baseline}"] = ["" if pd.isna(v) else f"{v:+.4f}" for v in table["difference"]]
        columns["95 % paired"] = _intervals(table["difference_low"], table["difference_high"])
    return pd.DataFrame(columns).to_string(index=False)


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(a) else f"[{a:.4f}, {b:.4f}]" for a, b in zip(low, high, strict=True)]


def _encoding(one: dict[str, Any], flat: list[dict[str, Any]]) -> str:
    """The encoding's name, with the options that differ among cells of that name."""
    same = [other for other in flat if other["pe.name"] == one["pe.name"]]
    varied = [k for k in one if k.startswith("pe.") and any(other.get(k) != one[k] for other in same)]
    return one["pe.name"] + "".join(f" {key[3:]}={one[key]}" for key in varied)


def markdown(table: pd.DataFrame) -> str:
    """The means and intervals as a Markdown table with a column per encoding, the floors last."""
    place = [name for name in table.columns[: list(table.columns).index("seeds")] if name != "pe"]
    half = (table["high"] - table["low"]) / 2
    cell = [f"{m:.3f}" if pd.isna(h) else f"{m:.3f} ± {h:.3f}" for m, h in zip(table["loss"], half, strict=True)]
    wide = table.assign(cell=cell).pivot(index=place, columns="pe", values="cell")[list(table["pe"].unique())]
    floors = table.groupby(place, dropna=False)["position_blind"].mean()
    wide["position-blind floor"] = [f"{value:.3f}" for value in floors.loc[wide.index]]
    wide = wide.reset_index()
    lines = [list(wide.columns), ["---:"] * len(wide.columns), *wide.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
