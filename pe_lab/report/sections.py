"""The sections of a report, in order; here those that show measurements beside the comparisons of encodings."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from pe_lab.report import comparing, tuned
from pe_lab.report.answer import answer, compares_losses, is_control
from pe_lab.report.attention import attention_section
from pe_lab.report.best_candidates import join_words, names_in_words
from pe_lab.report.cautions import above_validation
from pe_lab.report.layers import layer_records
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, ReportTable, Section, means_in_words
from pe_lab.report.report_subject import ReportSubject, code_section, failures_section, results_section, varied_columns
from pe_lab.report.setting_sensitivity import sensitivity_section
from pe_lab.report.swept_rates import rates_section
from pe_lab.report.tuned import COSTS, TunedSubject
from pe_lab.results import plots
from pe_lab.results.columns import (
    displayed_settings,
    in_words,
    setting_columns,
    sort_by_setting,
    without_whole_windows,
)
from pe_lab.results.panels import MAX_COLOURED_LINES
from pe_lab.results.summary_table import score_table, summarise

MAX_PANELS = 6  # of learning curves that are not folded
SHOWN = ("loss", "bits_per_byte", "accuracy", "exact_match")


def sections(subject: ReportSubject) -> list[Section]:
    """Return all sections that the results have data for, in order.

    Raises:
        ValueError: there is no such baseline, metric or encoding to compare with it.
    """
    if len(subject.results.cells):
        _ = subject.compared  # raises for a wrong metric or baseline
        subject.require_valid_comparison()
    if subject.results.cells.empty:
        others = [failures_section(subject.results), results_section(subject)]
    elif isinstance(subject, TunedSubject):
        others = [
            failures_section(subject.results),
            comparing.differences_section(subject),
            tuned.values_section(subject),
            results_section(subject),
        ]
        others += [
            tuned.best_rates_section(subject),
            _curves(subject),
            _lengths(subject),
            _probes(subject),
            _cost(subject),
        ]
        others += [_audit(subject), tuned.tuned_methods_section(subject)]
    else:
        others = [failures_section(subject.results), results_section(subject, verdicts=False)]
        if compares_losses(subject):
            choices = [] if is_control(subject.results.cells) else [comparing.choices_section(subject)]
            others = [*choices, failures_section(subject.results), comparing.grid_section(subject)]
            others += [comparing.differences_section(subject), results_section(subject)]
            others += [sensitivity_section(subject), comparing.effects_section(subject)]
        others += [rates_section(subject), _tasks(subject)]
        others += [_curves(subject), _lengths(subject), _probes(subject), attention_section(subject), _cost(subject)]
        others += [_audit(subject), comparing.methods_section(subject, compares_losses(subject))]
    first = answer(subject)
    drawn = {figure.code for figure in figures(first.parts)}
    page = [first, *(replace(section, parts=_without(section.parts, drawn)) for section in others)]
    page = [
        section
        for section in page
        if section.title != "Differences" or not all(isinstance(part, str) for part in section.parts)
    ]
    return [section for section in [*page, code_section(subject)] if section.parts]


def figures(parts: Sequence[Part]) -> list[CaptionedFigure]:
    """Return the figures of a section, folded ones included."""
    inner = [figures(part.parts) if isinstance(part, Collapsible) else [part] for part in parts]
    return [part for group in inner for part in group if isinstance(part, CaptionedFigure)]


def _without(parts: Sequence[Part], drawn: set[str]) -> list[Part]:
    """Return the parts of a section without the figures that the first screen has.

    Args:
        drawn: the code of the figures on the first screen.
    """
    kept = [part for part in parts if not (isinstance(part, CaptionedFigure) and part.code in drawn)]
    inner = [
        replace(part, parts=_without(part.parts, drawn)) if isinstance(part, Collapsible) else part for part in kept
    ]
    return [part for part in inner if not isinstance(part, Collapsible) or part.parts]


def _tasks(subject: ReportSubject) -> Section:
    """Return a column per task, losses scaled to its levels."""
    cells = subject.results.cells
    if "data" not in cells or cells["data"].nunique() < 2:
        return Section("Tasks")
    table, settings = score_table(summarise(cells)), setting_columns(cells)
    names = ["pe", *varied_columns(table, settings), *(name for name in table if name not in ("pe", *settings))]
    return Section("Tasks", [ReportTable(table[names], "Losses on the scale of each task's levels")])


def _curves(subject: ReportSubject) -> Section:
    """Return validation over epochs; none where each model was validated once, which makes points but no curve."""
    curves = subject.results.curves
    if curves.empty or curves.loc[curves["metric"] == subject.metric, "epoch"].nunique() < 2:
        return Section("Learning curves")
    code = f"plots.learning_curves(results.curves, {subject.metric!r}, rows=results.cells)"
    drawn = plots.learning_curves(curves, subject.metric, rows=subject.results.cells)
    caption = f"Validation {in_words(subject.metric)} during training: {means_in_words(drawn)}"
    if drawn.data["pe"].nunique() > MAX_COLOURED_LINES:
        caption += f". In colour: the {MAX_COLOURED_LINES} best at the end"
    figure, panels = CaptionedFigure(drawn, caption, code), drawn.data["setting"].nunique()
    folded = [Collapsible(f"{panels} panels, one for each setting", [figure])] if panels > MAX_PANELS else [figure]
    return Section("Learning curves", [*above_validation(subject), *folded])


def _lengths(subject: ReportSubject) -> Section:
    """Return each metric against length."""
    records, parts = subject.results.records, list[Part]()
    measured = without_whole_windows(records[records["kind"] == "length"]) if len(records) else records
    for metric in SHOWN if len(measured) else []:
        if (measured["metric"] == metric).any():
            code = f"plots.length_curves(results.records, {metric!r})"
            drawn = plots.length_curves(records, metric)
            caption = f"Test {in_words(metric)} against length: {means_in_words(drawn)}"
            parts.append(CaptionedFigure(drawn, caption, code))
    return Section(
        "Other lengths", _for_whom(subject, records[records["kind"] == "length"] if parts else records) + parts
    )


def _probes(subject: ReportSubject) -> Section:
    """Return what each probe found, and its metrics against the layer below it."""
    records, parts = subject.results.records, list[Part]()
    measured = layer_records(records)
    for probe in measured["probe"].unique() if len(measured) else []:
        metrics = [str(metric) for metric in measured.loc[measured["probe"] == probe, "metric"].unique()]
        curves: list[Part] = []
        for metric in metrics:
            code = f"plots.layer_curves(results.records, {probe!r}, {metric!r})"
            drawn = plots.layer_curves(records, probe, metric)
            curves.append(
                CaptionedFigure(drawn, f"Probe {probe}: {in_words(metric)} by layer, {means_in_words(drawn)}", code)
            )
        parts.append(
            Collapsible(f"{str(probe).capitalize()}: {join_words([in_words(metric) for metric in metrics])}", curves)
        )
    if not parts:
        return Section("Layers")
    return Section(
        "Layers", [*_for_whom(subject, measured), Collapsible("Every metric of every probe, by layer", parts)]
    )


def _for_whom(subject: ReportSubject, measured: pd.DataFrame) -> list[Part]:
    """Return a sentence that names the encodings of a measurement, where some encodings of the report lack it."""
    if measured.empty:
        return []
    names = [name for name in subject.results.cells["pe"].unique() if name in set(measured["pe"])]
    count = subject.results.cells["pe"].nunique()
    if len(names) == count:
        return []
    return [f"Measured for {len(names)} of {count} encodings: {names_in_words(names, None)}."]


def _cost(subject: ReportSubject) -> Section:
    """Return the costs of each encoding; seconds of training on a shared machine are none of them."""
    cells = subject.results.cells
    settings = varied_columns(cells, displayed_settings(cells, setting_columns(cells)))
    costs = (
        sort_by_setting(cells, settings)
        .groupby([*settings, "pe"], sort=False, dropna=False)
        .agg(
            parameters=("parameters", "median"),
            positional_parameters=("positional_parameters", "median"),
            flops_per_token=("flops_per_token", "median"),
            attention=("attention", lambda names: ", ".join(sorted(set(names)))),
            **{name: (name, "median") for name in COSTS if name in cells},
        )
    )
    costs = costs.reset_index()
    for name in settings:  # by which costs do not differ
        fewer = costs.drop(columns=name).drop_duplicates()
        costs = fewer if len(fewer) * costs[name].nunique(dropna=False) == len(costs) else costs
    return Section("Cost", [ReportTable(costs, "Medians over seeds")])


def _audit(subject: ReportSubject) -> Section:
    """Return the rows of an audit for the encodings of the report."""
    if subject.audit.empty:
        return Section("Properties of the encodings")
    names = {name.split(" ")[0] for name in subject.results.cells["pe"]}
    rows = subject.audit[subject.audit["pe"].isin(names)].dropna(axis=1, how="all")
    table = ReportTable(rows, "Measured without training, see pe-lab audit")
    return Section("Properties of the encodings", [table])
