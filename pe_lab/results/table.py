"""The rows of cells, and their table: encoding x depth x epochs, each mean with its interval and its floor."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import flatten
from pe_lab.results.statistics import column, interval
from pe_lab.system.files import canonical

Settings = dict[str, Any]  # of a cell, by dotted name

# what the settings of a cell say of its logging, its place and what was measured on it later, not of its training
_BESIDE = ("logger", "ledger", "hydra", "study_name", "workers", "evaluate.", "probe", "optimizer._target_")
PLACE = ("pe", "data", "depth", "epochs", "seed")  # what every row begins with
COST = ("parameters", "positional_parameters", "flops_per_token", "seconds", "attention", "device", "run")
# columns of a row, and what they are called in the environment of its checkpoint
ENVIRONMENT = {
    "python": "python",
    "torch": "torch",
    "pe_lab": "pe_lab",
    "commit": "commit",
    "hardware": "device",
    "threads": "threads",
}
_WITH = ("optimizer.lr", "attention.implementation", "attention.revision")  # settings that may go with the encoding


def settings_of(cfg: DictConfig) -> Settings:
    """The settings of a cell's config."""
    return flatten(OmegaConf.to_container(cfg, resolve=True))


def describe(settings: list[Settings]) -> pd.DataFrame:
    """What tells cells apart, one row each: pe, data, depth, epochs, seed, and other settings that vary.

    Options of the data that vary are settings; where there are several tasks, they are part of the task's name. A
    learning rate, or an attention, that every encoding has of its own tells nothing apart: it goes with the encoding.
    Settings and options are in alphabetical order, whole numbers without a point, as the identity of a run has them.
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
    pes = _labels("pe", settings)
    datas = _labels("data", settings) if tasks else [one["data.name"] for one in settings]
    records = []
    for pe, data, one in zip(pes, datas, settings, strict=True):
        where = (pe, data, one["model.depth"], one["epochs"], one["seed"])
        records.append(dict(zip(PLACE, where, strict=True)) | {key: one.get(key) for key in others})
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


def rows_of(settings: list[Settings], summaries: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per cell.

    Returns:
        What tells cells apart (see `describe`); `test_<metric>`; `floor_<floor>_<metric>`; parameters,
        positional_parameters, flops_per_token, seconds (of training steps), attention, device, run; python, torch,
        pe_lab, commit, hardware, threads (of the environment it was trained in; empty where that is not known);
        optimizer.lr and attention.implementation where they vary and tell nothing apart.
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
        environment = summary.get("environment", {})
        record |= {name: environment.get(called) for name, called in ENVIRONMENT.items()}
        records.append(record | {name: of.get(name) for name in along})
    rows = pd.DataFrame(records).drop_duplicates(["run", "epochs"], ignore_index=True)
    floors = [name for name in rows if name.startswith("floor_")]  # the tasks of a sweep have different ones
    after = [name for name in rows if name in (*COST, *ENVIRONMENT, *_WITH) and name not in told]
    return rows[[name for name in rows if name not in (*floors, *after)] + floors + after]


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
        tuple(map(_present, key)): group.set_index("seed")[measured]
        for key, group in rows[rows["pe"] == baseline].groupby(where, sort=False, dropna=False)
    }
    lines = []
    for key, group in rows.groupby(["pe", *where], sort=False, dropna=False):
        losses = group.set_index("seed")[measured]
        low, high = interval(losses)
        line = dict(zip(["pe", *where], key, strict=True))
        line |= {"seeds": len(losses), "loss": losses.mean(), "low": low, "high": high}
        line |= {floor: group[f"floor_{floor}_{metric}"].mean() for floor in known}
        same = base.get(tuple(map(_present, key[1:])))
        if key[0] != baseline and same is not None and len(difference := (losses - same).dropna()):
            low, high = interval(difference)
            line |= {"difference": difference.mean(), "difference_low": low, "difference_high": high}
        lines.append(line)
    table = pd.DataFrame(lines)
    first = list(rows["pe"].unique())
    table = table.sort_values(
        [*where, "pe"], key=lambda of: of.map(first.index) if of.name == "pe" else _ranked(of), ignore_index=True
    )
    table.attrs = {"baseline": baseline, "floors": known}
    return table


def _ranked(values: pd.Series) -> pd.Series:
    """Numbers that sort like the values: what is missing first, then numbers, then text."""
    known = sorted(dict.fromkeys(map(_present, values)), key=lambda v: (v is not None, isinstance(v, str), v or 0))
    return values.map(lambda value: known.index(_present(value)))


def _present(value: Any) -> Any:
    """The value, or None if it is one of those that pandas has for a missing one."""
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


def without_constants(table: pd.DataFrame, names: Sequence[str]) -> tuple[str, pd.DataFrame]:
    """A line that says the columns, of those named, in which all rows are equal; and the table without them."""
    same = {name: _present(table[name].iloc[0]) for name in names if len(set(map(_present, table[name]))) == 1}
    line = ", ".join(f"{name} {value}" for name, value in same.items() if value not in (None, ""))
    return line, table.drop(columns=list(same))


def as_text(table: pd.DataFrame, names: Sequence[str]) -> str:
    """A table for the terminal: see `without_constants`; nothing stands where a value is missing."""
    line, table = without_constants(table, names)
    shown = table.apply(lambda of: of if pd.api.types.is_numeric_dtype(of) else of.map(_shown))
    text = shown.to_string(index=False, na_rep="")
    return f"{line}\n{text}" if line else text


def _shown(value: Any) -> str:
    return "" if _present(value) is None else str(value)


def render(table: pd.DataFrame) -> str:
    """The table as text; settings in which all lines are equal stand once, above."""
    several = table["seeds"].max() > 1
    where = _where(table)
    columns: dict[str, list[str]] = {name: [_shown(value) for value in table[name]] for name in ("pe", *where)}
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
    return as_text(pd.DataFrame(columns), where)


def _where(table: pd.DataFrame) -> list[str]:
    """The columns of a table that make a setting."""
    return [name for name in table.columns[: list(table.columns).index("seeds")] if name != "pe"]


def _in_words(floor: str) -> str:
    return floor.replace("_", "-")


def _kind(floor: str) -> str:
    """Whether it is the best that can be reached by who knows what its name says, or only something to compare with."""
    return "floor" if floor == "bayes" or floor.startswith("position_blind") else "level"


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(a) else f"[{a:.4f}, {b:.4f}]" for a, b in zip(low, high, strict=True)]


def markdown(table: pd.DataFrame) -> str:
    """The means and intervals as a Markdown table with a column per encoding, the floors last."""
    where, lines = _where(table), []
    table = table.assign(cell=_with_half(table["loss"], (table["high"] - table["low"]) / 2))
    for key, of in table.groupby(where, sort=False, dropna=False):
        line = (
            dict(zip(where, key, strict=True))
            | dict.fromkeys(table["pe"])
            | dict(zip(of["pe"], of["cell"], strict=True))
        )
        for floor in table.attrs["floors"]:
            mean = of[floor].mean()
            line[f"{_in_words(floor)} {_kind(floor)}"] = None if pd.isna(mean) else f"{mean:.3f}"
        lines.append(line)
    return as_markdown(pd.DataFrame(lines), names=where)


def by_task(table: pd.DataFrame) -> pd.DataFrame:
    """A column per task and a row per encoding and setting: where the loss lies between the task's levels.

    0 is the best possible, or no loss where that is not known. 1 is what a model reaches that is blind to positions;
    where that is the best possible as well, what one reaches that looks at nothing; where no floor is known, the first
    reference level. The column's name says which. Without any level it is the loss itself.
    """
    names = ["pe", *(name for name in _where(table) if name != "data")]
    lines = {tuple(map(_present, key)): dict(zip(names, key, strict=True)) for key in _rows(table[names])}
    for data, of in table.groupby("data", sort=False):
        known = [floor for floor in table.attrs["floors"] if of[floor].notna().all()]
        best = of["bayes"] if "bayes" in known else 0.0 * of["loss"]
        level = next((floor for floor in levels(known) if (of[floor] - best > 1e-9).all()), None)
        size = 1.0 if level is None else of[level] - best
        means, halves = (of["loss"] - best) / size, (of["high"] - of["low"]) / 2 / size
        zero = "bayes" if "bayes" in known else "no loss"
        name = f"{data} (loss)" if level is None else f"{data} (0: {zero}, 1: {_in_words(level)})"
        for line in lines.values():
            line[name] = ""
        for key, cell in zip(_rows(of[names]), _with_half(means, halves), strict=True):
            lines[tuple(map(_present, key))][name] = cell
    return pd.DataFrame(lines.values())


def _rows(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(table.itertuples(index=False, name=None))


def levels(known: list[str]) -> list[str]:
    """What can stand for 1, the most telling first."""
    first = [floor for floor in ("position_blind", "prior") if floor in known]
    return first or [floor for floor in known if floor != "bayes"]


def _with_half(means: pd.Series, halves: pd.Series) -> list[str]:
    return [f"{m:.3f}" if pd.isna(h) else f"{m:.3f} ± {h:.3f}" for m, h in zip(means, halves, strict=True)]


def as_markdown(table: pd.DataFrame, left: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    """A Markdown table, its columns right-aligned, but for those in `left`; nothing stands where a value is missing.

    Args:
        names: columns that stand once, in a line above, if all rows are equal in them.
    """
    line, table = without_constants(table, names)
    rule = [":---" if name in left else "---:" for name in table.columns]
    rows = [list(table.columns), rule, *table.itertuples(index=False, name=None)]
    text = "\n".join(f"| {' | '.join(_escaped(_shown(value)) for value in row)} |" for row in rows)
    return f"{_escaped(line)}\n\n{text}" if line else text


def _escaped(text: str) -> str:
    """Text in one line, in which no `|` ends a cell of a Markdown table."""
    return re.sub(r"(?<!\\)\|", r"\|", " ".join(text.split("\n")))
