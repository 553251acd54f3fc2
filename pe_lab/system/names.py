"""What a misspelled name may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(what: str, known: Iterable[str], name: str) -> str:
    """Return a message about a name that is not one of those that can stand there."""
    known = list(known)
    return f"{what} must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"


def did_you_mean(name: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return the end of a message about an unknown name: the nearest of those that are known, or "" if none is near.

    Args:
        name: what was given.
        known: the names that can stand there.
        elsewhere: dotted names of settings in other groups. Where the last word of one is the name, it is meant:
            `depth` stands for `model.depth`.
    """
    if not isinstance(name, str):
        return ""
    lower, known = name.casefold(), list(known)
    word = lower.rpartition(".")[2]
    same = [one for one in known if one.casefold() == lower]
    same = same or [one for one in elsewhere if one.casefold().rpartition(".")[2] == word]
    by_lower = {one.casefold(): one for one in known}
    near = same[:2] or [by_lower[one] for one in get_close_matches(lower, by_lower, 1)]
    return f": did you mean {' or '.join(near)}?" if near else ""
