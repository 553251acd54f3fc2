"""What a reader must know beside the answer of a report: lines that stand behind it as notes."""

import re

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config import LR
from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS, NO_GAP
from pe_lab.report.best_candidates import amount, joined
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.training_setup import searched_rates
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
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import GRID_TABLE, MIN_SEEDS
from pe_lab.statistics.comparisons import counted

BENCHMARK = "pe_bench_2"  # how the studies of its tasks begin
APART = 2.5  # of 5 normal values, one is as many ranges of the others from their median in 8 % of samples; of 8, 0.5 %
MAX_APART = 2  # runs that are told


def not_finite(subject: ReportSubject) -> list[str]:
    """Return a line on cells whose metric is infinite or no number: what diverged would flatter what is left."""
    cells = subject.results.cells
    if cells.empty or (finite := np.isfinite(cells[f"test_{subject.metric}"].astype(float))).all():
        return []
    names, count = list(cells.loc[~finite, "pe"].unique()), int((~finite).sum())
    has = "1 cell has" if count == 1 else f"{count} cells have"
    which = "it is" if count == 1 else "they are"
    return [f"{has} a test {in_words(subject.metric)} that is not finite; {which} in no mean: {', '.join(names)}."]


def runs_apart(subject: ReportSubject) -> list[str]:
    """Return a line on each run that lies apart from the others of its encoding and setting, the farthest first.

    See `apart`; by more than the margin, and among MIN_SEEDS runs or more. The line says whether the run is worse than
    the best model without position, and what the mean and a difference are without it.
    """
    cells, metric = filter_learned_cells(subject.results.cells), f"test_{subject.metric}"
    if cells.empty or cells["pe"].nunique() < 2 or subject.metric == STEPS_METRIC:
        return []
    margin, names = float(subject.compared.lines[GRID_TABLE]["margin"].max()), setting_columns(cells)
    words = pd.Series(settings_in_words(cells, names), cells.index)
    lines = list[tuple[float, str]]()
    for setting, here in cells.groupby(words, sort=False):
        values = here.pivot_table(index="seed", columns="pe", values=metric, sort=False)
        for pe in values:
            runs = values[pe].dropna()
            seed = apart(runs) if len(runs) >= MIN_SEEDS and np.isfinite(runs).all() else None
            if seed is None or (far := abs(runs[seed] - runs.drop(seed).median())) <= margin:
                continue
            which = here[(here["pe"] == pe) & (here["seed"] == seed)].iloc[0]
            where = f" ({setting})" * (words.nunique() > 1)
            lines.append((far, _apart_in_words(subject, values, which, runs, where)))
    told = [line for _, line in sorted(lines, reverse=True)]
    more = [f"{counted(len(told) - MAX_APART, 'more run')} of one encoding lie apart from the others."]
    return [*told[:MAX_APART], *more * (len(told) > MAX_APART)]


def apart(runs: pd.Series) -> object:
    """Return the seed of the run that is more than APART times the range of the others from their median, or None."""
    seed = (runs - runs.median()).abs().idxmax()
    others = runs.drop(seed)
    return seed if abs(runs[seed] - others.median()) > APART * np.ptp(others) else None


def _apart_in_words(subject: ReportSubject, values: pd.DataFrame, which: pd.Series, runs: pd.Series, where: str) -> str:
    """Say what a run is that lies apart, and what its encoding's mean and difference are without it.

    Args:
        values: the metric by seed and encoding, in the setting of the run.
        which: the cell of the run.
        runs: the metric of the run and of the others, by seed.
        where: the setting in brackets, where there are several.
    """
    pe, seed, metric = which["pe"], which["seed"], subject.metric
    rate = f", learning rate {which[LR]:g}" if LR in which and pd.notna(which[LR]) else ""
    others, failed = runs.drop(seed), ""
    level = next((which[name] for name in (f"floor_{floor}_loss" for floor in BLIND_FLOORS) if name in which), np.nan)
    best = which.get(f"floor_{BEST_FLOOR}_loss", 0.0)
    if metric == "loss" and level - best > NO_GAP and others.max() < level:
        failed = f", above the best without position ({level:.3g}): it did not learn"
        failed = failed if runs[seed] >= level else f", below the best without position ({level:.3g})"
    text = f"1 of {len(runs)} runs of `{pe}`{where} lies apart: {amount(runs[seed], metric)} (seed {seed}{rate})"
    text += f"{failed}. The other {len(others)} have {others.min():.3g} to {others.max():.3g}. "
    text += f"Without it the mean of `{pe}` is {others.mean():.3g}, not {runs.mean():.3g}"
    means = values.drop(columns=pe).mean().sort_values(ascending=lower_is_better(metric))
    other = subject.baseline if subject.declares and subject.baseline in means else means.index[0]
    differences = (values[pe] - values[other]).dropna()
    if seed in differences and len(differences) > 1:
        without = differences.drop(seed).mean()
        text += f", and the mean difference from `{other}` {without:+.3g}, not {differences.mean():+.3g}"
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
            told.append(f"{joined(alike)}{where} {is_alike}: nothing shows that it has learned position.")
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
    return [f"The margin, {amount(margin, 'loss')}, is {times}: `equivalent` allows as much."]


def still_falling(subject: ReportSubject) -> list[str]:
    """Return a line on encodings whose validation losses, by their means, fall by more than the margin at the end."""
    cells, curves = subject.results.cells, subject.results.curves
    if cells.empty or curves.empty or subject.metric != "loss" or "epoch" not in curves:
        return []
    margin, cells = subject.compared.lines[GRID_TABLE]["margin"].max(), filter_learned_cells(cells)
    names = list(curves.columns[: curves.columns.get_loc("epoch")])
    losses = merge_tables(curves[curves["metric"] == "loss"], cells[names].drop_duplicates(), names)
    values = losses.groupby([*names, "epoch"], dropna=False)["value"].mean().unstack("epoch")
    ends = values.sort_index(axis=1).iloc[:, -2:]
    if ends.shape[1] < 2:
        return []
    best = cells[f"floor_{BEST_FLOOR}_loss"].mean() if f"floor_{BEST_FLOOR}_loss" in cells else -np.inf
    if ends.iloc[:, 1].mean() - best < margin:  # little is left to learn
        return []
    unit = length_column(cells)
    scale = float((cells[unit] / cells["epochs"]).iloc[0]) if unit != "epochs" else 1.0
    first, last = (f"{scale * epoch:.4g}" for epoch in ends.columns)
    falls = (ends.iloc[:, 0] - ends.iloc[:, 1]).groupby("pe", sort=False).mean().sort_values(ascending=False)
    told = [f"`{pe}` ({fall:.3g})" for pe, fall in falls[falls > margin].items()]
    said = (
        f"Validation losses still fall from {unit[:-1]} {first} to {last}, by more than the margin with {joined(told)}"
    )
    return [f"{said}: more training may change this."] if told else []


def one_rate(subject: ReportSubject) -> list[str]:
    """Return a line where all encodings were trained at one learning rate, which was not tuned for each."""
    cells = subject.results.cells
    if cells.empty or cells["pe"].nunique() < 2 or LR in cells or searched_rates(subject.results) is not None:
        return []
    tuned = [f"`pe-lab benchmark {task}`" for task in _benchmark_tasks(set(cells["data"]))] if "data" in cells else []
    where = f"see {joined(tuned)}" if tuned else "`tune.rates` tunes them"
    return [f"With a learning rate tuned for each encoding, the order may differ: {where}."]


def _benchmark_tasks(data: set[str]) -> list[str]:
    """Return the tasks of the benchmark, which tunes learning rates, that have one of these data."""
    studies = config.find_folders().names("study")
    files = {name: config.find_folders().file("study", name) for name in studies if name.startswith(f"{BENCHMARK}_")}
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
        ends += [f"{joined(ahead)} for {setting}"] if ahead else []
    return [f"No mean here is as good as these references: {'; '.join(ends)}."] if ends else []
