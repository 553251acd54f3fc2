"""The ranges of all settings but those of `pe` and `data`, whose classes declare their options themselves.

Nothing here imports torch.
"""

import re
from dataclasses import replace
from typing import Any

from pe_lab.encodings import options
from pe_lab.encodings.options import BOOLEAN, POSITIVE, Range, at_least, is_number, is_text, one_of, whole


def _each(one: Range, fewest: int = 1) -> Range:
    words = f"a list, each {one.words}" if fewest else f"a list, maybe empty, each {one.words}"
    return Range(words, lambda x: isinstance(x, list) and len(x) >= fewest and all(map(one.holds, x)))


def _optional(one: Range) -> Range:
    return replace(one, optional=True)


FRACTION = Range("in [0, 1)", lambda x: is_number(x) and 0 <= x < 1)
NAME = Range(
    "a name of letters, digits, '_', '.' and '-', of at most 100 bytes",
    lambda x: isinstance(x, str) and bool(re.fullmatch(r"\w[\w.-]*", x)) and len(x.encode()) <= 100,
)
COUNT = whole(1)
SECONDS = Range("a number of seconds above 0 and up to 3600", lambda x: is_number(x) and 0 < x <= 3600)

RANGES: dict[str, Range] = {
    "epochs": COUNT,
    "seed": at_least(0),
    "ledger": Range("the path of a folder", is_text),
    "study_name": _optional(NAME),
    "workers": _optional(COUNT),
    "model.depth": COUNT,
    "model.width": COUNT,
    "model.num_heads": COUNT,
    "model.mlp_ratio": COUNT,
    "model.norm": one_of("pre", "post"),
    "model.dropout": FRACTION,
    "model.attention_dropout": FRACTION,
    "model.embedding_std": POSITIVE,
    "optimizer.name": NAME,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": Range(
        "two numbers in [0, 1)", lambda x: isinstance(x, list) and len(x) == 2 and all(map(FRACTION.holds, x))
    ),
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": at_least(0),
    "optimizer.schedule": one_of("constant", "cosine"),
    "optimizer.warmup_steps": whole(0),
    "trainer.device": one_of("auto", "cpu", "cuda"),
    "trainer.precision": one_of("32", "bf16-mixed"),
    "trainer.batch_size": COUNT,
    "trainer.clip": _optional(POSITIVE),
    "trainer.log_every": COUNT,
    "trainer.save_every": at_least(0),
    "trainer.graph": Range("true, false or auto", lambda x: isinstance(x, bool) or x == "auto"),
    "attention.implementation": one_of("auto", "reference", "sdpa", "flex", "triton"),
    "evaluate.lengths": _each(at_least(1)),
    "evaluate.policy": _each(one_of("raw", "pi", "ntk", "dynamic_ntk", "yarn", "randomized")),
    "evaluate.offset": _each(Range("an integer in 0 ... 2^24", lambda x: isinstance(x, int) and 0 <= x <= 2**24)),
    "evaluate.decode": one_of("none", "greedy"),
    "logger.mode": _optional(one_of("online", "offline", "disabled")),
    "logger.project": NAME,
    "logger.images": BOOLEAN,
    "logger.decide_timeout": SECONDS,
    "logger.open_timeout": SECONDS,
    "logger.finish_timeout": SECONDS,
}


def require(setting: str, value: Any) -> None:
    """Check the value of a setting.

    Args:
        setting: dotted name, a key of RANGES.

    Raises:
        ValueError: one line with the setting, the requirement and the value.
    """
    options.require(setting, value, RANGES[setting])
