"""Print errors as one line."""

from collections.abc import Callable
from typing import NoReturn

from pe_lab.system.escaping import escape_control
from pe_lab.system.raised_places import raised_line

DESCRIBE: list[Callable[[BaseException], str]] = []  # lines about errors of libraries, "" for others: see pe_lab.config


def refuse(reason: str) -> NoReturn:
    """Raise ValueError, where argparse would print its usage and end the program."""
    raise ValueError(reason)


def in_one_line(error: BaseException) -> str:
    """Return an error as one printable line that names the setting, the requirement and the value."""
    if line := raised_line(error):
        return line
    described = (describe(error) for describe in DESCRIBE)
    line = next(filter(None, described), "") or " ".join(str(error).split())
    if not line:
        within = error.__cause__ or error.__context__
        return in_one_line(within) if within else type(error).__name__
    return escape_control(line)
