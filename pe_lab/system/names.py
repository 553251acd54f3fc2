"""What a misspelled name may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 80  # characters of a name in a message
MOST = 20  # names that are all listed beside the one that may be meant; of more, FIRST are
FIRST = 3
CHOICES = "pe-lab run --help"  # lists the names of encodings, tasks and all other groups


def unknown_name(what: str, known: Iterable[str], name: object, where: str = "", listing: str = "") -> str:
    """Return a message about a name that is not one of those that can stand there; the nearest comes first.

    Where one is near, a long list is cut after its first names.

    Args:
        what: the setting or argument.
        known: the names that can stand there.
        name: what was given.
        where: text behind the names, as " in ledger".
        listing: the command that lists all names, if there is one.
    """
    known = list(known)
    given = repr(name) if len(repr(name)) <= LONGEST else f"{repr(name)[:LONGEST]}..."
    near = nearest(name, known)
    names, listed = ", ".join(known) or "none yet", ""
    if near and len(known) > MOST:
        names, listed = (
            f"{', '.join(known[:FIRST])} and {len(known) - FIRST} others",
            listing and f"; {listing} lists all",
        )
    rule = f"{what} must be one of {names}{where}"
    return f"{what}={given}: did you mean {' or '.join(near)}? {rule}{listed}" if near else f"{rule}, got {given}"


def did_you_mean(name: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return the end of a message about an unknown name: the nearest of those that are known, or "" if none is near.

    Args:
        name, known, elsewhere: as for `nearest`.
    """
    near = nearest(name, known, elsewhere)
    return f": did you mean {' or '.join(near)}?" if near else ""


def nearest(name: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> list[str]:
    """Return what a name may stand for: one name, or two that differ from it only in letter case; or none.

    Args:
        name: what was given.
        known: the names that can stand there.
        elsewhere: dotted names of settings in other groups. Where the last word of one is the name, it is meant:
            `depth` stands for `model.depth`.
    """
    if not isinstance(name, str):
        return []
    lower, known = _letters(name), list(known)
    word = lower.rpartition(".")[2]
    same = [one for one in known if _letters(one) == lower]
    same = same or [one for one in elsewhere if _letters(one).rpartition(".")[2] == word]
    by_lower = {_letters(one): one for one in known}
    swapped = [one for one in by_lower if sorted(one) == sorted(lower)]  # rpoe is rope
    return same[:2] or [by_lower[one] for one in swapped[:1] or get_close_matches(lower, by_lower, 1)]


def _letters(name: str) -> str:
    """Return what is compared of a name: the dashes of an option are alike in all."""
    return name.casefold().lstrip("-")
