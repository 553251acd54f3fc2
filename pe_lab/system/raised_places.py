"""Say where an exception was raised, for classes that users write: file, line, function, type and text."""

import dis
import sysconfig
from pathlib import Path
from traceback import format_exception, walk_tb
from types import CodeType, TracebackType

from pe_lab.system.escaping import escape_control

PACKAGE = Path(__file__).parents[1]
LIBRARIES = tuple(
    f"{folder}/"
    for folder in (PACKAGE.parent / "hydra_plugins", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
)
EXPLAINED_TYPES = ("pe_lab.", "hydra.", "omegaconf.", "lightning.")  # modules whose exceptions name the setting
SETTING_NOTE = "raised with the setting "  # begins a note of an exception
Place = tuple[str, int, str]  # file, line and function
RAISING = dis.opmap["RAISE_VARARGS"]


def name_setting(error: BaseException, setting: str) -> None:
    """Add a note that names the setting whose class raised an exception; the first one stays."""
    if not named_setting(error):
        error.add_note(f"{SETTING_NOTE}{setting}")


def named_setting(error: BaseException) -> str:
    """Return the setting that `name_setting` has given, as pe=mine; "" if there is none."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(SETTING_NOTE))
    return next(notes, "").removeprefix(SETTING_NOTE)


def raised_in(error: BaseException, unnamed: bool = False) -> Place | None:
    """Return file, line and function in which an exception was raised that does not explain itself; else None.

    The place is the innermost one in a user's code, and without one that of this package. An exception that this
    package raises in words of its own explains itself.

    Args:
        unnamed: whether to look at an exception without a setting too (see `name_setting`).
    """
    if type(error).__name__ == "InstantiationException" and error.__cause__ is not None:  # of a class that Hydra calls
        return raised_in(error.__cause__, unnamed=True)
    if not (unnamed or named_setting(error)):
        return None
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename, error.lineno or 0, "<module>"
    calls = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    if not calls or f"{type(error).__module__}.".startswith(EXPLAINED_TYPES):
        return None
    users = [call for call in calls if _is_users(call[0])]
    if _is_packages(calls[-1][0]) and _was_raised(error.__traceback__):
        users = [] if not users or users[-1][0].co_name == "__init__" else users  # __init__ refuses options
        own = []
    else:
        own = [call for call in calls if _is_packages(call[0])] if named_setting(error) else []
    for code, line in (users or own)[-1:]:
        return code.co_filename, line, code.co_qualname
    return None


def raised_line(error: BaseException, unnamed: bool = False) -> str:
    """Return a line with setting, file, line, function, type and text; "" for exceptions that explain themselves.

    Args:
        unnamed: as in `raised_in`.
    """
    if (place := raised_in(error, unnamed)) is None:
        return ""
    file, line, function = place
    path, setting = Path(file), named_setting(error)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    error = error.__cause__ if type(error).__name__ == "InstantiationException" and error.__cause__ else error
    text = " ".join(str(error).split())
    parts = [setting, f"{shown}:{line} in {function}", type(error).__name__, text]
    return escape_control(": ".join(filter(None, parts)))


def raised_trace(error: BaseException) -> list[str] | None:
    """Return the lines of the traceback of an exception that does not explain itself; else None."""
    return None if raised_in(error) is None else "".join(format_exception(error)).splitlines()


def _is_packages(code: CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(PACKAGE)


def _is_users(code: CodeType) -> bool:
    file = code.co_filename
    return not (file.startswith(("<", *LIBRARIES)) or _is_packages(code))


def _was_raised(trace: TracebackType | None) -> bool:
    """Return whether a statement `raise` made the exception, and not the interpreter."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == RAISING
