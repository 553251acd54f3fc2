"""What a misspelled name may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest of those that are known, or "" if none is near.

    A setting of another group is near if its last word is the name: `depth` stands for `model.depth`.
    """
    if not isinstance(name, str):
        return ""
    known = list(known)
    near = [one for one in known if one.endswith(f".{name}")] or get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else ""
