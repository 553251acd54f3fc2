"""The parts of a claim in words and tables."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.claim_tests import CANNOT, compared_cells, mean_of_cell, tasks_of, verdict_of_claim
from pe_lab.gallery.gallery_page import number, signed_number
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.replication.findings import PARTS, Finding
from pe_lab.replication.universe import quantity
from pe_lab.results.columns import cut_interval
from pe_lab.statistics import Agreement, Comparison

UNPUBLISHED = "not published"  # the paper of entries that have none
UNLEARNED = "on models that had not learned the task"
NO_ROOM = "without room for a difference"
UNITS_OF_CLAIMS = {
    "accuracy": "share of answers",
    "exact_match": "share of sequences",
    "r2": "share of variance",
    "moved_by_1": "share of the norm",
    "entropy": "nats",
    "audit.order_causal": "share of the effect of replacing the tokens",
    "audit.order_bidirectional": "share of the effect of replacing the tokens",
}  # those of losses are in `quantity`; ratios have none


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
    say = signed_number if test.is_difference else number
    low, high = _ends(test, comparison)
    return say(float(comparison.difference)), f"[{say(low)}, {say(high)}]"


def _ends(test: Claimed, comparison: Comparison) -> tuple[float, float]:
    """Return the ends of the interval of a part, cut at what is possible."""
    mean, low, high = (float(value) for value in (comparison.difference, comparison.low, comparison.high))
    if not test.ratio and len(test.others) < 2:
        low, high = map(float, cut_interval(str(test.value["metric"]), mean, low, high, test.is_difference))
    return low, high


def levels(entry: Entry, results: Mapping[str, TaskResults]) -> list[str]:
    """Return the means over seeds of what a claim on the benchmark's rows compares: a line per task, metric and length.

    Args:
        results: of the benchmark, by task.
    """
    lines: dict[str, dict[str, str]] = {}
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    for task, metric, length, pe in (cell for test in tests for cell in compared_cells(entry, test)):
        if (mean := mean_of_cell(results, task, metric, length, pe)) is not None:
            lines.setdefault(f"{task}, {metric.replace('_', ' ')} at {length} ×", {})[pe] = number(mean)
    return [f"{line}: {', '.join(f'`{pe}` {mean}' for pe, mean in means.items())}" for line, means in lines.items()]


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


def verdict_in_words(finding: Finding, has_unlearned: bool, roomless: Collection[str] = ()) -> str:
    """Return the verdict as pages show it: `verdict_of_claim`, or the verdict with what limits it.

    Args:
        has_unlearned: whether models of the claim's studies have not learned their task.
        roomless: the parts of `without_room`.
    """
    verdict = verdict_of_claim(finding, roomless)
    limits = f" {UNLEARNED}" if finding.compared and has_unlearned else ""
    return verdict if verdict == CANNOT else f"{verdict}{limits}"


def ours(finding: Finding) -> list[str]:
    """Return a line per number: ours, the published one, their difference with interval; then seeds and tolerance."""
    lines = []
    for name, published in finding.entry.values.items():
        what, comparison = f"length {name}" if name[:1].isdigit() else name, finding.compared[name]
        difference, low, high = (
            signed_number(float(value)) for value in (comparison.difference, comparison.low, comparison.high)
        )
        lines.append(f"{what}: {number(finding.ours[name])}, published {published} ({difference} [{low}, {high}])")
    return [*lines, f"{finding.seeds} seeds, tolerance {finding.entry.tolerance:g}"]


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


def paper_in_words(paper: str) -> str:
    """Return the number of a paper on arXiv, or the last part of its address; of no publication, what is said of it."""
    return f"{'arXiv:' * ('arxiv.org' in paper)}{paper.rpartition('/')[2]}" if "://" in paper else paper
