"""Train the cells of a sweep by a plain PyTorch loop (each cell from step 0, one by one) and by the lab."""

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmarks import run_benchmark
from pe_lab import config
from pe_lab.config import flatten_settings
from pe_lab.system.arguments import Parser
from pe_lab.system.errors import in_one_line

STUDY = ["+study=depth_epochs_pe"]
# the settings that the plain loop has: all others must have their defaults
PLAIN = ("pe.", "model.", "data.", "optimizer.lr", "trainer.batch_size", "epochs", "seed", "ledger", "study_name")


def main() -> None:
    """Read the arguments and compare the two."""
    parser = Parser("benchmarks study", description=__doc__)
    parser.add_argument("overrides", nargs="*", default=STUDY, help="as for pe-lab run -m")
    parser.add_argument("--repeat", type=int, default=1, help="number of pairs of runs, in turn")
    parser.add_argument("--plain", type=int, metavar="THREADS", help=SUPPRESS)  # the loop itself, in a process
    run_benchmark(parser, _compare)


def _compare(arguments: Namespace) -> None:
    try:
        cfgs = config.expand_overrides(arguments.overrides, multirun=True)
    except Exception as error:  # of Hydra
        raise ValueError(in_one_line(error)) from None
    check_plain(cfgs)
    if arguments.repeat < 1:
        raise ValueError(f"--repeat must be at least 1, got {arguments.repeat}")
    if arguments.plain:
        print(json.dumps(plain_cells(cfgs, arguments.plain)))
    else:
        compare_study(arguments.overrides, cfgs, arguments.repeat)


def check_plain(cfgs: list[DictConfig]) -> None:
    """Raise ValueError if a cell has a setting that the plain loop lacks, or if two cells have one name."""
    usual = _settings(config.expand_overrides([], multirun=False)[0])
    for cfg in cfgs:
        for key, value in _settings(cfg).items():
            if not key.startswith(PLAIN) and value != usual.get(key, value):
                raise ValueError(
                    f"{key} must be {usual[key]} in this benchmark, got {value}: the plain loop has no other"
                )
    if len({_name(cfg) for cfg in cfgs}) < len(cfgs):
        raise ValueError("cells must differ in encoding, depth, epochs or seed, got two that do not")


def _settings(cfg: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(cfg)
    return flatten_settings(plain)


def _name(cfg: DictConfig) -> str:
    from pe_lab.experiment.cell import cell_name

    return cell_name(cfg, cfg.epochs)


def compare_study(overrides: list[str], cfgs: list[DictConfig], repeat: int) -> None:
    """Train the cells both ways in turns, and print time, ratio, overhead per cell and memory."""
    threads = best_threads(cfgs)
    print(f"{len(cfgs)} cells, {os.cpu_count()} cores; the plain loop runs best with {threads} thread(s)")
    ratios = []
    for _ in range(repeat):
        plain = _in_process([sys.executable, "-m", "benchmarks", "study", "--plain", str(threads), *overrides])
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pe_lab.run", "-m", *overrides, f"ledger={folder}"]
            lab = _in_process(command)
            lab["losses"], cost = _from_ledger(Path(folder), cfgs)
        plain |= json.loads(plain["output"].splitlines()[-1])
        difference = max(abs(lab["losses"][name] - loss) for name, loss in plain["losses"].items())
        ratios.append(lab["seconds"] / plain["seconds"])
        training = sum(plain["training"].values())
        print(
            f"plain loop {plain['seconds']:8.1f} s   peak memory {plain['memory']:5.0f} MB   "
            f"(training {training:.1f} s, evaluation {plain['evaluation']:.1f} s)\n"
            f"the lab    {lab['seconds']:8.1f} s   peak memory {lab['memory']:5.0f} MB in the largest process\n"
            f"ratio      {ratios[-1]:8.3f}     largest difference of a test loss {difference:.2g}\n"
            f"overhead   {(cost['total'] - cost['steps']) / cost['checkpoints']:8.3f} s a cell beyond training steps, "
            f"{cost['evaluation'] / cost['checkpoints']:.3f} of them evaluation "
            f"(the rest: set-up, ledger, logging; process start and imports apart)",
            flush=True,
        )
    print(f"median ratio {median(ratios):.3f} of {len(ratios)}")


def _in_process(command: list[str]) -> dict[str, Any]:
    """Return wall time in seconds, peak memory in MB of the largest process, and output of a command.

    Raises:
        RuntimeError: the command failed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)  # of this command and the processes it waited for
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {err.read().strip().splitlines()[-1:]}")
        return {"seconds": seconds, "memory": usage.ru_maxrss / 1024, "output": out.read()}


def _from_ledger(folder: Path, cfgs: list[DictConfig]) -> tuple[dict[str, float], dict[str, float]]:
    """Return test losses by cell, and the summed cost of all runs."""
    from pe_lab.ledger.ledger import Ledger

    losses: dict[str, float] = {}
    cost = {"total": 0.0, "steps": 0.0, "evaluation": 0.0, "checkpoints": 0.0}
    for run in Ledger(folder).runs():
        cost = {key: value + run.cost()[key] for key, value in cost.items()}
        for epochs in run.checkpoints():
            summary = run.summary(epochs)
            losses[summary["name"]] = summary["test"]["loss"]
    return losses, cost


def best_threads(cfgs: list[DictConfig]) -> int:
    """Return the number of threads, 1 or all cores, with which the plain loop is fastest."""
    shapes = {cfg.model.depth: cfg for cfg in cfgs}
    seconds: dict[int, list[float]] = {1: [], (os.cpu_count() or 1): []}
    for _ in range(3):
        for threads, times in seconds.items():
            began = time.perf_counter()
            for cfg in shapes.values():
                plain_cell(cfg, threads, epochs=1, steps=20)
            times.append(time.perf_counter() - began)
    return min(seconds, key=lambda threads: median(seconds[threads]))


def plain_cells(cfgs: list[DictConfig], threads: int) -> dict[str, Any]:
    """Train all cells by the plain loop; return test losses, seconds of training by depth, seconds of evaluation."""
    losses: dict[str, float] = {}
    training: dict[int, float] = {}
    evaluation = 0.0
    for cfg in cfgs:
        began = time.perf_counter()
        evaluate_test = plain_cell(cfg, threads, cfg.epochs)
        trained = time.perf_counter()
        losses[_name(cfg)] = evaluate_test()
        training[cfg.model.depth] = training.get(cfg.model.depth, 0.0) + trained - began
        evaluation += time.perf_counter() - trained
    return {"losses": losses, "training": training, "evaluation": evaluation}


def plain_cell(cfg: DictConfig, threads: int, epochs: int, steps: int | None = None) -> Callable[[], float]:
    """Train one cell by a plain loop, from the lab's initial weights and in its order; return its evaluation.

    Args:
        steps: the largest number of steps per epoch; None: all.
    """
    import torch
    from hydra.utils import instantiate

    from pe_lab.data.base import IGNORE, epoch_order
    from pe_lab.data.seeding import initialise_parameters
    from pe_lab.model.transformer import Transformer
    from pe_lab.training.metrics import evaluate

    torch.set_num_threads(threads)
    dataset = instantiate(cfg.data)(seed=cfg.seed)
    model = Transformer(cfg.model, instantiate(cfg.pe), dataset.task)
    initialise_parameters(model, cfg.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.optimizer.lr, fused=True)
    for epoch in range(epochs):
        order = epoch_order(dataset.size("train"), cfg.seed, epoch)
        for index in order.split(cfg.trainer.batch_size)[:steps]:
            batch = dataset.batch("train", index, epoch)
            logits = model(batch.tokens, batch.layout)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return lambda: evaluate(model, dataset, "test", torch.autocast("cpu", enabled=False))["loss"]
