"""The figures of the first screen of a report: differences between encodings, and what training led to."""

import pandas as pd

from pe_lab.report.best_candidates import FEW_SETTINGS, join_words, overall_table, unit_in_words
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, cut_in_words, intervals_in_words
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.sequential_verdicts import with_one
from pe_lab.results import plots
from pe_lab.results.columns import (
    STEPS_METRIC,
    in_words,
    length_column,
    lower_is_better,
    merge_tables,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.number_text import count_of_seeds
from pe_lab.results.panels import settings_in_words
from pe_lab.results.study_comparisons import POOLED
from pe_lab.statistics import GRID_TABLE, Families, Verdict

MAX_DRAWN = 12  # encodings in the figure
WITH_INTERVALS = " with 95 % t intervals"


def forest(compared: Families, decided: pd.DataFrame | None = None) -> plots.Plot:
    """Draw the differences from the baseline over all settings, the best first; of many encodings, the best 12.

    Where settings are not averaged, the last setting is drawn in which a model has learned the task.

    Args:
        compared: all comparisons of a report.
        decided: the comparisons of a sequential study, which are drawn instead; None: the study was not sequential.
    """
    lines, metric, _ = overview_comparisons(compared, decided)
    best = lines.sort_values("difference", ascending=lower_is_better(metric), kind="stable", na_position="last")
    rows = compared.tables[_table_drawn(compared)][0] if decided is None else None
    return plots.forest(best.head(MAX_DRAWN), metric, rows)


def _table_drawn(compared: Families) -> str:
    """Return the table whose comparisons the figure shows: that of the mean over settings, if it has the baseline."""
    name = overall_table(compared) or GRID_TABLE
    return GRID_TABLE if compared.compare(name).empty else name


def overview_comparisons(compared: Families, decided: pd.DataFrame | None) -> tuple[pd.DataFrame, str, str]:
    """Return the comparisons that the figure shows, their metric, and the settings in words."""
    name = GRID_TABLE if decided is not None else _table_drawn(compared)
    lines = compared.compare(name) if decided is None else decided
    if decided is not None:
        lines = with_one(decided, compared.baseline)
    names = list(lines.columns[: list(lines.columns).index("pe")])
    lines = sort_by_setting(lines, names)
    words = pd.Series(settings_in_words(lines, names), lines.index)
    count, rows = words.nunique(), compared.tables[GRID_TABLE][0]
    last = words.iloc[-1] if len(words) else ""
    where = f" at {last}, one of {count} settings, which are not averaged" if count > 1 else ""
    if name == POOLED:
        where = f", averaged over {len(rows[setting_columns(rows)].drop_duplicates())} settings"
    return lines[words == last], compared.tables[name][1], where


def overview_figures(subject: ReportSubject) -> list[Part]:
    """Return the figure of the first screen: differences, or what training led to, folded where there are both."""
    cells = subject.results.cells
    if cells.empty or cells["pe"].nunique() < 2:
        return []
    few, training = _few_differences(subject), _training_figure(subject) if draws_training(subject) else None
    if few is not None and training is not None:
        return [few, Collapsible(f"Test {in_words(subject.metric)} over training", [training])]
    return [*filter(None, [few or training or _differences(subject)])]


def from_the_best(compared: Families, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the differences from the best mean of each setting in which a model has learned the task.

    Args:
        compared: all comparisons of a report.
        cells: the cells of the report.
    """
    ranked = compared.ranks(GRID_TABLE)
    names = [name for name in setting_columns(cells) if name in ranked]
    best = ranked.drop_duplicates(names)  # ranks are sorted by means
    lines = [
        merge_tables(compared.compare(GRID_TABLE, str(pe)), here[names], names)
        for pe, here in best.groupby("pe", sort=False)
    ]
    return sort_by_setting(pd.concat(lines, ignore_index=True), names)


def _few_differences(subject: ReportSubject) -> CaptionedFigure | None:
    """Return the figure of the differences in each of a few settings; None where they are averaged, or many."""
    if not _draws_few_settings(subject):
        return None
    if not draws_from_best(subject):
        return all_differences(subject)
    source = "overview_figures.from_the_best(compared, results.cells)"
    return _forest_figure(subject, from_the_best(subject.compared, subject.results.cells), source)


def draws_from_best(subject: ReportSubject) -> bool:
    """Return whether the first figure of differences is of those from the best mean of each setting."""
    return not subject.compared.declared and _draws_few_settings(subject)


def _draws_few_settings(subject: ReportSubject) -> bool:
    """Return whether the first figure shows the differences in each of a few settings, which are not averaged."""
    cells, compared = subject.results.cells, subject.compared
    if subject.decided is not None or cells["pe"].nunique() > MAX_DRAWN:
        return False
    lines = compared.compare(GRID_TABLE)
    settings = len(lines[[name for name in setting_columns(cells) if name in lines]].drop_duplicates())
    averaged = overall_table(compared) is not None and not only_tasks_vary(cells)
    return not averaged and 1 < settings <= FEW_SETTINGS and bool(lines["difference"].notna().any())


def all_differences(subject: ReportSubject) -> CaptionedFigure:
    """Return the figure of all differences from the baseline."""
    return _forest_figure(subject, subject.compared.compare(), "compared.compare()")


def _forest_figure(subject: ReportSubject, lines: pd.DataFrame, source: str) -> CaptionedFigure:
    """Return the figure of comparisons, with a caption.

    Args:
        source: the code that makes them.
    """
    shown = lines[lines["verdict"] != Verdict.BOTH_UNSOLVED]
    plot = plots.forest(shown, subject.metric, subject.results.cells)
    baselines = list(dict.fromkeys(lines["baseline"]))
    whose = baselines[0] if len(baselines) == 1 else "the encoding with the best mean in each panel"
    caption = f"Differences from {whose}, paired over {count_of_seeds(lines['seeds'])}{_with_intervals(subject, plot)}"
    caption += _band(lines, subject.metric) + _what_is_corrected(subject, lines)
    return CaptionedFigure(plot, caption, f"plots.forest({source}, {subject.metric!r}, results.cells)")


def _with_intervals(subject: ReportSubject, plot: plots.Plot) -> str:
    """Say of which kind the intervals of differences are, or why there are none."""
    text = intervals_in_words(plot, f"{'moderated ' * subject.compared.share_variances}95 % t intervals")
    return f",{text.removeprefix(',')}" * bool(text)


def _band(lines: pd.DataFrame, metric: str) -> str:
    """Say what the grey band of differences is; empty without a margin."""
    sizes = lines["margin"].dropna()
    if sizes.empty or metric == STEPS_METRIC:
        return "; the grey band is the margin" * len(sizes[:1])
    ends = join_words(list(dict.fromkeys(f"{size:.2g}" for size in (sizes.min(), sizes.max()))))
    return f"; the grey band is the margin of {ends} {unit_in_words(metric)}".rstrip()


def _what_is_corrected(subject: ReportSubject, lines: pd.DataFrame) -> str:
    """Say for what verdicts are corrected, and that intervals are not; empty where no comparison has a p value."""
    if lines["p_corrected"].isna().all():
        return ""
    looks = " and for the looks" * (subject.decided is not None)
    return f". Verdicts are corrected for the number of comparisons{looks}, intervals are not"


def _training_figure(subject: ReportSubject) -> CaptionedFigure:
    """Return the figure of the metric over the lengths of training."""
    cells = subject.results.cells
    seeds = count_of_seeds(cells.groupby([*setting_columns(cells), "pe"], dropna=False)["seed"].nunique())
    caption = f"Test {in_words(subject.metric)} after so many {length_column(cells)}: means over {seeds}"
    plot = plots.over_epochs(cells, subject.metric)
    caption += intervals_in_words(plot) + cut_in_words(plot, subject.metric)
    return CaptionedFigure(plot, caption, over_training(subject.metric))


def _differences(subject: ReportSubject) -> CaptionedFigure | None:
    """Return the figure of the differences over all settings, or in one that is named; None without any."""
    rows, metric, where = overview_comparisons(subject.compared, subject.decided)
    if rows["difference"].isna().all():  # or there are none
        return None
    plot = forest(subject.compared, subject.decided)
    caption = f"Differences from {rows['baseline'].iloc[0]}{where}{_with_intervals(subject, plot)}"
    caption += _band(rows, metric)
    if len(rows) > MAX_DRAWN:
        caption += f"; the best {MAX_DRAWN} of {len(rows)} by mean"
    caption += _what_is_corrected(subject, rows)
    more = "" if subject.decided is None else ", sequential_verdicts.decisions(results)"
    code = f"overview_figures.forest(compared{more})"
    return CaptionedFigure(plot, caption, code)


def draws_training(subject: ReportSubject) -> bool:
    """Return whether the first figure shows the metric over lengths of training: of few encodings with several."""
    cells = subject.results.cells
    several = cells[length_column(cells)].nunique() > 1 and subject.metric != STEPS_METRIC
    return subject.decided is None and several and cells["pe"].nunique() <= MAX_DRAWN


def over_training(metric: str) -> str:
    """Return the line of code that draws a metric over the lengths of training."""
    return f"plots.over_epochs(results.cells, {metric!r})"


def only_tasks_vary(cells: pd.DataFrame) -> bool:
    """Return whether settings differ in nothing but their task."""
    return [name for name in setting_columns(cells) if cells[name].nunique(dropna=False) > 1] == ["data"]
