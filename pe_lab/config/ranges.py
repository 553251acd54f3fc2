"""The ranges of all settings but those of `pe` and `data`, whose classes declare their options themselves.

Nothing here imports torch.
"""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pe_lab.config import trainer
from pe_lab.encodings import options, policy_names
from pe_lab.encodings.options import BOOLEAN, POSITIVE, Range, at_least, is_number, is_text, one_of, whole


def _each(one: Range, fewest: int = 1) -> Range:
    words = f"a list, each {one.words}" if fewest else f"a list, maybe empty, each {one.words}"
    return Range(words, lambda x: isinstance(x, list) and len(x) >= fewest and all(map(one.holds, x)), names=one.names)


def _optional(one: Range) -> Range:
    return replace(one, optional=True)


def _ladder(fewest: int) -> Range:
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
COUNT = whole(1)
SECONDS = Range("a number of seconds above 0 and up to 3600", lambda x: is_number(x) and 0 < x <= 3600)

MARGIN = Range(
    "a number above 0 and one of gap, nats, share, such as '0.05 gap'",
    lambda x: isinstance(x, str) and bool(re.fullmatch(_NUMBER + r" +(gap|nats|share)", x)) and float(x.split()[0]) > 0,
)

RANGES: dict[str, Range] = {
    "epochs": _optional(COUNT),
    "steps": _optional(COUNT),
    "solve.level": _optional(Range("in (0, 1)", lambda x: is_number(x) and 0 < x < 1)),
    "solve.first": COUNT,
    "solve.per_doubling": COUNT,
    "seed": at_least(0),
    "ledger": Range("the path of a folder", is_text),
    "study_name": _optional(NAME),
    "workers": _optional(COUNT),
    "margin": _optional(MARGIN),
    "decide.baseline": _optional(Range("an encoding, all pairs or best", is_text)),
    "decide.seeds": Range("first..most, as 5..12", is_text),
    "decide.looks": _optional(_each(COUNT)),
    "decide.best": _optional(COUNT),
    "budget": _optional(Range("a number of core-hours above 0", lambda x: is_number(x) and 0 < x < float("inf"))),
    "model.depth": COUNT,
    "model.width": COUNT,
    "model.num_heads": COUNT,
    "model.mlp_ratio": Range(
        "a whole number above 0, or a fraction of two as '8/3'",
        lambda x: COUNT.holds(x) or (isinstance(x, str) and bool(re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", x))),
    ),
    "model.norm": one_of("pre", "post", "sandwich"),
    "model.norm_type": one_of("layer", "rms", "rms_plain"),
    "model.mlp": one_of("gelu", "swiglu", "relu2"),
    "model.head_dim": _optional(COUNT),
    "model.logit_cap": _optional(POSITIVE),
    "model.checkpointing": one_of("none", "layer", "selective"),
    "model.num_kv_heads": _optional(COUNT),
    "model.residual_scale": one_of("none", "depth"),
    "model.dropout": FRACTION,
    "model.attention_dropout": FRACTION,
    "model.embedding_std": POSITIVE,
    "model.weight_std": _optional(POSITIVE),
    "model.parametrization": one_of("standard", "mup"),
    "model.base_width": COUNT,
    "model.base_head_dim": COUNT,
    "optimizer.name": NAME,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": BETAS,
    "optimizer.eps": POSITIVE,
    "optimizer.momentum": at_least(0),
    "optimizer.weight_decay": at_least(0),
    "optimizer.nesterov": BOOLEAN,
    "optimizer.ns_steps": COUNT,
    "optimizer.adjust_lr_fn": one_of("original", "match_rms_adamw"),
    "optimizer.adamw_lr": _optional(POSITIVE),
    "optimizer.adamw_betas": BETAS,
    "optimizer.adamw_eps": POSITIVE,
    "optimizer.schedule": one_of("constant", "cosine", "linear", "wsd"),
    "optimizer.min_lr": at_least(0),
    "optimizer.decay_fraction": Range("in (0, 1]", lambda x: is_number(x) and 0 < x <= 1),
    "optimizer.warmup_steps": whole(0),
    "tune.rates": _optional(_ladder(2)),
    "tune.scaled": _each(
        Range(
            "a pair of a rate and a scale above 0",
            lambda x: isinstance(x, list) and len(x) == 2 and all(map(POSITIVE.holds, x)),
        ),
        fewest=0,
    ),
    "tune.fraction": Range("in (0, 1]", lambda x: is_number(x) and 0 < x <= 1),
    "tune.steps": _optional(COUNT),
    "tune.baseline": _optional(NAME),
    "tune.margin": _optional(
        Range(
            "a number above 0 in octaves (of the steps to solve) or nats (of the loss), which is what tuned studies "
            "compare, such as '1 octave'",
            lambda x: (
                isinstance(x, str) and bool(re.fullmatch(_NUMBER + r" +(octave|nat)s?", x)) and float(x.split()[0]) > 0
            ),
        )
    ),
    "trainer.device": one_of("auto", "cpu", "cuda"),
    "trainer.precision": one_of("32", "bf16-mixed"),
    "trainer.batch_size": COUNT,
    "trainer.clip": _optional(POSITIVE),
    "trainer.log_every": COUNT,
    "trainer.save_every": at_least(0),
    "trainer.fresh": BOOLEAN,
    "trainer.graph": Range("true, false or auto", lambda x: isinstance(x, bool) or x == "auto"),
    **trainer.ranges(),
    "attention.implementation": one_of("auto", "reference", "sdpa", "flex", "blocked", "triton"),
    "evaluate.lengths": _each(at_least(1)),
    "evaluate.policy": _each(
        Range(f"one of {', '.join(policy_names.WRITTEN)}", policy_names.holds, names=policy_names.NAMES)
    ),
    "evaluate.offset": _each(Range("an integer in 0 ... 2^24", lambda x: isinstance(x, int) and 0 <= x <= 2**24)),
    "evaluate.stride": _optional(COUNT),
    "evaluate.decode": one_of("none", "greedy"),
    "logger.wandb.mode": _optional(one_of("online", "offline", "disabled")),
    "logger.wandb.project": NAME,
    "logger.wandb.entity": _optional(NAME),
    "logger.wandb.group": _optional(Range("a text of at most 128 characters", lambda x: is_text(x) and len(x) <= 128)),
    "logger.wandb.tags": _each(Range("a text of 1 to 64 characters", lambda x: is_text(x) and len(x) <= 64), fewest=0),
    "logger.wandb.notes": _optional(Range("a text", is_text)),
    "logger.wandb.images": BOOLEAN,
    "logger.wandb.decide_timeout": SECONDS,
    "logger.wandb.open_timeout": SECONDS,
    "logger.wandb.finish_timeout": SECONDS,
}


def require(setting: str, value: Any) -> None:
    """Check the value of a setting.

    Args:
        setting: dotted name, a key of RANGES.

    Raises:
        ValueError: one line with the setting, the requirement and the value.
    """
    options.require(setting, value, RANGES[setting])
