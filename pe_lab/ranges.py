"""What every setting must be. Nothing here imports torch."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

LONGEST = 2**17  # tokens of a sequence; where an encoding needs squares of that, memory ends earlier
SHOWN = 200  # characters of a value that is refused


@dataclass(frozen=True)
class Range:
    """What a setting must be, in words and as a test; and the most that is taken: beyond, work would not end."""

    words: str
    holds: Callable[[Any], bool]
    most: float = math.inf


def _at_least(low: float) -> Range:
    return Range(f"at least {low}", lambda x: _number(x) and x >= low)


def _one_of(*names: str) -> Range:
    return Range(f"one of {', '.join(names)}", lambda x: x in names)


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def _text(x: Any) -> bool:
    """Whether it is a text with something in it that can be written to a file and name one."""
    return isinstance(x, str) and x != "" and "\0" not in x and not any("\ud800" <= letter <= "\udfff" for letter in x)


def _each(one: Range, fewest: int = 1) -> Range:
    words = f"a list, each {one.words}" if fewest else f"a list, maybe empty, each {one.words}"
    return Range(words, lambda x: isinstance(x, list) and len(x) >= fewest and all(map(one.holds, x)))


POSITIVE = Range("a positive number", lambda x: _number(x) and x > 0)
FRACTION = Range("in [0, 1)", lambda x: _number(x) and 0 <= x < 1)
NAME = Range(
    "a name of letters, digits, '_', '.' and '-', of at most 100 bytes",
    lambda x: isinstance(x, str) and bool(re.fullmatch(r"\w[\w.-]*", x)) and len(x.encode()) <= 100,
)
COUNT = Range("an integer of at least 1", lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 1)
EVEN = Range("an even integer of at least 2", lambda x: COUNT.holds(x) and x % 2 == 0)
SECONDS = Range("a number of seconds above 0 and up to 3600", lambda x: _number(x) and 0 < x <= 3600)
PATH = Range("the path of a folder", _text)
LENGTH = replace(COUNT, most=LONGEST)
VOCABULARY = 65_536
UNITS = 2**16  # of a layer
DISTANCE = 2**16  # that has a table entry of its own
POSITIONS = 2**25  # beyond those that evaluate.offset leads to

# One line per setting, whichever file it stands in. Constructors use the same table through `require`.
RANGES: dict[str, Range] = {
    "epochs": COUNT,
    "seed": _at_least(0),
    "ledger": PATH,
    "study_name": NAME,
    "workers": COUNT,
    "model.depth": COUNT,
    "model.width": COUNT,
    "model.num_heads": COUNT,
    "model.mlp_ratio": COUNT,
    "model.norm": _one_of("pre", "post"),
    "model.dropout": FRACTION,
    "model.attention_dropout": FRACTION,
    "model.embedding_std": POSITIVE,
    "optimizer.name": NAME,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": Range(
        "two numbers in [0, 1)", lambda x: isinstance(x, list) and len(x) == 2 and all(map(FRACTION.holds, x))
    ),
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": _at_least(0),
    "optimizer.schedule": _one_of("constant", "cosine"),
    "optimizer.warmup_steps": Range("an integer of at least 0", lambda x: x == 0 or COUNT.holds(x)),
    "trainer.device": _one_of("auto", "cpu", "cuda"),
    "trainer.precision": _one_of("32", "bf16-mixed"),
    "trainer.batch_size": COUNT,
    "trainer.clip": POSITIVE,
    "trainer.log_every": COUNT,
    "trainer.save_every": _at_least(0),
    "attention.implementation": _one_of("auto", "reference", "sdpa", "triton"),
    "data.name": NAME,
    "data.length": LENGTH,
    "data.corpus": _one_of("stdlib", "tinyshakespeare", "enwik8"),
    "data.separator": Range("a text that is not empty", _text),
    "data.tokenizer": _one_of("bytes", "bpe"),
    "data.vocabulary_size": Range(
        f"an integer from 259 to {VOCABULARY}", lambda x: COUNT.holds(x) and 259 <= x <= VOCABULARY
    ),
    "data.train_sequences": COUNT,
    "data.test_sequences": COUNT,
    "data.cache": PATH,
    "data.symbols": Range("an integer of at least 2", lambda x: COUNT.holds(x) and x >= 2, VOCABULARY),
    "data.shortest": LENGTH,
    "data.longest": replace(COUNT, most=POSITIONS),
    "data.order": _one_of("little", "big"),
    "data.pairs": COUNT,
    "data.power": Range("in (0, 1]", lambda x: _number(x) and 0 < x <= 1),
    "data.train": COUNT,
    "data.validation": COUNT,
    "data.test": COUNT,
    "data.demo": COUNT,
    "data.vocabulary": replace(COUNT, most=VOCABULARY),
    "data.path": Range("the path of a file or folder", _text),
    "pe.name": NAME,
    "pe.theta": POSITIVE,
    "pe.pairing": _one_of("interleaved", "half"),
    "pe.share": _one_of("none", "heads", "layers", "all"),
    "pe.lr": POSITIVE,
    "pe.max_len": replace(COUNT, most=POSITIONS),
    "pe.std": _at_least(0),
    "pe.size": POSITIVE,
    "pe.decay": POSITIVE,
    "pe.at": _one_of("input", "every_layer", "query_key"),
    "pe.combine": _one_of("add", "concat"),
    "pe.scale": POSITIVE,
    "pe.hidden": replace(COUNT, most=UNITS),
    "pe.features": replace(EVEN, most=UNITS),
    "pe.gamma": POSITIVE,
    "pe.p": Range("in [0, 1]", lambda x: _number(x) and 0 <= x <= 1),
    "pe.scale_base": POSITIVE,
    "pe.factor": _at_least(1),
    "pe.original_length": replace(COUNT, most=POSITIONS),
    "pe.beta_fast": POSITIVE,
    "pe.beta_slow": POSITIVE,
    "pe.ramp": _one_of("paper", "code"),
    "pe.max_distance": replace(COUNT, most=DISTANCE),
    "pe.num_buckets": replace(EVEN, most=512),  # their borders are powers of that
    "pe.max_position": replace(COUNT, most=DISTANCE),
    "pe.buckets": _one_of("clip", "log"),
    "pe.order": _one_of("nearest", "first"),
    "pe.form": _one_of("stable", "literal"),
    "evaluate.lengths": _each(_at_least(1)),
    "evaluate.policy": _each(_one_of("raw", "pi", "ntk", "dynamic_ntk", "yarn", "randomized")),
    "evaluate.offset": _each(Range("an integer in 0 ... 2^24", lambda x: isinstance(x, int) and 0 <= x <= 2**24)),
    "logger.mode": _one_of("online", "offline", "disabled"),
    "logger.project": NAME,
    "logger.images": Range("true or false", lambda x: isinstance(x, bool)),
    "logger.decide_timeout": SECONDS,
    "logger.open_timeout": SECONDS,
    "logger.finish_timeout": SECONDS,
}
OPTIONAL = {
    "data.path",
    "data.separator",
    "data.train_sequences",
    "data.test_sequences",
    "data.cache",
    "study_name",
    "workers",
    "trainer.clip",
    "pe.lr",
    "pe.std",
    "pe.scale",
    "pe.original_length",
    "logger.mode",
}


def require(setting: str, value: Any, where: str | None = None, optional: bool = True) -> Any:
    """The value, if it is in the setting's range.

    Args:
        setting: dotted name, a key of RANGES.
        where: the name to tell, if it stands elsewhere.
        optional: whether None is taken, where OPTIONAL has the setting.

    Raises:
        ValueError: one line with the setting, what it must be, and what it was.
    """
    if value is None and optional and setting in OPTIONAL:
        return value
    of = RANGES[setting]
    if not of.holds(value):
        raise ValueError(f"{where or setting} must be {of.words}, got {shown(value)}")
    if of.most < math.inf and value > of.most:
        raise ValueError(f"{where or setting} must be at most {of.most}, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A value as it stands in an error."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def require_pairs(name: str, width: int, num_heads: int) -> None:
    """Raises ValueError unless the lanes of a head can be paired for rotation."""
    head_dim = width // num_heads
    if head_dim % 2:
        raise ValueError(
            f"{name} rotates pairs: head_dim must be even, got {head_dim} "
            f"(model.width={width}, model.num_heads={num_heads})"
        )
