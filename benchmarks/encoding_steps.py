"""Time a training step with each encoding on one thread of a CPU, against a step with rope and with none.

    python -m benchmarks encoding_steps                           # every encoding for causal sequences
    python -m benchmarks encoding_steps --encodings path,dape_v2 --sizes 16x35,8x128 --rounds 200
    python -m benchmarks encoding_steps --to sweeps/results/steps.csv   # the table of the gallery and the documentation

A step is forward pass, backward pass, clipping, optimizer and `constrain` of the model and the optimizer of
`model=pe_bench`, on random tokens without padding. All encodings take a step in turn, in another order each round, and
times are those of the thread, so that other programs on the machine hardly count. Ratios are medians over rounds.
"""

import csv
import random
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from benchmarks import CONFIGS, run_benchmark
from pe_lab.config import expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.allocator import keep_freed_memory
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message
from pe_lab.training.metrics import cross_entropy
from pe_lab.training.optimization import Optimization

BASELINES = ("rope", "none")
VOCABULARY = 32
COLUMNS = ("sequences", "tokens", "pe", "ms", *BASELINES)  # the last ones are ratios of times
WARM_UP = 5  # rounds that are not counted


def step_of(name: str, batch: int, length: int) -> Callable[[int], None]:
    """Return a function that takes the training step of a number.

    Raises:
        UnfitError: the encoding is not defined for causal attention on a line, or needs more layers.
    """
    cfg = expand_overrides([f"pe={name}", "model=pe_bench"], False)[0]
    task = Task(VOCABULARY, length, VOCABULARY, causal=True)
    model = Transformer(cfg.model, Cell.from_config(cfg).encoding, task)
    initialise_parameters(model, 0)
    optimizer = Optimization(cfg.optimizer, 1).optimizer(model)
    tokens = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
    slot = torch.arange(batch * length)
    layout = task.layout(torch.full((batch,), length), length)

    def step(number: int) -> None:
        seeded = replace(layout, seed=number)  # a new one, whose facts are not known as yet
        loss = cross_entropy(model.answers(tokens, seeded, slot), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.trainer.clip)
        optimizer.step()
        model.encodings.constrain()

    return step


def seconds(steps: dict[str, Callable[[int], None]], rounds: int) -> dict[str, list[float]]:
    """Return the processor time of each step in each round."""
    order = list(steps)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    shuffle = random.Random(0)
    for number in range(WARM_UP + rounds):
        shuffle.shuffle(order)
        for name in order:
            start = time.thread_time()
            steps[name](number)
            if number >= WARM_UP:
                taken[name].append(time.thread_time() - start)
    return taken


def size(text: str) -> tuple[int, int]:
    """Return batch and length of "16x35".

    Raises:
        ValueError: the text is not two integers of at least 1.
    """
    batch, _, length = text.partition("x")
    if not (batch.isdecimal() and length.isdecimal() and min(int(batch), int(length)) >= 1):
        raise ValueError(f"--sizes must be sequences x tokens, as 16x35, got {text!r}")
    return int(batch), int(length)


def main() -> None:
    """Read the arguments and time the steps."""
    parser = Parser("benchmarks encoding_steps", description=__doc__)
    parser.add_argument("--encodings", help="names, separated by commas; all by default")
    parser.add_argument("--sizes", default="16x35,8x128", help="sequences x tokens, separated by commas")
    parser.add_argument("--rounds", type=int, default=100, help="steps of each encoding, at least 2")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the table as CSV")
    run_benchmark(parser, _time)


def _time(arguments: Namespace) -> None:
    if arguments.rounds < 2:
        raise ValueError(f"--rounds must be at least 2, got {arguments.rounds}")
    every = sorted(path.stem for path in (CONFIGS / "pe").glob("*.yaml"))
    chosen = arguments.encodings.split(",") if arguments.encodings else every
    for name in chosen:
        if name not in every:
            raise ValueError(unknown_name_message("--encodings", every, name))
    sizes = [size(text) for text in arguments.sizes.split(",")]
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    rows: list[tuple[int | str | float, ...]] = []
    for batch, length in sizes:
        steps = {}
        for name in dict.fromkeys((*BASELINES, *chosen)):
            try:
                steps[name] = step_of(name, batch, length)
            except UnfitError:
                if arguments.encodings:
                    raise
        taken = seconds(steps, arguments.rounds)
        print(f"{batch} x {length}: encoding, ms, ratio to {' and to '.join(BASELINES)}")
        for name in sorted(taken, key=lambda name: median(taken[name])):
            ratios = [median(a / b for a, b in zip(taken[name], taken[base], strict=True)) for base in BASELINES]
            ms = 1000 * median(taken[name])
            print(f"{name:22}{ms:8.2f}" + "".join(f"{ratio:7.2f}" for ratio in ratios))
            rows.append((batch, length, name, round(ms, 2), *(round(ratio, 2) for ratio in ratios)))
    if arguments.to:
        with arguments.to.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
