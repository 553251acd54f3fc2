"""All comparisons of a study, whose verdicts its tables and its report show."""

from typing import NamedTuple

import pandas as pd

from pe_lab.results import pooling
from pe_lab.results.columns import (
    displayed_settings,
    floors,
    in_words,
    length_column,
    lower_is_better,
    setting_columns,
    sort_by_setting,
    value_text,
)
from pe_lab.results.learned import MIN_RIGHT, filter_learned_cells
from pe_lab.statistics import GRID_TABLE, Families
from pe_lab.statistics.cells import keys_of
from pe_lab.statistics.margins import Margins

POOLED = "pooled over settings"


def families(
    rows: pd.DataFrame,
    records: pd.DataFrame,
    baseline: str | None = None,
    metric: str = "loss",
    margin: Margins = None,
    declared: bool = False,
) -> Families:
    """Make all comparisons of a study: in every setting, pooled over settings, and at each setting's longest length.

    Settings in which no encoding has learned the task are left out where there are others: then nothing is pooled. So
    are lengths at which none answers.

    Args:
        rows: the cells, from frame.load.
        records: the records of lengths and probes, from frame.load; may be empty.
        baseline: an encoding; None: the first.
        metric: a test metric.
        margin: the smallest difference in the metric that matters, or margins by metric, such as those that a study
            declared; None: the default of each task. At the longest length, gaps are those at the training length.
        declared: whether the baseline is what is asked about, see `Families`.

    Raises:
        ValueError: there is no such encoding or metric, or a margin does not fit its metric or a setting.
    """
    learned = filter_learned_cells(rows)
    tables, settings = {GRID_TABLE: (learned, metric)}, len(rows[setting_columns(rows)].drop_duplicates())
    if settings > 1 and len(learned) == len(rows):
        pooled = pooling.pool(rows, metric)
        tables |= {POOLED: (pooled.rows, pooled.metric)} if pooled.rows["pe"].nunique() > 1 else {}
    far = {need: (last.rows, last.metric) for need, last in longest(records, rows).items() if last.answered}
    return Families.of(tables | far, baseline, margin, declared)


def none_right(metric: str) -> str:
    """Say that no encoding has the share of answers right, or of whole sequences, that counts as an answer."""
    return f"no encoding has {MIN_RIGHT:.0%} of the {what_is_right(metric)} right"


def what_is_right(metric: str) -> str:
    """Return what a share of right answers is a share of; all answers of a sequence are right in an exact match."""
    return "whole sequences" if metric == "exact_match" else "answers"


class Longest(NamedTuple):
    """What was measured at the longest length of a setting.

    Attributes:
        rows: the measured rows, with the floors of the cells, which are those at the training length.
        metric: the metric: of text the loss; otherwise exact match where it is known, else accuracy or loss.
        setting: the setting in words.
        length: the longest length, in training lengths.
        nearer: the metric at all lengths: columns pe, seed, length, value.
        answers: of exact match, the accuracy of single answers at all lengths, or the loss where it was not measured;
            columns metric, pe, seed, length, value; otherwise empty.
    """

    rows: pd.DataFrame
    metric: str
    setting: str
    length: float
    nearer: pd.DataFrame
    answers: pd.DataFrame

    @property
    def answered(self) -> bool:
        """Whether an encoding has MIN_RIGHT of the answers or sequences right, by its mean; true of losses."""
        means = self.rows.groupby("pe")[f"test_{self.metric}"].mean()
        return lower_is_better(self.metric) or bool(means.max() >= MIN_RIGHT)


def longest(records: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Longest]:
    """Return the rows at the longest measured length of each setting, by need."""
    if records.empty or not (records["kind"] == "length").any():
        return {}
    measured = records[(records["kind"] == "length") & (records["policy"] == "raw") & (records["offset"] == 0)]
    names = [name for name in measured.columns[: list(measured.columns).index("kind")] if name not in ("pe", "seed")]
    farthest = {}
    for setting, here in by_setting_in_words(sort_by_setting(measured, names), names):
        there = set(here["metric"])
        first = ("loss",) if "bits_per_byte" in there else ("exact_match", "accuracy", "loss")  # of text: the loss
        metric = next((name for name in first if name in there), None)
        length = here["length"].max()
        last = here[(here["metric"] == metric) & (here["length"] == length)]
        if length > 1 and last["pe"].nunique() > 1:
            rows = last[["pe", *names, "seed"]].assign(**{f"test_{metric}": last["value"]})
            rows = _with_floors(rows, cells, str(metric))
            need = f"{in_words(str(metric))} at {length:g} × the training length, {setting}"
            nearer = here.loc[here["metric"] == metric, ["pe", "seed", "length", "value"]]
            single = next((name for name in ("accuracy", "loss") if name in there and metric == "exact_match"), None)
            answers = here.loc[here["metric"] == single, ["metric", "pe", "seed", "length", "value"]]
            farthest[need] = Longest(rows, str(metric), setting, float(length), nearer, answers)
    return farthest


def _with_floors(rows: pd.DataFrame, cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return rows with the floors of the cells of their setting and seed; NaN where there is no such cell."""
    keys = [name for name in (*setting_columns(rows), "seed") if name in cells]
    names = [f"floor_{floor}_{metric}" for floor in floors(cells, metric)]
    by_cell = dict(zip(keys_of(cells, keys), cells[names].to_numpy(float), strict=True))
    values = [by_cell.get(key, [float("nan")] * len(names)) for key in keys_of(rows, keys)]
    return rows.assign(**pd.DataFrame(values, rows.index, names))


def by_setting_in_words(rows: pd.DataFrame, names: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return each setting in words with its rows, in the order of the rows."""
    told = displayed_settings(rows, names)
    varied = [name for name in told if rows[name].nunique(dropna=False) > 1] or ["depth", length_column(rows)]
    groups = []
    for key, group in rows.groupby(varied, sort=False, dropna=False):
        words = [f"{name.rpartition('.')[2]} {value_text(value)}" for name, value in zip(varied, key, strict=True)]
        groups.append((", ".join(words), group))
    return groups
