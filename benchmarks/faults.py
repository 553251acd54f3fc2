"""Kill, damage and starve sweeps, run the same command until it ends, and count the cells that are lost or differ."""

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks import ROOT, run_benchmark
from pe_lab.system.arguments import Parser


def main() -> None:
    """Read the arguments and inject the faults; exit with status 1 if a cell is lost or differs."""
    parser = Parser("benchmarks faults", description=__doc__)
    parser.add_argument("faults", nargs="*", help="only faults whose name begins so")
    parser.add_argument("--factor", type=float, default=1.0, help="multiplies how often each is injected (%(default)s)")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    run_benchmark(parser, _inject)


def _inject(arguments: Namespace) -> int:
    sys.path.insert(0, str(ROOT / "tests"))  # where the tests inject the same faults
    from faults.injection import print_faults

    return 0 if print_faults(arguments.faults, arguments.factor, arguments.to) else 1
