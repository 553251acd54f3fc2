"""Benchmarks and simulations, run from a checkout; `python -m benchmarks` lists them. They are not in the wheel."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from pe_lab.system.arguments import Parser, run_program

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "sweeps/results"
CONFIGS = ROOT / "conf"


def run_benchmark(parser: Parser, benchmark: Callable[[Namespace], int | None]) -> None:
    """Run a benchmark with the arguments of the command line; print an error as one line.

    Args:
        benchmark: a function that returns the exit status, or None.
    """
    run_program(lambda: benchmark(parser.parse_args()), (ValueError, RuntimeError, TimeoutError))
