"""The report of a check: a line per promise."""

from collections.abc import Sequence

from pe_lab.check.promise import Outcome
from pe_lab.system.errors import printable

WORDS = {True: "holds", False: "BROKEN", None: "n/a"}
WIDTH = 66  # of the column of promises


def line(outcome: Outcome) -> str:
    """Return a line: whether the promise holds, what it says, the largest difference measured, the reason."""
    difference = "" if outcome.difference is None else f"{outcome.difference:.1e}"
    text = f"{WORDS[outcome.holds]:7} {outcome.promise:{WIDTH}} {difference:>8}  {printable(outcome.reason)}"
    return text.rstrip()


def summary(subject: str, outcomes: Sequence[Outcome]) -> str:
    """Return how many promises hold, are broken and do not apply."""
    count = {holds: sum(outcome.holds is holds for outcome in outcomes) for holds in WORDS}
    return f"{subject}: {count[True]} promises hold, {count[False]} are broken, {count[None]} do not apply"
