"""What a reader must know beside the answer of a report: lines that stand behind it as notes."""

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config import LR
from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS, NO_GAP
from pe_lab.report.best_candidates import amount, join_words
from pe_lab.report.overview_figures import draws_from_best
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.training_setup import searched_rates, shared_settings
from pe_lab.results.columns import (
    STEPS_METRIC,
    floors,
    in_words,
    length_column,
    lower_is_better,
    merge_tables,
    setting_columns,
)
from pe_lab.results.learned import GUESS_METRICS, filter_learned_cells
from pe_lab.results.number_text import range_in_words, signed_difference
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import GRID_TABLE, MIN_SEEDS
from pe_lab.statistics.comparisons import count_in_words

BENCHMARK = "pe_bench_2"  # how the studies of its tasks begin
APART = 2.5  # of 5 normal values, one is as many ranges of the others from their median in 8 % of samples; of 8, 0.5 %
FEW_RUNS = 3  # of an encoding, of which one can lie apart from two
MAX_APART = 4  # encodings in settings whose runs that lie apart are told


def not_finite(subject: ReportSubject) -> list[str]:
    """Return a line on cells whose metric is infinite or no number: what diverged would flatter what is left."""
    cells = subject.results.cells
    if cells.empty or (finite := np.isfinite(cells[f"test_{subject.metric}"].astype(float))).all():
        return []
    names, count = list(cells.loc[~finite, "pe"].unique()), int((~finite).sum())
    has = "1 cell has" if count == 1 else f"{count} cells have"
    which = "it is" if count == 1 else "they are"
    return [f"{has} a test {in_words(subject.metric)} that is not finite; {which} in no mean: {', '.join(names)}."]


class ApartRuns(NamedTuple):
    """The runs of an encoding in a setting that lie apart from its others.

    Attributes:
        far: the distance of the farthest one from the median of the others.
        pe: the encoding.
        setting: the setting in words; empty where there is one.
        cells: their cells, the farthest first.
        values: the metric of all runs of the setting: a line per seed, a column per encoding.
    """

    far: float
    pe: str
    setting: str
    cells: pd.DataFrame
    values: pd.DataFrame


def find_apart(subject: ReportSubject) -> list[ApartRuns]:
    """Return the runs that lie apart from the others of their encoding and setting, the farthest first.

    See `apart`; by more than half the margin, and among MIN_SEEDS runs or more. Of fewer, at least FEW_RUNS, only those
    that did not learn the task as the others did: of so few values, one often lies apart by chance.
    """
    cells, metric = filter_learned_cells(subject.results.cells), f"test_{subject.metric}"
    if cells.empty or cells["pe"].nunique() < 2 or subject.metric == STEPS_METRIC:
        return []
    margin, names = float(subject.compared.lines[GRID_TABLE]["margin"].max()), setting_columns(cells)
    words = pd.Series(settings_in_words(cells, names), cells.index)
    found = list[ApartRuns]()
    for setting, here in cells.groupby(words, sort=False):
        values = here.pivot_table(index="seed", columns="pe", values=metric, sort=False)
        for pe in values:
            runs = values[pe].dropna()
            seeds = apart(runs) if len(runs) >= FEW_RUNS and np.isfinite(runs).all() else []
            if not seeds or (far := abs(runs[seeds[0]] - runs.drop(seeds).median())) <= margin / 2:
                continue
            which = here[here["pe"] == pe].set_index("seed", drop=False).loc[seeds]
            level = _level_to_learn(subject.metric, which.iloc[0], runs.drop(seeds))
            if len(runs) < MIN_SEEDS and not (runs[seeds] >= level).all():
                continue
            found.append(ApartRuns(float(far), str(pe), str(setting) * (words.nunique() > 1), which, values))
    return sorted(found, key=lambda runs: -runs.far)


def _level_to_learn(metric: str, cell: pd.Series, others: pd.Series) -> float:
    """Return the best loss without position that a run did not reach if the others did; NaN where there is none.

    Args:
        cell: a cell of the setting, with its floors.
        others: the metric of the other runs.
    """
    level = next((cell[name] for name in (f"floor_{floor}_loss" for floor in BLIND_FLOORS) if name in cell), np.nan)
    can_fail = metric == "loss" and level - cell.get(f"floor_{BEST_FLOOR}_loss", 0.0) > NO_GAP and others.max() < level
    return float(level) if can_fail else np.nan


def apart(runs: pd.Series) -> list[Any]:
    """Return the seeds of the runs that lie apart from the others, the farthest first; they are on one side of these.

    They are more than APART times the range of the others from their median: twice that where they are several, which
    are less than half of all.
    """
    order, found = runs.sort_values(), list[Any]()
    for count in range(1, (len(runs) + 1) // 2):
        for seeds in (list(order.index[:count]), list(order.index[::-1][:count])):  # the farthest first
            others = runs.drop(seeds)
            near = abs(runs[seeds[-1]] - others.median())
            if near > APART * (1 + (count > 1)) * np.ptp(others):
                found = seeds
    return found


def runs_apart(subject: ReportSubject) -> list[str]:
    """Return lines on the runs of `find_apart`, if there are any: a sentence, or an item for each encoding and setting.

    They say whether a run is worse than the best model without position, and what the mean and a difference are without
    those runs.
    """
    found = find_apart(subject)
    if not found:
        return []
    count = sum(len(runs.cells) for runs in found)
    told = [_apart_in_words(subject, runs) for runs in found[:MAX_APART]]
    if more := [f"`{runs.pe}`{f' ({runs.setting})' * bool(runs.setting)}" for runs in found[MAX_APART:]]:
        told.append(f"Others are of {join_words(more)}.")
    start = (
        f"{count_in_words(count, 'run')} {'lies' if count == 1 else 'lie'} apart from the others of the same encoding:"
    )
    return [start + (f" {told[0]}" if len(told) == 1 else "".join(f"\n- {item}" for item in told))]


def _apart_in_words(subject: ReportSubject, runs: ApartRuns) -> str:
    """Say what runs lie apart, and what their encoding's mean and difference are without them."""
    pe, values, metric = runs.pe, runs.values, subject.metric
    seeds, of_pe, told = list(runs.cells["seed"]), values[pe].dropna(), list[str]()
    others = of_pe.drop(seeds)
    level = _level_to_learn(metric, runs.cells.iloc[0], others)
    for seed, cell in zip(seeds, runs.cells.to_dict("records"), strict=True):
        failed = bool(of_pe[seed] >= level)
        rate = f", learning rate {cell[LR]:g}" if failed and LR in cell and pd.notna(cell[LR]) else ""
        words = f", above the best without position ({level:.3g}): it did not learn" * failed
        told.append(f"{amount(of_pe[seed], metric)} (seed {seed}{rate}){words}")
    where, without = f" ({runs.setting})" * bool(runs.setting), "it" if len(seeds) == 1 else "them"
    text = f"`{pe}`{where}, {join_words(told)}; the other {len(others)} have {range_in_words(others, '.3g', ' to ')}. "
    text += f"Without {without} the mean is {others.mean():.3g}, not {of_pe.mean():.3g}"
    means = values.drop(columns=pe).mean().sort_values(ascending=lower_is_better(metric))
    other = means.index[0] if draws_from_best(subject) or subject.baseline not in means else subject.baseline
    differences = (values[pe] - values[other]).dropna()
    if set(seeds) <= set(differences.index) and len(differences) > len(seeds):
        margin = float(subject.compared.lines[GRID_TABLE]["margin"].max())
        mean, rest = (signed_difference(part.mean(), margin) for part in (differences, differences.drop(seeds)))
        text += f", and the mean difference from `{other}` {rest}, not {mean}"
    return f"{text}."


def not_learned_position(subject: ReportSubject) -> list[str]:
    """Return a line on encodings that are within the margin of `none` in every seed, where others are better than it.

    They have learned nothing of position in that setting.
    """
    cells, metric = filter_learned_cells(subject.results.cells), f"test_{subject.metric}"
    if "none" not in set(cells["pe"]) or subject.metric == STEPS_METRIC or subject.decided is not None:
        return []
    names, sign, told = setting_columns(cells), 1 if lower_is_better(subject.metric) else -1, list[str]()
    lines = subject.compared.compare(GRID_TABLE, "none")
    margin = float(lines["margin"].max())
    words = pd.Series(settings_in_words(cells, names), cells.index)
    for setting, here in cells.groupby(words, sort=False):
        values = here.pivot_table(index="seed", columns="pe", values=metric, sort=False)
        if "none" not in values or len(values) < 2:
            continue
        behind = sign * values.rsub(values["none"], axis=0).drop(columns="none")  # above 0: better than none
        alike = [f"`{pe}`" for pe in behind if behind[pe].notna().all() and (behind[pe].abs() < margin).all()]
        if alike and (behind.min() > 5 * margin).any():
            where = f" ({setting})" * (words.nunique() > 1)
            is_alike = f"is within the margin, {amount(margin, subject.metric)}, of `none` in every seed"
            told.append(f"{join_words(alike)}{where} {is_alike}: nothing shows that it has learned position.")
    return told


def margin_of_loss(subject: ReportSubject) -> list[str]:
    """Return a line on the margin, where it is more than the lowest mean loss above the best possible one."""
    cells = filter_learned_cells(subject.results.cells)
    if cells.empty or cells["pe"].nunique() < 2 or subject.metric != "loss":
        return []
    margin = float(subject.compared.lines[GRID_TABLE]["margin"].max())
    best = f"floor_{BEST_FLOOR}_loss"
    remaining = cells["test_loss"] - (cells[best].fillna(0) if best in cells else 0.0)
    lowest = (
        remaining.groupby([*(cells[name] for name in setting_columns(cells)), cells["pe"]], dropna=False).mean().min()
    )
    if not margin > 1.1 * lowest > 0:
        return []
    times = f"{margin / lowest:.2g} times the lowest mean loss"
    return [
        f"The margin, {amount(margin, 'loss')}, is {times}. Losses of `equivalent` encodings can differ by that much."
    ]


def still_falling(subject: ReportSubject) -> list[str]:
    """Return a line on encodings whose validation losses, by their means, fall by more than the margin at the end."""
    falls, where, last = loss_decrease(subject)
    if falls.empty:
        return []
    cells, margin = filter_learned_cells(subject.results.cells), subject.compared.lines[GRID_TABLE]["margin"].max()
    best = cells[f"floor_{BEST_FLOOR}_loss"].mean() if f"floor_{BEST_FLOOR}_loss" in cells else -np.inf
    if last - best < margin:  # little is left to learn
        return []
    told = [f"`{pe}` ({fall:.3g})" for pe, fall in falls[falls > margin].items()]
    said = f"Validation losses still fall {where}, by more than the margin with {join_words(told)}"
    return [f"{said}: more training may change this."] if told else []


def loss_decrease(subject: ReportSubject) -> tuple[pd.Series, str, float]:
    """Return by how much mean validation losses fall at the end, between which lengths of training, and to what.

    Returns:
        The fall of each encoding in nats, the largest first, empty where it is unknown; the lengths in words; the mean
        of all losses at the end.
    """
    cells, curves = subject.results.cells, subject.results.curves
    if cells.empty or curves.empty or subject.metric != "loss" or "epoch" not in curves:
        return pd.Series(dtype=float), "", np.nan
    names, cells = list(curves.columns[: curves.columns.get_loc("epoch")]), filter_learned_cells(cells)
    losses = merge_tables(curves[curves["metric"] == "loss"], cells[names].drop_duplicates(), names)
    values = losses.groupby([*names, "epoch"], dropna=False)["value"].mean().unstack("epoch")
    ends = values.sort_index(axis=1).iloc[:, -2:]
    if ends.shape[1] < 2:
        return pd.Series(dtype=float), "", np.nan
    unit = length_column(cells)
    scale = float((cells[unit] / cells["epochs"]).iloc[0]) if unit != "epochs" else 1.0
    first, last = (f"{scale * epoch:.4g}" for epoch in ends.columns)
    falls = (ends.iloc[:, 0] - ends.iloc[:, 1]).groupby("pe", sort=False).mean().sort_values(ascending=False)
    return falls, f"from {unit[:-1]} {first} to {last}", float(ends.iloc[:, 1].mean())


def above_validation(subject: ReportSubject) -> list[str]:
    """Return a line on text whose mean test loss is above the validation loss at the end by more than the margin."""
    cells, curves = subject.results.cells, subject.results.curves
    if subject.metric != "loss" or "data.corpus" not in shared_settings(subject.results):
        return []
    names = list(curves.columns[: curves.columns.get_loc("epoch")])
    last = curves[(curves["metric"] == "loss") & (curves["epoch"] == curves["epochs"])]
    both = merge_tables(cells[[*names, "test_loss"]], last[[*names, "value"]], names)
    more = (both["test_loss"] - both["value"]).groupby([both["data"], both["pe"]]).mean()
    if more.empty or not more.mean() > subject.compared.lines[GRID_TABLE]["margin"].max():
        return []
    above = range_in_words(more, ".2f")
    text = f"Mean test losses are {above} nats above the last validation losses, by encoding and task: "
    return [f"{text}the two are measured on different parts of the text, which are the same for all seeds."]


def one_rate(subject: ReportSubject) -> list[str]:
    """Return a line where all encodings were trained at one learning rate, which was not tuned for each."""
    cells = subject.results.cells
    if cells.empty or cells["pe"].nunique() < 2 or LR in cells or searched_rates(subject.results) is not None:
        return []
    tuned = [f"`pe-lab benchmark {task}`" for task in _benchmark_tasks(set(cells["data"]))] if "data" in cells else []
    where = f"see {join_words(tuned)}" if tuned else "`tune.rates` tunes them"
    return [f"With a learning rate tuned for each encoding, the order may differ: {where}."]


def _benchmark_tasks(data: set[str]) -> list[str]:
    """Return the tasks of the benchmark, which tunes learning rates, that have one of these data."""
    folders = config.find_folders()
    files = {name: folders.file("study", name) for name in folders.names("study") if name.startswith(f"{BENCHMARK}_")}
    found = {name: re.search(r"override /data: (\w+)", file.read_text()) for name, file in files.items() if file}
    return [name.removeprefix(f"{BENCHMARK}_") for name, match in found.items() if match and match[1] in data]


def behind_references(subject: ReportSubject) -> list[str]:
    """Return a line on the reference values that no encoding's mean reaches: what is no floor and no guess."""
    cells, metric = subject.results.cells, subject.metric
    references = [name for name in floors(cells, metric) if name not in (BEST_FLOOR, *BLIND_FLOORS, *GUESS_METRICS)]
    if cells.empty or not references:
        return []
    names = setting_columns(cells)
    sign, ends = (1 if lower_is_better(metric) else -1), []
    words = pd.Series(settings_in_words(cells, names), cells.index)
    for setting, rows in cells.groupby(words, sort=False):
        best = (sign * rows.groupby("pe")[f"test_{metric}"].mean()).min()
        levels = {name: rows[f"floor_{name}_{metric}"].mean() for name in references}
        ahead = [f"`{name}` ({amount(level, metric)})" for name, level in levels.items() if sign * level < best]
        ends += [join_words(ahead) + f" for {setting}" * (words.nunique() > 1)] if ahead else []
    return [f"No mean here is as good as these references: {'; '.join(ends)}."] if ends else []
