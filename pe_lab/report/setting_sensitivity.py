"""The section on sensitivity: whether the difference of two encodings holds in all settings."""

import pandas as pd

from pe_lab.report.parts import CaptionedFigure, Part, ReportTable, Section
from pe_lab.report.report_subject import ReportSubject, varied_columns
from pe_lab.results import specification
from pe_lab.results.columns import setting_columns
from pe_lab.results.learned import filter_learned_cells, filter_learned_comparisons, partly_learned
from pe_lab.results.sensitivity import sensitivity, shares
from pe_lab.results.study_comparisons import POOLED
from pe_lab.statistics import GRID_TABLE, Families


def sensitivity_section(subject: ReportSubject) -> Section:
    """Return the sensitivity of one difference, where two settings or more vary: a specification curve and its shares.

    Compared with the baseline is `subject.against`, or the best of the other encodings by mean. Settings in which none
    has learned the task do not count where there are others.
    """
    title, compared = "Does it hold elsewhere?", subject.compared
    cells = filter_learned_cells(subject.results.cells)
    if cells["pe"].nunique() < 2 or len(varied_columns(cells, setting_columns(cells))) < 2:
        return Section(title)
    pe = subject.against or best_other(compared, subject.results.cells)
    pair = f"results.cells, {pe!r}, {subject.baseline!r}, {subject.metric!r}, compared.compare()"
    if len(cells) < len(subject.results.cells):
        pair = pair.replace("results.cells", "learned.filter_learned_cells(results.cells)")
    differences = sensitivity(cells, pe, subject.baseline, subject.metric, compared.compare())
    if not differences.names:  # both encodings were trained in one setting only
        return Section(title)
    why = "as asked" if subject.against else "the best of the others by mean; `--against NAME` asks about another"
    parts: list[Part] = [f"`{pe}` ({why}) against `{subject.baseline}`. {differences.words()}"]
    if differences.lines["difference"].notna().any():
        caption = f"Specification curve of {pe} minus {subject.baseline}: each setting, with 95 % t intervals"
        parts.append(
            CaptionedFigure(
                specification.curve(differences),
                caption,
                f"specification.curve(sensitivity.sensitivity({pair}))",
            )
        )
        code = f"sensitivity.sensitivity({pair}).levels()"
        levels = differences.levels()
        rare = {"equal": "equal: to the bit in all seeds", "unknown": "unknown: no seed is shared"}
        told = {name: words for name, words in rare.items() if levels[name].any()}
        caption = "; ".join(["By the values of each setting, the number of settings", *told.values()])
        levels = levels.drop(columns=[name for name in rare if name not in told])
        parts.append(ReportTable(levels, caption, code))
    return Section(title, [*parts, *_shares(differences.sample, differences.names)])


def best_other(compared: Families, cells: pd.DataFrame) -> str:
    """Return the encoding with the best mean but the baseline: over all settings, or else by mean rank over them.

    Settings in which no encoding has learned the task do not count where there are others.
    """
    name = POOLED if POOLED in compared.tables and not partly_learned(cells) else GRID_TABLE
    ranked = compared.ranks(name)
    ranked = ranked[ranked["pe"] != compared.baseline]
    if name == POOLED and len(ranked):
        return str(ranked["pe"].iloc[0])
    ranked = filter_learned_comparisons(compared.ranks(GRID_TABLE), cells)
    names = list(ranked.columns[: list(ranked.columns).index("pe")])
    places = ranked.groupby(names, sort=False, dropna=False).cumcount().groupby(ranked["pe"], sort=False).mean()
    return str(places.drop(compared.baseline, errors="ignore").sort_values(kind="stable").index[0])


def _shares(sample: pd.DataFrame, names: list[str]) -> list[Part]:
    """Return the table of shares with its meaning; nothing where there are none."""
    table = shares(sample, names)
    if table.empty:
        return []
    text = (
        "How much of the variance of this difference goes with each setting (Shapley values of a linear model, see "
        "`docs/sensitivity.md`). `by chance` is what noise alone would give: a share of that size says nothing. "
        "Shares describe these settings, not others."
    )
    return [text, ReportTable(table, "Shares of the variance of the difference")]
