"""Show the results of the benchmark, or add those of a ledger.

pe-lab benchmark                     all tables: steps to solve each task, ranks, scores at each length, twins
pe-lab benchmark causal_text         one task: which encodings to use at each length, and its table
pe-lab benchmark --export FOLDER     write all rows, tables and verdicts as CSV
pe-lab benchmark --pack LEDGER       add the seeds of a ledger whose tuning has ended to the tables
pe-lab benchmark --replication       the cells that are run again with fresh seeds, or what came out
"""

import argparse
import sys
from pathlib import Path

from pe_lab import config
from pe_lab.benchmark.tasks import task_names
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable
from pe_lab.system.names import unknown_name_message


def main() -> None:
    """Read the arguments, and show, export or pack."""
    parser = Parser("pe_lab.benchmark", description=__doc__)
    parser.add_argument("tasks", metavar="TASK", nargs="*", help="show only these tasks")
    parser.add_argument("--export", metavar="FOLDER", help="write all rows and tables to this folder")
    parser.add_argument(
        "--pack", metavar="LEDGER", help="add the results of a ledger in which studies of the benchmark were trained"
    )
    parser.add_argument("--replace", action="store_true", help="with --pack: replace shipped rows that differ")
    parser.add_argument(
        "--replication",
        action="store_true",
        help="show which cells are run again with fresh seeds, and which verdicts held",
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.add_config_dirs(sys.argv[1:]) as words:
            _run(parser.parse_args(words))

    run_program(program, (ValueError, OSError))


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Raise ValueError if something that is given would have no effect, or cannot be written."""
    if any("=" in word for word in arguments.tasks):
        study = f"pe-lab run -m +study=pe_bench_2_TASK {' '.join(arguments.tasks)} seed=0,1,2,3,4"
        raise ValueError(f"an encoding must be trained by {study} and added by --pack ledger, got it here")
    for name in arguments.tasks:
        if name not in (choices := task_names()):
            raise ValueError(unknown_name_message("TASK", choices, name))
    modes = {"--export": arguments.export is not None, "--pack": arguments.pack is not None}
    modes["--replication"] = arguments.replication
    chosen = [mode for mode, is_given in modes.items() if is_given]
    if len(chosen) > 1:
        raise ValueError(f"only one of --export, --pack and --replication can be given, got {' and '.join(chosen)}")
    if arguments.tasks and chosen:
        raise ValueError(f"a task must be given to print its table, got {arguments.tasks[0]} with {chosen[0]}")
    if arguments.replace and arguments.pack is None:
        raise ValueError("--replace must be given with --pack, whose rows it takes, got none")
    if arguments.export is not None:
        require_writable("--export", Path(arguments.export))


def _run(arguments: argparse.Namespace) -> None:
    _check_arguments(arguments)
    if arguments.pack is not None:
        from pe_lab.benchmark.pack import pack_ledger  # loads torch

        print(*pack_ledger(Path(arguments.pack), None, arguments.replace), sep="\n")
        return
    from pe_lab.benchmark import task_tables  # loads pandas

    rows = task_tables.read_all_rows()
    if arguments.replication:
        print(task_tables.fresh_seeds_text(rows))
    elif arguments.export is not None:
        print(*task_tables.write_tables(rows, Path(arguments.export)), sep="\n")
    else:
        print("comparing encodings on the shipped results: up to half a minute", file=sys.stderr)
        print(task_tables.format_tables(rows, arguments.tasks))


if __name__ == "__main__":
    main()
