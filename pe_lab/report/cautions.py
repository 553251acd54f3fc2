"""What a reader must know beside the answer of a report: lines that stand behind it as notes."""

import re

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config import LR
from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS
from pe_lab.report.best_candidates import amount, joined, unit_in_words
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.training_setup import searched_rates
from pe_lab.results.columns import floors, in_words, length_column, lower_is_better, merge_tables, setting_columns
from pe_lab.results.learned import GUESS_METRICS, filter_learned_cells, filter_learned_comparisons
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics.comparisons import share_variances

BENCHMARK = "pe_bench_2"  # how the studies of its tasks begin
FAR, MAX_FAR = 3, 2  # how far a seed is from the others to be named, in their range; how many are named


def not_finite(subject: ReportSubject) -> list[str]:
    """Return a line on cells whose metric is infinite or no number: what diverged would flatter what is left."""
    cells = subject.results.cells
    if cells.empty or (finite := np.isfinite(cells[f"test_{subject.metric}"].astype(float))).all():
        return []
    names, count = list(cells.loc[~finite, "pe"].unique()), int((~finite).sum())
    has = "1 cell has" if count == 1 else f"{count} cells have"
    which = "it is" if count == 1 else "they are"
    return [f"{has} a test {in_words(subject.metric)} that is not finite; {which} in no mean: {', '.join(names)}."]


def far_seeds(subject: ReportSubject) -> dict[str, str]:
    """Return, by setting, a sentence on the single seed that is far from the others and so decides the mean.

    That is farther than the margin from the nearest other one, and FAR times as far as the others are apart, of 4
    seeds or more; of
    several seeds, the farthest MAX_FAR. Settings are those in which a model has learned the task, in words.
    """
    if subject.results.cells.empty:
        return {}
    lines = filter_learned_comparisons(subject.compared.compare(), subject.results.cells)
    margin, shared = lines["margin"].max(), share_variances(lines)
    cells, metric = filter_learned_cells(subject.results.cells), f"test_{subject.metric}"
    names, found = setting_columns(cells), list[tuple[float, str, str]]()
    words = pd.Series(settings_in_words(cells, names), cells.index)
    for (setting, pe), seeds in cells.groupby([words, "pe"], sort=False):
        values = seeds.set_index("seed")[metric].sort_values()
        if len(values) < 4 or not np.isfinite(values).all():
            continue
        for seed, nearest, others in (
            (values.index[-1], values.iloc[-2], values.iloc[:-1]),
            (values.index[0], values.iloc[1], values.iloc[1:]),
        ):
            extent, far = np.ptp(others), abs(values[seed] - nearest)
            if far > max(FAR * extent, 0 if np.isnan(margin) else margin) and extent > 0:
                low, high, value = (amount(end, subject.metric) for end in (others.min(), others.max(), values[seed]))
                low = low.removesuffix(f" {unit_in_words(subject.metric)}")
                mean = amount(others.mean(), subject.metric)
                what = f"Seed {seed} decides the mean of `{pe}`: {value}, the others {low} to {high} (mean {mean})."
                what += " It widens the intervals of other encodings too: they share variances." * shared
                found.append((far / extent, setting, what))
    said: dict[str, str] = {}
    for _, setting, what in sorted(found, reverse=True)[:MAX_FAR]:
        said[setting] = f"{said.get(setting, '')} {what}".lstrip()
    return said


def still_falling(subject: ReportSubject) -> list[str]:
    """Return a line where validation losses fall by more than the margin between the last two validations."""
    cells, curves = subject.results.cells, subject.results.curves
    if cells.empty or curves.empty or subject.metric != "loss" or "epoch" not in curves:
        return []
    margin, cells = (
        filter_learned_comparisons(subject.compared.compare(), cells)["margin"].max(),
        filter_learned_cells(cells),
    )
    names = list(curves.columns[: curves.columns.get_loc("epoch")])
    losses = merge_tables(curves[curves["metric"] == "loss"], cells[names].drop_duplicates(), names)
    values = losses.groupby([*names, "epoch"], dropna=False)["value"].mean().unstack("epoch")
    ends = values.sort_index(axis=1).iloc[:, -2:]
    if ends.shape[1] < 2:
        return []
    fall = float((ends.iloc[:, 0] - ends.iloc[:, 1]).mean())
    best = cells[f"floor_{BEST_FLOOR}_loss"].mean() if f"floor_{BEST_FLOOR}_loss" in cells else -np.inf
    if ends.iloc[:, 1].mean() - best < margin:  # little is left to learn
        return []
    unit = length_column(cells)
    scale = float((cells[unit] / cells["epochs"]).iloc[0]) if unit != "epochs" else 1.0
    first, last = (f"{scale * epoch:.4g}" for epoch in ends.columns)
    most = (ends.iloc[:, 0] - ends.iloc[:, 1]).groupby("pe", sort=False).mean().sort_values()
    where = f"from {unit[:-1]} {first} to {last} (`{most.index[-1]}` by {most.iloc[-1]:.3g})"
    said = f"Validation losses still fall, by {amount(fall, 'loss')} {where}: more training may change this."
    return [said] if fall > margin else []


def one_rate(subject: ReportSubject) -> list[str]:
    """Return a line where all encodings were trained at one learning rate, which was not tuned for each."""
    cells = subject.results.cells
    if cells.empty or cells["pe"].nunique() < 2 or LR in cells or searched_rates(subject.results) is not None:
        return []
    tuned = [f"`pe-lab benchmark {task}`" for task in _benchmark_tasks(set(cells["data"]))] if "data" in cells else []
    where = f"see {joined(tuned)}" if tuned else "`tune.rates` tunes them"
    return [f"All encodings were trained at one learning rate. Tuned for each, their order may differ: {where}."]


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
