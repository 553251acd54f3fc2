"""What a misspelled name may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 80  # characters of a name in a message


def unknown_name(what: str, known: Iterable[str], name: object, where: str = "") -> str:
    """Return a message about a name that is not one of those that can stand there; the nearest comes first.

    Args:
        what: the setting or argument.
        known: the names that can stand there.
        name: what was given.
        where: text behind the names, as " in ledger".
    """
    known = list(known)
    given = repr(name) if len(repr(name)) <= LONGEST else f"{repr(name)[:LONGEST]}..."
    rule = f"{what} must be one of {', '.join(known) or 'none yet'}{where}"
    near = nearest(name, known)
    return f"{what}={given}: did you mean {' or '.join(near)}? {rule}" if near else f"{rule}, got {given}"


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
