"""Show what the benchmark has measured, or write the score card of an encoding.

python -m pe_lab.benchmark                     every score, and how many pairs of encodings each task tells apart
python -m pe_lab.benchmark pe=NAME             train NAME on all tasks with shipped results: its score card
python -m pe_lab.benchmark --export FOLDER     write all rows as CSV and as JSON with a schema, for other programs
python -m pe_lab.benchmark --pack LEDGER       add the benchmark's cells of a ledger to those of the package
python -m pe_lab.benchmark --replication       the cells that are run again with fresh seeds, or what came out

The rows of pe-bench 2 are shown and packed; those of pe-bench 1, which it supersedes, with --version 1. Score cards and
exported rows are of pe-bench 1.

NAME is any encoding of conf/pe, or of your own folder (--config-dir DIR), with its options as pe.<option>=<value>. What
is shipped with the package is not trained again. --beside FILE puts other people's exported rows beside ours.
"""

import argparse
import sys
from pathlib import Path

from pe_lab import config
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable


def main() -> None:
    """Read the arguments, and show, pack, or write a score card."""
    parser = Parser("pe_lab.benchmark", ("pe",), description=__doc__)
    parser.add_argument("words", nargs="*", metavar="pe=NAME", help="the encoding, and its options")
    parser.add_argument("--tasks", help="tasks joined by commas, or all (default: those with shipped results)")
    parser.add_argument("--seeds", type=int, help="seeds of each task (default: 3)")
    parser.add_argument("--ledger", help="where its cells are kept (default: ledger)")
    parser.add_argument("--out", help="folder of card.html and card.csv (default: score_card/NAME)")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--beside", metavar="FILE", action="append", default=[], help="exported rows of other people")
    parser.add_argument("--export", metavar="FOLDER", help="write all rows there, those of --beside too")
    parser.add_argument("--pack", metavar="LEDGER", help="a ledger in which studies of the benchmark were trained")
    parser.add_argument("--replace", action="store_true", help="with --pack: in place of shipped rows that differ")
    parser.add_argument("--replication", action="store_true", help="which cells are run again, and what held")
    parser.add_argument("--version", metavar="N", help="of the benchmark: 1 or 2 (default: 2)")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.joining(sys.argv[1:]) as given:
            _program(parser.parse_args(given))

    run_program(program, (ValueError, OSError))


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError if something that is given would have no effect."""
    whats = {"pe=NAME": bool(arguments.words), "--export": arguments.export is not None}
    whats |= {"--pack": arguments.pack is not None, "--replication": arguments.replication}
    chosen = [what for what, is_given in whats.items() if is_given]
    if len(chosen) > 1:
        raise ValueError(
            f"only one of pe=NAME, --export, --pack and --replication can be given, got {' and '.join(chosen)}"
        )
    options = ("tasks", "seeds", "ledger", "out", "workers")
    unused = [f"--{name}" for name in options if getattr(arguments, name) is not None and not arguments.words]
    if arguments.version not in (None, "1", "2"):
        raise ValueError(f"--version must be one of 1, 2, got {arguments.version}")
    second = arguments.version == "2" or arguments.replication
    if second and (arguments.words or arguments.beside):
        what = "pe=NAME" if arguments.words else "--beside"
        raise ValueError(f"{what} must be given with --version 1, as pe-bench 2 has none yet, got version 2")
    if arguments.replication and arguments.version == "1":
        raise ValueError("--replication must be given with version 2, which has one, got version 1")
    if arguments.replace and (arguments.pack is None or arguments.version == "1"):
        raise ValueError("--replace must be given with --pack of version 2, whose rows it takes, got none")
    if unused:
        raise ValueError(f"{', '.join(unused)} must be given with pe=NAME, of whose score card they are, got none")
    for name in ("out", "export"):
        if getattr(arguments, name) is not None:
            require_writable(f"--{name}", Path(getattr(arguments, name)))
    if arguments.beside and arguments.pack is not None:
        raise ValueError("--beside must not be given with --pack, which reads a ledger alone, got both")
    for name in arguments.beside:
        if not Path(name).is_file():  # reading a FIFO would wait
            raise ValueError(f"--beside must be a file of exported rows, got {name!r}")


def _is_second(arguments: argparse.Namespace) -> bool:
    """Return whether pe-bench 2 is shown or exported: asked for, or measured on a task with nothing else asked for."""
    from pe_lab.benchmark.tuned import tables  # loads pandas

    if arguments.version is not None or arguments.replication:
        return arguments.version != "1"
    return not arguments.beside and tables.is_measured()


def _program(arguments: argparse.Namespace) -> None:
    _check(arguments)
    if arguments.pack is not None and arguments.version != "1":
        from pe_lab.benchmark.tuned import pack as tuned  # loads torch

        print(*tuned.pack(Path(arguments.pack), None, arguments.replace), sep="\n")
    elif arguments.pack is not None:
        from pe_lab.benchmark import undefined
        from pe_lab.benchmark.pack import pack  # loads torch

        for study, count in pack(Path(arguments.pack)).items():
            print(f"{study}: {count} cells")
        undefined.write()
    elif arguments.words:
        from pe_lab.benchmark.score_card import Asked, score_card  # loads torch

        given = {"seeds": 3, "ledger": "ledger"} | {k: v for k, v in vars(arguments).items() if v is not None}
        names = ("words", "tasks", "seeds", "ledger", "out", "workers", "beside")
        print(score_card(Asked.of(*(given.get(name) for name in names))))
    elif _is_second(arguments):
        from pe_lab.benchmark.tuned import tables

        found = tables.read()
        if arguments.replication:
            print(tables.again(found))
        elif arguments.export is not None:
            print(*tables.write(found, Path(arguments.export)), sep="\n")
        else:
            print(tables.text(found))
    elif arguments.export is not None:
        from pe_lab.benchmark.coverage import table  # loads pandas
        from pe_lab.benchmark.export import write

        print(*write(table(arguments.beside), Path(arguments.export)), sep="\n")
    else:
        from pe_lab.benchmark.coverage import coverage, decided, table  # loads pandas
        from pe_lab.benchmark.results import Results

        results = Results.read()
        common = [found.task.name for found in results.common]
        print("pe-bench 1 is superseded by pe-bench 2, whose seeds tune for themselves", end="\n\n")
        print(coverage(table(arguments.beside), common), decided(results.measured), sep="\n\n")


if __name__ == "__main__":
    main()
