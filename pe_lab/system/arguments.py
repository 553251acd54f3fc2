"""Arguments of the programs, and their errors as one line."""

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from pe_lab.system.errors import in_one_line
from pe_lab.system.names import did_you_mean, unknown_name_message
from pe_lab.system.termination import ProgramExit, no_exit

MISSING_MESSAGE = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ValueError, where argparse prints its usage and ends the process.

    Args:
        module: the program's module, to name it in its help: python -m <module>, or pe-lab <command>.
        settings: the names of settings that the program takes as key=value, alone or with the settings within them.
    """

    def __init__(self, module: str = "", settings: Sequence[str] = (), **options: Any) -> None:
        self.settings = settings
        if module:
            options["prog"] = sys.argv[0] if sys.argv[0].startswith("pe-lab ") else f"python -m {module}"
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; say of a missing argument, and of an option without its value, what it must be."""
        if message.startswith(MISSING_MESSAGE):
            names = message.removeprefix(MISSING_MESSAGE).split(", ")
            message = "; ".join(self._requirement(name) for name in names)
        elif option := re.fullmatch(r"argument (\S+?)(/\S+)?: expected one argument", message):
            message = self._without_value(option[1])
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program, after its help for example."""
        if message:
            self._print_message(message, sys.stderr)
        raise ProgramExit(status)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments; refuse those that the program does not take."""
        return self._all_known(self.parse_known_args, args, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments, among which options may stand anywhere; refuse those that the program does not take."""
        return self._all_known(self.parse_known_intermixed_args, args, namespace)

    def _all_known(self, parse: Callable[..., Any], args: Any, namespace: Any) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        result, unknown = parse(arguments, namespace)
        if unknown:
            self.error(unrecognized_message(unknown, arguments, _options(self), self.settings))
        return result

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices of an argument, as the name of a command."""
        if action.choices is not None and value not in action.choices:
            raise ValueError(unknown_name_message(str(action.metavar or action.dest), map(str, action.choices), value))

    def _without_value(self, option: str) -> str:
        """Return a sentence on an option that stands without its value."""
        action = next(action for action in self._actions if option in action.option_strings)
        value = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
        return f"{option} must have a value, {option} {value}, got nothing after it"

    def _requirement(self, name: str) -> str:
        """Return a sentence that names a missing argument and what it must be."""
        for action in self._actions:
            if name in (action.dest, action.metavar, *action.option_strings):
                choices = f"one of {', '.join(map(str, action.choices))}" if action.choices else action.help
                return f"{name} must be {re.sub(r'%.*', '', choices or 'given')}, got nothing"
        return f"{name} is required"


def unrecognized_message(unknown: list[str], arguments: list[str], options: list[str], settings: Iterable[str]) -> str:
    """Return a message about arguments that a program does not take.

    Args:
        unknown: the arguments that the program does not take.
        arguments: all arguments.
        options: the options that the program takes.
        settings: the names of settings that the program takes as key=value.
    """
    first = unknown[0]
    name, _, value = first.partition("=")
    if first.startswith("-") and name.lstrip("-").partition(".")[0] in settings:
        after = arguments[arguments.index(first) + 1 :] if first in arguments and not value else []
        value = value or next(
            (argument for argument in after if "=" not in argument and not argument.startswith("-")), "VALUE"
        )
        return f"a setting must be written key=value, got {first}: did you mean {name.lstrip('-')}={value}?"
    return f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(name, options)}"


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that a parser knows, and those of its commands."""
    options: list[str] = []
    for action in parser._actions:
        options += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            options += [option for command in action.choices.values() for option in _options(command)]
    return options


def run_program(
    program: Callable[[], int | None], errors: type[Exception] | tuple[type[Exception], ...] = Exception
) -> None:
    """Run a program; print an error as one line and exit with status 1, and with 130 after Ctrl-C.

    Args:
        program: a function that returns the exit status; None continues after the call.
        errors: the exceptions that are printed as one line; any other keeps its traceback.
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
