"""Time a training step on a GPU with each encoding, as usual and replayed as one CUDA graph.

    python -m benchmarks gpu_steps --to steps.csv                          # the encodings of the default list
    python -m benchmarks gpu_steps --encodings rope,t5 model.depth=16      # other settings, as of pe-lab run

A step is forward pass, backward pass, optimizer and `constrain` on batches that lie on the GPU already, without
Lightning around it. Times are wall times of 20 steps in a row, medians of 7 rounds, in milliseconds a step.
"""

import csv
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import run_benchmark
from pe_lab.config import expand_overrides
from pe_lab.experiment.cell import Cell
from pe_lab.system.arguments import Parser
from pe_lab.training.graph import CapturedStep

ENCODINGS = "none,rope,alibi,t5,learnable,sinusoidal,forgetting,stick_breaking,rse,kerple_power,deberta,cope"
COLUMNS = ("encoding", "attention", "usual_ms", "graph_ms", "ratio", "note")
BATCHES, WARM_UP, STEPS, ROUNDS = 8, 12, 20, 7


def main() -> None:
    """Read the arguments and time the steps."""
    parser = Parser("benchmarks gpu_steps", description=__doc__)
    parser.add_argument("--encodings", default=ENCODINGS, help="names of conf/pe, separated by commas")
    parser.add_argument("--attention", default="triton,auto", help="implementations, separated by commas")
    parser.add_argument("--to", type=Path, help="write the table there too, as CSV")
    parser.add_argument("overrides", nargs="*", help="settings of pe-lab run")
    run_benchmark(parser, _time)


def _time(arguments: Namespace) -> None:
    if not torch.cuda.is_available():
        raise ValueError("gpu_steps needs a CUDA device, got none")
    rows = []
    for encoding in arguments.encodings.split(","):
        for attention in arguments.attention.split(","):
            rows.append(measure_row(encoding, attention, arguments.overrides))
            print("  ".join(f"{rows[-1][column]!s:>14}" for column in COLUMNS), flush=True)
    if arguments.to:
        with arguments.to.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


def measure_row(encoding: str, attention: str, overrides: list[str]) -> dict[str, Any]:
    """Return the row of an encoding; where its step cannot be computed or captured, with the reason as a note."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"encoding": encoding, "attention": attention}
    words = [f"pe={encoding}", f"attention={attention}", "trainer.device=cuda", "trainer.graph=true", *overrides]
    try:
        training = Cell.from_config(expand_overrides(words, False)[0]).lightning_module()
        training.model.to("cuda")
        training.choose_graph(torch.device("cuda"))
        training.train()
        size = training.cfg.trainer.batch_size
        batches = [
            training.dataset.batch("train", part).to("cuda") for part in torch.arange(BATCHES * size).split(size)
        ]
        captured = CapturedStep(training)
        row["usual_ms"] = milliseconds(lambda number: captured._step(batches[number % BATCHES]))
        row["graph_ms"] = milliseconds(lambda number: captured(batches[number % BATCHES]))
        row["ratio"] = round(row["usual_ms"] / row["graph_ms"], 1)
    except (ValueError, RuntimeError) as error:
        row["note"] = " ".join(str(error).split())[:120]
    return row


def milliseconds(step: Callable[[int], object]) -> float:
    """Return the median time of a step, after a few that are not counted."""
    for number in range(WARM_UP):
        step(number)
    taken = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(STEPS):
            step(number)
        torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - began) / STEPS)
    return round(statistics.median(taken), 3)
