"""Verify or prune a ledger: pe-lab ledger verify [--repair] | prune [LEDGER]."""

import argparse
import sys
from pathlib import Path

from pe_lab.ledger.maintenance import Counts, damaged_entries, removable_entries, remove_entry, set_aside
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.escaping import escape_control


def main() -> None:
    """Verify or prune a ledger. The exit status is 0 if nothing is damaged, or everything was removed."""
    parser = Parser("pe_lab.ledger", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    purpose = "compare all entries with their checksums; status 1 if one is damaged or cannot be read"
    check = commands.add_parser("verify", help=purpose)
    check.add_argument(
        "--repair",
        action="store_true",
        help="set aside what is damaged; the commands that made it, run again, make it again",
    )
    check.set_defaults(run=_verify)
    prune = commands.add_parser(
        "prune",
        help="remove states of finished trainings, and what dead processes left",
        description="Remove states of finished trainings (a longer training then starts again from step 0), what dead "
        "processes left, and entries that were set aside as damaged. Results stay, and so does what is in use.",
    )
    prune.add_argument(
        "--keep", action="append", default=[], metavar="STUDY", help="keep the states of a study; may be repeated"
    )
    prune.add_argument(
        "--forget",
        action="store_true",
        help="also remove commands that have ended; pe_lab.status then no longer lists them",
    )
    prune.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    prune.set_defaults(run=_prune)
    for command in (check, prune):
        command.add_argument(
            "ledger", metavar="LEDGER", nargs="?", default="ledger", help="folder of the ledger (default: %(default)s)"
        )

    def program() -> int:
        arguments = parser.parse_args()
        status: int = arguments.run(arguments)
        return status

    run_program(program)


def _verify(arguments: argparse.Namespace) -> int:
    folder, counts, damages, aside = Path(arguments.ledger), Counts(), 0, 0
    for damage in damaged_entries(folder, counts):
        damages += 1
        if arguments.repair and set_aside(LedgerFiles(folder), damage):
            aside += 1
        else:
            print(escape_control(damage.reason))
    unread = len(counts.unreadable)
    damaged = damages - unread
    print(
        f"{counts.runs} trainings, {counts.checkpoints} cells, {counts.records} records, {counts.states} states, "
        f"{counts.floors} floors: {damaged} damaged{f', {aside} set aside' if arguments.repair else ''}"
        + (f"; partial: {unread} files or folders could not be read" if unread else "")
    )
    if damaged and not arguments.repair:
        advice = "--repair sets aside what is damaged; the commands that made it, run again, make it again"
        print(advice, file=sys.stderr)
    return int(damages > aside)


def _prune(arguments: argparse.Namespace) -> int:
    sizes: dict[str, list[int]] = {}
    for entry in removable_entries(Path(arguments.ledger), arguments.keep, arguments.forget):
        sizes.setdefault(entry.reason, []).append(entry.size)
        if not arguments.dry_run:
            remove_entry(entry)
    for reason, entry_sizes in sizes.items():
        print(f"{len(entry_sizes):6} {reason}, {sum(entry_sizes) / 1e6:.1f} MB")
    total = sum(map(sum, sizes.values())) / 1e6
    print(f"{total:.1f} MB {'would be' if arguments.dry_run else 'are'} free")
    return 0


if __name__ == "__main__":
    main()
