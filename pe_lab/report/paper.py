"""A study for a paper: tables in LaTeX, figures as PDF and SVG, and a paragraph on methods."""

import math
import re
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pe_lab import config
from pe_lab.config import LR, reference
from pe_lab.report import overview_figures, tuned
from pe_lab.report.answer import task_and_settings
from pe_lab.report.best_candidates import join_words, unit_in_words
from pe_lab.report.parts import intervals_in_words
from pe_lab.report.report_subject import ReportSubject, seeds_in_words, varied_columns
from pe_lab.report.sequential_verdicts import with_one
from pe_lab.report.training_setup import ladders, rates_in_words, shared_settings
from pe_lab.report.tuned import TunedSubject
from pe_lab.results import plots
from pe_lab.results.columns import (
    ENVIRONMENT,
    REMAINING_METRIC,
    STEPS_METRIC,
    displayed_settings,
    in_words,
    length_column,
    setting_columns,
    sort_by_setting,
    sorted_values,
    value_text,
)
from pe_lab.results.frame import Results
from pe_lab.results.learned import filter_learned_cells, not_learned_note
from pe_lab.results.number_text import range_in_words
from pe_lab.results.panels import without_wide_intervals
from pe_lab.results.summary_table import summarise
from pe_lab.results.tuned_outcomes import edge_note, seed_note, tuned_settings, unsolved_note
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import GRID_TABLE, MIN_SEEDS
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS
from pe_lab.statistics.moderation import MIN_ENCODINGS
from pe_lab.statistics.pairs import NOISE_STD
from pe_lab.system.drawing import STYLE, svg
from pe_lab.system.files import write_text

LONG = 40  # rows from which a table may break over pages
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}  # in print
SETTINGS = {"depth": "number of layers", "steps": "training steps", "epochs": "training epochs"}  # in print
MAX_PANELS = 6  # of a figure of curves
ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
ESCAPED |= {"−": "$-$", "±": r"$\pm$", "×": r"$\times$", "≥": r"$\ge$", "–": "--"}
ESCAPED |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": "$<$", ">": "$>$"}
TABLES, FIGURES = ("means", "outcomes", "differences"), ("curves", "runs", "forest")
FILES = (  # that are written for some study
    *("paper.tex", "methods.tex", *(f"{name}.tex" for name in TABLES)),
    *(f"{name}.{kind}" for name in FIGURES for kind in ("pdf", "svg")),
)

CaptionedPlot = tuple[plots.Plot, str]


def require_new(folder: Path) -> None:
    """Raise ValueError if a file that would be written is there already."""
    if present := [name for name in FILES if (folder / name).exists()]:
        raise ValueError(f"--paper must be a folder without {present[0]}, got {str(folder)!r}: choose another")


def write(subject: ReportSubject, folder: Path) -> list[str]:
    """Write all files, and return their names.

    Raises:
        ValueError: there is no cell, or a file is there already.
    """
    require_new(folder)
    if subject.results.cells.empty:
        raise ValueError(f"--paper must be of a study with cells, got none in {subject.results.name}")
    means = _outcomes(subject) if isinstance(subject, TunedSubject) else _means(subject)
    return _save(folder, means | _differences(subject), _figures(subject), methods_paragraph(subject))


def _save(folder: Path, tables: Mapping[str, str], drawn: Mapping[str, CaptionedPlot], paragraph: str) -> list[str]:
    """Write tables, figures, the paragraph on methods and a document that shows them all; return the files' names.

    Args:
        tables: the tables in LaTeX, by name.
        drawn: the figures with their captions, by name.
        paragraph: the paragraph on methods, in LaTeX.
    """
    texts = {f"{name}.tex": text for name, text in tables.items()}
    texts["methods.tex"] = paragraph
    captions = {name: f"{escape_latex(caption)}." for name, (_, caption) in drawn.items()}
    texts["paper.tex"] = _render_template("paper.tex", tables=list(tables), figures=captions)
    for name, text in texts.items():
        write_text(folder / name, text)
    for name, (plot, _) in drawn.items():
        write_text(folder / f"{name}.svg", svg(plot.figure, name))
        content = BytesIO()
        with mpl.rc_context(STYLE | {"pdf.fonttype": 42}):
            plot.figure.savefig(content, format="pdf", metadata={"CreationDate": None})
        (folder / f"{name}.pdf").write_bytes(content.getvalue())
    return [*texts, *(f"{name}.{kind}" for name in drawn for kind in ("pdf", "svg"))]


def _means(subject: ReportSubject) -> dict[str, str]:
    """Return the table of means by its name."""
    cells, metric = subject.results.cells, subject.metric
    table = without_wide_intervals(summarise(cells, subject.baseline, metric))
    settings = varied_columns(table, setting_columns(cells))
    means = table[[*settings, "pe", "seeds"]].rename(columns={"pe": "encoding"})
    means = means.assign(
        **{metric: [_mean(*values) for values in zip(table["loss"], table["low"], table["high"], strict=True)]}
    )
    what = f"{in_words(metric)}{unit_in_brackets(metric)}"
    caption = f"Test {what}{task_and_settings(cells)}: mean over seeds"
    caption += " ± half the width of its 95 % t interval" * bool(table["low"].notna().any())
    return {"means": tabular(means, caption, "tab:means", settings)}


def _outcomes(subject: TunedSubject) -> dict[str, str]:
    """Return the table of what seeds reached by its name."""
    steps, summary = subject.metric == STEPS_METRIC, subject.summary
    varied = varied_columns(summary, tuned_settings(subject.outcomes))
    shown = summary[[*varied, "pe", "runs"]].rename(columns={"pe": "encoding"})
    if steps:
        counts = summary["steps"].str.replace("≥", r"\ge")
        shown = shown.assign(solved=summary["solved"], steps="$" + counts + "$")
    else:
        shown = shown.assign(loss=[f"${value:.4f}$" for value in summary["loss"]])  # digits of the interval
    shown = shown.assign(interval=[f"${text}$" if text else "" for text in summary["95 % interval"]])
    columns = ["solved runs with the exact 95 % interval of their share"] * steps
    columns.append(f"{'geometric ' * steps}mean over seeds with its 95 % t interval")
    if "ranks" in summary:
        shown = shown.assign(ranks=summary["ranks"])
        columns.append("range of ranks that all pairs leave open")
    what = "Steps to solve" if steps else "Test loss (nats)"
    caption = f"{what}{task_and_settings(subject.results.cells)}: {join_words(columns)}"
    return {"outcomes": tabular(shown, caption, "tab:outcomes", varied)}


def _differences(subject: ReportSubject) -> dict[str, str]:
    """Return the table of comparisons with the baseline by its name; none where nothing is compared."""
    cells, decided = subject.results.cells, subject.decided
    if cells["pe"].nunique() < 2:
        return {}
    lines = subject.compared.compare(GRID_TABLE) if decided is None else with_one(decided, subject.baseline)
    lines = without_wide_intervals(sort_by_setting(lines, setting_columns(cells)))
    few = bool((lines["seeds"] < MIN_SHOWN_SEEDS).all())
    tested = "with 95 % intervals and p values of sequential tests"
    if few and decided is None:
        tested = f"without intervals, for which seeds are too few. p values are after {subject.compared.correction}"
    elif decided is None:
        tested = (
            f"with 95 % intervals that are not corrected for the number of comparisons. p values are after "
            f"{subject.compared.correction}, so an interval without 0 may have a p value above 0.05"
        )
    quantity, where = _compared_quantity(subject.metric), task_and_settings(cells)
    caption = f"Paired differences in {quantity} from {subject.baseline}{where}, {tested}"
    if isinstance(subject, TunedSubject) and (note := unsolved_note(subject.outcomes)):
        caption += f". {note.removesuffix('.')}"
    digits, varied = decimals(lines), varied_columns(lines, displayed_settings(cells, setting_columns(cells)))
    shown = lines[[*varied, "pe", "seeds"]].rename(columns={"pe": "encoding"})
    shown = shown.assign(
        difference=[_number(value, digits) for value in lines["difference"]],
        interval=[_interval(*values, digits) for values in zip(lines["low"], lines["high"], strict=True)],
        p=[_p_value(value) for value in lines["p_corrected"]],
        verdict=lines["verdict"],
    ).drop(columns=["interval"] * few)
    return {"differences": tabular(shown, caption, "tab:differences", varied)}


def _compared_quantity(metric: str) -> str:
    """Return what differences are of, with its unit."""
    if metric == STEPS_METRIC:
        return "log2 of the steps to solve (octaves)"
    return (
        "the share of the gap that remains"
        if metric == REMAINING_METRIC
        else f"test {in_words(metric)}{unit_in_brackets(metric)}"
    )


def _figures(subject: ReportSubject) -> dict[str, CaptionedPlot]:
    """Return the figures with their captions, by name."""
    drawn = {} if subject.metric == STEPS_METRIC else _curves(subject.results.cells, subject.metric)
    cells = subject.results.cells
    if isinstance(subject, TunedSubject):
        seeds = tuned.seed_figure(subject, f"{unit_in_brackets(subject.metric)}{task_and_settings(cells)}")
        drawn["runs"] = seeds.plot, seeds.caption
    if cells["pe"].nunique() > 1 and subject.compared.compare(GRID_TABLE)["difference"].notna().any():
        _, metric, where = overview_figures.overview_comparisons(subject.compared, subject.decided)
        quantity = _compared_quantity(metric)
        settings = task_and_settings(filter_learned_cells(cells))
        differences = f"Paired differences in {quantity} from {subject.baseline}{settings}"
        forest = overview_figures.forest(subject.compared, subject.decided)
        has = intervals_in_words(forest, "95 % intervals")
        has = f",{has}" if has.startswith(" with") else has
        drawn["forest"] = (
            forest,
            f"{differences}{has}{', drawn' * where.startswith(' at')}{where}",
        )
    return drawn


def _curves(cells: pd.DataFrame, metric: str) -> dict[str, CaptionedPlot]:
    """Return the figure over the length of training by its name; none of one length, or of too many settings."""
    length = length_column(cells)
    panels = cells[
        [name for name in displayed_settings(cells, setting_columns(cells)) if name != length]
    ].drop_duplicates()
    if cells[length].nunique() == 1 or len(panels) > MAX_PANELS:
        return {}
    what, drawn = f"{in_words(metric)}{unit_in_brackets(metric)}", plots.over_epochs(cells, metric)
    caption = f"Test {what}{task_and_settings(cells)}: means over seeds{intervals_in_words(drawn)}, and floors"
    return {"curves": (drawn, caption)}


def methods_paragraph(subject: ReportSubject) -> str:
    """Return a paragraph in LaTeX: the settings, seeds, statistics, margin and versions of the study."""
    results, cells = subject.results, subject.results.cells
    identity, compares = shared_settings(results), cells["pe"].nunique() > 1
    trained = subject.outcomes if isinstance(subject, TunedSubject) else cells
    keys = ["pe", *(name for name in setting_columns(cells) if name in trained)]
    counts = trained.groupby(keys, dropna=False)["seed"].nunique()
    declared = subject.declared_margin
    source = "the default of the task" if declared is None else "declared before training"
    few = few_runs(cells["pe"].nunique(), counts.min(), advice=False)
    values: dict[str, Any] = _training_sentences(results, cells, counts) | {
        "rates": escape_latex(re.sub("^each ", "each encoding ", rates_in_words(results, _rate(identity, cells)))),
        "metric": escape_latex(subject.metric),
        "baseline": escape_latex(subject.baseline) if compares else "",
        "margin": escape_latex(subject.margin_in_words) if compares else "",
        "margin_source": source if subject.margin in (None, declared) else "chosen after training",
        "comparisons": subject.compared.family_size if compares else 0,
        "shared_variances": compares and subject.compared.share_variances,
        "decided": subject.decided is not None,
        "sequential": results.declared.decide is not None,
        "notes": [escape_latex(note) for note in (not_learned_note(cells, advice=False), few) if note],
    }
    if isinstance(subject, TunedSubject):
        return _render_template("tuned.tex", **values | _tuning_sentences(subject, identity))
    return _render_template("methods.tex", **values)


def _tuning_sentences(subject: TunedSubject, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what only a paragraph on seeds that tune for themselves says, in place of what others say."""
    tune, (rates, scaled), outcomes = subject.results.declared.tune or {}, ladders(subject.results), subject.outcomes
    notes = [not_learned_note(subject.results.cells, advice=False), seed_note(outcomes, advice=False)]
    notes.append(edge_note(outcomes, rates, scaled, advice=False))
    endpoint = subject.compared.endpoint
    encodings = outcomes.groupby(tuned_settings(outcomes), dropna=False)["pe"].nunique().max()
    return {
        "rates": "at learning rates tuned for each encoding and seed",
        "tried": [f"{rate:g}" for rate in rates],
        "scaled": [f"{float(rate):g} and {float(scale):g}" for rate, scale in tune.get("scaled") or []],
        "fraction": _tried_for(tune),
        "solvable": subject.metric == STEPS_METRIC,
        "level": identity.get("solve.level"),
        "first": identity.get("solve.first"),
        "per_doubling": identity.get("solve.per_doubling"),
        "compares": encodings > 1,
        "noise": f"{NOISE_STD * endpoint.margin:.2g} {endpoint.unit}s",
        "moderated": MIN_ENCODINGS if encodings >= MIN_ENCODINGS else 0,
        "fewest": MIN_SEEDS,
        "declared": subject.compared.declared,
        "diverged": len(subject.diverged),
        "notes": [escape_latex(note) for note in notes if note],
    }


def _tried_for(tune: Mapping[str, Any]) -> str:
    """Return for how long all rates are tried, in LaTeX; empty if to the end."""
    if steps := tune.get("steps"):
        return f"{int(steps):,} steps, or to the end where that is earlier"
    share = float(tune.get("fraction") or 1)
    return rf"{share:.0%}".replace("%", r"\,\%") + " of the steps" if share < 1 else ""


def _training_sentences(results: Results, cells: pd.DataFrame, counts: pd.Series) -> dict[str, Any]:
    """Return what any paragraph on methods says of models, tasks, training, seeds and versions.

    Args:
        results: the results of the study.
        cells: the cells of the results.
        counts: the number of seeds of each encoding and setting.
    """
    identity = shared_settings(results)
    names = varied_columns(cells, displayed_settings(cells, setting_columns(cells)))
    settings = {name: _values(cells[name]) for name in names if name != "data"}
    for name in ("depth", length_column(cells)):
        settings.setdefault(name, _values(cells[name]))
    return {
        "encodings": [escape_latex(name) for name in cells["pe"].unique()],
        "tasks": [_task(str(name)) for name in cells["data"].unique()] if "data" in cells else ["unknown"],
        "model": {name: identity[f"model.{name}"] for name in ("width", "num_heads")} if identity else None,
        "parameters": range_in_words(cells["parameters"], ",.0f", " to "),
        "optimizer": OPTIMIZERS.get(name := str(identity.get("optimizer.name")), escape_latex(name))
        if identity
        else None,
        "batch_size": identity.get("trainer.batch_size"),
        "sequences": None if identity.get("trainer.fresh") else identity.get("data.train"),
        "length": identity.get("data.length"),
        "tested": identity.get("data.test", identity.get("data.test_sequences")),
        "text": [escape_latex(str(identity[f"data.{name}"])) for name in ("corpus", "tokenizer")]
        if "data.corpus" in identity
        else None,
        "settings": {
            SETTINGS.get(name, rf"\texttt{{{escape_latex(name)}}} ="): [escape_latex(value) for value in values]
            for name, values in settings.items()
        },
        "seeds": range_in_words(counts, "g", " to "),
        "seed_names": escape_latex(seeds_in_words(tuple(sorted(cells["seed"].unique())))),
        "failed": len(results.failed),
        "versions": _versions(cells),
    }


def _task(name: str) -> str:
    """Return a task with what it is, the first comment of its file, if there is one."""
    file = config.find_folders().file("data", name)
    comment = "" if file is None else reference.first_comment(file)
    if comment.lower().startswith(f"{name}, "):  # the comment begins with the name
        comment = comment[len(name) + 2 :]
    what = f" ({_inside(comment)})" if comment else ""
    return escape_latex(f"{name}{what}")


def _inside(sentence: str) -> str:
    """Return a sentence as it stands in brackets: without its full stop, and its first word as within a sentence."""
    first, rest = sentence[:1], sentence[1:].removesuffix(".")
    return f"{first.lower() if rest[:1].islower() or rest[:1] == ' ' else first}{rest}"


def unit_in_brackets(metric: str) -> str:
    """Return the unit of a metric in brackets, or nothing."""
    words = "" if metric == STEPS_METRIC else unit_in_words(metric)
    return f" ({words})" if words else ""


def _rate(identity: Mapping[str, Any], cells: pd.DataFrame) -> float | None:
    """Return the learning rate, where all cells have one."""
    return identity.get(LR) if LR not in cells else None


def _versions(cells: pd.DataFrame) -> dict[str, str]:
    """Return the versions and the hardware that cells were trained with, in words."""
    versions = {}
    for column in (*ENVIRONMENT, "device"):
        values = cells[column].dropna().astype(str).unique() if column in cells else []
        short = [value[:12] if column == "commit" else value for value in values]
        versions[column] = escape_latex(", ".join(short))
    return versions


def tabular(table: pd.DataFrame, caption: str, label: str, groups: list[str]) -> str:
    """Return a table in LaTeX with the rules of booktabs; it may break over pages if it is long.

    Texts are escaped, but for those that stand in dollar signs.

    Args:
        groups: columns between whose values a rule is drawn.
    """
    columns = "".join("r" if pd.api.types.is_numeric_dtype(table[name]) else "l" for name in table)
    lines, before = [], None
    for row in table.to_dict("records"):
        group = [row[name] for name in groups]
        if before is not None and group != before:
            lines.append(r"\midrule")
        before = group
        lines.append(" & ".join(_cell(row[name]) for name in table) + r" \\")
    head = " & ".join(escape_latex("task" if name == "data" else str(name)) for name in table) + r" \\"
    body = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
    named = [rf"\caption{{{escape_latex(caption)}.}}", rf"\label{{{label}}}"]
    if len(table) > LONG:
        parts = [rf"\begin{{longtable}}{{{columns}}}", f"{''.join(named)} \\\\", *body, r"\end{longtable}"]
    else:
        inner = [rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]
        parts = [r"\begin{table}", r"\centering", *named, *inner, r"\end{table}"]
    return "\n".join(parts) + "\n"


def escape_latex(text: str) -> str:
    """Return text for LaTeX, with a thin space before the sign of per cent."""
    return "".join(ESCAPED.get(character, character) for character in text).replace(r" \%", r"\,\%")


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value if value.startswith("$") and value.endswith("$") else escape_latex(value)
    return "" if pd.isna(value) else f"{value:g}"


def _values(column: pd.Series) -> list[str]:
    return [value_text(value) for value in (*sorted_values(column), *column[column.isna()].head(1))]


def decimals(lines: pd.DataFrame) -> int:
    """Return the number of decimals of all differences in a table.

    The shortest interval has two digits in its half, but no decimal is below a hundredth of the smallest margin.

    Args:
        lines: a table of comparisons, with the columns difference, low, high and margin.
    """
    halves = (lines["high"] - lines["low"]).astype(float) / 2
    scales = [values[np.isfinite(values) & (values > 0)] for values in (halves, lines["margin"].astype(float) / 10)]
    finest = max((values.min() for values in scales if len(values)), default=0.01)
    return max(0, 1 - math.floor(math.log10(finest)))


def _number(value: float, digits: int) -> str:
    """Return a number with so many decimals; infinity as LaTeX writes it."""
    return "" if pd.isna(value) else f"${_fixed_point(value, digits)}$"


def _fixed_point(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else rf"{'-' * (value < 0)}\infty"


def _p_value(value: float) -> str:
    return "" if pd.isna(value) else "$<0.001$" if value < 0.001 else f"${value:.3f}$"


def _mean(mean: float, low: float, high: float) -> str:
    return f"${mean:.3f}$" if pd.isna(low) else rf"${mean:.3f} \pm {(high - low) / 2:.3f}$"


def _interval(low: float, high: float, digits: int) -> str:
    return "" if pd.isna(low) else f"$[{_fixed_point(low, digits)}, {_fixed_point(high, digits)}]$"


def _render_template(name: str, **values: Any) -> str:
    text: str = _environment().get_template(name).render(**values)
    return text.strip() + "\n"


@cache
def _environment() -> Environment:
    """Return templates whose marks do not clash with the braces of LaTeX."""
    return Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        trim_blocks=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(Path(__file__).parent / "latex"),
    )
