"""The first screen of a report: the question, its answer, one figure, and how it was compared, folded.

Each phrase says no more than the verdicts of the report's families: an encoding is called the best only if it is
significantly better than each other.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config import LR
from pe_lab.config.reference import first_comment
from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS, NO_GAP
from pe_lab.report.attention import WITH_FOLDER, configured_name
from pe_lab.report.best_candidates import (
    FEW_SETTINGS,
    BestCandidates,
    amount,
    best_means,
    capitalise,
    comparative,
    extent_in_words,
    in_each_setting,
    join_words,
    last_word,
    metric_description,
    names_in_words,
    one_by_one,
    overall,
    superlative,
    undecided_by_setting,
    unit_in_words,
    verdict_counts,
    verdict_over_settings,
)
from pe_lab.report.cautions import (
    behind_references,
    find_apart,
    loss_decrease,
    margin_of_loss,
    not_finite,
    not_learned_position,
    one_rate,
    runs_apart,
    still_falling,
)
from pe_lab.report.layers import layer_parts, layer_records
from pe_lab.report.lengths import at_longer_lengths, length_parts
from pe_lab.report.overview_figures import only_tasks_vary, overview_figures
from pe_lab.report.parts import Collapsible, Part, ReportTable, Section
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.sequential_verdicts import decision_notes, sequential
from pe_lab.report.swept_rates import rate_parts, tries_rates
from pe_lab.report.training_setup import (
    rates_in_words,
    rates_of_seeds,
    setting_in_words,
    shared_settings,
    training_sentence,
)
from pe_lab.results.columns import (
    STEPS_METRIC,
    displayed_settings,
    lower_is_better,
    setting_columns,
    value_text,
)
from pe_lab.results.frame import Results
from pe_lab.results.learned import (
    compared_settings_note,
    filter_learned_cells,
    level_in_words,
    none_learned,
    not_learned_note,
    partly_learned,
)
from pe_lab.results.number_text import count_of_seeds, range_in_words
from pe_lab.results.panels import settings_in_words, without_wide_intervals
from pe_lab.results.tuned_outcomes import is_lower_bound
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.statistics import DIFFERENT_VERDICTS, EQUIVALENT_VERDICTS, Verdict, interval
from pe_lab.statistics.comparisons import count_in_words
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS
from pe_lab.system.plain import read_yaml

MAX_VALUES = 6  # values of a setting that are named in the question; of more, their number
MAX_TASKS = 3  # whose descriptions are given, and that are told one by one
DEFAULT_TASK, HELD_OUT = "structured", "_heldout"  # of conf/config.yaml, and behind the name of a task that holds out
LENGTHS = ("epochs", "steps")  # of a training
MAX_DECIDED = 6  # comparisons of a verdict that are named
MAX_GAPS = 2  # significant differences that are told with their size
MAX_NOTES = 2  # that stand open
MAX_FEW_SEEDS = 3  # which the answer names
LEARNED = "in which a model has learned the task"
SEEDLESS: dict[str, str] = {Verdict.ONE_SEED: "with one seed", Verdict.NO_SEED: "without a shared seed"}


def answer(subject: ReportSubject) -> Section:
    """Return the first screen: its title is the question, its parts are the answer, cautions, figures and the setting.

    Where no model has learned the task, the first part says so, or the second behind what was measured of layers; such
    a study of layers compares no losses here.

    Raises:
        ValueError: there is no such baseline or metric.
    """
    cells = subject.results.cells
    longer, (said, how) = at_longer_lengths(subject), sentences(subject)
    opening = _first_measurement(subject, longer)
    warning = not_learned_note(cells, advice=not opening)
    doubt = "What is found may differ in models that have."
    if compares_losses(subject):
        doubt = compared_settings_note(cells) if none_learned(cells) and cells["pe"].nunique() > 1 else ""
    parts: list[Part] = [f"**Note.** {text}" for text in [" ".join(filter(None, (warning, doubt)))] if text]
    references = [*runs_apart(subject), *not_learned_position(subject), *behind_references(subject)]
    partly = _where_not_learned(cells) or partly_learned(cells)
    notes = [  # the gravest first
        *not_finite(subject),
        *([] if opening else references),
        *subject.margin_notes(),
        *subject.baseline_notes(),
        *decision_notes(subject.results, subject.decided),
        *subject.notes,
        *([] if opening else [*margin_of_loss(subject)]),
        *([*still_falling(subject), *one_rate(subject)] if compares_losses(subject) else []),
        *([f"{partly.removesuffix('.')} ({level_in_words(cells)})."] if partly else []),
    ]
    more = len(notes) - MAX_NOTES
    folded: list[Part] = []
    encodings = _encodings(subject)
    if opening:
        where = " at the training length" if longer else ""
        if compares_losses(subject):
            compared = [said, *overview_figures(subject), *(f"**Note.** {line}" for line in references), how]
            folded = [Collapsible(f"{metric_description(subject.metric).capitalize()}{where}", compared)]
        first = isinstance(opening[0], str)  # the answer, which stands before what warns of it
        shown = [*opening[:first], *parts, *opening[first:]]
    else:
        folded = [Collapsible("How it was compared", [how])]
        further = [longer] if longer and subject.metric == "loss" and cells["pe"].nunique() > 1 else []
        shown = [*parts, said, *further, *_few_seeds(cells), *overview_figures(subject), *subject.first_tables]
    shown += [*_tasks_and_models(subject), *(f"**Note.** {line}" for line in notes[:MAX_NOTES])]
    if more > 0:
        folded = [Collapsible(f"{count_in_words(more, 'more note')}", list(notes[MAX_NOTES:])), *folded]
    return Section(title(subject), [*shown, *folded, *encodings], opening=True)


def _few_seeds(cells: pd.DataFrame) -> list[str]:
    """Return a line on the number of seeds, where several encodings have few of them."""
    seeds = cells.groupby("pe")["seed"].nunique()
    if len(seeds) < 2 or not 1 < seeds.max() <= MAX_FEW_SEEDS:
        return []
    return [f"All of this rests on {count_of_seeds(seeds)}."]


def _tasks_and_models(subject: ReportSubject) -> list[str]:
    """Return what the tasks are, and how many models of which size were trained on them, and how."""
    cells = subject.results.cells
    if cells.empty:
        return []
    names = list(cells["data"].unique()) if "data" in cells else []
    files = {name: config.find_folders().file("data", str(name)) for name in names}
    tasks = [f"`{name}`: {_task(str(name))}" for name, file in files.items() if file is not None and file.is_file()]
    lines = [f"**Task{'s' * (len(tasks) > 1)}.** {'; '.join(tasks)}."] if 0 < len(tasks) <= MAX_TASKS else []
    said = (
        [f"Trained {task_and_settings(cells).removeprefix(',').lstrip()}"]
        if _measures_more(subject, at_longer_lengths(subject)) or is_control(cells)
        else []
    )
    said += [*filter(None, [setting_in_words(subject.results)]), _seeds_and_rates(subject)]
    return [*lines, f"**Setting.** {capitalise('; '.join(said))}."]


def _task(name: str) -> str:
    """Return what a task is, with that of the task that it is said to be like."""
    file = config.find_folders().file("data", name)
    text = first_comment(file) if file is not None and file.is_file() else ""
    like = re.match(r"As (\w+), ", text)
    other = _task(like[1]) if like else ""
    return f"As `{like[1]}` ({other}), {text[like.end() :]}" if like and other else text


def _encodings(subject: ReportSubject) -> list[Part]:
    """Return what the encodings are, folded, as far as the configuration has them by these names."""
    names = [str(name).partition(" ")[0] for name in subject.results.cells["pe"].unique()]
    files = {name: config.find_folders().file("pe", configured_name(name)) for name in names}
    told = {name: first_comment(file) for name, file in files.items() if file is not None and file.is_file()}
    table = pd.DataFrame({"pe": list(told), "what it is": list(told.values())})
    parts: list[Part] = [ReportTable(table, "The first line of each in conf/pe")] if told else []
    if missing := [name for name in files if name not in told]:
        parts.append(f"Not in the configuration: {names_in_words(missing, None)}. {WITH_FOLDER}")
    return [Collapsible("What the encodings are", parts)] if parts else []


def _seeds_and_rates(subject: ReportSubject) -> str:
    """Return the number of seeds, and how learning rates were chosen."""
    cells = subject.results.cells
    if cells.empty:
        return "no cells"
    seeds = cells.groupby([*setting_columns(cells), "pe"], dropna=False)["seed"].nunique()
    steps = (subject.results.declared.tune or {}).get("steps")
    if subject.results.declared.tune is not None:  # the title says of how many tries the best was taken
        return f"{count_of_seeds(seeds)}, learning rates chosen by validation{f' after {steps} steps' * bool(steps)}"
    told = not one_rate(subject) and not tries_rates(subject)
    rates = rates_in_words(subject.results)
    return (
        count_of_seeds(seeds)
        + f", {'each encoding ' + rates.removeprefix('each ') if rates.startswith('each ') else rates}" * told
    )


def _first_measurement(subject: ReportSubject, longer: str) -> list[Part]:
    """Return what a study asks first that measures longer sequences or layers; nothing for another metric.

    Args:
        longer: the text of `at_longer_lengths`, which may be empty.
    """
    if not _measures_more(subject, longer):
        return []
    layers = layer_parts(subject.results.records) if len(layer_records(subject.results.records)) else []
    if tries_rates(subject):
        return rate_parts(subject)
    if longer:
        said = [part for part in layers if isinstance(part, str)]
        return [longer, *said, *length_parts(subject), *(part for part in layers if isinstance(part, Collapsible))]
    return layers


def _measures_more(subject: ReportSubject, longer: str) -> bool:
    """Return whether a study asks first of longer sequences or layers, or tries rates, and the report is on its loss.

    Measurements of cells that no study of the configuration asks for stand behind the comparison of their losses.
    """
    if subject.metric != "loss" or subject.decided is not None or subject.results.cells["pe"].nunique() < 2:
        return False
    asks = bool(longer) or len(layer_records(subject.results.records)) > 0
    return tries_rates(subject) or (asks and bool(asked_question(subject.results)))


def compares_losses(subject: ReportSubject) -> bool:
    """Return whether a report compares encodings by its metric, not only asks more of models that learned nothing."""
    if not _measures_more(subject, "") or at_longer_lengths(subject):
        return True
    return not not_learned_note(subject.results.cells)


def title(subject: ReportSubject) -> str:
    """Return the question that the cells can answer, made of what varies among them.

    A study that measures longer sequences or layers, or tries rates, has the question of its configuration, if any.
    """
    if _measures_more(subject, at_longer_lengths(subject)) and (question := asked_question(subject.results)):
        return question
    cells, metric = subject.results.cells, metric_description(subject.metric)
    if cells.empty:
        return f"What is the {metric} of the encodings in {subject.results.name}?"
    if is_control(cells) and cells["pe"].nunique() > 1:
        on = f" on {_values(cells['data'])}" if "data" in cells else ""
        return f"A control: can an encoding help or hurt{on}, where position is not needed?"
    names, rates = list(cells["pe"].unique()), rates_of_seeds(subject.results) or _only_rate(subject)
    where = f"{task_and_settings(filter_learned_cells(cells))}{f', {rates}' if rates else ''}"
    if subject.metric == STEPS_METRIC:  # a run stops when it solves the task
        where = where.replace(", after ", ", within ")
    if len(names) == 1:
        return f"What is the {metric} of {names[0]}{where}?"
    if len(names) == 2 and subject.baseline in names:
        (other,) = (name for name in names if name != subject.baseline)
        return f"Does {other} have a {comparative(subject.metric)} {metric} than {subject.baseline}{where}?"
    if subject.declares:
        better = f"a {comparative(subject.metric)} {metric} than {subject.baseline}"
        return f"Which of {len(names) - 1} encodings have {better}{where}?"
    return f"Which of {len(names)} encodings has the {superlative(subject.metric)} {metric}{where}?"


def _only_rate(subject: ReportSubject) -> str:
    """Return the learning rate of all encodings, in words, where it is one that is known."""
    rate = shared_settings(subject.results).get(LR) if one_rate(subject) else None
    return "" if rate is None else f"at learning rate {rate:g} for all"


def asked_question(results: Results) -> str:
    """Return the question that a study of the configuration asks in its first comment, if the results are its own.

    Empty if there is no such study, if it asks none, or if it declares other tasks or encodings than were trained: a
    name may have been chosen for cells that have nothing to do with it.
    """
    file = config.find_folders().file("study", results.name)
    if file is None or "?" not in (comment := first_comment(file)):
        return ""
    declared, trained = read_yaml(file.read_bytes()), pd.concat([results.cells, results.failed])
    params = declared.get("hydra", {}).get("sweeper", {}).get("params", {})
    encodings = {configured_name(name) for name in str(params.get("pe", "")).split(",")}
    if encodings != {configured_name(name) for name in trained["pe"].unique()}:
        return ""
    chosen = [part.get("override /data") for part in declared.get("defaults", []) if isinstance(part, dict)]
    tasks = params.get("data") or next(filter(None, chosen), DEFAULT_TASK)
    if "data" in results.cells and set(tasks.split(",")) != {
        name.removesuffix(HELD_OUT) for name in trained["data"].dropna()
    }:
        return ""
    return comment.partition("?")[0] + "?"


def sentences(subject: ReportSubject) -> tuple[str, str]:
    """Return two sentences: which encodings may be the best; how they compare with the baseline, and how fairly.

    Raises:
        ValueError: there is no such baseline or metric.
    """
    cells = subject.results.cells
    if cells.empty:
        failed = len(subject.results.failed)
        return (
            "Nothing can be said.",
            f"No cell was trained, and {failed} failed." if failed else "No cell was trained.",
        )
    if cells["pe"].nunique() == 1:
        seeds = cells.groupby(setting_columns(cells), dropna=False).size()
        return _only_encoding(
            subject
        ), f"It was trained with {count_of_seeds(seeds)}, {rates_in_words(subject.results)}."
    if (decided := subject.decided) is not None:
        each, how = sequential(subject.compared, decided), _against(subject, decided)
        if not all(candidates.complete for candidates in each):
            return _compared_with_baseline(subject, decided, each), how
        return each[0].words() if len(each) == 1 else in_each_setting(each, ", each decided on its own"), how
    if (lines := subject.compared.asked()).empty:
        alone = "No setting in which an encoding has learned the task has results of two encodings."
        return alone, training_sentence(subject.results)
    each, whole = undecided_by_setting(subject.compared), overall(subject.compared)
    tasks = len(each) <= MAX_TASKS and only_tasks_vary(cells)
    how = _against(subject, lines)
    if is_control(cells) and whole is not None:
        return _control(subject, whole), how
    if subject.declares:
        return _compared_with_baseline(subject, lines, each), how
    if whole is not None and not tasks:
        learned = task_and_settings(filter_learned_cells(cells)).lstrip(", ") if partly_learned(cells) else ""
        return replace(whole, where=capitalise(learned) if learned else whole.where).words(), how
    if 1 < len(each) <= FEW_SETTINGS:
        return verdict_over_settings(each) * (not tasks) + one_by_one(each, subject.doubts), how
    why = f" {LEARNED}" if partly_learned(cells) else ", which cannot be averaged"
    return f"{in_each_setting(each, why)} {best_means(each)}".rstrip(), how


def _compared_with_baseline(subject: ReportSubject, lines: pd.DataFrame, each: Sequence[BestCandidates]) -> str:
    """Say how encodings compare with a baseline, where not every two are compared, and which means are the best.

    Args:
        lines: the comparisons with the baseline.
        each: the candidates of each setting, with the setting in words.
    """
    doubts = [subject.doubts(candidates) for candidates in each]
    if 1 < len(each) <= FEW_SETTINGS:
        told = [_counts(lines, subject.metric, named=False), subject.unlearned]
        return " ".join(filter(None, told)) + _setting_items(lines, each, doubts)
    told = [_significant_differences(lines, subject.metric), subject.unlearned, *doubts, best_means(each)]
    return " ".join(filter(None, told))


def _where_not_learned(cells: pd.DataFrame) -> str:
    """Say for which depths and lengths of training no encoding has learned the task; empty where these do not tell."""
    if not partly_learned(cells):
        return ""
    learned = filter_learned_cells(cells)
    names = [
        name for name in displayed_settings(cells, setting_columns(cells)) if cells[name].nunique(dropna=False) > 1
    ]
    never = {name: cells.loc[~cells[name].isin(learned[name]), [name]].drop_duplicates() for name in names}
    never = {name: values for name, values in never.items() if len(values) and name != "data"}
    without = pd.concat([cells[name].isin(values[name]) for name, values in never.items()], axis=1) if never else None
    if without is None or len(cells[~without.any(axis=1)]) != len(learned):
        return ""
    where = ", nor ".join(", ".join(_settings(values, [name])) for name, values in never.items())
    return f"No encoding has learned the task {where}: no mean test loss is below the best without position."


def is_control(cells: pd.DataFrame) -> bool:
    """Return whether no encoding can help: in all cells, the best loss without position is the best possible."""
    best = f"floor_{BEST_FLOOR}_loss"
    blind = next((name for name in (f"floor_{floor}_loss" for floor in BLIND_FLOORS) if name in cells), None)
    if blind is None or best not in cells:
        return False
    return bool(((cells[blind] - cells[best]).abs() <= NO_GAP).all())


def _control(subject: ReportSubject, candidates: BestCandidates) -> str:
    """Say whether a control passed, in which the best loss without position is the best possible, and how surely."""
    if candidates.case in ("untested", "equal", "unsolved", "contradictory"):
        return candidates.words()
    if candidates.behind or candidates.near:
        return f"This control did not pass: encodings differ, though none is needed. {candidates.words()}"
    lines, counts = candidates.lines, verdict_counts(candidates.lines)
    alike, total, why = sum(counts.get(word, 0) for word in EQUIVALENT_VERDICTS), len(lines), list[str]()
    text = f"No encoding is shown to help or to hurt: {alike} of {total} pairs are equivalent"
    text += f" and {total - alike} undecided" * (alike < total)
    open_pairs, apart = lines[~lines["verdict"].isin(EQUIVALENT_VERDICTS)], {runs.pe for runs in find_apart(subject)}
    falls, where, _ = loss_decrease(subject)
    if len(open_pairs):
        if (open_pairs["pe"].isin(apart) | open_pairs["baseline"].isin(apart)).all():
            why.append("in each undecided pair an encoding has a run that lies apart")
        if falls.mean() > lines["margin"].max():
            why.append(f"validation losses still fell by {amount(falls.mean(), 'loss')} {where}, on average")
    cells = subject.results.cells
    if "test_accuracy" in cells and subject.metric == "loss":
        shares = 100 * cells.groupby("pe")["test_accuracy"].mean()
        why.append(f"mean test accuracy is {range_in_words(shares, '.3g')} %")
    return f"{text}. {capitalise('; '.join(why))}." if why else f"{text}."


def _significant_differences(lines: pd.DataFrame, metric: str) -> str:
    """Say which encodings differ from the baseline: where they are few, by how much.

    Args:
        lines: the comparisons with the baseline.
    """
    decided = lines[lines["verdict"].isin(DIFFERENT_VERDICTS)]
    others = lines["verdict"].drop(decided.index).value_counts()
    rest = join_words([f"{count} {SEEDLESS.get(word, str(word))}" for word, count in others.items()])
    baseline = f"`{lines['baseline'].iloc[0]}`"
    if not 0 < len(decided) <= MAX_GAPS:
        verdict = lines["verdict"].iloc[0]
        same = f"All {len(lines)} comparisons with {baseline}: {SEEDLESS.get(verdict, verdict)}."
        return _counts(lines, metric) or same
    columns = list(lines.columns[: list(lines.columns).index("pe")])
    where = pd.Series(settings_in_words(lines, columns), lines.index)
    told = [
        f"`{line['pe']}` is {line['verdict']}{f' ({where[at]})' * (where.nunique() > 1)}, by {_interval(line, metric)}"
        for at, line in decided.iterrows()
    ]
    return f"Compared with {baseline}, {join_words(told)}{f'; other comparisons: {rest}' * bool(rest)}."


def _setting_items(lines: pd.DataFrame, each: Sequence[BestCandidates], doubts: Sequence[str]) -> str:
    """Return an item of a list for each of a few settings: what differs from the baseline, and the best mean.

    Args:
        lines: the comparisons with the baseline.
        each: the candidates of each setting, with the setting in words.
        doubts: what else may explain that encodings are worse, for each setting.
    """
    columns = list(lines.columns[: list(lines.columns).index("pe")])
    words, items = pd.Series(settings_in_words(lines, columns), lines.index), ""
    for candidates, doubt in zip(each, doubts, strict=True):
        here = lines[words == candidates.setting.partition(" ")[2]]
        decided = here[here["verdict"].isin(DIFFERENT_VERDICTS)]
        told = [
            f"`{line['pe']}` is {line['verdict']}, by {_interval(line, candidates.metric)}"
            for _, line in decided.iterrows()
        ]
        counts = here["verdict"].drop(decided.index).value_counts()
        if len(counts):
            others = join_words([f"{count} {SEEDLESS.get(word, str(word))}" for word, count in counts.items()])
            told.append(others + _excluded_differences(here[here["verdict"] == Verdict.UNDECIDED], candidates.metric))
        first = next(iter(candidates.means))
        best = f"`{first}` has the {superlative(candidates.metric)} mean {candidates.what}, "
        best += candidates.mean(first)
        if candidates.case == "unsolved":
            items += f"\n- **{capitalise(candidates.setting)}**: {candidates.words()}"
            continue
        text = " ".join(
            filter(None, [f"{best}; compared with `{here['baseline'].iloc[0]}`, {'; '.join(told)}.", doubt])
        )
        items += f"\n- **{capitalise(candidates.setting)}**: {text}"
    return items


def _excluded_differences(lines: pd.DataFrame, metric: str) -> str:
    """Say which differences the intervals of undecided comparisons exclude; empty where there are none."""
    lines = without_wide_intervals(lines)
    if lines["low"].isna().all():
        return ""
    low, high = lines["low"].min(), lines["high"].max()
    better, worse = (-low, high) if lower_is_better(metric) else (high, -low)
    unit = "octaves" if metric == STEPS_METRIC else unit_in_words(metric)
    ends = [
        " ".join(filter(None, (f"{size:.2g}", unit, word)))
        for size, word in ((better, "better"), (worse, "worse"))
        if size > 0
    ]
    return f" (by 95 % intervals, at most {' or '.join(ends)})"


def _counts(lines: pd.DataFrame, metric: str, named: bool = True) -> str:
    """Say how many comparisons are decided in which way; nothing where all are alike, unless they are not named.

    Args:
        lines: the comparisons of the family.
        named: whether encodings that differ are named where they are few.
    """
    counts = lines["verdict"].value_counts()
    verdicts = [word for word in VERDICT_MARKS if word in counts]
    if len(lines) < 2 or len(verdicts) < 2:
        if named or lines.empty:
            return ""
        verdict = SEEDLESS.get(verdicts[0], str(verdicts[0]))
        why = ": neither a difference nor equivalence within the margin is shown" * (verdict == Verdict.UNDECIDED)
        return f"Verdict of all {len(lines)} comparisons with `{lines['baseline'].iloc[0]}`: {verdict}{why}."
    ends: dict[str, str] = {word: f"{counts[word]} {SEEDLESS.get(word, str(word))}" for word in verdicts}
    columns = list(lines.columns[: list(lines.columns).index("pe")])
    where = pd.Series(settings_in_words(lines, columns), lines.index)
    one = lines["baseline"].nunique() == 1
    if not one:
        ends = {word: f"{count} {SEEDLESS.get(word, word)}" for word, count in verdict_counts(lines).items()}
    for word in DIFFERENT_VERDICTS if one and named else ():
        if 0 < counts.get(word, 0) <= MAX_DECIDED:
            of_word = lines[lines["verdict"] == word].groupby(where, sort=False)["pe"].agg(list)
            told = [
                f"{names_in_words(names, None)}{f', {setting}' * (len(of_word) > 1)}"
                for setting, names in of_word.items()
            ]
            ends[word] += f" ({'; '.join(told)})"
    what = f" with `{lines['baseline'].iloc[0]}`" if one else " of all pairs"
    return f"Of {len(lines)} comparisons{what}: {join_words(list(ends.values()))}."


def _interval(line: pd.Series, metric: str) -> str:
    """Return the size of a significant difference with its interval, in the unit of its metric."""
    unit = "octaves" if metric == STEPS_METRIC else unit_in_words(metric)
    size = f"{'at least ' * is_lower_bound(line)}{abs(line['difference']):.3g} {unit}".rstrip()
    return f"{size} ({extent_in_words(line, '{:.3g}'.format)})"


def _against(subject: ReportSubject, lines: pd.DataFrame) -> str:
    """Say how comparisons ended, at which margin, over how many seeds, and at which rates.

    Args:
        lines: comparisons with the baseline, or those of a sequential study.
    """
    counts = lines["verdict"].value_counts()
    verdicts = [word for word in VERDICT_MARKS if word in counts]
    named = {word: SEEDLESS.get(word, str(word)) for word in verdicts}
    settings = len(lines[list(lines.columns[: list(lines.columns).index("pe")])].drop_duplicates())
    what, others = f"with `{lines['baseline'].iloc[0]}`", lines["pe"].nunique()
    if lines["baseline"].nunique() > 1:
        what, others = "of all pairs", pd.concat([lines["pe"], lines["baseline"]]).nunique()
    if len(lines) == 1:
        first, second = lines["pe"].iloc[0], lines["baseline"].iloc[0]
        text = f"Verdict on `{first}`, compared with `{second}`: {named[verdicts[0]]}"
    else:
        where = f" ({others} encoding{'s' * (others > 1)} in {settings} settings)" if settings > 1 else ""
        ends = join_words([f"{counts[word]} {named[word]}" for word in verdicts])
        if lines["baseline"].nunique() > 1:
            ends = join_words([f"{count} {SEEDLESS.get(word, word)}" for word, count in verdict_counts(lines).items()])
        text = f"Verdicts on {len(lines)} comparisons {what}{where}: {'all ' if len(verdicts) == 1 else ''}"
        text += named[verdicts[0]] if len(verdicts) == 1 else ends
    if "look" not in lines and lines["verdict"].isin(DIFFERENT_VERDICTS).any():
        text += f". Better, worse or different means {subject.compared.rule}"
    text += _reversals(lines)
    fair = [_margin(subject), f"Differences are paired over {count_of_seeds(lines['seeds'])}"]
    if "look" in lines:
        looks = int(lines["look"].max())
        added = f"Seeds were added in up to {looks} looks, while a comparison was undecided"
        fair.append(added if looks > 1 else "No seeds were added after the first look")
    return ". ".join([text, *fair, training_sentence(subject.results)])


def _reversals(lines: pd.DataFrame) -> str:
    """Name the pairs of which one encoding is better in some settings and worse in others; empty if there are none."""
    directions = lines.assign(direction=[Verdict(word).direction for word in lines["verdict"]])
    found = directions[directions["direction"] != ""].groupby(["pe", "baseline"], sort=False)["direction"].nunique()
    pairs = [f"`{pe}` and `{other}`" for pe, other in found.index[found > 1]]
    return f". Which of two is better depends on the setting for {'; '.join(pairs)}" if pairs else ""


def _margin(subject: ReportSubject) -> str:
    """Say what the margin is, in the unit of the metric, and whether it was declared before the data."""
    words, declared = subject.margin_in_words, subject.declared_margin
    if words == "none":
        return "There is no margin"
    if subject.margin not in (None, declared):
        return f"The margin, chosen for this report, is {words}"
    return f"The {'default' if declared is None else 'declared'} margin is {words}"


def _only_encoding(subject: ReportSubject) -> str:
    """Say what is known of the only encoding."""
    cells, metric = subject.results.cells, subject.metric
    pe = cells["pe"].iloc[0]
    cells = cells[np.isfinite(cells[f"test_{metric}"].astype(float))]
    values, settings = cells[f"test_{metric}"], cells.groupby(setting_columns(cells), sort=False, dropna=False)
    if values.empty:
        value = "finite in no cell"
    elif len(settings) > 1:
        means = settings[f"test_{metric}"].mean()
        low, high = amount(means.min(), metric), amount(means.max(), metric)
        value = f"from {low} to {high}, means of {len(settings)} settings"
    elif len(values) > 1:
        low, high = (amount(end, metric) for end in interval(values))
        extent = f", 95 % interval {low} to {high}" * (len(values) >= MIN_SHOWN_SEEDS)
        value = f"{amount(values.mean(), metric)} (mean of {len(values)} seeds{extent})"
    else:
        value = f"{amount(values.iloc[0], metric)} (one seed)"
    start = f"Nothing is compared, because only `{pe}` was trained"
    what = f"its {metric_description(metric)} is {value}"
    unsolved = int(cells["solved"].eq(False).sum()) if "solved" in cells else 0
    if not unsolved:
        return f"{start}: {what}."
    if unsolved == len(cells):
        return f"{start}. None of its {count_in_words(unsolved, 'run')} solved the task."
    counted = f"With the {'other' if unsolved == 1 else 'others'} counted as the last step"
    return f"{start}. {len(cells) - unsolved} of its {len(cells)} runs solved the task. {counted}, {what}."


def task_and_settings(cells: pd.DataFrame) -> str:
    """Return task and settings in words, such as ` on structured, at depth 1 and 4, after 16 epochs`."""
    text = f" on {_values(cells['data'])}" if "data" in cells and not (cells["data"] == "unknown").all() else ""
    names = [name for name in displayed_settings(cells, setting_columns(cells)) if name != "data"]
    return ", ".join([text, *_settings(cells, names)])


def _settings(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the values of settings in words, such as `at depth 1 and 4` and `after 16 epochs`."""
    lengths = [name for name in names if name in LENGTHS]
    others = [f"{last_word(name)} {_values(rows[name])}" for name in names if name not in lengths]
    told = [f"after {_values(rows[name])} {name if set(rows[name]) != {1} else name[:-1]}" for name in lengths]
    return [*([f"at {', '.join(others)}"] if others else []), *told]


def _values(column: pd.Series) -> str:
    """Return the values of a setting in words, or their number."""
    values = list(column.drop_duplicates())
    if pd.api.types.is_numeric_dtype(column):
        values = sorted(values, key=lambda value: (pd.isna(value), value))
    return (
        join_words([value_text(value) for value in values]) if len(values) <= MAX_VALUES else f"of {len(values)} values"
    )
