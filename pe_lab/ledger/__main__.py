"""python -m pe_lab.ledger verify | prune [LEDGER]: check every checksum; remove what no result needs."""

import argparse
import signal
import sys
from pathlib import Path

from pe_lab.ledger.maintenance import Counts, removable, remove, verify
from pe_lab.system.errors import in_one_line, printable, refuse


def main() -> None:
    """Status 0: nothing is damaged, or all that was to be removed is gone."""
    parser = argparse.ArgumentParser(prog="python -m pe_lab.ledger", description="Look after a ledger.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("verify", help="compare every entry with its checksums; status 1 if one is damaged")
    check.set_defaults(run=_verify)
    prune = commands.add_parser(
        "prune",
        help="remove states of finished trainings, and what processes that are gone left",
        description="Remove states of finished trainings (a longer one starts anew then), what processes that are gone "
        "left half-written, and what was set aside as damaged. Results stay, and so does what is in use.",
    )
    prune.add_argument(
        "--keep", action="append", default=[], metavar="STUDY", help="whose states stay; may be repeated"
    )
    prune.add_argument(
        "--forget",
        action="store_true",
        help="and what commands that have ended asked for, of which pe_lab.status tells",
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.set_defaults(run=_prune)
    for command in (check, prune):
        command.add_argument("ledger", metavar="LEDGER", nargs="?", default="ledger", help="its folder (%(default)s)")
        command.error = refuse  # type: ignore[method-assign]
    parser.error = refuse  # type: ignore[method-assign]
    try:
        given = parser.parse_args()
        status = given.run(given)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status)


def _verify(given: argparse.Namespace) -> int:
    counts, damaged = Counts(), 0
    for line in verify(Path(given.ledger), counts):
        damaged += 1
        print(printable(line))
    print(
        f"{counts.runs} trainings, {counts.checkpoints} cells, {counts.records} records, {counts.states} states, "
        f"{counts.kept} floors: {damaged} damaged"
    )
    return int(damaged > 0)


def _prune(given: argparse.Namespace) -> int:
    sizes: dict[str, list[int]] = {}
    for of in removable(Path(given.ledger), given.keep, given.forget):
        sizes.setdefault(of.kind, []).append(of.size)
        if not given.dry_run:
            remove(of)
    for kind, found in sizes.items():
        print(f"{len(found):6} {kind}, {sum(found) / 1e6:.1f} MB")
    total = sum(map(sum, sizes.values())) / 1e6
    print(f"{total:.1f} MB {'would be' if given.dry_run else 'are'} free")
    return 0


if __name__ == "__main__":
    main()
