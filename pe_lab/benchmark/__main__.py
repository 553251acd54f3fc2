"""Show what the benchmark has measured, or add the cells of a ledger to what the package ships.

python -m pe_lab.benchmark                     the score of every encoding on every task, and how many cells that are
python -m pe_lab.benchmark --pack LEDGER       add the benchmark's cells of a ledger to those of the package
"""

from pathlib import Path

from pe_lab.system.arguments import Parser, run_program


def main() -> None:
    """Read the arguments, and show or pack."""
    parser = Parser("pe_lab.benchmark", description=__doc__)
    parser.add_argument("--pack", metavar="LEDGER", help="a ledger in which studies of the benchmark were trained")
    arguments = parser.parse_args()

    def program() -> None:
        if arguments.pack is not None:
            from pe_lab.benchmark.pack import pack  # loads torch

            for study, count in pack(Path(arguments.pack)).items():
                print(f"{study}: {count} cells")
        else:
            from pe_lab.benchmark.coverage import coverage  # loads pandas

            print(coverage())

    run_program(program, (ValueError, OSError))


if __name__ == "__main__":
    main()
