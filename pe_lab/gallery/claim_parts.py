"""The parts of a claim: what was measured on which tasks, and how far from a bound still counts as near it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import edge_shares
from pe_lab.gallery.extrapolation import keeps_positions
from pe_lab.gallery.gallery_page import number, signed
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.replication.findings import PARTS, EntryVerdict, Finding
from pe_lab.replication.study_values import RAW_CONDITIONS
from pe_lab.replication.universe import quantity
from pe_lab.results.columns import cut_interval
from pe_lab.results.learned import MIN_RIGHT, not_learned_note, partly_learned
from pe_lab.results.tuned_outcomes import MAX_AT_EDGE
from pe_lab.statistics import Agreement, Comparison
from pe_lab.system.exact_csv import read_csv

UNITS_OF_CLAIMS = {
    "accuracy": "share of answers",
    "exact_match": "share of sequences",
    "r2": "share of variance",
    "moved_by_1": "share of the norm",
    "entropy": "nats",
    "audit.order_causal": "share of the effect of replacing the tokens",
    "audit.order_bidirectional": "share of the effect of replacing the tokens",
}  # those of losses are in `quantity`; ratios have none


UNPUBLISHED = "not published"  # the paper of entries that have none
CANNOT = "cannot be tested here"
NO_ROOM = "without room for a difference"
MIN_ALL_RIGHT = 0.99  # share of right answers from which two encodings can no longer differ much
MIN_LENGTH_GAP = 0.02  # nats per byte; the loss of a count model falls by 0.017 from the training length to 4 times it
TICKS = {-1.0: "−1", -0.1: "−0.1", 0.0: "0", 0.1: "0.1", 1.0: "1"}  # of the figure
LINEAR = 0.03  # about the distance from its bound up to which the figure is linear; beyond, it is logarithmic
STATE_ORDER = [Agreement.NOT_REPRODUCED, Agreement.UNDECIDED, Agreement.REPRODUCED]
VERDICT_ORDER = [EntryVerdict.REPRODUCED, EntryVerdict.MIXED, EntryVerdict.NOT_REPRODUCED, EntryVerdict.UNDECIDED]


@dataclass(frozen=True)
class Row:
    """A row of a table of parts: what they have in common, what is claimed of them, and their labels."""

    name: str
    claimed: str
    labels: list[str]


@dataclass(frozen=True)
class PartsTable:
    """Parts of a claim whose values are the same quantity.

    Attributes:
        measured: the quantity with its unit.
        tasks: that it is a mean over.
        columns: what is compared in each setting; one empty text where every row is a part of its own.
        rows: a setting, or a part.
    """

    measured: str
    tasks: list[str]
    columns: tuple[str, ...]
    rows: list[Row]


@dataclass(frozen=True)
class UnseenLengths:
    """What models of a claim's studies get right on longer sequences than in training, the mean over these.

    Attributes:
        lengths: in training lengths.
        shares: by dataset, then by encoding.
    """

    lengths: list[float]
    shares: dict[str, dict[str, float]]

    @property
    def few(self) -> list[str]:
        """The datasets of which no encoding gets half right, and most less than MIN_RIGHT."""
        values = {data: list(shares.values()) for data, shares in self.shares.items()}
        return [data for data, each in values.items() if max(each) < 0.5 and median(each) < MIN_RIGHT]


def unseen_lengths(entry: Entry, studies: Path) -> UnseenLengths | None:
    """Return what is right on unseen lengths, for a claim on the exact match there; None for others.

    Args:
        studies: the folder of the committed studies; those that are not there are left out.
    """
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    if not any(test.value["metric"] == "exact_match" and test.value.get("length") == "> 1" for test in tests):
        return None
    files = [file for name in entry.studies if (file := studies / name / "records.csv").is_file()]
    if not files:
        return None
    rows = pd.concat([read_csv(file) for file in files])
    conditions = RAW_CONDITIONS | {"metric": "exact_match"}
    rows = rows[rows["length"].gt(1) & (rows[[*conditions]] == pd.Series(conditions)).all(axis=1)]
    means = rows.groupby(["data", "pe"], sort=False)["value"].mean()
    shares = {str(data): means[data].to_dict() for data in rows["data"].unique()}
    return UnseenLengths(sorted(rows["length"].unique()), shares)


def weakest(finding: Finding, roomless: Collection[str] = ()) -> str | None:
    """Return the label of the part that supports a claim least; None: nothing is compared.

    Parts without room for a difference come last.

    A contradicted part before an open one, an open one before one that is shown; then the one that is least far on the
    claimed side of its bound.
    """
    order = {
        label: (
            label in roomless,
            STATE_ORDER.index(Agreement(str(comparison.agreement))),
            claimed_side(finding, label)[1],
        )
        for label, comparison in finding.compared.items()
    }
    return min(order, key=lambda label: order[label], default=None)


def claimed_side(finding: Finding, label: str) -> tuple[float, float, float]:
    """Return how far a part is on the claimed side of its bound: the low end, the mean and the high end.

    Below 0 it is on the other side. Of "near", the distance to the nearest end of the tolerance.
    """
    test, comparison = finding.entry.values[label], finding.compared[label]
    assert isinstance(test, Claimed)
    ends = [float(value) - test.bound for value in (comparison.low, comparison.difference, comparison.high)]
    if test.rule == "above":
        return ends[0], ends[1], ends[2]
    if test.rule == "below":
        return -ends[2], -ends[1], -ends[0]
    tolerance = finding.entry.tolerance
    nearest = 0.0 if ends[0] <= 0 <= ends[2] else min(abs(ends[0]), abs(ends[2]))
    return tolerance - max(abs(ends[0]), abs(ends[2])), tolerance - abs(ends[1]), tolerance - nearest


def place(distance: float) -> float:
    """Return where the figure draws a distance from the bound: -1 at -1.5 and below, 0 at 0, 1 at 1.5 and above."""
    return float(np.clip(np.arcsinh(distance / LINEAR) / np.arcsinh(1.5 / LINEAR), -1, 1))


def by_support(claims: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return claims in the order of their verdicts, then of how far their weakest part is on the claimed side."""

    def order(item: tuple[str, Finding]) -> tuple[int, float]:
        label = weakest(item[1])
        if label is None:
            return len(VERDICT_ORDER), 0.0
        return VERDICT_ORDER.index(item[1].verdict), -claimed_side(item[1], label)[1]

    return dict(sorted(claims.items(), key=order))


def verdict_of_claim(finding: Finding, roomless: Collection[str] = ()) -> str:
    """Return the verdict on a claim; CANNOT for one whose data cannot decide it.

    Its longer sequences ask for no new position; or no part is decided, and on most of them no difference can show.

    Args:
        roomless: the parts of `without_room`.
    """
    open_ = all(str(comparison.agreement) == Agreement.UNDECIDED for comparison in finding.compared.values())
    blocked = keeps_positions(finding.entry) or (open_ and 2 * len(roomless) > len(finding.compared))
    return CANNOT if finding.compared and blocked else str(finding.verdict)


def by_verdict(claims: Mapping[str, Finding], roomless: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Return the names of claims by `verdict_of_claim`, in the order of VERDICT_ORDER; CANNOT and "not run" are last.

    Args:
        roomless: the parts of `without_room`, by claim.
    """
    verdicts = {name: verdict_of_claim(claim, roomless.get(name, ())) for name, claim in claims.items()}
    order = [*map(str, VERDICT_ORDER), CANNOT, str(EntryVerdict.NOT_RUN)]
    names = {word: [name for name, verdict in verdicts.items() if verdict == word] for word in order}
    return {word: several for word, several in names.items() if several}


def compared_means(
    entry: Entry, test: Claimed, results: Mapping[str, TaskResults], unseen: UnseenLengths | None = None
) -> list[float]:
    """Return the means over seeds of what a part compares, on the benchmark's rows or on unseen lengths.

    Empty if one of them lacks.

    Args:
        results: of the benchmark, by task.
        unseen: of the claim's studies.
    """
    means: list[float | None] = []
    if unseen is not None:
        cells = [{**test.value, **change} for change in ({}, *test.others)]
        means = [unseen.shares.get(str(cell["data"]), {}).get(str(cell["pe"])) for cell in cells]
    means += [_mean(results, *cell) for cell in _cells(entry, test)]
    known = [mean for mean in means if mean is not None]
    return known if len(known) == len(means) else []


def without_room(
    finding: Finding, results: Mapping[str, TaskResults], unseen: UnseenLengths | None = None
) -> dict[str, str]:
    """Return the open parts on which no difference can show, each with the reason.

    All that they compare has less than MIN_RIGHT of whole sequences right, or at least MIN_ALL_RIGHT of what is asked.
    """
    reasons = {}
    for label, comparison in finding.compared.items():
        test = finding.entry.values[label]
        if not isinstance(test, Claimed) or str(comparison.agreement) != Agreement.UNDECIDED:
            continue
        means = compared_means(finding.entry, test, results, unseen) if _is_share(test) else []
        if means and max(means) < MIN_RIGHT and test.value["metric"] == "exact_match":
            reasons[label] = f"neither gets {100 * MIN_RIGHT:.0f} % of whole sequences right"
        elif means and min(means) >= MIN_ALL_RIGHT:
            reasons[label] = f"both get at least {100 * MIN_ALL_RIGHT:.0f} % right"
    return reasons


def at_edge(finding: Finding, results: Mapping[str, TaskResults]) -> dict[str, list[str]]:
    """Return the encodings of each part whose learning rate was the lowest or the highest in over MAX_AT_EDGE of seeds.

    Args:
        results: of the benchmark, by task; the rates of other studies were not tuned.
    """
    parts: dict[str, list[str]] = {}
    for label in finding.compared:
        test = finding.entry.values[label]
        for task, _, _, pe in _cells(finding.entry, test) if isinstance(test, Claimed) else []:
            edges = edge_shares(results[task].rows) if task in results else {}
            if edges.get(pe, 0.0) > MAX_AT_EDGE and pe not in parts.setdefault(label, []):
                parts[label].append(pe)
    return {label: names for label, names in parts.items() if names}


def within_windows(finding: Finding, text: str) -> list[str]:
    """Return the parts that compare an encoding's losses at two lengths, which differ by less than MIN_LENGTH_GAP.

    Args:
        text: the task whose windows at different lengths have different bytes.
    """
    labels = []
    for label, comparison in finding.compared.items():
        test = finding.entry.values[label]
        if not isinstance(test, Claimed) or [set(change) for change in test.others] != [{"length"}]:
            continue
        if tasks_of(finding.entry, test) == [text] and abs(float(comparison.difference)) < MIN_LENGTH_GAP:
            labels.append(label)
    return labels


def _is_share(test: Claimed) -> bool:
    return not test.ratio and str(test.value["metric"]) in ("accuracy", "exact_match")


def _mean(results: Mapping[str, TaskResults], task: str, metric: str, length: str, pe: str) -> float | None:
    """Return the mean over seeds of a cell; None where it was not measured."""
    column = f"{metric}_x{length}"
    if task not in results or column not in results[task].rows:
        return None
    values = results[task].rows.loc[results[task].rows["pe"] == pe, column].astype(float)
    return float(values.mean()) if len(values) else None


def _cells(entry: Entry, test: Claimed) -> list[tuple[str, str, str, str]]:
    """Return what a part on the benchmark's rows compares: task, metric, length and encoding of each of its values."""
    cells = []
    for change in ({}, *test.others) if entry.tasks else ():
        cell = {**test.value, **change}
        tasks = [str(cell["task"])] if "task" in cell else entry.tasks
        cells += [(task, str(cell["metric"]), str(cell["length"]), str(cell["pe"])) for task in tasks]
    return cells


def paper_in_words(paper: str) -> str:
    """Return the number of a paper on arXiv, or the last part of its address; of no publication, what is said of it."""
    return f"{'arXiv:' * ('arxiv.org' in paper)}{paper.rpartition('/')[2]}" if "://" in paper else paper


def exact_parts(finding: Finding) -> list[str]:
    """Return the parts on untrained models, whose values are the same in every seed."""
    tests = {label: test for label, test in finding.entry.values.items() if isinstance(test, Claimed)}
    return [label for label, test in tests.items() if str(test.value["metric"]).startswith("audit.")]


def encodings_of(entry: Entry) -> set[str]:
    """Return the encodings that the parts of a claim compare."""
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    names = [conditions.get("pe", ()) for test in tests for conditions in (test.value, *test.others)]
    return {str(name) for each in names for name in (each if isinstance(each, tuple) else (each,))}


def levels(entry: Entry, results: Mapping[str, TaskResults]) -> list[str]:
    """Return the means over seeds of what a claim on the benchmark's rows compares: a line per task, metric and length.

    Args:
        results: of the benchmark, by task.
    """
    lines: dict[str, dict[str, str]] = {}
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    for task, metric, length, pe in (cell for test in tests for cell in _cells(entry, test)):
        if (mean := _mean(results, task, metric, length, pe)) is not None:
            lines.setdefault(f"{task}, {metric.replace('_', ' ')} at {length} ×", {})[pe] = number(mean)
    return [f"{line}: {', '.join(f'`{pe}` {mean}' for pe, mean in means.items())}" for line, means in lines.items()]


def parts_tables(finding: Finding) -> list[PartsTable]:
    """Return the parts of a claim as tables: a row per setting, with a column for each part that is asked in it."""
    entry = finding.entry
    tests = {label: test for label, test in entry.values.items() if isinstance(test, Claimed)}
    cells: dict[tuple[str, str, str], dict[str, str]] = {}  # label by column, by quantity, row and what is claimed
    for label, test in tests.items():
        setting, _, part = label.rpartition(": ")
        row = cells.setdefault((measure(test), setting or part, bound(entry, test)), {})
        row[part if setting else ""] = label
    rows: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
    for (measured, name, claimed), by_column in cells.items():
        rows.setdefault((measured, tuple(by_column)), []).append(Row(name, claimed, list(by_column.values())))
    tables = []
    for (measured, columns), several in rows.items():
        labels = [label for row in several for label in row.labels]
        tasks = dict.fromkeys(task for label in labels for task in tasks_of(entry, tests[label]))
        tables.append(PartsTable(measured, list(tasks), columns, several))
    return tables


def measure(test: Claimed) -> str:
    """Return what the value of a part is, with its unit."""
    unit = None if test.ratio else UNITS_OF_CLAIMS.get(str(test.value["metric"]))
    return ", ".join(filter(None, (quantity(test).replace("audit.", "").replace("r2", "R²"), unit)))


def bound(entry: Entry, test: Claimed) -> str:
    """Return what is claimed of the value; "near" with its tolerance."""
    within = f" (within {entry.tolerance:g})" if test.rule == "near" else ""
    return f"{test}{within}".replace("-", "−")


def mean_and_interval(test: Claimed, comparison: Comparison) -> tuple[str, str]:
    """Return the mean of a part and its 95 % interval, corrected like the verdict; of a difference with signs.

    The interval ends at what is possible. That of a difference of differences, or of a ratio, is shown as it is.
    """
    say = signed if test.is_difference else number
    low, high = _ends(test, comparison)
    return say(float(comparison.difference)), f"[{say(low)}, {say(high)}]"


def is_cut(finding: Finding, table: PartsTable) -> bool:
    """Return whether an interval of a table ends at what is possible, and not where its test does."""
    compared = {label: finding.compared[label] for row in table.rows for label in row.labels}
    return any(
        isinstance(test := finding.entry.values[label], Claimed)
        and _ends(test, each) != (float(each.low), float(each.high))
        for label, each in compared.items()
    )


def _ends(test: Claimed, comparison: Comparison) -> tuple[float, float]:
    """Return the ends of the interval of a part, cut at what is possible."""
    mean, low, high = (float(value) for value in (comparison.difference, comparison.low, comparison.high))
    if not test.ratio and len(test.others) < 2:
        low, high = map(float, cut_interval(str(test.value["metric"]), mean, low, high, test.is_difference))
    return low, high


def states(finding: Finding, roomless: Collection[str] = ()) -> str:
    """Return how many parts are shown, contradicted and open; those on which no difference can show are apart.

    Args:
        roomless: the parts of `without_room`.
    """
    words = {label: PARTS[Agreement(str(each.agreement))] for label, each in finding.compared.items()}
    agreements = [NO_ROOM if label in roomless else word for label, word in words.items()]
    counts = [(agreements.count(word), word) for word in (*PARTS.values(), NO_ROOM) if word in agreements]
    parts = f" of {len(agreements)} part{'s' * (len(agreements) > 1)}"
    return ", ".join(f"{count}{'' if place else parts} {word}" for place, (count, word) in enumerate(counts))


def ours(finding: Finding) -> list[str]:
    """Return a line per number: ours, the published one, their difference with interval; then seeds and tolerance."""
    lines = []
    for name, published in finding.entry.values.items():
        what, comparison = f"length {name}" if name[:1].isdigit() else name, finding.compared[name]
        difference, low, high = (
            signed(float(value)) for value in (comparison.difference, comparison.low, comparison.high)
        )
        lines.append(f"{what}: {number(finding.ours[name])}, published {published} ({difference} [{low}, {high}])")
    return [*lines, f"{finding.seeds} seeds, tolerance {finding.entry.tolerance:g}"]


def scope(finding: Finding) -> list[str]:
    """Return the tasks that the parts of a claim are measured on."""
    tests = [test for test in finding.entry.values.values() if isinstance(test, Claimed)]
    return list(dict.fromkeys(task for test in tests for task in tasks_of(finding.entry, test)))


def conditions(findings: Mapping[str, Finding]) -> dict[str, str]:
    """Return what tells numbers apart, by name: overrides, of the same words; the source, of the same setting.

    Options of an encoding are left out.
    """
    words = {}
    entries = {name: finding.entry for name, finding in findings.items()}
    for name, entry in entries.items():
        alike = [set(other.setting) for other in entries.values() if other.says == entry.says]
        distinct = [
            word for word in entry.setting if word not in set.intersection(*alike) and not word.startswith("pe.")
        ]
        sources = {other.source for other in entries.values() if other.setting == entry.setting}
        words[name] = ", ".join([*(f"`{word}`" for word in distinct), *([entry.source] if len(sources) > 1 else [])])
    return words


def shared_notes(entries: Iterable[Entry]) -> list[str]:
    """Return the notes with which those of each entry begin."""
    notes = zip(*(entry.chosen for entry in entries), strict=False)
    return [each[0] for each in takewhile(lambda each: len(set(each)) == 1, notes)]


def verdict_in_words(
    finding: Finding, has_unlearned: bool, roomless: Collection[str] = (), windows: Collection[str] = ()
) -> str:
    """Return the verdict as pages show it: `verdict_of_claim`, or the verdict with what limits it.

    Args:
        has_unlearned: whether models of the claim's studies have not learned their task.
        roomless, windows: the parts of `without_room` and of `within_windows`.
    """
    verdict = verdict_of_claim(finding, roomless)
    limits = ", on models that had not learned the task" if finding.compared and has_unlearned else ""
    if windows:
        limits += f",{' in part' * (len(windows) < len(finding.compared))} within the windows"
    return verdict if verdict == CANNOT else f"{verdict}{limits}"


def unlearned(entry: Entry, studies: Path) -> dict[str, str]:
    """Return what the models of its studies have not learned, in sentences, by the name of the study.

    Args:
        studies: the folder of the committed studies; those that are not there are left out.
    """
    files = {name: studies / name / "rows.csv" for name in entry.studies}
    tables = {name: read_csv(file) for name, file in files.items() if file.is_file()}
    sentences = {name: not_learned_note(rows, advice=False) or partly_learned(rows) for name, rows in tables.items()}
    return {name: text for name, text in sentences.items() if text}


def tasks_of(entry: Entry, test: Claimed) -> list[str]:
    """Return the tasks that the value of a part is a mean over; those of the audit are of untrained models."""
    if str(test.value["metric"]).startswith("audit."):
        return ["audit of untrained models"]
    data = test.value.get("task", test.value.get("data"))
    if data is None and entry.tasks:
        return list(entry.tasks)
    if data is None:
        return [name for words in entry.studies.values() for name in _tasks(words)]
    return [str(name) for name in (data if isinstance(data, tuple) else (data,))]


@cache
def _tasks(words: tuple[str, ...]) -> list[str]:
    """Return the tasks of a study, from its cells of one encoding and seed."""
    others = [word for word in words if not word.startswith(("pe=", "seed="))]
    cells = config.expand_overrides(config.sweep_overrides([*others, "pe=none", "seed=0"]), multirun=True)
    return list(dict.fromkeys(str(cell.data.name) for cell in cells))
