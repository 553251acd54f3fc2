"""The tables of the tasks of the benchmark, as text, and as CSV files for other programs."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd

from pe_lab.benchmark import task_rows, task_statistics
from pe_lab.benchmark.fresh_seeds import compare_fresh_seeds, training_commands
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import NAME, BenchmarkTask, benchmark_tasks, task_named
from pe_lab.benchmark.twins import count_false_positives, placebo
from pe_lab.system.files import write_text
from pe_lab.system.spreadsheet import to_csv

UNBEATEN = (
    "best (no other is better, with p < 0.05 after correction over all pairs of the task and a mean difference of at "
    "least the margin)"
)
DETAILS = "diverged|share_|rates|edge|lost_|all_"  # how columns begin that only the table of a chosen task has


def read_all_rows(folder: Path | None = None) -> dict[str, pd.DataFrame]:
    """Return all shipped rows, by task; tasks without any are left out.

    Raises:
        LedgerError: a file was changed.
        ValueError: a row is invalid.
    """
    results = {task.name: task_rows.read_rows(task, folder) for task in benchmark_tasks()}
    return {name: rows for name, rows in results.items() if len(rows)}


def format_tables(results: Mapping[str, pd.DataFrame], names: Collection[str] = ()) -> str:
    """Return all tables as text: coverage, each task, twins, replication.

    Args:
        names: the names of the tasks to show, with all columns; empty: all tasks, without DETAILS.
    """
    published = {name: rows for name, all_ in results.items() if len(rows := task_statistics.published_rows(all_))}
    if names:
        return "\n\n".join(
            _task_table(results[name], task_named(name), True)
            if name in published
            else f"{name}: no row is shipped yet"
            for name in names
        )
    if not published:
        return f"{NAME}: no row is shipped yet"
    parts = [f"{NAME}: what is measured\n{_to_text(_progress_table(published))}"]
    parts += [_task_table(results[name], task_named(name)) for name in published]
    parts.append("More columns of a task: pe-lab benchmark TASK. All tables as CSV files: --export FOLDER.")
    return "\n\n".join([*parts, _placebo_text(published), fresh_seeds_text(results)])


def fresh_seeds_text(results: Mapping[str, pd.DataFrame]) -> str:
    """Return the comparison with fresh seeds as text, or the commands that train them."""
    comparison = compare_fresh_seeds(results)
    if comparison.means.empty:
        return "\n".join(["Not replicated yet. Cells to be run again with fresh seeds:", *training_commands()])
    return (
        f"Replication: {len(comparison.means)} cells again, with fresh seeds\n"
        f"fresh mean differences in the 95 % prediction interval: {comparison.predicted}\n"
        f"published 95 % intervals that contain the fresh mean difference: {comparison.contained}; the fresh mean: "
        f"{comparison.means_contained} (both are below 95 %, as fresh means have an error of their own)\n"
        f"published verdicts that the fresh seeds contradict: {comparison.contradicted}\n{_to_text(comparison.pairs)}"
    )


def write_tables(results: Mapping[str, pd.DataFrame], folder: Path) -> list[Path]:
    """Write rows and tables as CSV files, with the task as the first column, and return their paths."""
    published = {name: task_statistics.published_rows(rows) for name, rows in results.items()}
    comparison = compare_fresh_seeds(results)
    tables = {
        "rows": pd.concat(results.values(), ignore_index=True),
        "coverage": _progress_table(published),
        "endpoints": _join_tables(published, task_statistics.endpoints),
        "pairs": _join_tables(published, _pair_verdicts),
        "shares": _join_tables(published, task_statistics.share_pairs),
        "scores": _join_tables(published, task_statistics.scores),
        "twins": placebo(published),
        "replication": comparison.pairs,
        "replicated_means": comparison.means,
    }
    files = {folder / f"pe-bench-2-{name}.csv": to_csv(table) for name, table in tables.items()}
    for path, content in files.items():
        write_text(path, content)
    return list(files)


def _join_tables(results: Mapping[str, pd.DataFrame], table: object) -> pd.DataFrame:
    parts = []
    for name, rows in results.items():
        lines = table(rows, task_named(name))  # type: ignore[operator]
        lines.insert(0, "task", name)
        parts.append(lines)
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def _pair_verdicts(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return the verdicts on all pairs at each length at which there are any, in training lengths."""
    results = TaskResults(task, rows)
    parts = [(results if length == 1 else results.at(length)).pairs.assign(length=length) for length in results.best_at]
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def _progress_table(results: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return `task_statistics.progress` with a line of sums, and how many pairs are decided."""
    table = task_statistics.progress(results)
    counts = pd.DataFrame(
        {"task": name} | task_statistics.count_verdicts(task_statistics.compare_pairs(rows, task_named(name)))
        for name, rows in results.items()
    )
    table = table.merge(counts, on="task", how="left")
    sums = table[["defined", "measured", "core-hours", *counts.columns[1:]]].sum()
    whole = [name for name in table if name != "task" and pd.api.types.is_integer_dtype(table[name])]
    table = pd.concat([table, pd.DataFrame([{"task": "all", **sums}])], ignore_index=True)
    return table.astype(dict.fromkeys(whole, "Int64"))


def _task_table(rows: pd.DataFrame, task: BenchmarkTask, detailed: bool = False) -> str:
    unit = "steps to solve, censored at the cap" if task.solvable else "test loss in nats"
    results = TaskResults.from_rows(task, rows)
    counts = ", ".join(f"{count} {word}" for word, count in task_statistics.count_verdicts(results.pairs).items())
    cap = f"cap {task.cfg.steps}" + (f", level {task.cfg.solve.level:g}" if task.solvable else "")
    cap += f"; margin {task_statistics.margin_in_words(task)}"
    head = [f"{task.name}: {task.question}", f"{cap}; mean: {unit}", f"pairs: {counts}"]
    best = []
    for length, names in results.best_at.items():
        where = "" if length == 1 else f"at {length:g} x the training length, "
        best.append(f"{where}{UNBEATEN}: {', '.join(names)}" if names else f"{where}no encoding has learned it")
    for length, lines in results.highest_at.items():
        named = [f"{line['pe']} {line['mean']:.2f} [{line['low']:.2f}, {line['high']:.2f}]" for line in lines]
        best.append(f"at {length:g} x the training length, highest mean scores: {', '.join(named) or 'none above 0'}")
    advice = {pe: results.in_words(advice) for pe, advice in results.advice.items()}
    table = results.table.drop(columns="cap", errors="ignore").assign(advice=results.table["pe"].map(advice))
    if not detailed:
        table = table[[name for name in table if not re.match(DETAILS, name)]]
    return "\n".join([*head, *best, _to_text(table)])


def _placebo_text(results: Mapping[str, pd.DataFrame]) -> str:
    lines = placebo(results)
    parts = []
    for column, words in (("same", "with the same seeds"), ("shifted", "with other seeds")):
        wrong, pairs, low, high = count_false_positives(lines, column)
        parts.append(f"{wrong} of {pairs} [{low:.1%}, {high:.1%}] {words}")
    return f"Twins, the placebo: pairs that are called different: {', '.join(parts)}\n{_to_text(lines)}"


def _to_text(table: pd.DataFrame) -> str:
    whole = table.select_dtypes("Int64")
    table = table.assign(**whole.astype("string").fillna(""))
    return str(table.to_string(index=False, na_rep="", float_format=lambda value: f"{value:#.4g}".rstrip(".")))
