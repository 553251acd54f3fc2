"""How far the cells of a ledger are: pe-lab status [LEDGER] [--study NAME] [--follow] [--all].

Lists, for each command, how many of its cells are done, which run (where, since when, at which epoch), which failed and
why, which wait, which are missing, and the time left. Only reads, while sweeps run on this machine or on others.
"""

import shlex
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pe_lab import config
from pe_lab.data.score import uses_position
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.processes import is_alive
from pe_lab.ledger.progress import Progress, RequestedCell, RunningCell, Snapshot, Upcoming
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.errors import in_one_line
from pe_lab.system.escaping import escape_control
from pe_lab.system.files import COMMANDS_FOLDER, LedgerError, folder_entries, read_json, unread_message
from pe_lab.system.names import unknown_name_message

POLL_SECONDS = 2.0  # seconds between two readings with --follow
MAX_LINES = 10  # of a kind, per command


@dataclass
class Command:
    """A command line of pe_lab.run, and the cells that it requested.

    Attributes:
        overrides: the arguments of the command line.
        study: the study_name among the arguments, or None.
        since: the time at which it was started, in seconds since 1970.
        processes: the names in the ledger of the processes that ran it.
        progress: the progress of the requested cells.
        text: how far a study in rounds is; otherwise empty.
    """

    overrides: list[str]
    study: str | None
    since: float
    processes: list[str]
    progress: Progress
    text: str = ""


def main() -> None:
    """Print the status of a ledger. The exit status is 0 if all requested cells are done."""
    parser = Parser("pe_lab.status", description=__doc__)
    parser.add_argument(
        "ledger", metavar="LEDGER", nargs="?", default="ledger", help="folder of the ledger (default: %(default)s)"
    )
    parser.add_argument("--study", help="show only commands with this study_name")
    parser.add_argument("--follow", action="store_true", help="print again and again, until nothing runs or waits")
    parser.add_argument("--all", action="store_true", help="show complete commands too, and all lines")

    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> int:
        with config.add_config_dirs(sys.argv[1:]) as remaining:
            arguments = parser.parse_args(remaining)
        left_out: list[Path] = []
        commands = read_commands(Path(arguments.ledger), arguments.study, left_out)
        while True:
            snapshots = [command.progress.snapshot() for command in commands]
            text = "\n\n".join(describe_commands(commands, snapshots, None if arguments.all else MAX_LINES))
            print(f"\033[H\033[J{text}" if arguments.follow and sys.stdout.isatty() else text, flush=True)
            if not arguments.follow or not any(snapshot.running or snapshot.waiting for snapshot in snapshots):
                if unknown := sum(len(snapshot.unreadable) for snapshot in snapshots) + len(left_out):
                    print(f"partial: {unknown} cells or commands could not be read", file=sys.stderr)
                complete = all(_is_complete(*pair) for pair in zip(commands, snapshots, strict=True))
                return int(bool(left_out) or not complete)
            time.sleep(POLL_SECONDS)

    run_program(program)


def read_commands(folder: Path, study: str | None = None, left_out: list[Path] | None = None) -> list[Command]:
    """Return the commands of a ledger, the latest last. Damaged ones are skipped with a line on stderr.

    Args:
        left_out: a list to which the paths of commands that cannot be read are appended.

    Raises:
        ValueError: there are none, or none with this study_name; the ledger has another format.
    """
    ledger, commands = Ledger(folder), []
    for path in folder_entries(folder / COMMANDS_FOLDER, "[!.]*.json"):
        try:
            commands.append(_describe_command(ledger, read_json(path)))
        except OSError as error:
            print(escape_control(unread_message(error)), file=sys.stderr)
            if left_out is not None:
                left_out.append(path)
        except (LedgerError, TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            line = f"skipped: {path} must list the cells of a command, got {in_one_line(error)}"
            print(escape_control(line), file=sys.stderr)
    if not commands and not left_out:
        raise ValueError(f"LEDGER must be a folder in which cells were requested, got {str(folder)!r}")
    commands.sort(key=lambda command: command.since)
    if study is None or not commands:
        return commands
    selected = [command for command in commands if command.study == study]
    if not selected:
        names = sorted({command.study for command in commands if command.study})
        raise ValueError(unknown_name_message("--study", names, study, f" in {folder}"))
    return selected


def _describe_command(ledger: Ledger, content: dict[str, Any]) -> Command:
    cells = [RequestedCell.from_json(cell) for cell in content["cells"]]
    for cell in cells:
        ledger.named(cell.run)
        types = ((cell.target, int), (cell.depth, int), (cell.name, str), (cell.measurements, list))
        sound = all(type(value) is expected for value, expected in types)
        if not sound or not all(type(request) is dict for request in cell.measurements):
            raise ValueError(f"a cell {cell}")
    overrides, processes = ([str(text) for text in content[key]] for key in ("overrides", "processes"))
    _format_time(float(content["since"]))  # it must be a date
    later = Upcoming(**content.get("later", {}))
    if not (type(later.trainings) is int and type(later.work) in (int, float) and type(later.exact) is bool):
        raise ValueError(f"later {later}")
    progress, text = Progress(ledger.folder, cells, later), str(content.get("text", ""))
    return Command(overrides, content["study"], float(content["since"]), processes, progress, text)


def _is_complete(command: Command, snapshot: Snapshot) -> bool:
    return len(snapshot.done) == len(command.progress.cells) and not command.progress.later.trainings


def describe_commands(commands: list[Command], snapshots: list[Snapshot], most: int | None) -> list[str]:
    """Return a text per command; complete commands other than the latest are only counted.

    Args:
        most: the largest number of lines of a kind; None: all lines, and complete commands too.
    """
    texts, complete = [], 0
    for command, snapshot in zip(commands, snapshots, strict=True):
        if most is not None and command is not commands[-1] and _is_complete(command, snapshot):
            complete += 1
            continue
        texts.append("\n".join(map(escape_control, _lines(command, snapshot, most))))
    if complete:
        texts.insert(0, f"{complete} earlier commands are complete (--all lists them)")
    return texts


def _lines(command: Command, snapshot: Snapshot, most: int | None) -> list[str]:
    state = "running" if _is_running(command) else "ended"
    since = _format_time(command.since)
    lines = [f"pe-lab run {shlex.join(command.overrides)}   (since {since}, {state})"]
    names = ("done", "running", "failed", "waiting", "missing", "unreadable")
    numbers = {name: len(getattr(snapshot, name)) for name in names}
    counts = ", ".join(f"{number} {name}" for name, number in numbers.items() if number or name == "done")
    later = command.progress.later
    bound = "" if later.exact else "at most "
    more = f", {bound}{later.trainings} more later" if later.trainings else ""
    work = f"{100 * snapshot.fraction_done:.0f} % of the work{_time_left(snapshot)}"
    lines.append(f"  {counts} of {len(command.progress.cells)} cells{more}; {work}")
    lines += [f"  {command.text}"] if command.text else []
    if snapshot.done and not snapshot.running and not snapshot.waiting and _without_position(command, snapshot.done):
        lines.append("  none of these models has learned the task: train longer before you compare encodings")
    kinds = {
        "running": [_running_line(running) for running in snapshot.running],
        "failed": [f"{cell.name:28} {reason}" for cell, reason in snapshot.failed],
        "missing": [cell.name for cell in snapshot.missing],
        "unreadable": [f"{cell.name:28} {reason}" for cell, reason in snapshot.unreadable],
    }
    for name, lines_of_kind in kinds.items():
        lines += [f"  {name:8} {entry}" for entry in lines_of_kind[:most]]
        if most is not None and len(lines_of_kind) > most:
            lines.append(f"  {name:8} ... and {len(lines_of_kind) - most} more (--all lists them)")
    if snapshot.missing or snapshot.failed:
        lines.append("  the same command, run again, trains what failed or is missing")
    return lines


def _without_position(command: Command, cells: list[RequestedCell]) -> bool:
    """Return whether the test losses of cells are known, and none is below the best without position."""
    has_floor = False
    for cell in cells:
        try:
            summary = command.progress.summary(cell)
            used = uses_position(float(summary["test"]["loss"]), summary["floors"])
        except (LedgerError, OSError, LookupError, TypeError, ValueError, AttributeError):
            continue  # what is damaged is told elsewhere
        if used:
            return False
        has_floor = has_floor or used is not None
    return has_floor


def _running_line(running: RunningCell) -> str:
    owner = f"{running.host}, process {running.pid}, since {_format_time(running.since)}"
    latest = f"   {running.latest}" if running.latest else ""
    return f"{running.cell.name:28} at {running.reached / running.cell.target:4.0%}   {owner}{latest}"


def _is_running(command: Command) -> bool:
    try:
        folder = command.progress.ledger.folder
        return any(is_alive(folder, process, clean=False) for process in command.processes)
    except OSError:  # locks cannot be tried in a read-only ledger
        return False


def _time_left(snapshot: Snapshot) -> str:
    if snapshot.seconds_left is None or not (snapshot.running or snapshot.waiting):
        return ""
    return f", {format_duration(snapshot.seconds_left)} left"


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds: 1:02:03 or 02:03."""
    return str(tqdm.format_interval(seconds))


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    main()
