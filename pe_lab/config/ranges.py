"""Ranges that settings of the schema and of optimizers and loggers have.

Those of `pe` and `data` are declared by their classes. Nothing here imports torch.
"""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pe_lab.encodings import policy_names
from pe_lab.encodings.options import BOOLEAN, POSITIVE, Range, at_least, choice_range, integers, is_number, is_text


def list_range(item: Range, fewest: int = 1) -> Range:
    """Return the range of lists of at least `fewest` members, each in a range."""
    words = f"a list, each {item.words}" if fewest else f"a list, maybe empty, each {item.words}"
    return Range(
        words, lambda x: isinstance(x, list) and len(x) >= fewest and all(map(item.holds, x)), names=item.names
    )


def ascending_list(fewest: int) -> Range:
    """Return the range of lists of so many positive numbers, ascending."""

    def holds(value: Any) -> bool:
        if not isinstance(value, list) or not all(map(POSITIVE.holds, value)):
            return False
        ascending = all(low < high for low, high in pairwise(value))
        return len(value) >= fewest and ascending

    return Range(f"a list of at least {fewest} positive numbers, ascending", holds)


_NUMBER = r"[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?"
FRACTION = Range("in [0, 1)", lambda x: is_number(x) and 0 <= x < 1)
BETAS = Range("two numbers in [0, 1)", lambda x: isinstance(x, list) and len(x) == 2 and all(map(FRACTION.holds, x)))
NAME = Range(
    "a name of letters, digits, '_', '.' and '-', of at most 100 bytes",
    lambda x: isinstance(x, str) and bool(re.fullmatch(r"\w[\w.-]*", x)) and len(x.encode()) <= 100,
)
COUNT = integers(1)
SECONDS = Range("a number of seconds above 0 and up to 3600", lambda x: is_number(x) and 0 < x <= 3600)

MARGIN = Range(
    "a number above 0 and one of gap, nats, share, such as '0.05 gap'",
    lambda x: isinstance(x, str) and bool(re.fullmatch(_NUMBER + r" +(gap|nats|share)", x)) and float(x.split()[0]) > 0,
)
RATIO = Range(
    "a whole number above 0, or a fraction of two as '8/3'",
    lambda x: COUNT.holds(x) or (isinstance(x, str) and bool(re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", x))),
)
SCORE = Range("in (0, 1)", lambda x: is_number(x) and 0 < x < 1)
PART = Range("in (0, 1]", lambda x: is_number(x) and 0 < x <= 1)
TUNED_MARGIN = Range(
    "a number above 0 in octaves (of the steps to solve) or nats (of the loss), which is what tuned studies "
    "compare, such as '1 octave'",
    lambda x: isinstance(x, str) and bool(re.fullmatch(_NUMBER + r" +(octave|nat)s?", x)) and float(x.split()[0]) > 0,
)
RATE_AND_SCALE = Range(
    "a pair of a rate and a scale above 0",
    lambda x: isinstance(x, list) and len(x) == 2 and all(map(POSITIVE.holds, x)),
)
BASELINE = Range("an encoding, all pairs or best", is_text)
CORE_HOURS = Range("a number of core-hours above 0", lambda x: is_number(x) and 0 < x < float("inf"))
GRAPH = Range("true, false or auto", lambda x: isinstance(x, bool) or x == "auto")
SEEDS = Range("first..most, as 5..12", is_text)
POLICY = Range(
    f"one of {', '.join(policy_names.POLICY_FORMS)}", policy_names.is_policy, names=policy_names.POLICY_NAMES
)
OFFSET = Range("an integer in 0 ... 2^24", lambda x: isinstance(x, int) and 0 <= x <= 2**24)


def _optional(allowed: Range) -> Range:
    return replace(allowed, optional=True)


# of groups without a class in the schema: each of their files has other settings
UNTYPED: dict[str, Range] = {
    "optimizer.name": NAME,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": BETAS,
    "optimizer.eps": POSITIVE,
    "optimizer.momentum": at_least(0),
    "optimizer.weight_decay": at_least(0),
    "optimizer.nesterov": BOOLEAN,
    "optimizer.ns_steps": COUNT,
    "optimizer.adjust_lr_fn": choice_range("original", "match_rms_adamw"),
    "optimizer.adamw_lr": _optional(POSITIVE),
    "optimizer.adamw_betas": BETAS,
    "optimizer.adamw_eps": POSITIVE,
    "optimizer.schedule": choice_range("constant", "cosine", "linear", "wsd"),
    "optimizer.min_lr": at_least(0),
    "optimizer.decay_fraction": PART,
    "optimizer.warmup_steps": integers(0),
    "logger.wandb.mode": _optional(choice_range("online", "offline", "disabled")),
    "logger.wandb.project": NAME,
    "logger.wandb.entity": _optional(NAME),
    "logger.wandb.group": _optional(Range("a text of at most 128 characters", lambda x: is_text(x) and len(x) <= 128)),
    "logger.wandb.tags": list_range(
        Range("a text of 1 to 64 characters", lambda x: is_text(x) and len(x) <= 64), fewest=0
    ),
    "logger.wandb.notes": _optional(Range("a text", is_text)),
    "logger.wandb.images": BOOLEAN,
    "logger.wandb.decide_timeout": SECONDS,
    "logger.wandb.open_timeout": SECONDS,
    "logger.wandb.finish_timeout": SECONDS,
}
