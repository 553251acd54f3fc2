"""Sections that compare encodings: grid, differences with ranks and seeds needed, effects, methods, choice."""

import pandas as pd

from pe_lab import statistics
from pe_lab.report import recommendations
from pe_lab.report.best_candidates import join_words, verdict_counts
from pe_lab.report.overview_figures import MAX_DRAWN, WITH_INTERVALS, all_differences, over_training
from pe_lab.report.parts import (
    COMPARISON,
    CaptionedFigure,
    Collapsible,
    Part,
    ReportTable,
    Section,
    intervals_in_words,
    without_few_seeds,
)
from pe_lab.report.report_subject import ReportSubject, made_with, varied_columns
from pe_lab.results import plots
from pe_lab.results.columns import cut_interval, floors, in_words, length_column, lower_is_better, setting_columns
from pe_lab.results.learned import compared_settings_note, filter_learned_cells, partly_learned
from pe_lab.results.pooling import pool
from pe_lab.results.study_comparisons import POOLED
from pe_lab.results.summary_table import summarise
from pe_lab.statistics import DIFFERENT_VERDICTS, GRID_TABLE, Families, Verdict

REFERENCES = {  # what they know
    "unigram": "how frequent each token is",
    "ngram": "what followed the last few tokens in training",
    "xz": "the compressor of that name, which has seen the training text",
    "neighbours": "what stood between the same two tokens in training",
    "prior": "how frequent each answer is",
}


def grid_section(subject: ReportSubject) -> Section:
    """Return all means: of one setting a table, of several a figure over the length of training, and a heatmap."""
    cells, metric = subject.results.cells, subject.metric
    words = floors_in_words(floors(cells, metric), set(cells["pe"]))
    parts: list[Part] = [Collapsible("What the floors are", list(words))] if words else []
    if cells[length_column(cells)].nunique() > 1:
        drawn = plots.over_epochs(cells, metric)
        caption = f"Means over seeds{intervals_in_words(drawn)}. Lines without marks are floors"
        parts.append(CaptionedFigure(drawn, caption, over_training(metric)))
    if len(cells[setting_columns(cells)].drop_duplicates()) > 1:
        caption = "Means over seeds. Encodings are sorted by their mean rank. Floors and references are below the line"
        code = f"plots.heatmap(results.cells, {metric!r}, compared.compare())"
        parts.append(CaptionedFigure(plots.heatmap(cells, metric, subject.compared.compare()), caption, code))
    else:
        table = summarise(cells, subject.baseline, metric)
        names = ["pe", "seeds", "loss", "low", "high", *floors(cells, metric)]
        table = table[names].sort_values("loss", ascending=lower_is_better(metric), kind="stable")
        low, high = cut_interval(metric, table["loss"], table["low"], table["high"])
        table = without_few_seeds(table.assign(low=low, high=high))
        caption = f"Means over seeds{WITH_INTERVALS * ('low' in table)}, and floors"
        parts.append(ReportTable(table.rename(columns={"loss": in_words(metric)}), caption))
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
        parts.append(f"{join_words(told)} {what}.")
    return parts


def differences_section(subject: ReportSubject) -> Section:
    """Return the paired differences of every setting, and pooled, unless the first screen has all; ranks and seeds."""
    cells, families = subject.results.cells, subject.compared
    if cells["pe"].nunique() < 2:
        return Section("Differences")
    ranks, seeds = (_ranks(subject), _seeds(subject)) if subject.results.declared.tune is None else ([], [])
    details = [*ranks, *seeds]
    compared, several = families.compare(), len(cells[setting_columns(cells)].drop_duplicates()) > 1
    if not several and len(compared) <= MAX_DRAWN and compared["difference"].notna().any():
        return Section(
            "Ranks and seeds needed" if ranks and seeds else "Ranks" if ranks else "Seeds needed", details
        )  # differences stand on the first screen
    lines = families.asked()
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(lines).items())
    rule = f". Better, worse or different means {families.rule}" * bool(lines["verdict"].isin(DIFFERENT_VERDICTS).any())
    parts: list[Part] = [f"Comparisons {families.pairs_in_words}: {counts}{rule}."]
    if (compared["verdict"] != Verdict.BOTH_UNSOLVED).any():
        parts.append(all_differences(subject))
    if POOLED in families.tables:
        pooled = without_few_seeds(families.compare(POOLED)[COMPARISON])
        code = f"compared.compare({POOLED!r})"
        note = pool(cells, subject.metric).note
        caption = f"Pooled differences from {subject.baseline}"
        if (pooled["verdict"] == Verdict.NOT_ASKED).all():
            pooled = pooled.drop(columns=["p_corrected", "p_equivalent_corrected", "verdict"])
            caption += ". They have no verdicts: the study decides within settings"
        parts += [note, ReportTable(pooled, caption, code)]
    elif several and not partly_learned(cells) and subject.results.declared.tune is None:
        parts.append(pool(cells, subject.metric).note)
    return Section("Differences", [*parts, *_all_pairs(families, cells), *details])


def _all_pairs(families: Families, cells: pd.DataFrame) -> list[Part]:
    """Return the differences of every two encodings, with verdicts only where all pairs are the family."""
    lines = families.lines[GRID_TABLE]
    verdicts = ("p_corrected", "p_equivalent_corrected", "verdict")
    shown = [name for name in COMPARISON if name in lines and not (families.declared and name in verdicts)]
    keys = varied_columns(lines, [name for name in setting_columns(cells) if name in lines])
    table = without_few_seeds(lines[list(dict.fromkeys([*keys, "pe", "baseline", *shown]))])
    caption = f"The first minus the second, paired by seeds{f',{WITH_INTERVALS}' * ('low' in table)}"
    return [Collapsible("Every two encodings", [ReportTable(table, caption)])] if len(table) > 1 else []


def _ranks(subject: ReportSubject) -> list[Part]:
    """Return the range of ranks of each encoding, where all pairs are compared."""
    ranked = subject.compared.ranks()
    if ranked.empty or subject.compared.declared:
        return []
    text = (
        "An encoding's rank is between `best` (behind all that are better) and `worst` (before all that are worse). "
        "`tied` counts the rest, and `equivalent` those of them that are equivalent or equal."
    )
    names = [*varied_columns(ranked, setting_columns(subject.results.cells)), "pe", "mean"]
    table = ReportTable(ranked[[*names, "best", "worst", "tied", "equivalent"]], "Best mean first", "compared.ranks()")
    return [Collapsible("Ranks, with ties", [text, table])]


def effects_section(subject: ReportSubject) -> Section:
    """Return the shares of encoding, depth and epochs in the variation."""
    cells, source = filter_learned_cells(subject.results.cells), "results.cells"
    if len(cells) < len(subject.results.cells):
        source = f"learned.filter_learned_cells({source})"
    shared = statistics.effects(cells, subject.metric)
    if shared.empty:
        return Section("Effects")
    names = ["encoding" if name == "pe" else name for name in shared["effect"] if " " not in name]
    text = (
        f"How much of the variation goes with {join_words(names)}: shares of the sum of squares, averaged over seeds. "
        "`×` is an interaction: the effect of one depends on the other. The last share includes the noise."
    )
    if len(cells) < len(subject.results.cells):
        text += " Only settings in which a model has learned the task count."
    code = f"plots.shares(statistics.effects({source}, {subject.metric!r}))"
    drawn = CaptionedFigure(plots.shares(shared), "Shares with 95 % t intervals over seeds", code)
    return Section(f"Effects of {join_words(names)}", [text, drawn])


def _seeds(subject: ReportSubject) -> list[Part]:
    """Return how many seeds would separate each encoding from the baseline, or show it to be equivalent."""
    needed = statistics.seeds_needed(subject.compared.compare())
    if needed["deviation"].isna().all():
        return []
    names = [*varied_columns(needed, setting_columns(subject.results.cells)), "pe", "seeds", "difference", "deviation"]
    names += ["separable", "margin", "seeds_needed", "seeds_equivalent", "verdict"]
    text = (
        "How many seeds another study would need, if the observed difference and deviation were the true ones. Read "
        "these as orders of magnitude.\n"
        "- `seeds needed`: to show the difference\n"
        "- `seeds to show equivalence`: to show that the difference is within the margin; inf: no number does\n"
        "- `separable`: the smallest difference that as many seeds as here can show\n"
        f"Each with a power of 80 %, at the level of the first step of {subject.compared.correction}."
    )
    code = "statistics.seeds_needed(compared.compare())"
    table = ReportTable(needed[names], f"To separate each encoding from {subject.baseline}", code)
    return [Collapsible("Seeds needed", [text, table])]


def methods_section(subject: ReportSubject, verdicts: bool = True) -> Section:
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
    family, left_out = (
        f"the comparisons {subject.compared.pairs_in_words}",
        compared_settings_note(subject.results.cells),
    )
    if subject.compared.declared:
        chosen = subject.results.declared.baseline != subject.baseline
        by = "chosen for this report" if chosen else "which the study declared"
        family += f", {by}; other differences have intervals and no verdict"
    if subject.decided is not None:
        left_out = f"P values are also corrected for the looks. {left_out}"
    text = [
        units,
        "Intervals are 95 % t intervals, of means or of paired differences, each on its own. Verdicts come from p "
        "values after the correction, so an interval without 0 can belong to a difference that is undecided.",
        f"All verdicts are corrected together, as one family: {family}. The chance that any verdict of better or "
        f"worse is wrong is meant to be at most 5 %, and so is that of equivalent. {left_out}".rstrip(),
        f"The margin is the smallest difference that matters: {subject.margin_in_words}. Verdicts:\n"
        "- `better`, `worse`: the difference is significant, and its mean is at least the margin\n"
        "- `slightly better`, `slightly worse`: it is significant, and its mean is below the margin\n"
        "- `equivalent`: it is not significant, and significantly smaller than the margin (two one-sided t tests)\n"
        "- `undecided`: these seeds show none of this\n"
        "- `equal`: all seeds agree bit for bit",
    ]
    if subject.compared.share_variances:
        text.insert(
            2,
            "Where a setting has five encodings or more, the variance of each difference is estimated from all of "
            "them together (the moderated t test), in intervals and in verdicts.",
        )
    return Section("Methods", [*text, *made])


def choices_section(subject: ReportSubject) -> Section:
    """Return the best encoding for each need."""
    results = subject.results
    best = recommendations.choices(results.cells, results.records, subject.metric, subject.compared)
    if best.empty:
        return Section("Choice")
    code = f"recommendations.choices(results.cells, results.records, {subject.metric!r}, compared)"
    return Section(
        "Which encoding for which need",
        [ReportTable(best, "From these results alone. Values are means over seeds, losses in nats", code)],
    )
