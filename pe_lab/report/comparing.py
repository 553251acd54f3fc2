"""Sections that compare encodings: grid, differences, ranks, effects, seeds needed, methods, choice."""

import pandas as pd

from pe_lab import statistics
from pe_lab.report import recommendations
from pe_lab.report.answer import LEARNED
from pe_lab.report.best_candidates import joined
from pe_lab.report.lengths import at_longer_lengths
from pe_lab.report.overview_figures import MAX_DRAWN, WITH_INTERVALS, all_differences, over_training, several_seeds
from pe_lab.report.parts import COMPARISON, CaptionedFigure, Collapsible, Part, ReportTable, Section
from pe_lab.report.report_subject import ReportSubject, made_with, varied_columns
from pe_lab.results import plots
from pe_lab.results.columns import floors, in_words, length_column, merge_tables, setting_columns
from pe_lab.results.learned import filter_learned_cells, filter_learned_comparisons, partly_learned
from pe_lab.results.pooling import pool
from pe_lab.statistics import DIFFERENT_VERDICTS, GRID_TABLE, Families, Verdict
from pe_lab.statistics.comparisons import counted

UNLEARNED = "Settings in which no encoding has learned the task"
LONGER = " × the training length"  # in the needs of longer sequences
REFERENCES = {  # what they know
    "unigram": "how frequent each token is",
    "ngram": "what followed the last few tokens in training",
    "xz": "the compressor of that name, which has seen the training text",
    "neighbours": "what stood between the same two tokens in training",
    "prior": "how frequent each answer is",
}


def grid(subject: ReportSubject) -> Section:
    """Return the heatmap of all means, with the meaning of the floors."""
    cells, metric = subject.results.cells, subject.metric
    words = floors_in_words(floors(cells, metric), set(cells["pe"]))
    parts: list[Part] = [Collapsible("What the floors are", list(words))] if words else []
    if cells[length_column(cells)].nunique() > 1:
        caption = f"Means over seeds{WITH_INTERVALS if several_seeds(cells) else ''}; lines without marks are floors"
        parts.append(CaptionedFigure(plots.over_epochs(cells, metric), caption, over_training(metric)))
    caption = "Mean over seeds, encodings by their mean rank, floors and reference values below the line"
    code = f"plots.heatmap(results.cells, {metric!r}, compared.compare())"
    parts.append(CaptionedFigure(plots.heatmap(cells, metric, subject.compared.compare()), caption, code))
    return Section(f"Test {in_words(metric)}", parts)


def floors_in_words(names: list[str], encodings: set[str]) -> list[str]:
    """Return a sentence on what each floor is.

    Args:
        names: the names of the floors.
        encodings: the names of the encodings that stand beside them.
    """
    parts = []
    if "bayes" in names:
        parts.append("`bayes` is the value of the best possible model; no model can beat it.")
    if "position_blind" in names:
        parts.append(
            "`position-blind` is the value of the best model that cannot tell positions apart and does not know which "
            "problems are held out."
        )
    if "position_blind" in names and "none" in encodings:
        parts.append(
            "A causal model without an encoding is not blind: it can count the tokens before a token. So `none` may be "
            "far below these levels."
        )
    if "position_blind_split_known" in names:
        parts.append(
            "`position-blind-split-known` is the same for a model that knows the held-out problems; no model that "
            "cannot tell positions apart can beat it."
        )
    if others := [name.replace("_", "-") for name in names if not name.startswith(("bayes", "position_blind"))]:
        told = [f"`{name}` ({REFERENCES[name]})" if name in REFERENCES else f"`{name}`" for name in others]
        what = "are reference values, not bounds" if len(others) > 1 else "is a reference value, not a bound"
        parts.append(f"{joined(told)} {what}.")
    return parts


def differences(subject: ReportSubject) -> Section:
    """Return the paired differences from the baseline in every setting, and pooled, unless the first screen has all."""
    cells, families = subject.results.cells, subject.compared
    if cells["pe"].nunique() < 2:
        return Section("Differences")
    compared = filter_learned_comparisons(families.compare(), cells)
    learned, where = partly_learned(cells), "in every setting"
    if learned:
        count = len(compared[[name for name in setting_columns(cells) if name in compared]].drop_duplicates())
        where = f"in the {count} settings {LEARNED}" if count > 1 else f"in the only setting {LEARNED}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in compared["verdict"].value_counts().items())
    rule = f" (better or worse: {families.rule})" * bool(compared["verdict"].isin(DIFFERENT_VERDICTS).any())
    parts: list[Part] = [f"Every encoding against `{subject.baseline}`, {where}: {counts}{rule}."]
    if subject.results.declared.decide is not None:
        parts.append(
            "**Note.** Seeds were added to this study where they decide. The tests on this page are for a number of "
            "seeds that was fixed before, and do not hold for it; the study's own verdicts do."
        )
    several = len(cells[setting_columns(cells)].drop_duplicates()) > 1
    on_top = not several and len(compared) <= MAX_DRAWN and compared["difference"].notna().any()
    if not on_top or subject.decided is not None:
        parts += [all_differences(subject)] if (compared["verdict"] != Verdict.BOTH_UNSOLVED).any() else []
    elif subject.results.declared.decide is None:
        return Section("Differences")  # those of the figure of the first screen
    settings = pool(cells, subject.metric)
    if several and not learned and (settings.rows.empty or recommendations.POOLED in families.tables):
        parts.append(settings.note)
    parts += _all_pairs(families, cells)
    if not learned and recommendations.POOLED in families.tables:
        pooled = families.compare(recommendations.POOLED)[COMPARISON]
        code = f"compared.compare({recommendations.POOLED!r})"
        parts.append(ReportTable(pooled, f"Pooled differences from {subject.baseline}", code))
    return Section("Differences", parts)


def _all_pairs(families: Families, cells: pd.DataFrame) -> list[Collapsible]:
    """Return the comparisons of every two encodings, those in settings in which no model has learned the task apart."""
    lines = families.lines[GRID_TABLE]
    keys = [name for name in setting_columns(cells) if name in lines]
    marked = lines.assign(learned=True)
    if partly_learned(cells):
        learned = filter_learned_cells(cells)[keys].drop_duplicates()
        marks = merge_tables(lines, learned, keys, how="left", indicator=True)["_merge"]
        marked["learned"] = marks.eq("both").to_numpy()
    columns = [*varied_columns(lines, keys), "pe", "baseline", *(name for name in COMPARISON if name in lines)]
    columns, folded = list(dict.fromkeys(columns)), []
    for is_learned, title in ((True, "Every two encodings"), (False, f"{UNLEARNED}: every two encodings")):
        part = marked.loc[marked["learned"] == is_learned, columns]
        if len(part) > 1:
            folded.append(Collapsible(title, [ReportTable(part, "The first minus the second, paired by seeds")]))
    return folded


def ranks(subject: ReportSubject) -> Section:
    """Return the range of ranks of each encoding."""
    cells = subject.results.cells
    ranked, code = filter_learned_comparisons(subject.compared.ranks(), cells), "compared.ranks()"
    if ranked.empty or cells["pe"].nunique() < 2:
        return Section("Ranks")
    text = (
        "An encoding's rank lies between `best` and `worst`: behind all encodings that are better by the verdicts of "
        "the report's families, and before all that are worse. `tied` counts the rest, and `equivalent` those of them "
        "whose difference is significantly smaller than the margin; the others are undecided at these seeds."
    )
    caption = "Best mean first"
    if partly_learned(cells):
        caption += f", of the settings {LEARNED}"
        code = f"learned.filter_learned_comparisons({code}, results.cells)"
    names = [*varied_columns(ranked, setting_columns(cells)), "pe", "mean"]
    names += ["best", "worst", "tied", "equivalent"]
    return Section("Ranks, with ties", [text, ReportTable(ranked[names], caption, code)])


def effects(subject: ReportSubject) -> Section:
    """Return the shares of encoding, depth and epochs in the variation."""
    cells, source = filter_learned_cells(subject.results.cells), "results.cells"
    if len(cells) < len(subject.results.cells):
        source = f"learned.filter_learned_cells({source})"
    shared = statistics.effects(cells, subject.metric)
    if shared.empty:
        return Section("Effects")
    names = ["encoding" if name == "pe" else name for name in shared["effect"] if " " not in name]
    text = (
        f"{joined(names).capitalize()}, alone and together: shares of the sum of squares within each seed's grid, "
        "averaged over seeds. `×` is an interaction: how one effect depends on another. The last one contains the "
        "noise."
    )
    if len(cells) < len(subject.results.cells):
        text += " Only settings in which a model has learned the task count."
    code = f"plots.shares(statistics.effects({source}, {subject.metric!r}))"
    drawn = CaptionedFigure(plots.shares(shared), "Shares with 95 % t intervals over seeds", code)
    return Section(f"Effects of {joined(names)}", [text, drawn])


def seeds(subject: ReportSubject) -> Section:
    """Return how many seeds would separate each encoding from the baseline, or show it to be equivalent."""
    if subject.results.cells["pe"].nunique() < 2:
        return Section("Seeds needed")
    cells, lines = subject.results.cells, "compared.compare()"
    if partly_learned(cells):
        lines = f"learned.filter_learned_comparisons({lines}, results.cells)"
    needed = statistics.seeds_needed(filter_learned_comparisons(subject.compared.compare(), cells))
    if needed["deviation"].isna().all():
        return Section("Seeds needed")
    names = [*varied_columns(needed, setting_columns(subject.results.cells)), "pe", "seeds", "difference", "deviation"]
    names += ["separable", "margin", "seeds_needed", "seeds_equivalent", "verdict"]
    text = (
        "`seeds needed` would show the difference, `seeds to show equivalence` that it is smaller than the margin; the "
        "smaller of the two decides. `separable` is the smallest "
        "difference that as many seeds would show in 80 % of studies. All are for a power of 80 % and the level of the "
        f"first step of Holm's correction over {counted(subject.compared.sizes()[0], 'comparison')} with "
        f"`{subject.baseline}`. They take the observed difference and deviation as the true ones: read them as orders "
        "of magnitude. `inf`: no number of seeds would."
    )
    code = f"statistics.seeds_needed({lines})"
    table = ReportTable(needed[names], f"To separate each encoding from {subject.baseline}", code)
    return Section("Seeds needed", [text, table])


def methods(subject: ReportSubject, verdicts: bool = True) -> Section:
    """Return how comparisons are made.

    Args:
        verdicts: whether the page has any.
    """
    units = (
        "Cells of one seed share data, order and all weights that are not positional, so encodings are compared "
        "within seeds, and seeds are the independent units. Several epochs of one training are not independent "
        "samples."
    )
    made = made_with(subject.results.cells)
    if not verdicts:
        return Section(
            "Methods", [units, "Intervals are 95 % t intervals of means over seeds, each on its own.", *made]
        )
    text = [
        units,
        "Intervals are 95 % t intervals, of means or of paired differences, each on its own. Verdicts come from p "
        "values after Holm's correction, so an interval without 0 can belong to a difference that is undecided.",
        f"The margin is the smallest difference that matters: {subject.compared.margin}. `better` and `worse` mean "
        "that the difference is significantly not 0; `equivalent`, that it is significantly smaller than the margin "
        "(two one-sided t tests); `slightly better` and `slightly worse`, both; `undecided`, that these "
        "seeds show neither; `equal`, that all seeds agree bit for bit.",
        "A comparison belongs to one of two families. The comparisons with the baseline, in every setting, pooled and "
        "at the longest length, are what the report asks; the comparisons of two other encodings, in the same places, "
        "are the other family, so that asking about every pair does not hide the answer. In each family, the chance "
        "that any verdict of better or worse is wrong is meant to be at most 5 %, and so is that of "
        "equivalent; with few seeds and few encodings it can be larger, which a note on top then says. Another "
        "baseline or margin makes other verdicts: choose them before looking at the results.",
    ]
    if subject.compared.share_variances:
        text.insert(
            2,
            "Where a setting has five encodings or more, the variance of each difference is estimated from all of "
            "them together (the moderated t test), in intervals and in verdicts.",
        )
    return Section("Methods", [*text, *made])


def choices(subject: ReportSubject) -> Section:
    """Return the best encoding for each need."""
    results = subject.results
    best = recommendations.choices(results.cells, results.records, subject.metric, subject.compared)
    if best.empty:
        return Section("Choice")
    code = f"recommendations.choices(results.cells, results.records, {subject.metric!r}, compared)"
    near = list[Part]()
    if at_longer_lengths(subject):
        far = best["need"].str.contains(LONGER, regex=False)
        rest = f"{code}.loc[lambda rows: ~rows['need'].str.contains({LONGER!r})]"
        near = [
            Collapsible("At the training length", [ReportTable(best[~far], "Likewise, at the training length", rest)])
        ]
        best, code = best[far], f"{code}.loc[lambda rows: rows['need'].str.contains({LONGER!r})]"
    table = ReportTable(best, "Drawn from these results alone", code)
    return Section("Which encoding for which need", [table, *near])
