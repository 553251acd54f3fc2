"""The report of a check: a line per promise."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.utils import instantiate
from omegaconf import DictConfig

from pe_lab.check import datasets, encodings, models
from pe_lab.check.case import EncodingCase
from pe_lab.check.promise import PromiseOutcome, check_promises
from pe_lab.encodings.options import prefix_errors
from pe_lab.system.escaping import escape_control
from pe_lab.system.raised_places import name_setting

OUTCOME_WORDS = {True: "holds", False: "BROKEN", None: "n/a"}
PROMISE_WIDTH = 66  # characters of the column of promises


def print_check(kind: str, cfg: DictConfig) -> bool:
    """Check one encoding or dataset, and print its report. Returns whether no promise is broken."""
    leaf = cfg[kind]
    print(f"{kind}={leaf.name}, {leaf._target_}")
    with prefix_errors(kind), _name_setting(f"{kind}={leaf.name}"):
        if kind == "pe":
            case = EncodingCase(leaf.name, instantiate(leaf), cfg.model.width, cfg.model.num_heads)
            examination = check_promises(encodings.PROMISES | models.PROMISES, case)
        else:
            examination = check_promises(
                datasets.PROMISES, datasets.DatasetCase(leaf.name, instantiate(leaf), cfg.seed)
            )
    outcomes: list[PromiseOutcome] = []
    unshown = 0
    for outcome in examination:
        if outcome.place is not None and outcome.place in [earlier.place for earlier in outcomes]:
            unshown += 1
        else:
            print(outcome_line(outcome, outcomes), flush=True)
        outcomes.append(outcome)
    if unshown:
        print(outcome_line(PromiseOutcome(f"{unshown} more promises", False, reason="the same exception as above")))
    print(summary_line(f"{kind}={leaf.name}", outcomes), end="\n\n")
    return all(outcome.holds is not False for outcome in outcomes)


def outcome_line(outcome: PromiseOutcome, before: Sequence[PromiseOutcome] = ()) -> str:
    """Return a line: whether the promise holds, what it says, the largest difference measured, the reason.

    Args:
        before: the outcomes that were shown before. A reason that broke one of them is not repeated; reasons that
            differ in their numbers alone count as one, as promises are checked at several sizes.
    """
    difference = "" if outcome.difference is None else f"{outcome.difference:.1e}"
    reason = "the same as above" if _is_repeated(outcome, before) else escape_control(outcome.reason)
    text = f"{OUTCOME_WORDS[outcome.holds]:7} {outcome.promise:{PROMISE_WIDTH}} {difference:>8}  {reason}"
    return text.rstrip()


def summary_line(subject: str, outcomes: Sequence[PromiseOutcome]) -> str:
    """Return how many promises hold, are broken and do not apply."""
    count = {holds: sum(outcome.holds is holds for outcome in outcomes) for holds in OUTCOME_WORDS}
    return f"{subject}: {count[True]} promises hold, {count[False]} are broken, {count[None]} do not apply"


def _is_repeated(outcome: PromiseOutcome, before: Sequence[PromiseOutcome]) -> bool:
    """Return whether the reason that breaks a promise broke an earlier one, but for its numbers."""
    reasons = {_without_numbers(earlier.reason) for earlier in before if earlier.holds is False}
    return outcome.holds is False and _without_numbers(outcome.reason) in reasons


@contextmanager
def _name_setting(setting: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        name_setting(error, setting)
        raise


def _without_numbers(reason: str) -> str:
    return re.sub(r"[\d.]+", "0", reason)
