"""How far the cells of a ledger are: python -m pe_lab.status [LEDGER] [--study NAME] [--follow] [--all].

For each command that asked for cells: how many are done, what runs (who, since when, how far), what failed and why,
what waits, what nobody is at any more, and how long it will take. Reads only, while sweeps run, here or elsewhere.
"""

import shlex
import signal
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pe_lab.ledger.lease import is_alive
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import Progress, RequestedCell, State
from pe_lab.system.arguments import Parser
from pe_lab.system.errors import in_one_line, printable
from pe_lab.system.files import COMMANDS, LedgerError, read_json

EVERY = 2.0  # seconds between two looks with --follow
SHOWN = 10  # lines of a kind


@dataclass
class Command:
    """What somebody asked for.

    Attributes:
        words: as for pe_lab.run.
        study: its name, or None.
        since: when, in seconds since 1970.
        who: asked: names of processes in the ledger.
        progress: of its cells.
    """

    words: list[str]
    study: str | None
    since: float
    who: list[str]
    progress: Progress


def main() -> None:
    """Status 0: every cell that was asked for is in the ledger."""
    parser = Parser("pe_lab.status", description=__doc__)
    parser.add_argument("ledger", metavar="LEDGER", nargs="?", default="ledger", help="its folder (%(default)s)")
    parser.add_argument("--study", help="only what was asked for under this name")
    parser.add_argument("--follow", action="store_true", help="look again, until nobody is at it")
    parser.add_argument("--all", action="store_true", help="commands that are complete too, and every line")
    try:
        given = parser.parse_args()
        commands = asked(Path(given.ledger), given.study)
        while True:
            states = [command.progress.look() for command in commands]
            text = "\n\n".join(tell(commands, states, None if given.all else SHOWN))
            print(f"\033[H\033[J{text}" if given.follow and sys.stdout.isatty() else text, flush=True)
            if not given.follow or not any(state.running or state.waiting for state in states):
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(int(any(len(state.done) < len(of.progress.cells) for of, state in zip(commands, states, strict=True))))


def asked(ledger: Path, study: str | None = None) -> list[Command]:
    """What was asked of a ledger, the latest last.

    Raises:
        ValueError: nothing was, or nothing of that name.
    """
    found = []
    for path in ledger.glob(f"{COMMANDS}/[!.]*.json"):
        try:
            found.append(_command(ledger, read_json(path)))
        except (LedgerError, TypeError, KeyError, ValueError, AttributeError, OverflowError, OSError) as error:
            line = f"not told: {path} must say what was asked for, got {in_one_line(error)}"
            print(printable(line), file=sys.stderr)
    if not found:
        raise ValueError(f"LEDGER must be a folder that cells were asked for in, got {str(ledger)!r}")
    found.sort(key=lambda command: command.since)
    if study is None:
        return found
    named = [command for command in found if command.study == study]
    if not named:
        there = sorted({command.study for command in found if command.study})
        raise ValueError(f"--study must be one of {', '.join(there) or 'none yet'} in {ledger}, got {study!r}")
    return named


def _command(ledger: Path, content: dict[str, Any]) -> Command:
    cells = [RequestedCell(**cell) for cell in content["cells"]]
    for cell in cells:
        Ledger(ledger).named(cell.run)
        kinds = zip((cell.epochs, cell.depth, cell.name, cell.requests), (int, int, str, list), strict=True)
        if not all(type(value) is kind for value, kind in kinds) or not all(type(of) is dict for of in cell.requests):
            raise ValueError(f"a cell {cell}")
    words, who = ([str(word) for word in content[key]] for key in ("words", "who"))
    _when(float(content["since"]))
    return Command(words, content["study"], float(content["since"]), who, Progress(ledger, cells))


def tell(commands: list[Command], states: list[State], most: int | None) -> list[str]:
    """A text per command; of those that are complete only the latest, unless all is to be told.

    Args:
        most: lines of a kind; None: all.
    """
    texts, complete = [], 0
    for command, state in zip(commands, states, strict=True):
        if most is not None and command is not commands[-1] and len(state.done) == len(command.progress.cells):
            complete += 1
            continue
        texts.append("\n".join(map(printable, _lines(command, state, most))))
    if complete:
        texts.insert(0, f"{complete} earlier commands are complete (--all tells them)")
    return texts


def _lines(command: Command, state: State, most: int | None) -> list[str]:
    yours = "running" if _lives(command) else "ended"
    lines = [f"python -m pe_lab.run {shlex.join(command.words)}   (asked {_when(command.since)}, {yours})"]
    counts = {
        "done": len(state.done),
        "running": len(state.running),
        "failed": len(state.failed),
        "waiting": len(state.waiting),
        "missing": len(state.missing),
    }
    told = ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "done")
    lines.append(f"  {told} of {len(command.progress.cells)} cells; {100 * state.part:.0f} % of the work{_left(state)}")
    kinds = (
        ("running", [_running(of) for of in state.running]),
        ("failed", [f"{cell.name:28} {reason}" for cell, reason in state.failed]),
        ("missing", [cell.name for cell in state.missing]),
    )
    for kind, of in kinds:
        lines += [f"  {kind:8} {line}" for line in of[:most]]
        if most is not None and len(of) > most:
            lines.append(f"  {kind:8} ... and {len(of) - most} more (--all tells them)")
    if state.missing or state.failed:
        lines.append("  the same command, run again, trains what failed or is missing")
    return lines


def _running(of: Any) -> str:
    return (
        f"{of.cell.name:28} epoch {of.epoch:.1f} of {of.cell.epochs}   {of.host}, process {of.pid}, "
        f"since {_when(of.since)}"
    )


def _lives(command: Command) -> bool:
    try:
        return any(is_alive(command.progress.ledger, who, clean=False) for who in command.who)
    except OSError:
        return False


def _left(state: State) -> str:
    known = state.left is not None and (state.running or state.waiting)
    return f", {duration(state.left)} left" if known else ""


def duration(seconds: float) -> str:
    """In hours, minutes and seconds, as 1:02:03 or 02:03."""
    from tqdm import tqdm

    return tqdm.format_interval(seconds)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    main()
