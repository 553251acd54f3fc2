"""What a reader must know beside the answer of a report: lines that stand behind it as notes."""

import re

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config import LR
from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS
from pe_lab.report.best_candidates import amount, joined
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.training_setup import searched_rates
from pe_lab.results.columns import floors, in_words, length_column, lower_is_better, merge_tables, setting_columns
from pe_lab.results.learned import GUESS_METRICS, filter_learned_cells
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import GRID_TABLE, MIN_SEEDS
from pe_lab.statistics.moderation import MIN_ENCODINGS
from pe_lab.statistics.pairs import Pairs, all_pairs, t_tests, with_baseline

BENCHMARK = "pe_bench_2"  # how the studies of its tasks begin
WIDENED = 1.5  # a factor of intervals that a seed exceeds in less than 1 % of simulated settings with normal errors


def not_finite(subject: ReportSubject) -> list[str]:
    """Return a line on cells whose metric is infinite or no number: what diverged would flatter what is left."""
    cells = subject.results.cells
    if cells.empty or (finite := np.isfinite(cells[f"test_{subject.metric}"].astype(float))).all():
        return []
    names, count = list(cells.loc[~finite, "pe"].unique()), int((~finite).sum())
    has = "1 cell has" if count == 1 else f"{count} cells have"
    which = "it is" if count == 1 else "they are"
    return [f"{has} a test {in_words(subject.metric)} that is not finite; {which} in no mean: {', '.join(names)}."]


def widening_seed(subject: ReportSubject) -> list[str]:
    """Return a line on the seed that widens the intervals of a setting most, if by more than chance, see WIDENED."""
    cells, metric = filter_learned_cells(subject.results.cells), f"test_{subject.metric}"
    if cells["pe"].nunique() < MIN_ENCODINGS or subject.decided is not None:
        return []
    compared = subject.compared
    names, found = setting_columns(cells), list[tuple[float, str]]()
    words = pd.Series(settings_in_words(cells, names), cells.index)
    margin, tuned = float(compared.lines[GRID_TABLE]["margin"].max()), subject.results.declared.tune is not None
    for setting, here in cells.groupby(words, sort=False):
        values = here.pivot_table(index="seed", columns="pe", values=metric, sort=False)
        count, encodings = values.shape
        if count < MIN_SEEDS or encodings < MIN_ENCODINGS or not np.isfinite(values).all(axis=None):
            continue
        pairs = all_pairs(encodings)
        if compared.declared and compared.baseline in values:
            pairs = with_baseline(encodings, values.columns.get_loc(compared.baseline))
        for number, pe in enumerate(values):
            seed = (values[pe] - values[pe].median()).abs().idxmax()
            factor = widening(values.to_numpy(), values.index.get_loc(seed), number, pairs, margin, tuned)
            others, where = values[pe].drop(seed), f" ({setting})" * (words.nunique() > 1)
            text = f"Seed {seed} of `{pe}`{where}, {values.loc[seed, pe]:.3g}, others {others.min():.3g} to "
            text += f"{amount(others.max(), subject.metric)}, makes the intervals there {factor:.2g} times as wide."
            found.append((factor, text))
    return [max(found)[1]] if found and max(found)[0] > WIDENED else []


def widening(y: np.ndarray, seed: int, encoding: int, pairs: Pairs, margin: float, tuned: bool = False) -> float:
    """Return the factor by which a run widens the intervals of pairs of encodings, by their median.

    Args:
        y: values [seeds, encodings].
        seed: the row of the run.
        encoding: the column of the run.
        pairs: the columns of each pair.
        margin: the margin, in the unit of y.
        tuned: whether variances are moderated as where every seed tunes for itself.
    """
    without = y.copy()
    without[seed, encoding] = np.nan
    full, fewer = (t_tests(values, pairs, margin, keep_small=not tuned) for values in (y, without))
    return float(np.median((full.high - full.low) / (fewer.high - fewer.low)))


def gap_of_validation(subject: ReportSubject) -> list[str]:
    """Return a line on how much higher test losses are than the last validation losses, if by more than the margin."""
    cells, curves = filter_learned_cells(subject.results.cells), subject.results.curves
    if cells.empty or curves.empty or subject.metric != "loss" or "epoch" not in curves:
        return []
    names = [name for name in curves.columns[: curves.columns.get_loc("epoch")] if name in cells]
    last = curves[curves["metric"] == "loss"].sort_values("epoch").drop_duplicates(names, keep="last")
    both = merge_tables(cells[[*names, "test_loss"]], last[[*names, "value"]], names)
    gaps = (both["test_loss"] - both["value"]).groupby(both["pe"]).mean()
    if gaps.abs().max() <= subject.compared.lines[GRID_TABLE]["margin"].max():
        return []
    return [
        f"Test loss minus the last validation loss: {gaps.min():.2g} to {gaps.max():.2g} nats (means of encodings)."
    ]


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
    return [f"The margin, {amount(margin, 'loss')}, is {margin / lowest:.2g} times the lowest mean loss."]


def still_falling(subject: ReportSubject) -> list[str]:
    """Return a line where validation losses fall by more than the margin between the last two validations."""
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
