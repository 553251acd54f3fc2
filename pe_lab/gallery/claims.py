"""The parts of a claim: what was measured on which tasks, and how far from a bound still counts as near it."""

from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path

from pe_lab import config
from pe_lab.gallery.page import number, signed
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.replication.universe import quantity
from pe_lab.replication.verdicts import PARTS, Finding
from pe_lab.results.learned import not_learned, partly_learned
from pe_lab.statistics import Comparison
from pe_lab.system.tables import read_csv

UNITS = {
    "accuracy": "share of answers",
    "exact_match": "share of sequences",
    "r2": "share of variance",
    "moved_by_1": "share of the norm",
    "entropy": "nats",
    "audit.order_causal": "share of the effect of replacing the tokens",
    "audit.order_bidirectional": "share of the effect of replacing the tokens",
}  # those of losses are in `quantity`; ratios have none


def measure(test: Claimed) -> str:
    """Return what the value of a part is, with its unit."""
    unit = None if test.ratio else UNITS.get(str(test.value["metric"]))
    return ", ".join(filter(None, (quantity(test).replace("audit.", "").replace("r2", "R²"), unit)))


def bound(entry: Entry, test: Claimed) -> str:
    """Return what is claimed of the value; "near" with its tolerance."""
    within = f" (within {entry.tolerance:g})" if test.rule == "near" else ""
    return f"{test}{within}".replace("-", "−")


def subject(entry: Entry) -> str:
    """Return what is measured of which encodings; the encodings in backticks."""
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    names = dict.fromkeys(
        f"`{pe}`" for test in tests for side in (test.value, *test.others) if isinstance(pe := side.get("pe"), str)
    )
    return "; ".join(dict.fromkeys(map(measure, tests))) + f" ({', '.join(names)})" * bool(names)


def interval(test: Claimed, found: Comparison) -> str:
    """Return the value of a part with its 95 % interval; of a difference with their signs."""
    say = signed if test.is_difference else number
    return f"{say(float(found.difference))} [{say(float(found.low))}, {say(float(found.high))}]"


def states(finding: Finding) -> str:
    """Return how many parts are shown, contradicted and open."""
    found = [str(one.agreement) for one in finding.compared.values()]
    counts = [f"{found.count(state)} {word}" for state, word in PARTS.items() if state in found]
    return f"of {len(found)} {'parts' if len(found) > 1 else 'part'} {', '.join(counts)}"


def ours(finding: Finding) -> str:
    """Return our numbers beside the claimed ones, with the number of our seeds."""
    values = finding.entry.values.items()
    said = [f"{label} {finding.ours[label]:.3g} (claimed {value})" for label, value in values]
    return f"{', '.join(said)}; {finding.seeds} seeds"


def shared_notes(entries: Iterable[Entry]) -> list[str]:
    """Return the notes with which those of each entry begin."""
    notes = zip(*(entry.chosen for entry in entries), strict=False)
    return [each[0] for each in takewhile(lambda each: len(set(each)) == 1, notes)]


def unlearned(entry: Entry, studies: Path) -> dict[str, str]:
    """Return what the models of its studies have not learned, in sentences, by the name of the study.

    Args:
        studies: the folder of the committed studies; those that are not there are left out.
    """
    files = {name: studies / name / "rows.csv" for name in entry.studies}
    rows = {name: read_csv(file) for name, file in files.items() if file.is_file()}
    said = {name: not_learned(found, advice=False) or partly_learned(found) for name, found in rows.items()}
    return {name: sentences for name, sentences in said.items() if sentences}


def tasks_of(entry: Entry, test: Claimed) -> list[str]:
    """Return the tasks that the value of a part is a mean over; those of the audit are of untrained models."""
    if str(test.value["metric"]).startswith("audit."):
        return ["audit of untrained models"]
    given = test.value.get("data")
    if given is None:
        return [name for words in entry.studies.values() for name in _tasks(words)]
    return [str(name) for name in (given if isinstance(given, tuple) else (given,))]


@cache
def _tasks(words: tuple[str, ...]) -> list[str]:
    """Return the tasks of a study, from its cells of one encoding and seed."""
    others = [word for word in words if not word.startswith(("pe=", "seed="))]
    cells = config.expand(config.of_jobs([*others, "pe=none", "seed=0"]), multirun=True)
    return list(dict.fromkeys(str(cell.data.name) for cell in cells))
