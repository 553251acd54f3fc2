"""Arguments of the programs, and their errors as one line."""

import argparse
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from pe_lab.system.errors import in_one_line
from pe_lab.system.termination import EndError, no_exit

MISSING = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ValueError, where argparse prints its usage and ends the process.

    Args:
        module: the program's module, to name it in its help: python -m <module>, or pe-lab <command>.
    """

    def __init__(self, module: str = "", **options: Any) -> None:
        if module:
            options["prog"] = sys.argv[0] if sys.argv[0].startswith("pe-lab ") else f"python -m {module}"
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; say of a missing argument what it must be."""
        if message.startswith(MISSING):
            names = message.removeprefix(MISSING).split(", ")
            message = "; ".join(self._requirement(name) for name in names)
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program, after its help for example."""
        if message:
            self._print_message(message, sys.stderr)
        raise EndError(status)

    def _requirement(self, name: str) -> str:
        """Return a sentence that names a missing argument and what it must be."""
        for action in self._actions:
            if name in (action.dest, action.metavar, *action.option_strings):
                choices = f"one of {', '.join(map(str, action.choices))}" if action.choices else action.help
                return f"{name} must be {re.sub(r'%.*', '', choices or 'given')}, got nothing"
        return f"{name} is required"


def run_program(
    program: Callable[[], int | None], errors: type[Exception] | tuple[type[Exception], ...] = Exception
) -> None:
    """Run a program; print an error as one line and exit with status 1, and with 130 after Ctrl-C.

    Args:
        program: returns its exit status; None continues after the call.
        errors: those that are printed as one line; any other keeps its traceback.
    """
    try:
        with no_exit():
            status = program()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        sys.exit(1)
    except errors as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        sys.exit(1)
    if status is not None:
        sys.exit(status)
