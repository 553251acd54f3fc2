"""The figures of the first screen of a report: differences between encodings, and what training led to."""

from collections import Counter

import pandas as pd

from pe_lab.report.best_candidates import FEW_SETTINGS, by_setting, joined, table_of, unit_in_words
from pe_lab.report.parts import CaptionedFigure, Part, cut_in_words
from pe_lab.report.recommendations import POOLED
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
from pe_lab.results.learned import filter_learned_cells, filter_learned_comparisons, partly_learned
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import GRID_TABLE, Families, Verdict

MAX_DRAWN = 12  # encodings in the figure
WITH_INTERVALS = " with 95 % t intervals"


def forest(compared: Families, decided: pd.DataFrame | None = None) -> plots.Plot:
    """Draw the differences from the baseline over all settings, the best first; of many encodings, the best 12.

    Where settings are not averaged, the last setting is drawn in which a model has learned the task.

    Args:
        compared: all comparisons of a report.
        decided: the comparisons of a sequential study, which are drawn instead; None: it was not sequential.
    """
    rows, metric, _ = drawn(compared, decided)
    best = rows.sort_values("difference", ascending=lower_is_better(metric), kind="stable", na_position="last")
    return plots.forest(best.head(MAX_DRAWN), metric)


def drawn(compared: Families, decided: pd.DataFrame | None) -> tuple[pd.DataFrame, str, str]:
    """Return the comparisons that the figure shows, their metric, and the settings in words."""
    name = GRID_TABLE if decided is not None else table_of(compared) or GRID_TABLE
    if decided is None and compared.compare(name).empty:  # what is pooled lacks the baseline
        name = GRID_TABLE
    lines = compared.compare(name) if decided is None else decided
    if decided is not None:
        lines = with_one(decided, compared.baseline)
    names = list(lines.columns[: list(lines.columns).index("pe")])
    lines = sort_by_setting(lines, names)
    words = pd.Series(settings_in_words(lines, names), lines.index)
    count, rows = words.nunique(), compared.tables[GRID_TABLE][0]
    shown = words
    if name == GRID_TABLE and decided is None and names:
        learned = filter_learned_cells(rows)[names].drop_duplicates()
        shown = merge_tables(lines.assign(words=words), learned, names)["words"]
    last = shown.iloc[-1] if len(shown) else words.iloc[-1]
    where = f" at {last}, one of {count} settings, which are not averaged" if count > 1 else ""
    if name == POOLED:
        where = f", averaged over {len(rows[setting_columns(rows)].drop_duplicates())} settings"
    return lines[words == last], compared.tables[name][1], where


def overview_figures(subject: ReportSubject) -> list[Part]:
    """Return the figures of the first screen: differences, then what training led to; none without comparisons."""
    cells = subject.results.cells
    if cells.empty or cells["pe"].nunique() < 2:
        return []
    drawn = [_few_differences(subject), _training(subject) if draws_training(subject) else None]
    shown = [figure for figure in drawn if figure is not None]
    return [*(shown or filter(None, [_differences(subject)]))]


def _few_differences(subject: ReportSubject) -> CaptionedFigure | None:
    """Return the figure of the differences in each of a few settings; None where they are averaged, or many."""
    cells, compared = subject.results.cells, subject.compared
    if subject.decided is not None or cells["pe"].nunique() > MAX_DRAWN:
        return None
    lines = filter_learned_comparisons(compared.compare(GRID_TABLE), cells)
    settings = len(lines[[name for name in setting_columns(cells) if name in lines]].drop_duplicates())
    averaged = table_of(compared) is not None and not only_tasks_vary(cells)
    if averaged or not 1 < settings <= FEW_SETTINGS or lines["difference"].isna().all():
        return None
    best = Counter(next(iter(candidates.means)) for candidates in by_setting(compared)).most_common(1)
    return all_differences(subject, best[0][0] if best else subject.baseline)


def all_differences(subject: ReportSubject, baseline: str = "") -> CaptionedFigure:
    """Return the figure of all differences from an encoding, in the settings in which a model has learned the task.

    Args:
        baseline: empty: that of the report.
    """
    cells, other = subject.results.cells, baseline not in ("", subject.baseline)
    lines = filter_learned_comparisons(subject.compared.compare(GRID_TABLE, baseline or None), cells)
    source = f"compared.compare(baseline={baseline!r})" if other else "compared.compare()"
    if partly_learned(cells):
        source = f"learned.filter_learned_comparisons({source}, results.cells)"
    how = _with_intervals(subject) if lines["low"].notna().any() else ""
    whose = f"{baseline}, which has the best mean" if other else subject.baseline
    caption = f"Differences from {whose}, paired by seeds{how}{_band(lines, subject.metric)}"
    if lines["p_corrected"].notna().any():
        corrected = subject.compared.corrections(baseline or subject.baseline)
        caption += (
            f". Verdicts are corrected for {corrected}; intervals are not: one without 0, or one inside the band, "
        )
        caption += "may belong to an undecided difference"
    shown = lines[lines["verdict"] != Verdict.BOTH_UNSOLVED]
    return CaptionedFigure(plots.forest(shown, subject.metric), caption, f"plots.forest({source}, {subject.metric!r})")


def _with_intervals(subject: ReportSubject) -> str:
    """Say of which kind the intervals of differences are."""
    return WITH_INTERVALS.replace("95", "moderated 95") if subject.compared.share_variances else WITH_INTERVALS


def _band(lines: pd.DataFrame, metric: str) -> str:
    """Say what the grey band of differences is; empty without a margin."""
    sizes = lines["margin"].dropna()
    if sizes.empty or metric == STEPS_METRIC:
        return "; the grey band is the margin" * len(sizes[:1])
    ends = joined(list(dict.fromkeys(f"{size:.2g}" for size in (sizes.min(), sizes.max()))))
    return f"; the grey band is the margin of {ends} {unit_in_words(metric)}".rstrip()


def _training(subject: ReportSubject) -> CaptionedFigure:
    """Return the figure of the metric over the lengths of training."""
    cells = subject.results.cells
    seeds = count_of_seeds(cells.groupby([*setting_columns(cells), "pe"], dropna=False)["seed"].nunique())
    caption = f"Test {in_words(subject.metric)} after so many {length_column(cells)}: means over {seeds}"
    plot = plots.over_epochs(cells, subject.metric)
    caption += (WITH_INTERVALS + cut_in_words(plot, subject.metric)) * several_seeds(cells)
    return CaptionedFigure(plot, caption, over_training(subject.metric))


def _differences(subject: ReportSubject) -> CaptionedFigure | None:
    """Return the figure of the differences over all settings, or in one that is named; None without any."""
    rows, _, where = drawn(subject.compared, subject.decided)
    if rows["difference"].isna().all():  # or there are none
        return None
    how = f",{_with_intervals(subject)}" if rows["low"].notna().any() else ""
    how = how if subject.decided is None else ", with intervals that hold under the looking"
    caption = f"Differences from {rows['baseline'].iloc[0]}{where}{how}"
    if len(rows) > MAX_DRAWN:
        caption += f"; the best {MAX_DRAWN} of {len(rows)} by mean"
    more = "" if subject.decided is None else ", sequential_verdicts.decisions(results)"
    code = f"overview_figures.forest(compared{more})"
    return CaptionedFigure(forest(subject.compared, subject.decided), caption, code)


def several_seeds(cells: pd.DataFrame) -> bool:
    """Return whether any encoding has two seeds or more, and so an interval."""
    return bool((cells.groupby("pe")["seed"].nunique() > 1).any())


def draws_training(subject: ReportSubject) -> bool:
    """Whether the first figure shows the metric over the lengths of training: of few encodings with several."""
    cells = subject.results.cells
    several = cells[length_column(cells)].nunique() > 1 and subject.metric != STEPS_METRIC
    return subject.decided is None and several and cells["pe"].nunique() <= MAX_DRAWN


def over_training(metric: str) -> str:
    """Return the line of code that draws a metric over the lengths of training."""
    return f"plots.over_epochs(results.cells, {metric!r})"


def only_tasks_vary(cells: pd.DataFrame) -> bool:
    """Whether settings differ in nothing but their task."""
    return [name for name in setting_columns(cells) if cells[name].nunique(dropna=False) > 1] == ["data"]


def count_of_seeds(counts: pd.Series) -> str:
    """Return the number of seeds in words, or its range."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low if low == high else f'{low} to {high}'} seed{'s' * (high != 1)}"
