"""Options of a class: ranges are declared in the constructor's signature and checked at construction.

    class Mine(PositionalEncoding):
        def __init__(
            self,
            sizes: Sizes,
            name: str = "mine",
            rate: Positive = 0.1,
            length: Annotated[int, integers(1, most=4096)] | None = None,
            form: Literal["long", "short"] = "long",
        ) -> None:

Nothing here imports torch, so that a config can be checked before torch is loaded.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Union, get_args, get_origin

MAX_SHOWN_CHARACTERS = 200  # characters of a refused value that a message shows
MAX_LENGTH = 2**17  # tokens of a sequence; where an encoding needs the square of that, memory is the limit
MAX_UNITS = 2**16  # units of a layer


class OptionError(ValueError):
    """Raised if an option is out of its range. The message begins with the option's name."""


class Revised(Protocol):
    """A class whose revision and options identify the numbers that it computes.

    Attributes:
        revision: the version number of its results, increased when they change for the same options.
        neutral: the options added later and their value that means "as before"; it is left out of the identity.
    """

    revision: ClassVar[int]
    neutral: ClassVar[dict[str, object]]


@dataclass(frozen=True)
class Range:
    """The values that an option may have.

    Args:
        words: the requirement as a message states it, after "must be".
        holds: whether a value meets it.
        most: an upper limit for numbers: beyond it, memory or time would run out.
        optional: whether None is accepted.
        names: the allowed names, of which a message proposes the nearest.
    """

    words: str
    holds: Callable[[Any], bool]
    most: float = math.inf
    optional: bool = False
    names: tuple[str, ...] = ()


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer, but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Return whether a value is a non-empty string that can be written to a file and used as its name."""
    if not isinstance(value, str) or value == "" or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def at_least(low: float) -> Range:
    """Return the range of numbers of at least `low`."""
    return Range(f"at least {low}", lambda x: is_number(x) and x >= low)


def number_range(low: float, high: float) -> Range:
    """Return the range of numbers from `low` to `high`, both included."""
    return Range(f"in [{low}, {high}]", lambda x: is_number(x) and low <= x <= high)


def integers(low: int, most: float = math.inf) -> Range:
    """Return the range of integers of at least `low`."""
    return Range(f"an integer of at least {low}", lambda x: is_integer(x) and x >= low, most)


def even_integers(most: float = math.inf) -> Range:
    """Return the range of even integers of at least 2."""
    return Range("an even integer of at least 2", lambda x: is_integer(x) and x >= 2 and x % 2 == 0, most)


def list_where(words: str, holds: Callable[[Any], bool]) -> Range:
    """Return the range of non-empty lists whose members meet a requirement."""

    def all_hold(values: Any) -> bool:
        return (
            isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0 and all(map(holds, values))
        )

    return Range(words, all_hold)


def choice_range(*names: str) -> Range:
    """Return the range of these strings."""
    return Range(f"one of {', '.join(names)}", lambda x: x in names, names=names)


POSITIVE = Range("a positive number", lambda x: is_number(x) and x > 0)
NOT_EMPTY = list_where("a list that is not empty", lambda x: True)
WHOLE_NUMBERS = list_where("a list of integers of at least 1", lambda x: is_integer(x) and x >= 1)
POSITIVE_NUMBERS = list_where("a list of positive numbers", lambda x: is_number(x) and x > 0)
BOOLEAN = Range("true or false", lambda x: isinstance(x, bool))

Positive = Annotated[float, POSITIVE]
NonNegative = Annotated[float, at_least(0)]
AtLeastOne = Annotated[float, at_least(1)]
Count = Annotated[int, integers(1)]
Length = Annotated[int, integers(1, most=MAX_LENGTH)]
PositionCount = Annotated[int, integers(1, most=2**25)]  # positions that have vectors or frequencies
Distance = Annotated[int, integers(1, most=2**16)]  # a distance with a table row of its own
Dimensions = Annotated[int, even_integers()]  # dimensions that are rotated in pairs
Units = Annotated[int, integers(1, most=MAX_UNITS)]
NonEmpty = Annotated[str, Range("a text that is not empty", is_text)]
Folder = Annotated[str, Range("the path of a folder", is_text)]
FileOrFolder = Annotated[str, Range("the path of a file or folder", is_text)]


def annotated_range(annotation: Any) -> Range | None:
    """Return the range that an annotation declares, or None if it declares none.

    Declarations are `Annotated[..., Range]`, `Literal` with strings, `bool`, and each of them `| None`.
    """
    if annotation is bool:
        return BOOLEAN
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return next((part for part in annotation.__metadata__ if isinstance(part, Range)), None)
    if kind is Literal:
        return choice_range(*parts)
    if kind in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        inner = annotated_range(parts[0] if parts[1] is NoneType else parts[1])
        return None if inner is None else replace(inner, optional=True)
    return None


def require_option(name: str, value: Any, allowed: Range) -> None:
    """Check the value of an option.

    Args:
        name: the name of the option, as the message begins.

    Raises:
        OptionError: one line with the name, the requirement and the value.
    """
    if value is None and allowed.optional:
        return
    if not allowed.holds(value):
        raise OptionError(f"{name} must be {allowed.words}, got {show_value(value)}{_proposal(value, allowed.names)}")
    if allowed.most < math.inf and value > allowed.most:
        raise OptionError(f"{name} must be at most {allowed.most}, got {show_value(value)}")


def _proposal(value: Any, names: Sequence[str]) -> str:
    """Return which name was meant, as the end of a message; "" where none is near."""
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    wrong = next((text.casefold().partition(":")[0] for text in texts if text not in names), "")
    proposal = closest_name(wrong, names, 0.7)  # gpu is not cpu
    return f": did you mean {proposal}?" if proposal and proposal != wrong else ""


def closest_name(wrong: str, names: Sequence[str], similarity: float = 0.6) -> str:
    """Return the name that was meant: that with the same letters in another order, else the most similar, or ""."""
    swapped = [name for name in names if sorted(name) == sorted(wrong)]  # rpoe is rope
    return (swapped or get_close_matches(wrong, names, 1, similarity) or [""])[0]


def show_value(value: Any) -> str:
    """Return the first 200 characters of a value, for messages."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]} ..."


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Prefix option names in errors: within "pe", `theta` becomes `pe.theta`."""
    try:
        yield
    except OptionError as error:
        raise type(error)(f"{place}.{error}") from None


class CheckedOptions:
    """Base of classes whose constructors check the options that their signatures declare."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _checking_constructor(vars(cls)["__init__"]))  # noqa: B010 types do not assign to methods


def _checking_constructor(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that checks its options before it does anything else."""
    signature = inspect.signature(init)

    @wraps(init)
    def checked(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        for name, allowed in parameter_ranges(init).items():
            require_option(name, bound.arguments[name], allowed)
        init(*args, **options)

    return checked


@cache
def parameter_ranges(function: Callable[..., Any]) -> dict[str, Range]:
    """Return the ranges that the parameters of a function declare, by name."""
    annotations = {
        name: _evaluate_annotation(annotation, function)
        for name, annotation in inspect.get_annotations(function).items()
    }
    declarations = {name: annotated_range(annotation) for name, annotation in annotations.items()}
    return {name: allowed for name, allowed in declarations.items() if allowed is not None and name != "return"}


def _evaluate_annotation(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return an annotation that may be a string; of a name that only a type checker knows, None."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except NameError:
        return None
