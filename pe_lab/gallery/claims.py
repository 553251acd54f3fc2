"""The parts of a claim: what was measured on which tasks, and how far from a bound still counts as near it."""

from functools import cache

from pe_lab import config
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.replication.universe import quantity

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
