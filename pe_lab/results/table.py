"""The rows of cells, and their table: encoding x depth x epochs, each mean with its interval and its floor."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import flatten
from pe_lab.ledger.files import canonical
from pe_lab.results.statistics import column, interval

Measured = tuple[DictConfig, dict[str, Any]]  # the config of a cell, and its summary
Settings = dict[str, Any]  # of a cell, by dotted name

# what the settings of a cell say of its logging, its place and what was measured on it later, not of its training
_BESIDE = ("logger", "ledger", "hydra", "study_name", "workers", "evaluate.", "probe")
COST = ("parameters", "positional_parameters", "flops_per_token", "seconds", "attention", "device", "road")
_WITH = ("optimizer.lr", "attention.implementation", "attention.revision")  # settings that may go with the encoding


def settings_of(cfg: DictConfig) -> Settings:
    """The settings of a cell's config."""
    return flatten(OmegaConf.to_container(cfg, resolve=True))


def describe(settings: list[Settings]) -> pd.DataFrame:
    """What tells cells apart, one row each: pe, data if there are several, depth, epochs, seed, other settings.

    A learning rate, or an attention, that every encoding has of its own tells nothing apart: it goes with the encoding.
    Settings and options are in alphabetical order, whole numbers without a point, as the identity of a road has them.
    """
    settings = [canonical(one) for one in settings]
    values: dict[str, set[Any]] = defaultdict(set)
    for one in settings:
        for key in one:
            values[key].add(one[key])
    present = {key: sum(key in one for one in settings) for key in values}
    varied = [key for key in values if len(values[key]) > 1 or present[key] < len(settings)]
    own = (*_BESIDE, "pe.")
    tasks = "data.name" in varied
    if tasks:
        own += ("data.",)
    others = [key for key in sorted(varied) if key not in ("model.depth", "epochs", "seed") and not key.startswith(own)]
    pes, datas = _labels("pe", settings), _labels("data", settings) if tasks else []
    records = []
    for number, one in enumerate(settings):
        record = {"pe": pes[number]}
        if tasks:
            record["data"] = datas[number]
        record |= {"depth": one["model.depth"], "epochs": one["epochs"], "seed": one["seed"]}
        records.append(record | {key: one.get(key) for key in others})
    told = pd.DataFrame(records)
    for name in _WITH:
        others = [other for other in told.columns if other not in (name, "seed")]
        if name in told and not told[[*others, name]].drop_duplicates().duplicated(others).any():
            told = told.drop(columns=name)
    return told


def _labels(group: str, settings: list[Settings]) -> list[str]:
    """Of each cell, the name of what was chosen of a group, with the options that differ among cells of that name."""
    values: dict[str, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for one in settings:
        for key in one:
            if key.startswith(f"{group}."):
                values[one[f"{group}.name"]][key].add(one[key])
    count = defaultdict(int)
    present: dict[tuple[str, str], int] = defaultdict(int)
    for one in settings:
        count[one[f"{group}.name"]] += 1
        for key in values[one[f"{group}.name"]]:
            present[one[f"{group}.name"], key] += key in one
    labels = []
    for one in settings:
        name = one[f"{group}.name"]
        varied = [k for k, of in sorted(values[name].items()) if len(of) > 1 or present[name, k] < count[name]]
        labels.append(name + "".join(f" {key[len(group) + 1 :]}={one[key]}" for key in varied if key in one))
    return labels


def tabulate(cells: list[Measured]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells as tidy rows, and the table made of them: see `rows_of` and `summarise`."""
    rows = rows_of([settings_of(cfg) for cfg, _ in cells], [summary for _, summary in cells])
    return rows, summarise(rows)


def rows_of(settings: list[Settings], summaries: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per cell.

    Returns:
        What tells cells apart (see `describe`); `test_<metric>`; `floor_<floor>_<metric>`; parameters,
        positional_parameters, flops_per_token, seconds (of training steps), attention, device, road; torch, commit
        (of the environment it was trained in); optimizer.lr and attention.implementation where they vary and tell
        nothing apart.
    """
    told = describe(settings)
    along = [name for name in _WITH if name not in told and len({of.get(name) for of in settings}) > 1]
    records = []
    for apart, of, summary in zip(told.to_dict("records"), settings, summaries, strict=True):
        record = dict(apart)
        record |= {f"test_{name}": value for name, value in summary["test"].items()}
        record |= {
            f"floor_{floor}_{name}": value
            for floor, values in summary["floors"].items()
            for name, value in values.items()
        }
        record |= {name: summary[name] for name in COST}
        record |= {name: summary.get("environment", {}).get(name) for name in ("torch", "commit")}
        records.append(record | {name: of.get(name) for name in along})
    rows = pd.DataFrame(records).drop_duplicates(["road", "epochs"], ignore_index=True)
    floors = [name for name in rows if name.startswith("floor_")]  # the tasks of a sweep have different ones
    return rows[[name for name in rows if name not in floors and name not in _after(rows)] + floors + _after(rows)]


def _after(rows: pd.DataFrame) -> list[str]:
    columns = [name for name in rows if name in (*COST, "torch", "commit", *_WITH)]
    return [name for name in columns if name not in place(rows)]


def place(rows: pd.DataFrame) -> list[str]:
    """The columns that make a setting, in which encodings are compared over seeds: those before the metrics."""
    columns = list(rows.columns)
    first = next(number for number, name in enumerate(columns) if name.startswith("test_"))
    return [name for name in columns[:first] if name not in ("pe", "seed")]


def floors(rows: pd.DataFrame, metric: str = "loss") -> list[str]:
    """The names of the floors and reference levels that rows have of a metric."""
    end = f"_{metric}"
    known = [name.removeprefix("floor_").removesuffix(end) for name in rows if name.startswith("floor_")]
    return [floor for floor in dict.fromkeys(known) if f"floor_{floor}{end}" in rows]


def summarise(rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss") -> pd.DataFrame:
    """The table of rows: one line per setting and encoding.

    Args:
        baseline: the encoding that others are compared with; None: the first.
        metric: of the test.

    Raises:
        ValueError: there is no such encoding or metric.

    Returns:
        seeds, the mean (called loss), its t interval, the floors, and the paired difference from the baseline over
        shared seeds with its t interval. Its attribute "floors" names the columns of floors, "baseline" the encoding.
    """
    baseline = baseline or rows["pe"].iloc[0]
    if baseline not in set(rows["pe"]):
        raise ValueError(f"baseline must be one of {', '.join(rows['pe'].unique())}, got {baseline!r}")
    known, where, measured = floors(rows, metric), place(rows), column(rows, metric)
    base = {
        _known(key): group.set_index("seed")[measured]
        for key, group in rows[rows["pe"] == baseline].groupby(where, sort=False, dropna=False)
    }
    lines = []
    for key, group in rows.groupby(["pe", *where], sort=False, dropna=False):
        losses = group.set_index("seed")[measured]
        low, high = interval(losses)
        line = dict(zip(["pe", *where], key, strict=True))
        line |= {"seeds": len(losses), "loss": losses.mean(), "low": low, "high": high}
        line |= {floor: group[f"floor_{floor}_{metric}"].mean() for floor in known}
        same = base.get(_known(key[1:]))
        if key[0] != baseline and same is not None and len(difference := (losses - same).dropna()):
            low, high = interval(difference)
            line |= {"difference": difference.mean(), "difference_low": low, "difference_high": high}
        lines.append(line)
    table = pd.DataFrame(lines)
    order = {name: number for number, name in enumerate(dict.fromkeys(rows["pe"]))}
    table = table.sort_values([*where, "pe"], key=lambda c: c.map(order) if c.name == "pe" else c, ignore_index=True)
    table.attrs = {"baseline": baseline, "floors": known}
    return table


def _known(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A setting in which a value that is not there equals another that is not."""
    return tuple(None if pd.isna(value) else value for value in key)


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
    for floor in table.attrs["floors"]:
        columns[f"{_kind(floor)}: {_in_words(floor)}"] = ["" if pd.isna(v) else f"{v:.4f}" for v in table[floor]]
    if several and "difference" in table:
        baseline = table.attrs["baseline"]
        columns[f"minus {baseline}"] = ["" if pd.isna(v) else f"{v:+.4f}" for v in table["difference"]]
        columns["95 % paired"] = _intervals(table["difference_low"], table["difference_high"])
    return pd.DataFrame(columns).to_string(index=False)


def _in_words(floor: str) -> str:
    return floor.replace("_", "-")


def _kind(floor: str) -> str:
    """Whether it bounds what can be reached, or is only something to compare with."""
    return "floor" if floor in ("bayes", "position_blind") else "level"


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(a) else f"[{a:.4f}, {b:.4f}]" for a, b in zip(low, high, strict=True)]


def markdown(table: pd.DataFrame) -> str:
    """The means and intervals as a Markdown table with a column per encoding, the floors last."""
    place = [name for name in table.columns[: list(table.columns).index("seeds")] if name != "pe"]
    cell = _with_half(table["loss"], (table["high"] - table["low"]) / 2)
    wide = table.assign(cell=cell).pivot(index=place, columns="pe", values="cell")[list(table["pe"].unique())]
    wide = wide.fillna("")  # a cell that is missing
    for floor in table.attrs["floors"]:
        means = table.groupby(place, dropna=False)[floor].mean()
        shown = ["" if pd.isna(value) else f"{value:.3f}" for value in means.loc[wide.index]]
        wide[f"{_in_words(floor)} {_kind(floor)}"] = shown
    return as_markdown(wide.reset_index())


def by_task(table: pd.DataFrame) -> pd.DataFrame:
    """A column per task and a row per encoding and setting: where the loss lies between the task's levels.

    0 is the best possible, or no loss where that is not known. 1 is what a model reaches that is blind to positions;
    where that is the best possible as well, what one reaches that looks at nothing; where no floor is known, the first
    reference level. The column's name says which. Without any level it is the loss itself.
    """
    place = [name for name in table.columns[: list(table.columns).index("seeds")] if name != "data"]
    columns = {}
    for data, of in table.groupby("data", sort=False):
        known = [floor for floor in table.attrs["floors"] if of[floor].notna().all()]
        best = of["bayes"] if "bayes" in known else 0.0 * of["loss"]
        level = next((floor for floor in _levels(known) if (of[floor] - best > 1e-9).all()), None)
        size = 1.0 if level is None else of[level] - best
        means, halves = (of["loss"] - best) / size, (of["high"] - of["low"]) / 2 / size
        zero = "bayes" if "bayes" in known else "no loss"
        name = f"{data} (loss)" if level is None else f"{data} (0: {zero}, 1: {_in_words(level)})"
        columns[name] = pd.Series(_with_half(means, halves), index=pd.MultiIndex.from_frame(of[place]))
    order = pd.MultiIndex.from_frame(table[place].drop_duplicates())
    return pd.DataFrame(columns).reindex(order).fillna("").reset_index()


def _levels(known: list[str]) -> list[str]:
    """What can stand for 1, the most telling first."""
    first = [floor for floor in ("position_blind", "prior") if floor in known]
    return first or [floor for floor in known if floor != "bayes"]


def _with_half(means: pd.Series, halves: pd.Series) -> list[str]:
    return [f"{m:.3f}" if pd.isna(h) else f"{m:.3f} ± {h:.3f}" for m, h in zip(means, halves, strict=True)]


def as_markdown(table: pd.DataFrame, left: Sequence[str] = ()) -> str:
    """A table of text, its columns right-aligned, but for those that are named."""
    rule = [":---" if name in left else "---:" for name in table.columns]
    lines = [list(table.columns), rule, *table.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
