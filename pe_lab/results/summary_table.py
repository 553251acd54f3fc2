"""Tables of results: mean, interval, floors and difference from a baseline, as frame, text and Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from pe_lab.data.score import NO_GAP
from pe_lab.results.columns import (
    cut_interval,
    displayed_settings,
    floors,
    metric_column,
    reference_floors,
    setting_columns,
)
from pe_lab.results.learned import not_learned_note
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import Families
from pe_lab.statistics.cells import keys_of
from pe_lab.statistics.comparisons import paired_differences
from pe_lab.statistics.intervals import interval
from pe_lab.system.escaping import in_markdown
from pe_lab.system.names import unknown_name_message

TEST_COLUMNS = ["p_corrected", "p_equivalent_corrected", "margin", "verdict"]  # of comparisons, in the table
NOT_ASKED = "not asked where no encoding has learned the task"
MAX_CHARACTERS = 8  # characters of a number from which it is rounded


def summarise(rows: pd.DataFrame, baseline: str | None = None, metric: str = "loss") -> pd.DataFrame:
    """Return a table with one line per setting and encoding.

    Args:
        baseline: the encoding that others are compared with; None: the first.
        metric: a test metric.

    Raises:
        ValueError: there is no such encoding or metric.

    Returns:
        seeds, the mean (called loss), its t interval, the floors, and the paired difference from the baseline over
        shared seeds with its t interval, as `compare` has them; none if a cell occurs twice. Its attribute "floors"
        names the columns of floors, "baseline" the encoding, and "not_learned" says where no model learned the task.
    """
    baseline = baseline or rows["pe"].iloc[0]
    if baseline not in set(rows["pe"]):
        raise ValueError(unknown_name_message("baseline", rows["pe"].unique(), baseline))
    floor_names, settings, measured = floors(rows, metric), setting_columns(rows), metric_column(rows, metric)
    compared = _known_differences(rows, baseline, metric)
    lines = []
    for key, group in rows.groupby(["pe", *settings], sort=False, dropna=False):
        losses = group.set_index("seed")[measured]
        low, high = interval(losses)
        line = dict(zip(["pe", *settings], key, strict=True))
        line |= {"seeds": len(losses), "loss": losses.mean(), "low": low, "high": high}
        line |= {floor: group[f"floor_{floor}_{metric}"].mean() for floor in floor_names}
        lines.append(line | compared.get(tuple(map(_none_if_missing, key)), {}))
    table = _sort_lines(pd.DataFrame(lines), settings, list(rows["pe"].unique()))
    table.attrs = {"baseline": baseline, "metric": metric, "floors": floor_names, "not_learned": not_learned_note(rows)}
    return table


def _known_differences(rows: pd.DataFrame, baseline: str, metric: str) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return the differences from the baseline that are known, with their intervals, by encoding and setting."""
    settings = setting_columns(rows)
    if rows.duplicated(["pe", *settings, "seed"]).any():
        return {}
    others = [pe for pe in rows["pe"].unique() if pe != baseline]
    pairs = paired_differences(rows, [(pe, baseline) for pe in others], metric)
    pairs = pairs[pairs["seeds"] > 0]
    columns = {"difference": "difference", "low": "difference_low", "high": "difference_high"}
    shown = pairs[list(columns)].rename(columns=columns).to_dict("records")
    return dict(zip(keys_of(pairs, ["pe", *settings]), shown, strict=True))


def with_verdicts(table: pd.DataFrame, compared: Families) -> pd.DataFrame:
    """Add the verdicts of the comparisons with the baseline to the table of `summarise`.

    Args:
        compared: all comparisons of the study, from `study_comparisons.families`: the family of the verdicts.

    Returns:
        The table with the columns of TEST_COLUMNS, empty for the baseline and settings that are not compared; unchanged
        where no encoding has several seeds in common with the baseline. Its attribute "family" describes the family.
    """
    lines = compared.compare(baseline=table.attrs["baseline"])
    if not (lines["seeds"] > 1).any():
        return table
    names = ["pe", *_setting_columns(table)]
    tests = dict(zip(keys_of(lines, names), lines[TEST_COLUMNS].itertuples(index=False), strict=True))
    missing, keys = [None] * len(TEST_COLUMNS), keys_of(table, names)
    tested = pd.DataFrame([tests.get(key, missing) for key in keys], columns=TEST_COLUMNS)
    result = pd.concat([table, tested], axis=1)
    others = f"; {NOT_ASKED}" * any(key not in tests and key[0] != table.attrs["baseline"] for key in keys)
    result.attrs = table.attrs | {"family": f"{compared}{others}"}
    return result


def _sort_lines(table: pd.DataFrame, settings: list[str], encodings: list[str]) -> pd.DataFrame:
    """Sort lines by setting, then by encoding in the given order."""

    def key(column: pd.Series) -> pd.Series:
        return column.map(encodings.index) if column.name == "pe" else _sort_keys(column)

    return table.sort_values([*settings, "pe"], key=key, ignore_index=True)


def _sort_keys(values: pd.Series) -> pd.Series:
    """Return numbers that sort like the values: missing ones first, then numbers, then text."""
    order = sorted(
        dict.fromkeys(map(_none_if_missing, values)), key=lambda v: (v is not None, isinstance(v, str), v or 0)
    )
    return values.map(lambda value: order.index(_none_if_missing(value)))


def _none_if_missing(value: Any) -> Any:
    """Return the value, or None for any of pandas' missing values."""
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


def without_constants(table: pd.DataFrame, names: Sequence[str]) -> tuple[str, pd.DataFrame]:
    """Return the named columns in which all rows are equal, as a line of text, and the table without them."""
    same = {
        name: _none_if_missing(table[name].iloc[0])
        for name in names
        if len(set(map(_none_if_missing, table[name]))) == 1
    }
    line = ", ".join(f"{name} {_cell_text(value)}" for name, value in same.items() if value not in (None, ""))
    return line, table.drop(columns=list(same))


def as_text(table: pd.DataFrame, names: Sequence[str]) -> str:
    """Return a table for the terminal, constant columns in a line above; missing values are left empty.

    Epochs are left out where trainings are counted in steps.
    """
    settings = displayed_settings(table, names)
    line, table = without_constants(table.drop(columns=[name for name in names if name not in settings]), settings)
    shown = table.apply(lambda column: column if pd.api.types.is_numeric_dtype(column) else column.map(_cell_text))
    text = shown.to_string(index=False, na_rep="")
    return f"{line}\n{text}" if line else text


def _cell_text(value: Any) -> str:
    text = "" if _none_if_missing(value) is None else str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > MAX_CHARACTERS else text


def render_table(table: pd.DataFrame) -> str:
    """Return the table of `summarise` as text; settings in which all lines are equal are named once, above.

    The first line says where no model has learned the task.
    """
    several = table["seeds"].max() > 1
    settings = _setting_columns(table)
    columns: dict[str, list[str]] = {name: [_cell_text(value) for value in table[name]] for name in ("pe", *settings)}
    if several:
        columns["seeds"] = [str(value) for value in table["seeds"]]
    columns["loss"] = [f"{value:.4f}" for value in table["loss"]]
    if several:
        columns["95 % interval"] = _interval_texts(
            *cut_interval(table.attrs["metric"], table["loss"], table["low"], table["high"])
        )
    for floor in table.attrs["floors"]:
        columns[floor_heading(floor)] = ["" if pd.isna(v) else f"{v:.4f}" for v in table[floor]]
    if several and "difference" in table:
        baseline = table.attrs["baseline"]
        columns[f"minus {baseline}"] = ["" if pd.isna(v) else f"{v:+.4f}" for v in table["difference"]]
        columns["95 % paired"] = _interval_texts(table["difference_low"], table["difference_high"])
    lines = [table.attrs["not_learned"]]
    if "verdict" in table:
        columns["verdict"] = [_cell_text(verdict) for verdict in table["verdict"]]
        lines += [as_text(pd.DataFrame(columns), settings), f"verdicts: {table.attrs['family']}"]
        lines.append(few_runs(table["pe"].nunique(), int(table["seeds"].min())))
    else:
        lines.append(as_text(pd.DataFrame(columns), settings))
    return "\n".join(filter(None, lines))


def _setting_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns of a summary table that make a setting."""
    return [name for name in table.columns[: list(table.columns).index("seeds")] if name != "pe"]


def floor_heading(floor: str) -> str:
    """Return the heading of a floor's column in a table for the terminal."""
    return f"{_floor_or_level(floor)}: {_floor_in_words(floor)}"


def _floor_in_words(floor: str) -> str:
    return floor.replace("_", "-")


def _floor_or_level(floor: str) -> str:
    """Return "floor" for a bound that no model of its kind can beat, "level" for a reference value."""
    return "floor" if floor == "bayes" or floor.startswith("position_blind") else "level"


def _interval_texts(low: Iterable[float], high: Iterable[float]) -> list[str]:
    return ["" if pd.isna(a) else f"[{a:.4f}, {b:.4f}]" for a, b in zip(low, high, strict=True)]


def markdown_table(table: pd.DataFrame) -> str:
    """Return means and intervals of `summarise` in Markdown: a row per setting, a column per encoding, floors last."""
    settings, lines = _setting_columns(table), []
    table = table.assign(cell=_with_half(table["loss"], (table["high"] - table["low"]) / 2))
    for key, group in table.groupby(settings, sort=False, dropna=False):
        line = dict(zip(settings, key, strict=True)) | dict.fromkeys(table["pe"])
        line |= dict(zip(group["pe"], group["cell"], strict=True))
        for floor in table.attrs["floors"]:
            mean = group[floor].mean()
            line[f"{_floor_in_words(floor)} {_floor_or_level(floor)}"] = None if pd.isna(mean) else f"{mean:.3f}"
        lines.append(line)
    return as_markdown(pd.DataFrame(lines), names=settings)


def score_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per encoding and setting and a column per task, losses scaled to the levels of the task.

    0 is the best possible loss, or no loss where that is unknown. 1 is the loss of a position-blind model; if that is
    the best possible one as well, of a model that ignores its input; if no floor is known, the first reference level.
    The column's name says which. A task without any level has its losses unscaled.

    Args:
        table: the table of `summarise`.
    """
    names = ["pe", *(name for name in _setting_columns(table) if name != "data")]
    lines = {tuple(map(_none_if_missing, key)): dict(zip(names, key, strict=True)) for key in _row_tuples(table[names])}
    for data, group in table.groupby("data", sort=False):
        present = [floor for floor in table.attrs["floors"] if group[floor].notna().all()]
        best = group["bayes"] if "bayes" in present else 0.0 * group["loss"]
        level = next((floor for floor in reference_floors(present) if (group[floor] - best > NO_GAP).all()), None)
        size = 1.0 if level is None else group[level] - best
        means, halves = (group["loss"] - best) / size, (group["high"] - group["low"]) / 2 / size
        zero = "bayes" if "bayes" in present else "no loss"
        name = f"{data} (loss)" if level is None else f"{data} (0: {zero}, 1: {_floor_in_words(level)})"
        for line in lines.values():
            line[name] = ""
        for key, cell in zip(_row_tuples(group[names]), _with_half(means, halves), strict=True):
            lines[tuple(map(_none_if_missing, key))][name] = cell
    return pd.DataFrame(lines.values())


def _row_tuples(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(table.itertuples(index=False, name=None))


def _with_half(means: pd.Series, halves: pd.Series) -> list[str]:
    """Return "mean ± half" of each line, or the mean alone where there is no interval."""
    return [f"{m:.3f}" if pd.isna(h) else f"{m:.3f} ± {h:.3f}" for m, h in zip(means, halves, strict=True)]


def as_markdown(table: pd.DataFrame, left: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    """Return a Markdown table; missing values are left empty.

    Args:
        left: columns that are left-aligned; all others are right-aligned.
        names: columns that are named once, in a line above, if all rows are equal in them.
    """
    line, table = without_constants(table, names)
    rule = [":---" if name in left else "---:" for name in table.columns]
    rows = [list(table.columns), rule, *table.itertuples(index=False, name=None)]
    text = "\n".join(f"| {' | '.join(in_markdown(_cell_text(value)) for value in row)} |" for row in rows)
    return f"{in_markdown(line)}\n\n{text}" if line else text
