"""Run a benchmark, tune the kernels, or inject faults.

study: train the cells of a sweep by a plain PyTorch loop and by the lab. data: load a batch, and train a step on it.
kernels: run attention with every encoding's terms by Triton, FlexAttention and PyTorch, on a GPU. resources: compile
the kernels for several GPUs, present or not, and list registers, spills and shared memory. tune: find the fastest
blocks of the kernels. ledger: read a ledger of made-up cells, report it, and record one more. faults: kill, damage and
starve sweeps, and count the lost results.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pe_lab.system.errors import in_one_line, refuse

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

STUDY = ["+study=depth_epochs_pe"]
RESULTS = Path("sweeps/results")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pe_lab.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    _add_training(benches)
    _add_kernels(benches)
    _add_ledger(benches)
    for command in (parser, *benches.choices.values()):
        command.error = refuse  # type: ignore[method-assign]
    try:
        if not sys.argv[1:]:
            raise ValueError(f"BENCH must be one of {', '.join(benches.choices)}, got nothing")
        arguments = parser.parse_args()
        arguments.run(arguments)
    except (ValueError, RuntimeError, TimeoutError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


def _add_training(benches: argparse._SubParsersAction) -> None:
    """Add the commands that time training and data."""
    study = benches.add_parser("study", help="the lab against a plain PyTorch loop")
    study.add_argument("overrides", nargs="*", default=STUDY, help="as for pe_lab.run -m")
    study.add_argument("--repeat", type=int, default=1, help="how often both are timed, in turns")
    study.add_argument(
        "--plain", type=int, metavar="THREADS", help=argparse.SUPPRESS
    )  # internal: runs the plain loop in its own process
    study.set_defaults(run=_study)
    data = benches.add_parser("data", help="time to load a batch and to train a step")
    data.add_argument("overrides", nargs="*", help="as for pe_lab.run -m; without data=..., all datasets")
    data.set_defaults(run=_data)


def _add_kernels(benches: argparse._SubParsersAction) -> None:
    """Add the commands that time, compile and tune kernels."""
    kernels = benches.add_parser("kernels", help="time of attention by several implementations, on a GPU")
    kernels.add_argument("encodings", nargs="*", help="names in conf/pe (default: all that add something to attention)")
    kernels.add_argument("--lengths", type=int, nargs="+", help="sequence lengths, in this order")
    kernels.add_argument("--seconds", type=float, default=420, help="time after which no further row is begun")
    kernels.add_argument(
        "--to", type=Path, default=RESULTS, metavar="FOLDER", help="folder for the tables (%(default)s)"
    )
    kernels.set_defaults(run=_kernels)
    resources = benches.add_parser(
        "resources", help="registers and shared memory of the kernels on sm_80, sm_90 and sm_100"
    )
    resources.add_argument("--architecture", nargs="+", help="only these")
    resources.add_argument(
        "--full", action="store_true", help="all combinations of options instead of every pair of values"
    )
    resources.add_argument("--to", type=Path, metavar="FILE", help="also write the table there, as CSV")
    resources.set_defaults(run=_resources)
    tune = benches.add_parser("tune", help="time blocks on this GPU and store the fastest in the package's table")
    tune.add_argument("--seconds", type=float, default=420, help="time after which nothing further is measured")
    tune.set_defaults(run=_tune)


def _add_ledger(benches: argparse._SubParsersAction) -> None:
    """Add the commands that time the ledger and inject faults."""
    ledger = benches.add_parser("ledger", help="time to read a ledger of made-up cells, and to report it")
    ledger.add_argument("--cells", type=int, default=2000, help="number of cells (%(default)s)")
    ledger.set_defaults(run=_ledger)
    faults = benches.add_parser("faults", help="results lost when sweeps are killed, damaged and starved")
    faults.add_argument("faults", nargs="*", help="only those whose name begins with one of these")
    faults.add_argument("--factor", type=float, default=1.0, help="multiplies how often each is injected (%(default)s)")
    faults.add_argument("--to", type=Path, metavar="FILE", help="also write the table there, as Markdown")
    faults.set_defaults(run=_faults)


def _study(arguments: argparse.Namespace) -> None:
    cfgs = _expand(arguments.overrides)
    from pe_lab.bench.study import check_plain, compare_study, plain_cells

    check_plain(cfgs)
    if arguments.repeat < 1:
        raise ValueError(f"--repeat must be at least 1, got {arguments.repeat}")
    if arguments.plain:
        print(json.dumps(plain_cells(cfgs, arguments.plain)))
    else:
        compare_study(arguments.overrides, cfgs, arguments.repeat)


def _data(arguments: argparse.Namespace) -> None:
    from pe_lab import config

    overrides = arguments.overrides
    if not any(override.startswith("data=") for override in overrides):
        names = sorted(path.stem for path in (config.folder() / "data").glob("*.yaml"))
        overrides = [*overrides, f"data={','.join(names)}"]
    cfgs = _expand(overrides)
    from pe_lab.bench.data import compare_data

    compare_data(cfgs)


def _kernels(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.kernels import compare_kernels
    from pe_lab.bench.subject import LENGTHS, Setting

    lengths = tuple(arguments.lengths or LENGTHS)
    if min(lengths) < 1:
        raise ValueError(f"--lengths must be at least 1, got {min(lengths)}")
    setting = Setting(_gpu("kernels"), lengths=lengths, seconds=arguments.seconds)
    compare_kernels(setting, arguments.to, _configs() / "pe", arguments.encodings)


def _resources(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.resources import ARCHITECTURES, list_resources

    unknown = set(arguments.architecture or ()) - set(ARCHITECTURES)
    if unknown:
        raise ValueError(f"--architecture must be of {', '.join(ARCHITECTURES)}, got {', '.join(unknown)}")
    list_resources(arguments.architecture or list(ARCHITECTURES), _configs() / "pe", arguments.full, arguments.to)


def _tune(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.tune import tune

    tune(_gpu("tune"), arguments.seconds)


def _ledger(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.ledger import time_ledger

    time_ledger(arguments.cells)


def _faults(arguments: argparse.Namespace) -> None:
    tests = Path(__file__).parents[2] / "tests"
    if not (tests / "faults").is_dir():
        raise ValueError("faults must be run in a checkout of the repository, got an installed package without tests/")
    sys.path.insert(0, str(tests))
    from faults.injection import print_faults

    if not print_faults(arguments.faults, arguments.factor, arguments.to):
        sys.exit(1)


def _gpu(bench: str) -> "torch.device":
    """Return the CUDA device; raises ValueError if there is none."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"{bench} needs a CUDA device, got none")
    return torch.device("cuda")


def _configs() -> Path:
    """Return conf/, found without hydra: beside the package, or in it once it is installed."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "conf", package.parent / "conf") if path.is_dir())


def _expand(overrides: list[str]) -> list["DictConfig"]:
    """Return the configs of the cells that the overrides name.

    Raises:
        ValueError: an override is wrong.
    """
    from pe_lab import config

    try:
        return config.expand(overrides, multirun=True)
    except Exception as error:
        raise ValueError(in_one_line(error)) from None


if __name__ == "__main__":
    main()
