"""Things timed side by side, and what kernels take of a GPU.

study: the cells of a sweep, by a plain PyTorch loop and by the lab. data: loading a batch, and a training step on it.
kernels: attention with every encoding's terms, by Triton, FlexAttention and PyTorch, on a GPU. resources: registers,
spills and shared memory of the kernels, compiled for GPUs that need not be here. tune: the blocks of the kernels.
ledger: reading a ledger of made-up cells, reporting it, and recording one more. faults: what is lost when sweeps are
killed, damaged and starved.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pe_lab.system.errors import in_one_line

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
    study = benches.add_parser("study", help="the lab against a plain PyTorch loop")
    study.add_argument("overrides", nargs="*", default=STUDY, help="as for pe_lab.run -m")
    study.add_argument("--repeat", type=int, default=1, help="pairs of runs, in turn")
    study.add_argument("--plain", type=int, metavar="THREADS", help=argparse.SUPPRESS)  # the loop itself, in a process
    study.set_defaults(run=_study)
    data = benches.add_parser("data", help="loading a batch against a training step")
    data.add_argument("overrides", nargs="*", help="as for pe_lab.run -m; all datasets if none is named")
    data.set_defaults(run=_data)
    kernels = benches.add_parser("kernels", help="attention by several implementations, on a GPU")
    kernels.add_argument("encodings", nargs="*", help="as in conf/pe; all that add something to attention if none")
    kernels.add_argument("--lengths", type=int, nargs="+", help="of a sequence, in this order")
    kernels.add_argument("--seconds", type=float, default=420, help="after which no further row is begun")
    kernels.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="for the tables (%(default)s)")
    kernels.set_defaults(run=_kernels)
    resources = benches.add_parser("resources", help="what the kernels take of sm_80, sm_90 and sm_100")
    resources.add_argument("--architecture", nargs="+", help="of these only")
    resources.add_argument("--full", action="store_true", help="every option with every other, not each pair of them")
    resources.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as CSV")
    resources.set_defaults(run=_resources)
    tune = benches.add_parser("tune", help="measure blocks on this GPU and keep the fastest in the package's table")
    tune.add_argument("--seconds", type=float, default=420, help="after which nothing further is measured")
    tune.set_defaults(run=_tune)
    ledger = benches.add_parser("ledger", help="reading a ledger of made-up cells, and reporting it")
    ledger.add_argument("--cells", type=int, default=2000, help="how many (%(default)s)")
    ledger.set_defaults(run=_ledger)
    faults = benches.add_parser("faults", help="sweeps that are killed, damaged and starved: what is lost")
    faults.add_argument("faults", nargs="*", help="only those whose name begins so")
    faults.add_argument("--factor", type=float, default=1.0, help="of how often each is injected (%(default)s)")
    faults.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    faults.set_defaults(run=_faults)
    for one in (parser, *benches.choices.values()):
        one.error = _refuse  # type: ignore[method-assign]
    try:
        if not sys.argv[1:]:
            raise ValueError(f"BENCH must be one of {', '.join(benches.choices)}, got nothing")
        arguments = parser.parse_args()
        arguments.run(arguments)
    except (ValueError, RuntimeError, TimeoutError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


def _refuse(reason: str) -> NoReturn:
    """Raise ValueError instead of printing the usage; pe_lab.config has the same, but needs hydra."""
    raise ValueError(reason)


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
    from pe_lab.bench.kernels import LENGTHS, Setting, compare_kernels

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
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"{bench} needs a CUDA device, and there is none")
    return torch.device("cuda")


def _configs() -> Path:
    """conf/, found without hydra: beside the package, or in it once it is installed."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "conf", package.parent / "conf") if path.is_dir())


def _expand(overrides: list[str]) -> list["DictConfig"]:
    """The cells that the words ask for.

    Raises:
        ValueError: what is wrong with them.
    """
    from pe_lab import config

    try:
        return config.expand(overrides, multirun=True)
    except Exception as error:
        raise ValueError(in_one_line(error)) from None


if __name__ == "__main__":
    main()
