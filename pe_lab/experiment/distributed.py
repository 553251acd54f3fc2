"""Train one run on several devices: torchrun starts a process for each, with the config of the run.

    python -m pe_lab.experiment.distributed FOLDER

is what the owner of the run's lease starts. It starts the processes, each of which runs the same again.
"""

import json
import logging
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from omegaconf import DictConfig, OmegaConf
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pe_lab.config.config_folders import add_import_paths
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.ranks import Ranks
from pe_lab.ledger.run import Run
from pe_lab.system.errors import in_one_line
from pe_lab.system.termination import TerminatedError, end_with_process

MODULE = "pe_lab.experiment.distributed"  # this one, also where it is the program
MAX_WAIT = timedelta(days=1)  # the longest wait for another process, which may measure meanwhile
ENDING_SECONDS = 40.0  # seconds in which processes must end that are told to; torchrun kills them after 30


class RankError(RuntimeError):
    """A process that trained a run on one of its devices failed."""


def train_run(cell: Cell, run: Run) -> bool:
    """Train all requested checkpoints of a run, whose lease this process owns, in other processes.

    Returns:
        Whether the checkpoint that the cell asks for was logged, and W&B took everything.

    Raises:
        RankError: one of them failed; that is recorded.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        OmegaConf.save(cell.cfg, folder / "config.yaml")
        (folder / "start.json").write_text(
            json.dumps({"run": str(run.folder.absolute()), "parent": os.getpid(), "path": sys.path}), encoding="utf-8"
        )
        # in a session of its own: Ctrl-C is for this process, which ends it
        process = subprocess.Popen([sys.executable, "-m", MODULE, name], start_new_session=True)
        try:
            status = process.wait()
        except BaseException:
            _end_process(process)
            raise
        if status == 0:
            return bool(json.loads((folder / "logged.json").read_text(encoding="utf-8")))
        failed = _first_failure(folder, cell.devices)
    recorded = run.failure(cell.target)
    if failed or recorded is None:
        failed = failed or f"processes on {cell.devices} devices ended with status {status}"
        run.fail(cell.target, failed, None)
    raise RankError(failed or (recorded or {})["reason"])


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _first_failure(folder: Path, devices: int) -> str | None:
    """Return which process failed first, and why; None: the first of them, which has recorded it."""
    file = folder / "failed.json"
    if not file.is_file():
        return None
    codes = {int(rank): code for rank, code in json.loads(file.read_text(encoding="utf-8")).items()}
    for rank, code in codes.items():
        if code < 0:  # processes that lost it fail too
            return f"the process of device {rank} of {devices} was killed by signal {-code}"
    errors = {
        rank: json.loads(path.read_text(encoding="utf-8"))
        for rank in range(devices)
        if (path := _error_file(folder, rank)).is_file()
    }
    first = min(errors, key=lambda rank: errors[rank]["time"], default=0)
    return f"device {first} of {devices}: {errors[first]['error']}" if first in errors and first != 0 else None


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def launch_processes(folder: Path, devices: int) -> int:
    """Start a process for each device, and wait for them; if one fails, the others are ended. Returns a status."""
    logging.disable(logging.ERROR)  # the errors of torchrun, which the process that started this one names
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", MODULE, str(folder))
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (folder / "failed.json").write_text(json.dumps(codes), encoding="utf-8")
        return 1
    except SignalException:  # the processes are ended
        return 1
    return 0


def train_as_process(folder: Path, cfg: DictConfig, run: Path) -> None:
    """Train the run as one of its processes."""
    from pe_lab.experiment.executor import Executor  # loads Lightning, which takes seconds

    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    try:
        add_import_paths(OmegaConf.to_container(cfg))
        cell = Cell.from_config(cfg)
        if cell.device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl" if cell.device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, timeout=MAX_WAIT)
        executor = Executor(cell, Run(run), ranks)
        executor.train_requested()
        torch.distributed.barrier()  # one that ends first could end the others with an error
        torch.distributed.destroy_process_group()
    except TerminatedError:
        raise
    except Exception as error:
        _error_file(folder, ranks.rank).write_text(
            json.dumps({"time": time.time(), "error": in_one_line(error)}), encoding="utf-8"
        )
        raise
    if ranks.is_rank_zero:
        (folder / "logged.json").write_text(json.dumps(executor.logs.delivered), encoding="utf-8")


def main() -> int:
    """Start the processes, or be one of them."""
    folder = Path(sys.argv[1])
    start = json.loads((folder / "start.json").read_text(encoding="utf-8"))
    sys.path += [path for path in start["path"] if path not in sys.path]
    end_with_process(start["parent"])
    cfg = OmegaConf.load(folder / "config.yaml")
    assert isinstance(cfg, DictConfig)
    if "RANK" not in os.environ:
        return launch_processes(folder, cfg.trainer.devices)
    try:
        train_as_process(folder, cfg, Path(start["run"]))
    except Exception:  # written for the process that started this one
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
