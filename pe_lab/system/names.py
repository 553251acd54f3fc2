"""Suggest names that a misspelled one may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_NAME_CHARACTERS = 80  # characters of a name in a message
MAX_LISTED_NAMES = 20  # names that are all listed beside the one that may be meant; of more, SHORTENED_NAMES are
SHORTENED_NAMES = 3
ALIASES = {  # what encodings are called elsewhere, and ours
    **dict.fromkeys(("nope", "no_pe"), ("none",)),
    "absolute": ("sinusoidal", "learnable"),
    "learned": ("learnable",),
    **dict.fromkeys(("sin", "sine"), ("sinusoidal",)),
    "rotary": ("rope",),
    "relative": ("relative_bias", "shaw"),
}
HELP_COMMAND = "pe-lab run --help"  # lists the names of encodings, tasks and all other groups


def unknown_name_message(what: str, choices: Iterable[str], name: object, where: str = "", listing: str = "") -> str:
    """Return a message about a name that is not one of those that can stand there; the nearest comes first.

    A long list is cut after its first names where one is near, or a command lists all.

    Args:
        what: the setting or argument.
        choices: the names that can stand there.
        name: the name that was given.
        where: text behind the names, as " in ledger".
        listing: the command that lists all names, if there is one.
    """
    choices = list(choices)
    text = repr(name) if len(repr(name)) <= MAX_NAME_CHARACTERS else f"{repr(name)[:MAX_NAME_CHARACTERS]}..."
    near = [] if name == "all" else nearest_names(name, choices)
    if not choices:
        return f"{what} must exist, got {text}: there is none{where}"
    names, hint = ", ".join(choices), ""
    if (near or listing) and len(choices) > MAX_LISTED_NAMES:
        names, hint = (
            f"{', '.join(choices[:SHORTENED_NAMES])} and {len(choices) - SHORTENED_NAMES} others",
            listing and f"; {listing} lists all",
        )
    rule = f"{what} must be one of {names}{where}"
    if name == "all" and listing:
        hint += f"; pe-lab run -m '{what}=glob(*)' takes all"
    return f"{what}={text}: did you mean {' or '.join(near)}? {rule}{hint}" if near else f"{rule}, got {text}{hint}"


def did_you_mean(name: object, choices: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return the end of a message about an unknown name: the nearest of those that are known, or "" if none is near.

    Args:
        name, choices, elsewhere: see `nearest_names`.
    """
    near = nearest_names(name, choices, elsewhere)
    return f": did you mean {' or '.join(near)}?" if near else ""


def nearest_names(name: object, choices: Iterable[str], elsewhere: Iterable[str] = ()) -> list[str]:
    """Return what a name may stand for: one name, or two, if they differ from it only in letter case or share it.

    Args:
        name: the name that was given.
        choices: the names that can stand there.
        elsewhere: dotted names of settings in other groups. Where the last word of one is the name, it is meant:
            `depth` stands for `model.depth`.
    """
    if not isinstance(name, str):
        return []
    lower, choices = _letters(name), list(choices)
    if (meant := ALIASES.get(lower)) and lower not in choices and set(meant) <= set(choices):
        return list(meant)
    word = lower.rpartition(".")[2]
    same = [choice for choice in choices if _letters(choice) == lower]
    same = same or [choice for choice in elsewhere if _letters(choice).rpartition(".")[2] == word]
    by_lower = {_letters(choice): choice for choice in choices}
    swapped = [letters for letters in by_lower if sorted(letters) == sorted(lower)]  # rpoe is rope
    return same[:2] or [by_lower[letters] for letters in swapped[:1] or get_close_matches(lower, by_lower, 1)]


def _letters(name: str) -> str:
    """Return what is compared of a name: the dashes of an option are alike in all."""
    return name.casefold().lstrip("-")
