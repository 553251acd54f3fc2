"""Verify a ledger's checksums, or remove what no result needs: python -m pe_lab.ledger verify | prune [LEDGER]."""

import argparse
from pathlib import Path

from pe_lab.ledger.maintenance import Counts, removable, remove, verify
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.errors import printable


def main() -> None:
    """Run verify or prune; exit with status 1 if an entry is damaged."""
    parser = Parser("pe_lab.ledger", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    check = commands.add_parser("verify", help="compare every entry with its checksums; status 1 if one is damaged")
    check.set_defaults(run=_verify)
    prune = commands.add_parser(
        "prune",
        help="remove states of finished runs, and files that dead processes left",
        description="Remove states of finished runs (a longer one starts at step 0 then), files that dead processes "
        "left half-written, and files set aside as damaged. Results and files in use stay.",
    )
    prune.add_argument(
        "--keep", action="append", default=[], metavar="STUDY", help="keep the states of this study; may be repeated"
    )
    prune.add_argument(
        "--forget",
        action="store_true",
        help="remove the requests of commands that have ended too; pe_lab.status shows them no more",
    )
    prune.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    prune.set_defaults(run=_prune)
    for command in (check, prune):
        command.add_argument("ledger", metavar="LEDGER", nargs="?", default="ledger", help="its folder (%(default)s)")

    def program() -> int:
        arguments = parser.parse_args()
        return arguments.run(arguments)

    run_program(program)


def _verify(arguments: argparse.Namespace) -> int:
    """Print every damaged entry; return 1 if there is one."""
    counts, damaged = Counts(), 0
    for line in verify(Path(arguments.ledger), counts):
        damaged += 1
        print(printable(line))
    print(
        f"{counts.runs} trainings, {counts.checkpoints} cells, {counts.records} records, {counts.states} states, "
        f"{counts.kept} floors: {damaged} damaged"
    )
    return int(damaged > 0)


def _prune(arguments: argparse.Namespace) -> int:
    """Remove what no result needs; print number and size of each kind."""
    sizes: dict[str, list[int]] = {}
    for item in removable(Path(arguments.ledger), arguments.keep, arguments.forget):
        sizes.setdefault(item.kind, []).append(item.size)
        if not arguments.dry_run:
            remove(item)
    for kind, found in sizes.items():
        print(f"{len(found):6} {kind}, {sum(found) / 1e6:.1f} MB")
    total = sum(map(sum, sizes.values())) / 1e6
    print(f"{total:.1f} MB {'would be' if arguments.dry_run else 'are'} free")
    return 0


if __name__ == "__main__":
    main()
