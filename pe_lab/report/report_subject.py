"""The subject of a report: results, baseline and metric; and what a reader must know before any number."""

import re
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pe_lab.config import LR
from pe_lab.report.best_candidates import BestCandidates, metric_description, unit_in_words
from pe_lab.report.parts import Code, Part, ReportTable, Section
from pe_lab.report.sequential_verdicts import decisions, with_decisions
from pe_lab.results import study_comparisons
from pe_lab.results.columns import (
    displayed_settings,
    in_words,
    lower_is_better,
    setting_columns,
    sorted_values,
    value_text,
)
from pe_lab.results.frame import Results
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import GRID_TABLE, Families, Margin
from pe_lab.statistics.comparisons import count_in_words
from pe_lab.system.names import unknown_name_message

IMPORTS = """\
from pe_lab import statistics
from pe_lab.report import attention, layers, overview_figures, recommendations, sequential_verdicts, tuned
from pe_lab.results import columns, frame, learned, plots, sensitivity, specification, study_comparisons, swept_rates
from pe_lab.results import wandb_project
"""


@dataclass(frozen=True)
class ReportSubject:
    """The subject of a report.

    Attributes:
        results: the results, from frame.load.
        load: the line of code that loads the results.
        command: the command that trained the cells, if it is known.
        baseline: the encoding that others are compared with.
        metric: a test metric.
        audit: the table of an audit, or empty.
        against: the encoding whose difference from the baseline is followed through all settings; empty: the best of
            the others.
        margin: the smallest difference that matters, in place of the declared one; None: the declared or default one.
        asked: whether the baseline was chosen for this report, as `--baseline` does.
    """

    results: Results
    load: str
    command: str
    baseline: str
    metric: str
    audit: pd.DataFrame
    against: str = ""
    margin: Margin | None = None
    asked: bool = False

    @cached_property
    def compared(self) -> Families:
        """All comparisons of the report; every verdict in it is one of these."""
        margins = self.results.declared.margin if self.margin is None else {self.metric: self.margin}
        compared = study_comparisons.families(
            self.results.cells, self.results.records, self.baseline, self.metric, margins, self.declares
        )
        return compared if self.decided is None else with_decisions(compared, self.decided)

    @property
    def declares(self) -> bool:
        """Whether comparisons with the baseline are what is asked, by the study or for this report."""
        return self.asked or self.results.declared.baseline == self.baseline

    def require_valid_comparison(self) -> None:
        """Require another encoding than the baseline as `against`, and the margin of a sequential study.

        Raises:
            ValueError: `against` is no such encoding, or the margin is not that by which seeds were added.
        """
        others = [name for name in self.results.cells["pe"].unique() if name != self.baseline]
        if self.against and self.against not in others:
            raise ValueError(unknown_name_message("against", others, self.against))
        if self.decided is not None and self.margin_notes():
            raise ValueError(
                f"margin must be the one by which seeds were added to {self.results.name}, got {str(self.margin)!r}"
            )

    @cached_property
    def decided(self) -> pd.DataFrame | None:
        """The verdicts of a sequential study, whose metric is the loss; None for other studies and metrics."""
        return decisions(self.results) if self.metric == "loss" else None

    @property
    def compares(self) -> str:
        """The line of code that makes the comparisons."""
        margin = f"statistics.Margin.parse({str(self.margin)!r})" if self.margin else "results.declared.margin"
        settings = f"results.cells, results.records, {self.baseline!r}, {self.metric!r}, {margin}, {self.declares}"
        families = f"study_comparisons.families({settings})"
        if self.decided is None:
            return f"compared = {families}"
        return f"compared = sequential_verdicts.with_decisions({families}, sequential_verdicts.decisions(results))"

    @property
    def margin_in_words(self) -> str:
        """The margin in the unit of the metric, and what it is a share of; "none" where there is none."""
        words = self.compared.margins[GRID_TABLE]
        if "gap" not in words:
            return words
        margins = (self.compared.asked() if self.decided is None else self.decided)["margin"]
        ends = f"between the best {in_words(self.metric)} without position and the best possible one"
        share = gap_in_percent(words).replace("the gap", f"the gap {ends}", 1)
        if margins.isna().all():  # nothing is compared
            return share
        sizes = " to ".join(dict.fromkeys(f"{size:.2g}" for size in (margins.min(), margins.max())))
        return f"{f'{sizes} {unit_in_words(self.metric)}'.rstrip()} ({share})"

    @property
    def declared_margin(self) -> object:
        """The margin in the metric that the study declared before training; None: it declared none."""
        return self.results.declared.margin.get(self.metric)

    @property
    def notes(self) -> list[str]:
        """What a reader must know before any number, a line each."""
        return cautions(self.results, self.baseline)

    @property
    def first_tables(self) -> list[Part]:
        """Tables of the first screen."""
        return []

    @property
    def unlearned(self) -> str:
        """A sentence on comparisons that were asked for in settings that no encoding has learned, or nothing."""
        return ""

    def doubts(self, candidates: BestCandidates) -> str:
        """Say what else may explain that encodings are worse than others in a setting, see `BestCandidates.decided`."""
        return ""

    def margin_notes(self) -> list[str]:
        """Return a line that says that the margin is not the declared one, if it is not."""
        declared = self.declared_margin
        if self.margin is None or self.margin == declared:
            return []
        before = "none" if declared is None else gap_in_percent(str(declared))
        return [
            f"The margin of {gap_in_percent(str(self.margin))} was given for this report; the study declared {before}. "
            "A margin that is chosen after the results are known proves nothing."
        ]

    def baseline_notes(self) -> list[str]:
        """Return a line that says that the baseline is not the declared one, if comparisons with it are asked."""
        declared = self.results.declared.baseline
        if not self.asked or declared == self.baseline:
            return []
        before = "no baseline" if declared is None else f"`{declared}`"
        return [
            f"Only comparisons with `{self.baseline}` have verdicts, as asked for this report; the study declared "
            f"{before}. If the baseline is chosen after the results are known, verdicts may be wrong more often than "
            "stated."
        ]


def gap_in_percent(words: str) -> str:
    """Return margins in words, such as `0.05 gap`, with gaps in per cent."""
    return re.sub(r"([\d.e+-]+) gap", lambda found: f"{100 * float(found[1]):g} % of the gap", words)


def results_section(subject: ReportSubject, verdicts: bool = True) -> Section:
    """Return the section on cells, metric, baseline, families and the command.

    Args:
        verdicts: whether the page has any.
    """
    cells = subject.results.cells
    parts: list[Part] = []
    if len(cells):
        varied = varied_columns(cells, displayed_settings(cells, setting_columns(cells)))
        counts = [count_in_words(cells["pe"].nunique(), "encoding")]
        counts += [f"{name} {', '.join(map(value_text, sorted_values(cells[name])))}" for name in varied]
        seeds = tuple(sorted(cells["seed"].unique()))
        told = f"{'; '.join(counts)}; seeds {seeds_in_words(seeds)}"
        parts.append(f"{count_in_words(len(cells), 'cell')} (trained models, each at one length of training): {told}.")
        direction = "lower" if lower_is_better(subject.metric) else "higher"
        parts.append(
            f"The metric is {metric_description(subject.metric)} ({direction} is better). "
            "Losses are in nats per token. "
        )
        if cells["pe"].nunique() > 1 and verdicts:
            family = gap_in_percent(str(subject.compared))
            if not subject.compared.size():
                count = count_in_words(len(subject.compared.asked()), "comparison")
                family = f"{count} {subject.compared.pairs_in_words}, none of which can be tested"
            family = "that of the sequential study (decisions.csv)" if subject.decided is not None else family
            nearer = any(not far.answered for far in study_comparisons.longest(subject.results.records, cells).values())
            but = " What is said of longer sequences is not: those t tests are not corrected." * nearer
            parts.append(f"**Family of comparisons**: {family}. All verdicts on this page are from it.{but}")
    if subject.command:
        parts.append(f"Trained with `{subject.command}`.")
    return Section("Cells and comparisons" if verdicts else "Cells", parts)


def code_section(subject: ReportSubject) -> Section:
    """Return the section with the lines that stand before those below the figures."""
    lines = [IMPORTS, subject.load, *([subject.compares] if len(subject.results.cells) else [])]
    parts: list[Part] = ["The line of code of a figure draws it in Python, after these:", Code("\n".join(lines))]
    if subject.audit.empty and len(subject.results.cells):
        parts.append("Properties of the encodings come from `pe-lab audit out=FOLDER`, then `--audit FOLDER` here.")
    return Section("Figures in Python", parts)


def cautions(results: Results, baseline: str) -> list[str]:
    """Return what a reader must know before any number, a line each."""
    cells, lines = results.cells, missing(results)
    if cells.empty:
        return lines
    lines += _seed_cautions(cells)
    if baseline not in set(cells["pe"]):
        lines.append(f"The baseline {baseline} is not among the cells.")
    lines += surroundings(cells)
    if LR in cells and LR not in setting_columns(cells):
        lines.append("Encodings have learning rates of their own.")
    return lines


def missing(results: Results) -> list[str]:
    """Return a line on failed cells, and one on refused entries, if there are any."""
    lines = []
    _ = results.curves, results.records  # reading them adds their damaged entries to results.refused
    for count, one, several, verb in (
        (len(results.failed), "cell", "cells", "failed"),
        (len(results.refused), "entry was", "entries were", "refused"),
    ):
        words = f"{one} {verb}; it is" if count == 1 else f"{several} {verb}; they are"
        lines += [f"{count} {words} listed below and in no mean."] * bool(count)
    return lines


def surroundings(cells: pd.DataFrame) -> list[str]:
    """Return a line for each of PyTorch, pe_lab and the device of which the cells were made with several."""
    lines = []
    for name, what in (("torch", "versions of PyTorch"), ("commit", "commits of pe_lab"), ("device", "devices")):
        values = cells[name].astype(object).fillna("unknown").astype(str).str[:12].unique() if name in cells else []
        if len(values) > 1:
            lines.append(f"Cells were made with several {what}: {', '.join(map(str, values))}.")
    return lines


def made_with(cells: pd.DataFrame) -> list[str]:
    """Return a line on the commit, versions and hardware that the cells were made with, as far as rows name them."""
    words = {"commit": "commit", "pe_lab": "pe_lab", "torch": "PyTorch", "python": "Python", "hardware": "hardware"}
    told = []
    for name, word in words.items():
        values = cells[name].dropna().astype(str).str[:12].unique() if name in cells else []
        told += [f"{word} {', '.join(values)}"] if len(values) else []
    return [f"The cells were made with {'; '.join(told)}."] if told else []


def _seed_cautions(cells: pd.DataFrame) -> list[str]:
    """Return lines on single seeds, unequal seeds and combinations that were not trained."""
    lines = []
    seeds = cells.groupby("pe", sort=False)["seed"].nunique()
    if (seeds == 1).any():
        names = ", ".join(seeds.index[seeds == 1])
        lines.append(f"One seed only: {names}. There is no interval, and no difference can be established.")
    keys = [*setting_columns(cells), "pe"]
    by_cell = cells.groupby(keys, sort=False, dropna=False)["seed"].agg(lambda seeds: tuple(sorted(seeds)))
    if by_cell.nunique() > 1:
        most = by_cell.mode().iloc[0]
        others = by_cell[by_cell != most]
        lines.append(
            f"Seeds are not the same everywhere: {len(others)} of {len(by_cell)} combinations of setting and encoding "
            f"have others than {seeds_in_words(most)}. Differences are taken over shared seeds only."
        )
    if note := few_runs(len(seeds), int(seeds.min())):
        lines.append(note)
    count = len(cells[setting_columns(cells)].drop_duplicates()) * cells["pe"].nunique()
    if len(by_cell) < count:
        lines.append(f"{count - len(by_cell)} of {count} combinations of setting and encoding were not trained.")
    return lines


def failures_section(results: Results) -> Section:
    """Return the section on failed cells, refused entries and omitted pairs."""
    parts: list[Part] = []
    if len(results.failed):
        parts.append(ReportTable(results.failed, "Cells that failed", "results.failed"))
    if results.refused:
        refused = pd.DataFrame({"entry": results.refused})
        parts.append(ReportTable(refused, "Entries that are damaged, incomplete, missing or unreadable"))
    if len(results.skipped):
        caption = "Left out of the study: encodings that do not fit a task"
        parts.append(ReportTable(results.skipped, caption, "results.skipped"))
    return Section("Failed and omitted cells", parts)


def varied_columns(data: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the named columns that exist and have several values."""
    return [name for name in names if name in data and data[name].nunique(dropna=False) > 1]


def seeds_in_words(seeds: tuple[int, ...]) -> str:
    whole = seeds == tuple(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
