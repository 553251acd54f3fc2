"""The outcome of the check of one promise, and how values are compared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pe_lab.system.errors import in_one_line
from pe_lab.system.raised_places import Place, raised_in, raised_line

S = TypeVar("S")
Check = Callable[[S], float | None]  # returns the largest difference that it found, None where it compares no numbers


class BrokenError(Exception):
    """A promise is broken.

    Args:
        reason: what was found, in one line.
        difference: the largest difference, if numbers were compared.
        place: where what is checked raised an exception, if that was found.
    """

    def __init__(self, reason: str, difference: float | None = None, place: Place | None = None) -> None:
        super().__init__(reason)
        self.difference, self.place = difference, place


class InapplicableError(Exception):
    """A promise does not apply to what is checked. The message says why."""


@dataclass(frozen=True)
class PromiseOutcome:
    """The outcome of one check.

    Attributes:
        promise: the promise, in a sentence.
        holds: whether the promise holds; None: it does not apply.
        difference: the largest difference that was measured; None: no numbers were compared.
        reason: why the promise is broken or does not apply; empty where it holds.
        place: where what is checked raised the exception that breaks it; None: it raised none, or the reason says all.
    """

    promise: str
    holds: bool | None
    difference: float | None = None
    reason: str = ""
    place: Place | None = None


def check_promises(promises: Mapping[str, Check[S]], subject: S) -> Iterator[PromiseOutcome]:
    """Yield the outcome of each promise. An exception that the subject raises breaks the promise."""
    for sentence, check in promises.items():
        yield check_promise(sentence, check, subject)


def check_promise(sentence: str, check: Check[S], subject: S) -> PromiseOutcome:
    """Return the outcome of one check. It draws the same numbers each time, and leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return PromiseOutcome(sentence, True, check(subject))
        except InapplicableError as why:
            return PromiseOutcome(sentence, None, reason=str(why))
        except BrokenError as why:
            return PromiseOutcome(sentence, False, why.difference, str(why), why.place)
        except Exception as error:  # whatever a user's class raises
            line = raised_line(error, unnamed=True) or f"raised {type(error).__name__}: {in_one_line(error)}"
            return PromiseOutcome(sentence, False, reason=line, place=raised_in(error, unnamed=True))


def require(condition: object, reason: str) -> None:
    """Raise BrokenError unless a condition holds."""
    if not condition:
        raise BrokenError(reason)


def largest_difference(got: Tensor, expected: Tensor, what: str, at_most: float = 0.0) -> float:
    """Return the largest difference of two tensors.

    Args:
        what: the name of what is compared, for the message.
        at_most: the largest difference that is allowed; NaN never is.

    Raises:
        BrokenError: they differ by more, or in shape or dtype.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        actual, wanted = (f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in (got, expected))
        raise BrokenError(f"{what}: {actual} in place of {wanted}")
    if got.numel() == 0 or torch.equal(got, expected):
        return 0.0
    difference = (got.double() - expected.double()).abs().max().item()
    if not difference <= at_most:
        allowed = f", more than {at_most:.0e}" if at_most else ""
        raise BrokenError(f"{what} differ by {difference:.1e}{allowed}", difference)
    return difference


def refusal_message(call: Callable[[], object]) -> str | None:
    """Return the message with which a call is refused, None if it is not refused.

    Raises:
        BrokenError: the message has several lines, or the exception is no ValueError.
    """
    try:
        call()
    except ValueError as error:
        require("\n" not in str(error), f"the refusal has several lines: {in_one_line(error)}")
        return str(error)
    except Exception as error:
        line = raised_line(error, unnamed=True) or in_one_line(error)
        reason = f"raised {type(error).__name__} in place of a ValueError: {line}"
        raise BrokenError(reason, place=raised_in(error, unnamed=True)) from None
    return None
