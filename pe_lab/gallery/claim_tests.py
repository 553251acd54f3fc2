"""What the parts of a claim compare on which tasks, and the verdict that the data allow."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import pandas as pd

from pe_lab import config
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import edge_shares
from pe_lab.gallery.extrapolation import keeps_positions
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.replication.findings import EntryVerdict, Finding
from pe_lab.replication.study_values import RAW_CONDITIONS
from pe_lab.results.learned import MIN_RIGHT, not_learned_note, partly_learned
from pe_lab.results.tuned_outcomes import MAX_AT_EDGE
from pe_lab.statistics import Agreement
from pe_lab.system.exact_csv import read_csv

CANNOT = "cannot be tested here"
MIN_ALL_RIGHT = 0.99  # share of right answers from which two encodings can no longer differ much
STATE_ORDER = [Agreement.NOT_REPRODUCED, Agreement.UNDECIDED, Agreement.REPRODUCED]
VERDICT_ORDER = [EntryVerdict.REPRODUCED, EntryVerdict.MIXED, EntryVerdict.NOT_REPRODUCED, EntryVerdict.UNDECIDED]


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


def shown(finding: Finding) -> list[str]:
    """Return the labels of the parts that are as claimed."""
    return [label for label, each in finding.compared.items() if str(each.agreement) == Agreement.REPRODUCED]


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
    means += [mean_of_cell(results, *cell) for cell in compared_cells(entry, test)]
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
        for task, _, _, pe in compared_cells(finding.entry, test) if isinstance(test, Claimed) else []:
            edges = edge_shares(results[task].rows) if task in results else {}
            if edges.get(pe, 0.0) > MAX_AT_EDGE and pe not in parts.setdefault(label, []):
                parts[label].append(pe)
    return {label: names for label, names in parts.items() if names}


def unlearned(entry: Entry, studies: Path) -> dict[str, str]:
    """Return what the models of its studies have not learned, in sentences, by the name of the study.

    Args:
        studies: the folder of the committed studies; those that are not there are left out.
    """
    files = {name: studies / name / "rows.csv" for name in entry.studies}
    tables = {name: read_csv(file) for name, file in files.items() if file.is_file()}
    sentences = {name: not_learned_note(rows, advice=False) or partly_learned(rows) for name, rows in tables.items()}
    return {name: text for name, text in sentences.items() if text}


def encodings_of(entry: Entry) -> set[str]:
    """Return the encodings that the parts of a claim compare."""
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    names = [conditions.get("pe", ()) for test in tests for conditions in (test.value, *test.others)]
    return {str(name) for each in names for name in (each if isinstance(each, tuple) else (each,))}


def exact_parts(finding: Finding) -> list[str]:
    """Return the parts on untrained models, whose values are the same in every seed."""
    tests = {label: test for label, test in finding.entry.values.items() if isinstance(test, Claimed)}
    return [label for label, test in tests.items() if str(test.value["metric"]).startswith("audit.")]


def scope(finding: Finding) -> list[str]:
    """Return the tasks that the parts of a claim are measured on."""
    tests = [test for test in finding.entry.values.values() if isinstance(test, Claimed)]
    return list(dict.fromkeys(task for test in tests for task in tasks_of(finding.entry, test)))


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


def mean_of_cell(results: Mapping[str, TaskResults], task: str, metric: str, length: str, pe: str) -> float | None:
    """Return the mean over seeds of a cell; None where it was not measured."""
    column = f"{metric}_x{length}"
    if task not in results or column not in results[task].rows:
        return None
    values = results[task].rows.loc[results[task].rows["pe"] == pe, column].astype(float)
    return float(values.mean()) if len(values) else None


def compared_cells(entry: Entry, test: Claimed) -> list[tuple[str, str, str, str]]:
    """Return what a part on the benchmark's rows compares: task, metric, length and encoding of each of its values."""
    cells = []
    for change in ({}, *test.others) if entry.tasks else ():
        cell = {**test.value, **change}
        tasks = [str(cell["task"])] if "task" in cell else entry.tasks
        cells += [(task, str(cell["metric"]), str(cell["length"]), str(cell["pe"])) for task in tasks]
    return cells


def _is_share(test: Claimed) -> bool:
    return not test.ratio and str(test.value["metric"]) in ("accuracy", "exact_match")
