"""Time the lab against alternatives, measure kernels, inject faults, simulate studies.

study: train the cells of a sweep by a plain PyTorch loop and by the lab. data: load a batch, and train a step on it.
kernels: compute attention with every encoding's terms by Triton, FlexAttention and PyTorch, on a GPU. resources: list
registers, spills and shared memory of the kernels, compiled for GPUs that need not be present. static: count their
instructions per pair, or choose blocks by them. tune: find the fastest blocks of the kernels. ledger: read a ledger of
made-up cells, report it, and record one more. faults: kill, damage and starve sweeps, and count what is lost. export:
run encodings in a plain model, compiled, exported and as ONNX. variance: simulate
comparisons whose variances are estimated together. speed: time encodings in a plain model, on a CPU. gpu: run all that
needs a GPU: the kernels' self-test and tests, a sanitizer, tune, kernels, and a sweep.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.errors import in_one_line
from pe_lab.system.termination import EndError

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

STUDY = ["+study=depth_epochs_pe"]
RESULTS = Path("sweeps/results")
CELLS = RESULTS / "all_encodings_41" / "rows.csv"  # whose residuals are noise of simulated studies


def main() -> None:
    """Run one benchmark."""
    parser = Parser("pe_lab.bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    study = benches.add_parser("study", help="time the lab against a plain PyTorch loop")
    study.add_argument("overrides", nargs="*", default=STUDY, help="as for pe_lab.run -m")
    study.add_argument("--repeat", type=int, default=1, help="number of pairs of runs, in turn")
    study.add_argument("--plain", type=int, metavar="THREADS", help=argparse.SUPPRESS)  # the loop itself, in a process
    study.set_defaults(run=_study)
    data = benches.add_parser("data", help="time loading a batch against a training step")
    data.add_argument("overrides", nargs="*", help="as for pe_lab.run -m; all datasets if none is named")
    data.set_defaults(run=_data)
    kernels = benches.add_parser("kernels", help="time attention by several implementations, on a GPU")
    kernels.add_argument("encodings", nargs="*", help="names in conf/pe; by default all that act on attention")
    kernels.add_argument("--lengths", type=int, nargs="+", help="sequence lengths, in this order")
    kernels.add_argument("--seconds", type=float, default=420, help="start no further row after this time")
    kernels.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="for the tables (%(default)s)")
    kernels.set_defaults(run=_kernels)
    resources = benches.add_parser("resources", help="list what the kernels use on sm_80, sm_90 and sm_100")
    resources.add_argument("--architecture", nargs="+", help="only these architectures")
    resources.add_argument("--full", action="store_true", help="every option with every other, not each pair of them")
    resources.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as CSV")
    resources.set_defaults(run=_resources)
    static = benches.add_parser("static", help="count the kernels' instructions per pair, for every key of the blocks")
    static.add_argument("--architecture", nargs="+", default=[], help="only these architectures")
    static.add_argument("--keys", default="", metavar="PATTERN", help="only keys that match, as 'forward bfloat16 64'")
    static.add_argument("--packed", action="store_true", help="kernels for packed documents")
    static.add_argument("--processes", type=int, default=1, help="that compile at a time (%(default)s)")
    static.add_argument("--choose", action="store_true", help="keep the blocks of least cost in the package's table")
    static.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as CSV")
    static.set_defaults(run=_static)
    tune = benches.add_parser("tune", help="measure blocks on this GPU and keep the fastest in the package's table")
    tune.add_argument("--seconds", type=float, default=420, help="measure nothing further after this time")
    tune.set_defaults(run=_tune)
    ledger = benches.add_parser("ledger", help="time reading and reporting a ledger of made-up cells")
    ledger.add_argument("--cells", type=int, default=2000, help="number of cells (%(default)s)")
    ledger.set_defaults(run=_ledger)
    faults = benches.add_parser("faults", help="kill, damage and starve sweeps, and count what is lost")
    faults.add_argument("faults", nargs="*", help="only faults whose name begins so")
    faults.add_argument("--factor", type=float, default=1.0, help="multiplies how often each is injected (%(default)s)")
    faults.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    faults.set_defaults(run=_faults)
    export = benches.add_parser("export", help="run encodings in a plain model, compiled, exported and as ONNX")
    export.add_argument("encodings", nargs="*", help="names in conf/pe; all by default")
    export.add_argument("--columns", nargs="+", default=[], help="only these columns of the table")
    export.add_argument("--to", type=Path, default=RESULTS / "export.csv", metavar="FILE", help="table (%(default)s)")
    export.set_defaults(run=_export)
    speed = benches.add_parser("speed", help="time encodings in a plain model, on a CPU")
    speed.add_argument("--pairs", type=int, default=15, help="of timed calls (%(default)s)")
    speed.add_argument("--threads", type=int, default=1, help="of PyTorch (%(default)s)")
    speed.set_defaults(run=_speed)
    variance = benches.add_parser("variance", help="simulate comparisons whose variances are estimated together")
    variance.add_argument("--studies", type=int, default=1000, help="simulated per line of the table (%(default)s)")
    variance.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    variance.set_defaults(run=_variance)
    gpu = benches.add_parser("gpu", help="run all that needs a GPU, within a budget of time")
    gpu.add_argument("--minutes", type=float, default=25, help="budget of all parts (%(default)s)")
    gpu.add_argument("--to", type=Path, default=RESULTS / "gpu", metavar="FOLDER", help="for the tables (%(default)s)")
    gpu.set_defaults(run=_all_on_gpu)

    for composing in (study, data):
        composing.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder of your own with configs")

    def program() -> None:
        arguments = parser.parse_args()
        if not hasattr(arguments, "config_dir"):  # composes nothing
            arguments.run(arguments)
            return
        from pe_lab import config  # loads hydra, which a machine with a GPU may not have

        given = arguments.config_dir
        with config.joining([] if given is None else ["--config-dir", given]):
            arguments.run(arguments)

    run_program(program, (ValueError, RuntimeError, TimeoutError))


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
        names = config.folders().names("data")
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


def _static(arguments: argparse.Namespace) -> None:
    from pe_lab.bench import choosing, static

    if arguments.choose:
        choosing.choose(arguments.architecture, arguments.keys, arguments.processes)
    else:
        static.list_counts(arguments.architecture, arguments.keys, arguments.packed, arguments.processes, arguments.to)


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
        raise EndError(1)


def _export(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.export import write_table

    write_table(arguments.encodings, arguments.columns, arguments.to)


def _variance(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.variance import write_table

    if arguments.studies < 1:
        raise ValueError(f"--studies must be at least 1, got {arguments.studies}")
    write_table(CELLS, arguments.studies, arguments.to)


def _speed(arguments: argparse.Namespace) -> None:
    import torch

    from pe_lab.bench.speed import Setting, print_speed

    if arguments.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {arguments.threads}")
    torch.set_num_threads(arguments.threads)
    print_speed(Setting(pairs=arguments.pairs))


def _all_on_gpu(arguments: argparse.Namespace) -> None:
    from pe_lab.bench.gpu import run_parts

    if not 0 < arguments.minutes < float("inf"):
        raise ValueError(f"--minutes must be more than 0, got {arguments.minutes}")
    device = _gpu("gpu")
    import torch

    if not run_parts(torch.cuda.get_device_name(device), arguments.to, arguments.minutes):
        raise EndError(1)


def _gpu(bench: str) -> "torch.device":
    """Return the CUDA device; raises ValueError if there is none."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"{bench} needs a CUDA device, got none")
    return torch.device("cuda")


def _configs() -> Path:
    """Return the folder conf/ without importing hydra: beside the package, or inside an installed one."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "conf", package.parent / "conf") if path.is_dir())


def _expand(overrides: list[str]) -> list["DictConfig"]:
    """Return the configs that the overrides ask for.

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
